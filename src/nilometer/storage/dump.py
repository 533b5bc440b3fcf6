"""Dumping one file of a log directory, line by line, for operators and tools.

There is one dataclass for each kind of line. Damage raises nothing: it becomes a line of its own with the
byte position, so that a dump shows all that can be read. Read-only; safe while a broker is running.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from nilometer.runtime import Disk
from nilometer.storage import checkpoints, names, producers
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.producers import CorruptSnapshot, SnapshotEntry
from nilometer.storage.segments import transaction_index
from nilometer.storage.segments.batch_scan import scan
from nilometer.storage.segments.indexes import CorruptIndex, OffsetIndex, TimeIndex
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import BatchHeader, check_batch, read_header
from nilometer.wire.records import EndTxnMarker, Record, decode_records, read_end_txn_marker


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A batch of a ``.log`` file. ``records`` only for a deep dump of a valid batch.

    ``error``: why the batch is invalid; ``marker``: the transaction marker if it is one.
    """

    position: int
    header: BatchHeader
    error: str | None
    records: tuple[Record, ...] = ()
    marker: EndTxnMarker | None = None


@dataclass(frozen=True, slots=True)
class IndexLine:
    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class TimeIndexLine:
    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True)
class AbortedTxnLine:
    entry: AbortedTxn


@dataclass(frozen=True, slots=True)
class ProducerLine:
    entry: SnapshotEntry


@dataclass(frozen=True, slots=True)
class EpochLine:
    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class OffsetLine:
    """A line of an offset checkpoint of a log directory."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """The file is damaged from byte ``position`` on (0: the whole file)."""

    position: int
    error: str


DumpLine = (
    BatchLine | IndexLine | TimeIndexLine | AbortedTxnLine | ProducerLine | EpochLine | OffsetLine | ErrorLine
)

_OFFSET_CHECKPOINTS = (
    names.RECOVERY_POINT_CHECKPOINT,
    names.REPLICATION_OFFSET_CHECKPOINT,
    names.LOG_START_OFFSET_CHECKPOINT,
)


def dump_file(disk: Disk, path: str, *, deep: bool = False) -> Iterator[DumpLine]:
    """Yield the lines of one file; with ``deep`` the batches of a log include their records.

    Raises ValueError for an unknown kind of file, FileNotFoundError.
    """
    name = posixpath.basename(path)
    if name == names.LEADER_EPOCH_CHECKPOINT or name in _OFFSET_CHECKPOINTS:
        return _dump_checkpoint(disk, path, name)
    parsed = names.parse_offset_name(name)
    if parsed is None:
        raise ValueError(f"{path} is not a file of a log that can be dumped")
    base_offset, suffix = parsed
    if suffix == names.LOG_SUFFIX:
        return _dump_log(disk, path, deep)
    if suffix == names.INDEX_SUFFIX:
        return _dump_index(disk, path, base_offset)
    if suffix == names.TIME_INDEX_SUFFIX:
        return _dump_time_index(disk, path, base_offset)
    if suffix == names.TXN_INDEX_SUFFIX:
        return _dump_transaction_index(disk, path, base_offset)
    if suffix == names.SNAPSHOT_SUFFIX:
        return _dump_snapshot(disk, path)
    raise ValueError(f"{path} is not a file of a log that can be dumped")


def _dump_log(disk: Disk, path: str, deep: bool) -> Iterator[DumpLine]:
    file = disk.open(path, writable=False)
    end = 0
    try:
        for position, header, buffer, at in scan(file, 0, file.size()):
            end = position + header.size
            yield _batch_line(position, header, buffer, at, deep)
        if end < file.size():
            yield ErrorLine(end, f"{file.size() - end} bytes are not a complete batch")
    except KafkaError as error:
        yield ErrorLine(end, str(error))
    finally:
        file.close()


def _batch_line(position: int, header: BatchHeader, buffer: bytes, at: int, deep: bool) -> BatchLine:
    try:
        check_batch(buffer, at, header)
        records = tuple(decode_records(buffer, at, header)) if deep else ()
        marker = read_end_txn_marker(buffer, at, header) if header.is_control else None
        return BatchLine(position, header, None, records, marker)
    except KafkaError as error:
        return BatchLine(position, header, str(error))


def _dump_index(disk: Disk, path: str, base_offset: int) -> Iterator[DumpLine]:
    """Yield the entries, and an error for each whose position has no batch with that last offset."""
    try:
        index = OffsetIndex.parse(base_offset, disk.read_file(path))
        file = disk.open(path.removesuffix(names.INDEX_SUFFIX) + names.LOG_SUFFIX, writable=False)
    except (CorruptIndex, FileNotFoundError) as error:
        yield ErrorLine(0, str(error))
        return
    try:
        for slot, (offset, position) in enumerate(index.entries()):
            yield IndexLine(offset, position)
            found = _last_offset_at(file.read_at(position, 61))
            if found != offset:
                yield ErrorLine(slot * 8, f"points at a batch that ends at {found}, not {offset}")
    finally:
        file.close()


def _last_offset_at(data: bytes) -> int | None:
    try:
        return read_header(data).last_offset
    except KafkaError:
        return None


def _dump_time_index(disk: Disk, path: str, base_offset: int) -> Iterator[DumpLine]:
    try:
        index = TimeIndex.parse(base_offset, disk.read_file(path))
    except CorruptIndex as error:
        yield ErrorLine(0, str(error))
        return
    for timestamp, offset in index.entries():
        yield TimeIndexLine(timestamp, offset)


def _dump_transaction_index(disk: Disk, path: str, base_offset: int) -> Iterator[DumpLine]:
    try:
        entries = transaction_index.parse(base_offset, disk.read_file(path))
    except CorruptIndex as error:
        yield ErrorLine(0, str(error))
        return
    for entry in entries:
        yield AbortedTxnLine(entry)


def _dump_snapshot(disk: Disk, path: str) -> Iterator[DumpLine]:
    try:
        entries = producers.decode_snapshot(disk.read_file(path))
    except CorruptSnapshot as error:
        yield ErrorLine(0, str(error))
        return
    for entry in entries:
        yield ProducerLine(entry)


def _dump_checkpoint(disk: Disk, path: str, name: str) -> Iterator[DumpLine]:
    try:
        if name == names.LEADER_EPOCH_CHECKPOINT:
            for epoch, start_offset in checkpoints.read_epochs(disk, path):
                yield EpochLine(epoch, start_offset)
        else:
            for key, offset in sorted(checkpoints.read_offsets(disk, path).items()):
                yield OffsetLine(key.topic, key.partition, offset)
    except CorruptCheckpoint as error:
        yield ErrorLine(0, str(error))
