"""Reads one sealed segment, checks every batch of it, and copies it with its other files.

The log is read twice: once to check it and for its checksum, which is part of its name, and once to copy it.
The other files are read before the log is opened: a broker renames the log first when it deletes a segment,
so that those of a log that is still there are complete.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crc32c import crc32c

from nilometer.pipeline.audit.index_checks import check_transaction_index
from nilometer.pipeline.decode.batch_table import CONTROL, BatchTable, walk
from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders.archive_manifest import ArchivedSegment, StoredFile, file_name
from nilometer.storage import names
from nilometer.wire.errors import CorruptBatch, KafkaError
from nilometer.wire.record_batch import read_header
from nilometer.wire.records import ControlType, read_end_txn_marker

if TYPE_CHECKING:
    from nilometer.runtime import Disk, File

CHUNK_BYTES = 8 * 1024 * 1024

Write = Callable[[str, Iterator[bytes]], object]
"""Writes a file of the archive's partition: its name, its pieces."""


class SegmentChanged(Exception):
    """The segment was deleted, or replaced by another one, since it was listed: the message says which."""


@dataclass(slots=True)
class ExaminedLog:
    """What the batches of a segment's log say."""

    end_offset: int
    bytes: int = 0
    crc32c: int = 0
    records: int = 0
    max_timestamp: int = -1
    epochs: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    aborts: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """(producer id, offset) of each abort marker."""


def copy_segment(
    disk: Disk, folder: str, base_offset: int, end_offset: int, start_offset: int, token: int, write: Write
) -> ArchivedSegment:
    """Copy the segment with the offsets [base_offset, end_offset) of a replica's folder.

    ``token`` makes the names of the copies unique. Raises SegmentChanged, SourceError for a damaged segment,
    and what ``write`` raises.
    """
    others = _other_files(disk, folder, base_offset, end_offset)
    path = posixpath.join(folder, names.offset_name(base_offset, names.LOG_SUFFIX))
    try:
        file = disk.open(path, writable=False)
    except FileNotFoundError as error:
        raise SegmentChanged(f"{path} was listed and then deleted") from error
    try:
        log = examine(file, base_offset)
        if log.end_offset != end_offset:
            raise SegmentChanged(
                f"{path} ends at offset {log.end_offset}, but the next segment begins at {end_offset}: "
                "records are missing between them"
            )
        _check_aborted(path, base_offset, log, others.get(names.TXN_INDEX_SUFFIX))
        stored = {
            names.LOG_SUFFIX: StoredFile(
                file_name(base_offset, log.crc32c, token, names.LOG_SUFFIX), log.bytes, log.crc32c
            )
        }
        write(stored[names.LOG_SUFFIX].name, _pieces(file, log))
    finally:
        file.close()
    for suffix, data in others.items():
        checksum = crc32c(data)
        stored[suffix] = StoredFile(file_name(base_offset, checksum, token, suffix), len(data), checksum)
        write(stored[suffix].name, iter([data]))
    return ArchivedSegment(
        base_offset,
        start_offset,
        log.end_offset,
        log.records,
        log.max_timestamp,
        tuple(log.epochs),
        stored,
    )


def examine(file: File, base_offset: int) -> ExaminedLog:
    """Check all batches of a sealed segment's log: checksums, offsets without a gap, leader epochs.

    Raises SourceError for the first batch that is wrong.
    """
    log = ExaminedLog(base_offset)
    size, wanted = file.size(), CHUNK_BYTES
    while log.bytes < size:
        buffer = file.read_at(log.bytes, min(wanted, size - log.bytes))
        end = _examine_batches(file.path, buffer, log)
        if end:
            with memoryview(buffer) as view:
                log.crc32c = crc32c(view[:end], log.crc32c)
            log.bytes += end
            wanted = CHUNK_BYTES
            continue
        batch = _batch_size(buffer)
        if batch <= len(buffer) or log.bytes + batch > size:
            raise SourceError(f"{file.path} is damaged at byte {log.bytes}: its last batch is not complete")
        wanted = batch
    return log


