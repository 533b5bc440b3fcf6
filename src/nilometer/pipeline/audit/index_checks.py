"""Checks the entries of a segment's indexes against the batches of the log, which are passed in order.

An offset index is correct if the position of every entry is the beginning of a batch, from which its offset
is found. The offset is the last one of that batch; brokers before Kafka 4.1 wrote the last one of all batches
that were appended together, which is correct for readers and no error here.
A time index is correct if each entry has the largest timestamp so far and the offset of a batch with it, and
if the last entry of a sealed segment has the largest timestamp of all, which lookups and retention use.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Any

from nilometer.storage.segments import transaction_index
from nilometer.storage.segments.indexes import OFFSET_ENTRY_SIZE, CorruptIndex
from nilometer.storage.segments.indexes import TIME_ENTRY_SIZE as TIME_ENTRY_SIZE

IndexFinding = tuple[int | None, int | None, str]
"""Position in the index file, offset, description of the error."""

_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


class OffsetIndexCheck:
    def __init__(self, base_offset: int, data: bytes | None) -> None:
        import numpy as np

        self._is_missing = data is None
        entries = list(_ENTRY.iter_unpack(_written(data or b"", OFFSET_ENTRY_SIZE)))
        self._offsets = np.array([base_offset + entry[0] for entry in entries], np.int64)
        self._positions = np.array([entry[1] for entry in entries], np.int64)
        self._findings: dict[int, str] = {}
        self._seen = np.zeros(len(entries), np.bool_)
        self._waiting: dict[int, int] = {}
        """Offset to entry number, of entries whose offset is after the batch at their position."""
        self._end = 0
        for number in range(1, len(entries)):
            if entries[number][0] <= entries[number - 1][0] or entries[number][1] <= entries[number - 1][1]:
                self._findings[number] = "is not greater than the previous entry"

    def positions_behind(self, position: int) -> list[int]:
        return sorted(int(one) for one in self._positions if one > position)

    def look_at(self, rows: Any, start: int) -> None:
        import numpy as np

        from nilometer.pipeline.decode import batch_kernels as fields

        positions = rows[:, fields.POSITION] + start
        ends = positions + rows[:, fields.SIZE]
        lasts = rows[:, fields.BASE_OFFSET] + rows[:, fields.LAST_OFFSET_DELTA]
        self._resolve(lasts, ends)
        inside = ((self._positions >= positions[0]) & (self._positions < ends[-1])).nonzero()[0]
        for number in inside.tolist():
            self._seen[number] = True
            row = int(np.searchsorted(positions, self._positions[number], "right")) - 1
            self._check_entry(
                number, rows[row], int(positions[row]), int(lasts[row]), lasts[row:], ends[row:]
            )
        self._end = int(ends[-1])

    def _check_entry(self, number: int, row: Any, position: int, last: int, lasts: Any, ends: Any) -> None:
        from nilometer.pipeline.decode import batch_kernels as fields

        offset = int(self._offsets[number])
        if position != self._positions[number]:
            what = f"points to byte {int(self._positions[number])}, inside the batch at byte {position}"
            self._findings.setdefault(number, what)
        elif offset != last:
            if offset < row[fields.BASE_OFFSET] or offset < last:
                self._findings.setdefault(
                    number, f"points to the batch at byte {position}, whose last offset is {last}"
                )
            else:
                self._waiting[offset] = number
                self._resolve(lasts, ends)

    def _resolve(self, lasts: Any, ends: Any) -> None:
        """Check waiting entries for several batches: the last batch must end before the next entry's."""
        for offset, number in list(self._waiting.items()):
            found = (lasts == offset).nonzero()[0]
            if len(found):
                del self._waiting[offset]
                following = self._positions[number + 1] if number + 1 < len(self._positions) else None
                if following is not None and ends[found[0]] > following:
                    self._findings.setdefault(
                        number, "has the offset of a batch after the position of the next entry"
                    )
            elif len(lasts) and lasts[-1] > offset:
                del self._waiting[offset]
                self._findings.setdefault(number, "has an offset at which no batch ends")

    def findings(self, is_sealed: bool) -> Iterator[IndexFinding]:
        if self._is_missing and is_sealed:
            yield None, None, "the file does not exist"
        for number in (~self._seen).nonzero()[0].tolist():
            self._findings.setdefault(
                number, f"points to byte {int(self._positions[number])}, but the log ends at byte {self._end}"
            )
        for number in self._waiting.values():
            self._findings.setdefault(number, "has an offset at which no batch ends")
        for number, what in sorted(self._findings.items()):
            offset = int(self._offsets[number])
            yield number * OFFSET_ENTRY_SIZE, offset, f"entry {number} (offset {offset}) {what}"


