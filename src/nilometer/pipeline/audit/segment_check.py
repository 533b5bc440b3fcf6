"""Checks one segment of one replica: every batch's CRC, offsets and leader epoch, and every index entry.

The indexes are read before the log, and a broker writes the log before the indexes: so each index entry must
be found in the log as it is read here. The segments before and after are not considered here.

Invariant: the whole file is checked. After damaged bytes the check continues at the next batch, found by the
damaged batch's length or by the index.
"""

from __future__ import annotations

import enum
import posixpath
import struct
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from nilometer.pipeline.decode.batch_table import CONTROL, BatchTable, walk
from nilometer.pipeline.source.log_folders.storages import open_folder
from nilometer.storage import names, producers
from nilometer.storage.producers import CorruptSnapshot
from nilometer.storage.segments import transaction_index
from nilometer.storage.segments.indexes import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, CorruptIndex
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import read_header
from nilometer.wire.records import ControlType, read_end_txn_marker

if TYPE_CHECKING:
    from nilometer.runtime import File


# The findings of an audit, as values: each names its kind, the replica, the file and the place in it.


class Kind(enum.StrEnum):
    CORRUPT_BATCH = "corrupt batch"
    MISSING_RECORDS = "missing records"
    OFFSET_ORDER = "offset order"
    EPOCH = "leader epoch"
    INDEX = "offset index"
    TIME_INDEX = "time index"
    TRANSACTION_INDEX = "transaction index"
    PRODUCER_SNAPSHOT = "producer snapshot"
    CHECKPOINT = "checkpoint"
    DIVERGENCE = "diverging replica"
    COMMITTED_OFFSET = "committed offset"
    NOTE = "note"
    """For information: not an error."""


@dataclass(frozen=True, slots=True)
class Finding:
    kind: Kind
    topic: str
    partition: int
    replica: str
    """The broker that holds the replica (``broker 2``), or the log directory if it names no broker."""
    path: str
    position: int | None
    """The position in the file, in bytes; None if the finding has none."""
    offset: int | None
    what: str

    @property
    def is_wrong(self) -> bool:
        return self.kind is not Kind.NOTE

    @property
    def key(self) -> tuple[str, str, int | None, int | None]:
        """The identity of the finding: equal in two rounds that find the same."""
        return self.kind, self.path, self.position, self.offset

    @property
    def place(self) -> str:
        return self.path if self.position is None else f"{self.path}, byte {self.position}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Finding:
        """Return the finding from the value of :meth:`to_json`. Raises KeyError, ValueError."""
        return cls(
            Kind(value["kind"]),
            value["topic"],
            value["partition"],
            value["replica"],
            value["path"],
            value["position"],
            value["offset"],
            value["what"],
        )


# Checks the entries of a segment's indexes against the batches of the log, which are passed in order.
#
# An offset index is correct if the position of every entry is the beginning of a batch, from which its offset
# is found. The offset is the last one of that batch; brokers before Kafka 4.1 wrote the last one of all
# batches that were appended together, which is correct for readers and no error here. A time index is correct
# if each entry has the largest timestamp so far and the offset of a batch with it, and if the last entry of a
# sealed segment has the largest timestamp of all, which lookups and retention use.

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


CHUNK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SegmentWork:
    """One segment to check; ``replica`` is the name of the replica in findings."""

    topic: str
    partition: int
    replica: str
    place: str
    base_offset: int
    is_sealed: bool
    bytes: int
    cleaned_up_to: int = 0
    with_outlines: bool = False

    def path(self, suffix: str) -> str:
        return posixpath.join(self.place, names.offset_name(self.base_offset, suffix))