def _examine_batches(path: str, buffer: bytes, log: ExaminedLog) -> int:
    """Check the complete batches of ``buffer``; return the position after them."""
    at = 0
    while True:
        table = walk(buffer, at)
        if len(table):
            _look_at(path, table, log)
        at = table.end
        if not table.is_header:
            _refuse(path, buffer, at, log.bytes + at)
        if not len(table):
            return at


def _look_at(path: str, table: BatchTable, log: ExaminedLog) -> None:
    from nilometer.pipeline.decode import batch_kernels as fields

    try:
        table.check()
    except CorruptBatch as error:
        raise SourceError(f"{path} is damaged: {error.message}") from error
    rows = table.rows
    for base, delta, epoch in zip(
        rows[:, fields.BASE_OFFSET].tolist(),
        rows[:, fields.LAST_OFFSET_DELTA].tolist(),
        rows[:, fields.LEADER_EPOCH].tolist(),
        strict=True,
    ):
        if base != log.end_offset:
            raise SourceError(
                f"{path}: a batch has the base offset {base}, but the one before it ends at {log.end_offset}"
            )
        if not log.epochs or epoch != log.epochs[-1][0]:
            if log.epochs and epoch < log.epochs[-1][0]:
                raise SourceError(
                    f"{path}: leader epoch {epoch} at offset {base} comes after epoch {log.epochs[-1][0]}"
                )
            log.epochs.append((epoch, base))
        log.end_offset = base + delta + 1
    log.records += int(rows[:, fields.RECORDS_COUNT].sum())
    log.max_timestamp = max(log.max_timestamp, int(rows[:, fields.MAX_TIMESTAMP].max()))
    for row in rows[rows[:, fields.ATTRIBUTES] & CONTROL != 0]:
        position = int(row[fields.POSITION])
        marker = read_end_txn_marker(table.buffer, position, read_header(table.buffer, position))
        if marker is not None and marker.control_type is ControlType.ABORT:
            log.aborts.add((int(row[fields.PRODUCER_ID]), int(row[fields.BASE_OFFSET])))


def _refuse(path: str, buffer: bytes, at: int, position: int) -> None:
    try:
        read_header(buffer, at)
    except KafkaError as error:
        raise SourceError(f"{path} is damaged at byte {position}: {error.message}") from error


def _batch_size(buffer: bytes) -> int:
    try:
        return read_header(buffer).size
    except KafkaError:
        return 0  # fewer bytes than a header has


def _other_files(disk: Disk, folder: str, base_offset: int, end_offset: int) -> dict[str, bytes]:
    """Read the indexes and the producer snapshot at the end of the segment, those that exist."""
    indexes = (names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX, names.TXN_INDEX_SUFFIX)
    offsets: dict[str, int] = {**dict.fromkeys(indexes, base_offset), names.SNAPSHOT_SUFFIX: end_offset}
    found: dict[str, bytes] = {}
    for suffix, offset in offsets.items():
        try:
            found[suffix] = disk.read_file(posixpath.join(folder, names.offset_name(offset, suffix)))
        except FileNotFoundError:
            continue
    return found


def _check_aborted(path: str, base_offset: int, log: ExaminedLog, index: bytes | None) -> None:
    if index is None:
        return
    for _, _, what in check_transaction_index(base_offset, index, log.aborts, log.end_offset):
        raise SourceError(f"the transaction index of {path} does not match it: {what}")


def _pieces(file: File, log: ExaminedLog) -> Iterator[bytes]:
    """Yield the bytes of a log that was examined. Raises SegmentChanged if they are others now."""
    position = checksum = 0
    while position < log.bytes:
        piece = file.read_at(position, min(CHUNK_BYTES, log.bytes - position))
        checksum = crc32c(piece, checksum)
        position += len(piece)
        if not piece or (position == log.bytes and checksum != log.crc32c):
            raise SegmentChanged(f"{file.path} was changed while it was copied")
        yield piece
