"""Finds a partition's aborted transactions and its last stable offset, for read_committed.

Aborted transactions are read from the transaction index of each segment, or from the control batches of the
log if there are no indexes, as in a copy of only ``.log`` files. Open transactions are found by reading the
log from the newest producer snapshot on.

Invariants: below the last stable offset every transaction is committed or aborted. Segments that are deleted
meanwhile are skipped here: reading the slices reports what is missing.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nilometer.pipeline.decode.batch_table import CONTROL, TRANSACTIONAL, BatchTable
from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders.slice_reader import SliceReader
from nilometer.pipeline.source.log_folders.stored_files import open_place
from nilometer.storage import names
from nilometer.storage.producers import producer_snapshot
from nilometer.storage.producers.producer_snapshot import CorruptSnapshot
from nilometer.storage.segments import transaction_index
from nilometer.storage.segments.offset_index import CorruptIndex
from nilometer.wire.control_records import ControlType, read_end_txn_marker
from nilometer.wire.record_batch import read_header

if TYPE_CHECKING:
    import numpy

    from nilometer.runtime import Disk


@dataclass(frozen=True, slots=True, order=True)
class Aborted:
    """An aborted transaction, from its first record to its abort marker at ``last_offset``."""

    first_offset: int
    last_offset: int
    producer_id: int

    def overlaps(self, start: int, end: int) -> bool:
        return self.first_offset < end and self.last_offset >= start


class CommittedRows:
    """A function to call with each table: returns, per batch, whether its records are not aborted."""

    def __init__(self, aborted: Sequence[Aborted]) -> None:
        self._aborted = sorted(aborted)

    def __call__(self, table: BatchTable) -> numpy.ndarray[Any, Any]:
        import numpy as np

        from nilometer.pipeline.decode import batch_kernels as fields

        bases, producers = table.column(fields.BASE_OFFSET), table.column(fields.PRODUCER_ID)
        transactional = table.column(fields.ATTRIBUTES) & TRANSACTIONAL != 0
        dropped = np.zeros(len(table), np.bool_)
        if transactional.any():
            for one in self._aborted:
                if one.overlaps(int(bases[0]), int(bases[-1]) + 1):
                    dropped |= (
                        (producers == one.producer_id)
                        & (bases >= one.first_offset)
                        & (bases <= one.last_offset)
                    )
        return ~(dropped & transactional)


class OpenTransactions:
    """Follows the batches of a log in order; collects open and aborted transactions."""

    def __init__(self, open_since: dict[int, int] | None = None) -> None:
        self.open_since = dict(open_since or {})
        """Producer id to the offset of the first record of its open transaction."""
        self.aborted: list[Aborted] = []

    def follow(self, table: BatchTable, start: int, end: int) -> None:
        """Take the batches of ``table`` that begin in [start, end)."""
        from nilometer.pipeline.decode import batch_kernels as fields

        rows = table.rows
        bases, attributes = rows[:, fields.BASE_OFFSET], rows[:, fields.ATTRIBUTES]
        wanted = (bases >= start) & (bases < end) & (attributes & TRANSACTIONAL != 0)
        for row in rows[wanted]:
            producer_id, base_offset = int(row[fields.PRODUCER_ID]), int(row[fields.BASE_OFFSET])
            if row[fields.ATTRIBUTES] & CONTROL:
                self._end(table.buffer, int(row[fields.POSITION]), producer_id, base_offset)
            else:
                self.open_since.setdefault(producer_id, base_offset)

    def _end(self, buffer: bytes | memoryview, position: int, producer_id: int, offset: int) -> None:
        marker = read_end_txn_marker(buffer, position, read_header(buffer, position))
        first_offset = self.open_since.pop(producer_id, None)
        if marker is not None and marker.control_type is ControlType.ABORT and first_offset is not None:
            self.aborted.append(Aborted(first_offset, offset, producer_id))

    def last_stable_offset(self, end: int) -> int:
        return min([end, *self.open_since.values()])


def last_stable_offset(place: str, bases: Sequence[int], log_start: int, high_watermark: int) -> int:
    """Return the last stable offset: below it every transaction is committed or aborted.

    It is at most ``high_watermark``. ``place`` is the path or URI of the partition's folder, ``bases`` are
    the segments' base offsets.
    """
    start, open_since = _newest_snapshot(place, log_start, high_watermark)
    state = OpenTransactions(open_since)
    start = max(start, log_start, bases[0] if bases else 0)
    for table in SliceReader(place, fail_on_data_loss=False).tables(start, high_watermark):
        state.follow(table, start, high_watermark)
    return state.last_stable_offset(high_watermark)


def find_aborted(place: str, bases: Sequence[int], start: int, end: int) -> list[Aborted]:
    """Return the aborted transactions that overlap [start, end); ``end`` is at most the last stable offset.

    ``place`` and ``bases`` are as for :func:`last_stable_offset`. Raises SourceError for a corrupt
    transaction index.
    """
    if start >= end:
        return []
    disk, folder = open_place(place)
    if any(not disk.exists(_path(folder, base, names.INDEX_SUFFIX)) for base in bases):
        state = OpenTransactions()
        for table in SliceReader(place, fail_on_data_loss=False).tables(bases[0], end):
            state.follow(table, bases[0], end)
        # No transaction is open at ``end``, so the log below ``end`` contains all abort markers.
        return [one for one in state.aborted if one.overlaps(start, end)]
    return [
        Aborted(one.first_offset, one.last_offset, one.producer_id)
        for one in _indexed(disk, folder, bases, start, end)
    ]


def _indexed(
    disk: Disk, folder: str, bases: Sequence[int], start: int, end: int
) -> Iterable[transaction_index.AbortedTxn]:
    first = max((slot for slot, base in enumerate(bases) if base <= start), default=0)
    for base in bases[first:]:
        path = _path(folder, base, names.TXN_INDEX_SUFFIX)
        try:
            entries = transaction_index.parse(base, disk.read_file(path))
        except FileNotFoundError:
            continue  # nothing was aborted in this segment
        except CorruptIndex as error:
            raise SourceError(f"{path} is damaged: {error}") from error
        found, is_done = transaction_index.collect(entries, start, end)
        yield from found
        if is_done:
            return


def _newest_snapshot(place: str, log_start: int, high_watermark: int) -> tuple[int, dict[int, int]]:
    """Return the offset of the newest usable producer snapshot, and the transactions open there.

    The transactions are a mapping from producer id to first offset. If there is no snapshot, the result is
    ``log_start`` and no transactions.
    """
    disk, folder = open_place(place)
    parsed = (names.parse_offset_name(name) for name in disk.list_directory(folder))
    offsets = sorted(found[0] for found in parsed if found and found[1] == names.SNAPSHOT_SUFFIX)
    for offset in reversed(offsets):
        if not log_start <= offset <= high_watermark:
            continue
        try:
            entries = producer_snapshot.decode(disk.read_file(_path(folder, offset, names.SNAPSHOT_SUFFIX)))
        except (FileNotFoundError, CorruptSnapshot):
            continue
        return offset, {
            one.producer_id: one.current_txn_first_offset
            for one in entries
            if one.current_txn_first_offset >= 0
        }
    return log_start, {}


def _path(folder: str, offset: int, suffix: str) -> str:
    return posixpath.join(folder, names.offset_name(offset, suffix))