class TimeIndexCheck:
    def __init__(self, base_offset: int, data: bytes | None) -> None:
        self._is_missing = data is None
        self._begins_with_zeros = data is not None and data[:TIME_ENTRY_SIZE] == bytes(TIME_ENTRY_SIZE)
        """Whether it begins with zeros: an entry of time 0 at the base offset, or preallocated space."""
        self._entries: list[tuple[int, int]] = []
        for timestamp, relative in _TIME_ENTRY.iter_unpack(_written(data or b"", TIME_ENTRY_SIZE)):
            if (timestamp, relative) == (0, 0):
                break  # preallocated space
            self._entries.append((timestamp, base_offset + relative))
        self._next = 0
        self._newest = -1
        self._findings: dict[int, str] = {}

    def look_at(self, rows: Any) -> None:
        import numpy as np

        from nilometer.pipeline.decode import batch_kernels as fields

        times = rows[:, fields.MAX_TIMESTAMP]
        newest = np.maximum(np.maximum.accumulate(times), self._newest)
        lasts = rows[:, fields.BASE_OFFSET] + rows[:, fields.LAST_OFFSET_DELTA]
        while self._next < len(self._entries) and self._entries[self._next][1] <= lasts[-1]:
            timestamp, offset = self._entries[self._next]
            row = int(np.searchsorted(lasts, offset))
            if times[row] != timestamp or newest[row] != timestamp or offset < rows[row, fields.BASE_OFFSET]:
                self._findings[self._next] = (
                    f"has timestamp {timestamp}, but its batch has {int(times[row])}, and the largest so far "
                    f"is {int(newest[row])}"
                )
            self._next += 1
        self._newest = int(newest[-1])

    def findings(self, is_sealed: bool) -> Iterator[IndexFinding]:
        if self._is_missing and is_sealed:
            yield None, None, "the file does not exist"
            return
        for number in range(self._next, len(self._entries)):
            self._findings.setdefault(number, "is after the end of the log")
        for number in range(1, len(self._entries)):
            before, here = self._entries[number - 1], self._entries[number]
            if here[0] <= before[0] or here[1] < before[1]:
                self._findings.setdefault(number, "is not greater than the previous entry")
        for number, what in sorted(self._findings.items()):
            offset = self._entries[number][1]
            yield number * TIME_ENTRY_SIZE, offset, f"entry {number} (offset {offset}) {what}"
        last = self._entries[-1][0] if self._entries else -1
        if not self._entries and self._begins_with_zeros and self._newest == 0:
            last = 0
        if is_sealed and not self._findings and last != self._newest:
            yield (
                None,
                None,
                f"the last entry has timestamp {last}, but the largest timestamp is {self._newest}",
            )


def _written(data: bytes, entry_size: int) -> bytes:
    """Return the whole entries, without the 10 MB that Kafka preallocates for the active segment's index."""
    used = -(-len(data.rstrip(b"\0")) // entry_size) * entry_size
    return data[: min(used, len(data) // entry_size * entry_size)]


def check_transaction_index(
    base_offset: int, data: bytes, aborts: Collection[tuple[int, int]], end_offset: int
) -> Iterator[IndexFinding]:
    """Yield the entries for which the log has no abort marker, and those that end before they begin.

    ``aborts`` are (producer id, offset) of the log's abort markers.
    """
    try:
        entries = transaction_index.parse(base_offset, data)
    except CorruptIndex as error:
        yield None, None, str(error)
        return
    for number, entry in enumerate(entries):
        if entry.last_offset >= end_offset or (entry.producer_id, entry.last_offset) not in aborts:
            what = f"producer {entry.producer_id} has no abort marker at offset {entry.last_offset}"
        elif entry.first_offset > entry.last_offset:
            what = f"its transaction begins at {entry.first_offset}, after its end at {entry.last_offset}"
        else:
            continue
        yield number * transaction_index.ENTRY_SIZE, entry.last_offset, f"entry {number}: {what}"
