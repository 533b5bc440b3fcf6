"""A read-only view of a partition's folder: takes no lock, keeps no state, changes nothing.

For tools and for Spark, while a broker may be appending, rolling, compacting and deleting in the same folder.
Every read lists the segments, and lists them again if one was removed meanwhile; a batch that is still being
written is not returned. The caller gives the offset up to which to read (the high watermark).
"""

from __future__ import annotations

import posixpath
from collections.abc import Generator, Iterator
from typing import NamedTuple

from nilometer.runtime import Disk, File
from nilometer.storage import names
from nilometer.storage.errors import CorruptCheckpoint, CorruptRecordFound
from nilometer.storage.leader_epoch_cache import LeaderEpochCache
from nilometer.storage.segments.batch_scan import CHUNK_BYTES, scan
from nilometer.storage.segments.indexes import CorruptIndex, OffsetIndex
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import CorruptBatch, KafkaError
from nilometer.wire.record_batch import HEADER_BYTES, BatchHeader, check_batch, read_header


class FolderBatch(NamedTuple):
    """One batch and its place in its file: ``buffer[at : at + header.size]`` are its bytes."""

    path: str
    position: int
    header: BatchHeader
    buffer: Bytes
    at: int


class LogFolderReader:
    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder

    def base_offsets(self) -> list[int]:
        """Return the base offsets of the existing segments, ascending."""
        parsed = (names.parse_offset_name(name) for name in self._disk.list_directory(self._folder))
        return sorted(found[0] for found in parsed if found and found[1] == names.LOG_SUFFIX)

    def segment_path(self, base_offset: int, suffix: str = names.LOG_SUFFIX) -> str:
        return posixpath.join(self._folder, names.offset_name(base_offset, suffix))

    def epochs(self) -> LeaderEpochCache | None:
        """Return the leader epochs as last written; None if the checkpoint is damaged."""
        path = posixpath.join(self._folder, names.LEADER_EPOCH_CHECKPOINT)
        try:
            return LeaderEpochCache.load(self._disk, path)
        except CorruptCheckpoint:
            return None

    def batches(
        self,
        from_offset: int = 0,
        to_offset: int | None = None,
        *,
        verify: bool = True,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Iterator[FolderBatch]:
        """Yield the batches from the one that contains ``from_offset``, while they end below ``to_offset``.

        With ``verify`` every CRC and the order of offsets are checked. Raises CorruptRecordFound at the first
        damaged batch. ``chunk_bytes`` is the size of one read.
        """
        next_offset: int | None = from_offset
        while next_offset is not None:
            next_offset = yield from self._listed(next_offset, to_offset, verify, chunk_bytes)

    def _listed(
        self, from_offset: int, to_offset: int | None, verify: bool, chunk_bytes: int
    ) -> Generator[FolderBatch, None, int | None]:
        """Yield the batches of the segments that exist now.

        Returns None at the end; or, if a segment was removed meanwhile (by retention, or compacted into the
        one before it), the offset from which to continue with a new list of segments.
        """
        bases = self.base_offsets()
        first = max((index for index, base in enumerate(bases) if base <= from_offset), default=0)
        for base_offset, following in zip(bases[first:], [*bases[first + 1 :], None], strict=True):
            if to_offset is not None and base_offset >= to_offset:
                return None
            path = self.segment_path(base_offset)
            try:
                file = self._disk.open(path, writable=False)
            except FileNotFoundError:
                return from_offset
            try:
                start = self._position_near(file, base_offset, from_offset)
                found = self._segment(
                    file,
                    start,
                    max(from_offset, base_offset),
                    verify,
                    chunk_bytes,
                    is_sealed=following is not None,
                )
                if verify:
                    found = _in_order(found, None if start else base_offset, following)
                for batch in found:
                    if batch.header.last_offset < from_offset:
                        continue
                    if to_offset is not None and batch.header.next_offset > to_offset:
                        return None
                    from_offset = batch.header.next_offset
                    yield batch
            finally:
                file.close()
        return None

    def end_offset(self) -> int:
        """Return the offset after the last complete batch; the last segment's base offset if it is empty."""
        bases = self.base_offsets()
        end = bases[-1] if bases else 0
        for batch in self.batches(end, verify=False):
            end = batch.header.next_offset
        return end

    def _segment(
        self,
        file: File,
        position: int,
        from_offset: int,
        verify: bool,
        chunk_bytes: int,
        *,
        is_sealed: bool,
    ) -> Iterator[FolderBatch]:
        end, next_offset = position, from_offset
        try:
            for found, header, buffer, at in scan(file, position, file.size(), chunk_bytes):
                end, next_offset = found, header.base_offset
                if verify:
                    check_batch(buffer, at, header)
                yield FolderBatch(file.path, found, header, buffer, at)
                end, next_offset = found + header.size, header.next_offset
            if verify and is_sealed and end != file.size():
                raise CorruptBatch("the last batch does not end at the end of the file")
        except KafkaError as error:
            raise CorruptRecordFound(file.path, end, next_offset, str(error)) from error

    def _position_near(self, file: File, base_offset: int, offset: int) -> int:
        if offset <= base_offset:
            return 0
        try:
            data = self._disk.read_file(self.segment_path(base_offset, names.INDEX_SUFFIX))
            whole = data[: len(data) - len(data) % 8]  # the broker may be writing the last entry
            entry = OffsetIndex.parse(base_offset, whole).lookup_entry(offset - 1)
        except (FileNotFoundError, CorruptIndex):
            return 0
        return entry[1] if entry is not None and _is_true(file, *entry) else 0


def _is_true(file: File, last_offset: int, position: int) -> bool:
    """Whether an index entry is right: the batch at ``position`` has ``last_offset`` as its last offset."""
    try:
        return read_header(file.read_at(position, HEADER_BYTES)).last_offset == last_offset
    except KafkaError:
        return False


def _in_order(
    batches: Iterator[FolderBatch], floor: int | None, end_offset: int | None
) -> Iterator[FolderBatch]:
    """Yield ``batches`` unchanged; raise CorruptRecordFound if their offsets do not increase.

    The CRC does not cover the base offset. If a batch after a gap overlaps the next batch, or ends above
    ``end_offset`` (the segment's end, None if unknown), its base offset is wrong: so such a batch is only
    yielded when the next one has been read. ``floor`` is the expected first base offset, None for any.
    """
    held: FolderBatch | None = None
    held_floor = 0
    for batch in batches:
        base_offset = batch.header.base_offset
        if floor is not None and base_offset < floor:
            damaged, due = (batch, floor) if held is None else (held, held_floor)
            raise _out_of_order(damaged, due)
        if held is not None:
            yield held
            held = None
        if floor is not None and base_offset > floor:
            held, held_floor = batch, floor
        else:
            yield batch
        floor = batch.header.next_offset
    if held is not None:
        if end_offset is not None and held.header.next_offset > end_offset:
            raise _out_of_order(held, held_floor)
        yield held


def _out_of_order(batch: FolderBatch, due: int) -> CorruptRecordFound:
    reason = (
        f"batch with offsets {batch.header.base_offset} to {batch.header.last_offset}, but {due} is expected"
    )
    return CorruptRecordFound(batch.path, batch.position, due, reason)
