"""Finds a partition's aborted transactions and its last stable offset, for read_committed.

Aborted transactions are read from the transaction index of each segment, or from the control batches of the
log if there are no indexes, as in a copy of only ``.log`` files. Open transactions are found by reading the
log from the newest producer snapshot on.

Invariants: below the last stable offset every transaction is committed or aborted. Segments that are deleted
meanwhile are skipped here: reading the slices reports what is missing.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nilometer.pipeline.decode.batch_table import CONTROL, TRANSACTIONAL, BatchTable
from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders.places import open_place
from nilometer.pipeline.source.log_folders.slice_reader import SliceReader
from nilometer.storage import names
from nilometer.storage.producers import CorruptSnapshot, decode_snapshot
from nilometer.storage.segments import transaction_index
from nilometer.storage.segments.indexes import CorruptIndex
from nilometer.wire.record_batch import read_header
from nilometer.wire.records import ControlType, read_end_txn_marker

if TYPE_CHECKING:
    import numpy

    from nilometer.pipeline.source.log_folders.log_parts import LogPart


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


def last_stable_offset(parts: Sequence[LogPart]) -> int:
    """Return the last stable offset: below it every transaction is committed or aborted.

    ``parts`` are those of a log without a gap, up to its high watermark; the result is at most their end.
    """
    return _state_at_end(parts).last_stable_offset(parts[-1].end)


def cut_off(part: LogPart) -> list[Aborted]:
    """Return the transactions that are open at the end of ``part``, as if they had been aborted there.

    For a part that a gap follows: their markers may be lost with it.
    """
    state = _state_at_end([part])
    return [Aborted(first, part.end - 1, producer) for producer, first in state.open_since.items()]


def _state_at_end(parts: Sequence[LogPart]) -> OpenTransactions:
    """Follow the log from the newest producer snapshot on; without one, from its beginning."""
    number, start, state = 0, parts[0].start, OpenTransactions()
    for candidate in reversed(range(len(parts))):
        found = _newest_snapshot(parts[candidate])
        if found is not None:
            number, start, state = candidate, found[0], OpenTransactions(found[1])
            break
    for part in parts[number:]:
        low = max(start, part.start)
        for table in SliceReader(part.place, fail_on_data_loss=False).tables(low, part.end):
            state.follow(table, low, part.end)
    return state


def find_aborted(parts: Sequence[LogPart], start: int, end: int) -> list[Aborted]:
    """Return the aborted transactions that overlap [start, end); ``end`` is at most the last stable offset.

    ``parts`` are those of one log, up to its high watermark. Raises SourceError for a corrupt transaction
    index.
    """
    if start >= end:
        return []
    if any(not _has_indexes(part) for part in parts):
        return [one for one in _aborted_in_batches(parts) if one.overlaps(start, end)]
    found: set[Aborted] = set()
    for part in parts:
        entries, is_done = _indexed(part, start, end)
        found.update(Aborted(one.first_offset, one.last_offset, one.producer_id) for one in entries)
        if is_done:
            break
    return sorted(found)


def _has_indexes(part: LogPart) -> bool:
    disk, folder = open_place(part.place)
    return all(disk.exists(_path(folder, base, names.INDEX_SUFFIX)) for base in part.bases)


def _aborted_in_batches(parts: Sequence[LogPart]) -> list[Aborted]:
    """Find the aborted transactions by their markers, which may be above the last stable offset."""
    state = OpenTransactions()
    for number, part in enumerate(parts):
        low = part.start if number or not part.bases else part.bases[0]
        for table in SliceReader(part.place, fail_on_data_loss=False).tables(low, part.end):
            state.follow(table, low, part.end)
    return state.aborted


def _indexed(part: LogPart, start: int, end: int) -> tuple[list[transaction_index.AbortedTxn], bool]:
    """Return what the indexes of a part have about [start, end), and whether no later part has more."""
    disk, folder = open_place(part.place)
    first = max((slot for slot, base in enumerate(part.bases) if base <= start), default=0)
    found: list[transaction_index.AbortedTxn] = []
    for base in part.bases[first:]:
        path = _path(folder, base, names.TXN_INDEX_SUFFIX)
        try:
            entries = transaction_index.parse(base, disk.read_file(path))
        except FileNotFoundError:
            continue  # nothing was aborted in this segment
        except CorruptIndex as error:
            raise SourceError(f"{path} is damaged: {error}") from error
        overlapping, is_done = transaction_index.collect(entries, start, end)
        found += overlapping
        if is_done:
            return found, True
    return found, False


def _newest_snapshot(part: LogPart) -> tuple[int, dict[int, int]] | None:
    """Return the offset of the newest usable producer snapshot of a part, and the transactions open there.

    The transactions are a mapping from producer id to first offset.
    """
    disk, folder = open_place(part.place)
    parsed = (names.parse_offset_name(name) for name in disk.list_directory(folder))
    offsets = sorted(found[0] for found in parsed if found and found[1] == names.SNAPSHOT_SUFFIX)
    for offset in reversed(offsets):
        if not part.start <= offset <= part.end:
            continue
        try:
            entries = decode_snapshot(disk.read_file(_path(folder, offset, names.SNAPSHOT_SUFFIX)))
        except (FileNotFoundError, CorruptSnapshot):
            continue
        return offset, {
            one.producer_id: one.current_txn_first_offset
            for one in entries
            if one.current_txn_first_offset >= 0
        }
    return None


def _path(folder: str, offset: int, suffix: str) -> str:
    return posixpath.join(folder, names.offset_name(offset, suffix))
