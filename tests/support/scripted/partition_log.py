"""A partition's log in memory, with the sequence checks of idempotent producers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nilometer.wire.errors import ErrorCode
from nilometer.wire.record_batch import batches, check_batch, patched_header, read_header
from nilometer.wire.records import Record, decode_records

REMEMBERED = 5
"""Batches of a producer whose sequences are known, as in Kafka."""


@dataclass
class _Producer:
    epoch: int
    last: list[tuple[int, int, int]] = field(default_factory=list)
    """(first sequence, last sequence, base offset) of the newest batches."""


@dataclass
class PartitionLog:
    leader: int = 1
    epoch: int = 0
    batches: list[bytes] = field(default_factory=list)
    log_start: int = 0
    end: int = 0
    epoch_starts: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    producers: dict[int, _Producer] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """(producer id, first offset, last offset)"""
    held_at: int | None = None
    """Keeps the high watermark at this offset, as if a follower lagged; None: commit records at once."""

    @property
    def high_watermark(self) -> int:
        return self.end if self.held_at is None else min(self.held_at, self.end)

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        header = read_header(data)
        check_batch(data, 0, header)
        if header.producer_id >= 0:
            code, known = self._check_sequence(header)
            if code is not ErrorCode.none or known is not None:
                return code, known if known is not None else -1
        base = self.end
        fixed = patched_header(data, 0, base_offset=base, leader_epoch=self.epoch)
        self.batches.append(fixed + data[len(fixed) :])
        self.end += header.records_count
        if header.producer_id >= 0:
            state = self.producers.setdefault(header.producer_id, _Producer(header.producer_epoch))
            state.last.append((header.base_sequence, header.last_sequence, base))
            del state.last[:-REMEMBERED]
        return ErrorCode.none, base

    def _check_sequence(self, header: Any) -> tuple[ErrorCode, int | None]:
        state = self.producers.get(header.producer_id)
        if state is None:
            return ErrorCode.none, None
        if header.producer_epoch < state.epoch:
            return ErrorCode.invalid_producer_epoch, None
        if header.producer_epoch > state.epoch:
            if header.base_sequence != 0:
                return ErrorCode.out_of_order_sequence_number, None
            self.producers[header.producer_id] = _Producer(header.producer_epoch)
            return ErrorCode.none, None
        for first, last, base in state.last:
            if (first, last) == (header.base_sequence, header.last_sequence):
                return ErrorCode.none, base
        expected = (state.last[-1][1] + 1) & 0x7FFF_FFFF if state.last else 0
        if header.base_sequence != expected:
            return ErrorCode.out_of_order_sequence_number, None
        return ErrorCode.none, None

    def records(self) -> list[Record]:
        found: list[Record] = []
        for data in self.batches:
            found += decode_records(data, 0, read_header(data))
        return found

    def truncate(self, offset: int) -> None:
        """Truncate the log to ``offset``, as an unclean election does."""
        self.batches = [data for data in self.batches if read_header(data).last_offset < offset]
        self.end = read_header(self.batches[-1]).next_offset if self.batches else self.log_start
        self.epoch_starts = [entry for entry in self.epoch_starts if entry[1] < max(self.end, 1)]

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return committed batches from ``offset`` on, at most ``max_bytes`` but at least one batch."""
        out: list[bytes] = []
        size = 0
        for data in self.batches:
            if read_header(data).last_offset < offset:
                continue
            if read_header(data).last_offset >= self.high_watermark:
                break
            if out and size + len(data) > max_bytes:
                break
            out.append(data)
            size += len(data)
        return b"".join(out)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        found = -1
        for index, (known, _) in enumerate(self.epoch_starts):
            if known <= epoch:
                found = index
        if found < 0:
            return -1, -1
        later = self.epoch_starts[found + 1 :]
        return self.epoch_starts[found][0], later[0][1] if later else self.end


def batch_count(data: bytes) -> int:
    return sum(1 for _ in batches(data))