@dataclass(slots=True)
class SegmentResult:
    """What the check of one segment found. The check of its replica combines these."""

    place: str
    base_offset: int
    end_offset: int
    """The offset after the last batch."""
    bytes: int = 0
    batches: int = 0
    records: int = 0
    is_gone: bool = False
    """Whether it was deleted before it could be read."""
    is_empty: bool = True
    epochs: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(epoch, first offset) at every change of the leader epoch."""
    gaps: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """(first missing offset, next existing offset, position of its batch in bytes) of each gap."""
    findings: list[Finding] = field(default_factory=list[Finding])


class SegmentCheck:
    def __init__(self, work: SegmentWork) -> None:
        self.work = work
        self.result = SegmentResult(work.place, work.base_offset, work.base_offset)
        self._disk, self._folder = open_folder(work.place)
        self._offsets = OffsetIndexCheck(work.base_offset, self._read(names.INDEX_SUFFIX))
        self._times = TimeIndexCheck(work.base_offset, self._read(names.TIME_INDEX_SUFFIX))
        self._transactions = self._read(names.TXN_INDEX_SUFFIX)
        self._aborts: set[tuple[int, int]] = set()
        self._check_snapshot()

    def run(self) -> Iterator[BatchTable]:
        """Check the segment and set ``result``; yield the tables of its batches, for their outlines."""
        try:
            file = self._disk.open(self._on_disk(names.LOG_SUFFIX), writable=False)
        except FileNotFoundError:
            self.result.is_gone = True
            self.result.findings.clear()  # its index files were being deleted too
            return
        try:
            yield from self._tables(file)
        finally:
            file.close()
        self._close_indexes()

    # --- the log

    def _tables(self, file: File) -> Iterator[BatchTable]:
        end = file.size()
        self.result.bytes = end
        position, wanted = 0, CHUNK_BYTES
        while position < end:
            buffer = file.read_at(position, min(wanted, end - position))
            at = 0
            while True:
                table = walk(buffer, at)
                if len(table):
                    self._look_at(table, position)
                    yield table
                at = table.end
                if not table.is_header:
                    break
                if not len(table):
                    break
            if not table.is_header:
                following = self._behind_damage(file, buffer, position, at, end)
                if following is None:
                    return
                position, wanted = following, CHUNK_BYTES
            elif at == 0 and (len(buffer) == end - position or not buffer):
                self._cut_off(position, end)
                return
            else:
                position += at
                wanted = CHUNK_BYTES if at else max(CHUNK_BYTES, read_header(buffer).size)

    def _look_at(self, table: BatchTable, start: int) -> None:
        """Check the batches of one table; ``start`` is the position of its buffer in the file, in bytes."""
        from nilometer.pipeline.decode import batch_kernels as fields

        rows, result = table.rows, self.result
        self._check_sums(table, start)
        self._check_offsets(rows, start)
        self._check_epochs(rows, start)
        self._offsets.look_at(rows, start)
        self._times.look_at(rows)
        self._note_aborts(table)
        result.is_empty = False
        result.batches += len(rows)
        result.records += int(rows[:, fields.RECORDS_COUNT].sum())

    def _check_sums(self, table: BatchTable, start: int) -> None:
        from nilometer.pipeline.decode import batch_kernels as fields

        first = table.first_damaged()
        while first < len(table):
            row = table.rows[first]
            position = start + int(row[fields.POSITION])
            self._find(
                Kind.CORRUPT_BATCH,
                names.LOG_SUFFIX,
                position,
                int(row[fields.BASE_OFFSET]),
                _damage(table, first),
            )
            rest = BatchTable(table.buffer, table.rows[first + 1 :], table.end, table.is_header)
            first += 1 + rest.first_damaged()

    def _check_offsets(self, rows: Any, start: int) -> None:
        import numpy as np

        from nilometer.pipeline.decode import batch_kernels as fields

        bases = rows[:, fields.BASE_OFFSET]
        following = bases + rows[:, fields.LAST_OFFSET_DELTA] + 1
        expected = np.concatenate(([self.result.end_offset], following[:-1]))
        for index in (bases != expected).nonzero()[0].tolist():
            base, before = int(bases[index]), int(expected[index])
            position = start + int(rows[index, fields.POSITION])
            if base > before:
                self.result.gaps.append((before, base, position))
            else:
                what = f"the base offset is {base}, but must be {before} or more"
                self._find(Kind.OFFSET_ORDER, names.LOG_SUFFIX, position, base, what)
        self.result.end_offset = int(following[-1])

    def _check_epochs(self, rows: Any, start: int) -> None:
        import numpy as np

        from nilometer.pipeline.decode import batch_kernels as fields

        epochs = rows[:, fields.LEADER_EPOCH]
        runs = self.result.epochs
        before = np.concatenate(([runs[-1][0] if runs else epochs[0] - 1], epochs[:-1]))
        for index in (epochs != before).nonzero()[0].tolist():
            epoch, base = int(epochs[index]), int(rows[index, fields.BASE_OFFSET])
            if runs and epoch < runs[-1][0]:
                position = start + int(rows[index, fields.POSITION])
                what = f"leader epoch {epoch} comes after epoch {runs[-1][0]}"
                self._find(Kind.EPOCH, names.LOG_SUFFIX, position, base, what)
            runs.append((epoch, base))

    def _note_aborts(self, table: BatchTable) -> None:
        from nilometer.pipeline.decode import batch_kernels as fields

        rows = table.rows
        for row in rows[rows[:, fields.ATTRIBUTES] & CONTROL != 0]:
            try:
                position = int(row[fields.POSITION])
                marker = read_end_txn_marker(table.buffer, position, read_header(table.buffer, position))
            except KafkaError:
                continue  # its wrong CRC has been reported
            if marker is not None and marker.control_type is ControlType.ABORT:
                self._aborts.add((int(row[fields.PRODUCER_ID]), int(row[fields.BASE_OFFSET])))

    def _behind_damage(self, file: File, buffer: bytes, position: int, at: int, end: int) -> int | None:
        """Report bytes that are no batch; return the position at which to continue, or None.

        ``buffer`` was read at ``position``; the damaged bytes begin at ``at`` in it.
        """
        here = position + at
        rest = buffer[at:]
        if not self.work.is_sealed and not rest.strip(b"\0"):
            return None  # the end of an active segment may be preallocated
        self._find(Kind.CORRUPT_BATCH, names.LOG_SUFFIX, here, self.result.end_offset, _no_header(buffer, at))
        for found in self._offsets.positions_behind(here):
            if found < end and _is_header(file, found):
                return found
        return None

    def _cut_off(self, position: int, end: int) -> None:
        """Report an incomplete last batch, unless the segment is active: the rest may still be written."""
        if self.work.is_sealed:
            what = f"the last {end - position} bytes are not a complete batch"
            self._find(Kind.CORRUPT_BATCH, names.LOG_SUFFIX, position, self.result.end_offset, what)

    # --- the other files of the segment

    def _close_indexes(self) -> None:
        work, sealed = self.work, self.work.is_sealed
        for position, offset, what in self._offsets.findings(sealed):
            self._find(Kind.INDEX, names.INDEX_SUFFIX, position, offset, what)
        for position, offset, what in self._times.findings(sealed):
            self._find(Kind.TIME_INDEX, names.TIME_INDEX_SUFFIX, position, offset, what)
        if self._transactions is not None and work.base_offset >= work.cleaned_up_to:
            for position, offset, what in check_transaction_index(
                work.base_offset, self._transactions, self._aborts, self.result.end_offset
            ):
                self._find(Kind.TRANSACTION_INDEX, names.TXN_INDEX_SUFFIX, position, offset, what)

    def _check_snapshot(self) -> None:
        data = self._read(names.SNAPSHOT_SUFFIX)
        if data is None:
            return
        try:
            producers.decode_snapshot(data)
        except CorruptSnapshot as error:
            self._find(Kind.PRODUCER_SNAPSHOT, names.SNAPSHOT_SUFFIX, None, self.work.base_offset, str(error))

    def _read(self, suffix: str) -> bytes | None:
        try:
            return self._disk.read_file(self._on_disk(suffix))
        except FileNotFoundError:
            return None

    def _on_disk(self, suffix: str) -> str:
        return posixpath.join(self._folder, names.offset_name(self.work.base_offset, suffix))

    def _find(self, kind: Kind, suffix: str, position: int | None, offset: int | None, what: str) -> None:
        work = self.work
        self.result.findings.append(
            Finding(kind, work.topic, work.partition, work.replica, work.path(suffix), position, offset, what)
        )


def _damage(table: BatchTable, row: int) -> str:
    try:
        BatchTable(table.buffer, table.rows[row : row + 1], table.end, table.is_header).check()
    except KafkaError as error:
        return error.message.partition(": ")[2]
    raise AssertionError("the batch was damaged when it was read first, and is valid now")


def _no_header(buffer: bytes, at: int) -> str:
    try:
        read_header(buffer, at)
    except KafkaError as error:
        return f"the bytes are no batch: {error.message}"
    return "the bytes are no batch"


def _is_header(file: File, position: int) -> bool:
    try:
        read_header(file.read_at(position, 61))
    except KafkaError:
        return False
    return True
