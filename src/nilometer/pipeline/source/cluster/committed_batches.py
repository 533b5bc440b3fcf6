"""Decides which batches of one Fetch response are committed (read_committed). Pure.

The response lists the aborted transactions among its records: producer id and first offset. Each ends at the
producer's abort marker, a control record among the records.

Invariant: the batches are passed in the order of their offsets, each once.
"""

from __future__ import annotations

from collections.abc import Iterable

from nilometer.wire.record_batch import BatchHeader
from nilometer.wire.records import ControlType, control_type, decode_records


class CommittedBatches:
    """A function to call with each batch, control batches too: returns whether to return its records."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """``aborted`` are (producer id, first offset) of the aborted transactions."""
        self._to_come = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._aborting: set[int] = set()

    def __call__(self, buffer: bytes | memoryview, position: int, header: BatchHeader) -> bool:
        while self._to_come and self._to_come[-1][1] <= header.last_offset:
            self._aborting.add(self._to_come.pop()[0])
        if header.producer_id not in self._aborting:
            return True
        if header.is_control:
            records = decode_records(buffer, position, header)
            if any(control_type(record) is ControlType.ABORT for record in records):
                self._aborting.discard(header.producer_id)
        return not header.is_transactional
