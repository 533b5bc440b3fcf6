"""Reads the batches of an offset range from a partition's folder in large pieces.

Finds segments by their names at the time of reading, so that an earlier plan stays valid when a segment has
grown, was compacted into another one, or was deleted by retention. Missing records raise DataLoss, corrupt
files SourceError, with the folder or file.

Invariant: the batches are returned in order, from at or before the first offset, and no offset is skipped
silently except those that the log does not contain. Where segments of an archive overlap, batches come again:
the decoder takes each offset once.
"""

from __future__ import annotations

import posixpath
import time
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nilometer.pipeline.decode.batch_table import BatchTable, walk
from nilometer.pipeline.errors import DataLoss, SourceError
from nilometer.pipeline.source.log_folders.places import open_place, shown
from nilometer.pipeline.source.log_folders.replica_folders import bases_among
from nilometer.storage import names
from nilometer.storage.segments.indexes import CorruptIndex, OffsetIndex
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import HEADER_BYTES, read_header

if TYPE_CHECKING:
    from nilometer.runtime import Disk, File

CHUNK_BYTES = 8 * 1024 * 1024
"""The size of one read; with small records about one Arrow batch."""
REPLACEMENT_WAIT_S = 10.0
"""How long the log cleaner may take to replace segments by a compacted one."""


class SliceReader:
    """Reads one partition's folder. ``path`` and ``position`` are file and position of the last table."""

    def __init__(self, place: str, *, fail_on_data_loss: bool = True, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._place = place
        self._disk, self._folder = open_place(place)
        self._fail_on_data_loss = fail_on_data_loss
        self._chunk_bytes = chunk_bytes
        self.path = place
        self.position = 0

    def tables(self, start: int, end: int) -> Iterator[BatchTable]:
        """Yield tables of the complete batches with offsets in [start, end), perhaps also some before.

        Raises DataLoss, SourceError.
        """
        next_offset, missing = start, -1
        while next_offset < end:
            bases = self._bases()
            slot = bisect_right(bases, next_offset) - 1
            if slot < 0:
                next_offset = self._lost(next_offset, min(bases[0], end) if bases else end)
                continue
            file = self._open(bases[slot])
            if file is None:
                if missing == bases[slot]:
                    path = self._path(missing, names.LOG_SUFFIX)
                    raise SourceError(f"{path} is listed but does not exist: run the query again")
                missing = bases[slot]  # removed since it was listed: look again
                continue
            try:
                for table in self._segment(file, bases[slot], next_offset, end):
                    next_offset = max(next_offset, int(table.next_offsets[-1]))
                    yield table
            finally:
                file.close()
            if next_offset < end:
                following = self._base_above(bases[slot])
                if following is None:
                    self._lost(next_offset, end)
                    return
                next_offset = max(next_offset, following)

    def _bases(self) -> list[int]:
        """Return the segments' base offsets; first wait for a replacement by a compacted segment to end.

        Raises SourceError if the replacement does not end.
        """
        deadline = time.monotonic() + REPLACEMENT_WAIT_S
        while True:
            listing = self._listing()
            swaps = [name for name in listing if name.endswith(names.LOG_SUFFIX + names.SWAP_SUFFIX)]
            if not swaps:
                return bases_among(listing)
            if time.monotonic() > deadline:
                raise SourceError(
                    f"{shown(self._place)} has an unfinished compaction ({swaps[0]}): "
                    "start its broker, which completes it"
                )
            time.sleep(0.05)

    def _listing(self) -> list[str]:
        try:
            return self._disk.list_directory(self._folder)
        except FileNotFoundError:
            if self._fail_on_data_loss:
                raise DataLoss(f"{shown(self._place)} does not exist any more") from None
            return []

    def _base_above(self, base_offset: int) -> int | None:
        return next((base for base in self._bases() if base > base_offset), None)

    def _open(self, base_offset: int) -> File | None:
        try:
            return self._disk.open(self._path(base_offset, names.LOG_SUFFIX), writable=False)
        except FileNotFoundError:
            return None

    def _path(self, base_offset: int, suffix: str) -> str:
        return posixpath.join(self._folder, names.offset_name(base_offset, suffix))

    def _segment(self, file: File, base_offset: int, start: int, end: int) -> Iterator[BatchTable]:
        position = position_near(self._disk, self._folder, file, base_offset, start)
        wanted = self._chunk_bytes
        while True:
            buffer = file.read_at(position, wanted)
            at = 0
            while True:
                table = walk(buffer, at)
                at = table.end
                if len(table):
                    self.path, self.position = file.path, position
                    yield table
                    if table.next_offsets[-1] >= end:
                        return
                if not table.is_header:
                    self._refuse(file.path, position + at, buffer, at)
                if len(table) == 0:
                    break
            if len(buffer) < wanted:
                return  # the end of the file, perhaps with a batch that is being written
            position += at
            wanted = self._chunk_bytes if at else max(self._chunk_bytes, _batch_size(buffer))

    def _refuse(self, path: str, position: int, buffer: bytes, at: int) -> None:
        try:
            read_header(buffer, at)
        except KafkaError as error:
            raise SourceError(f"{path} is damaged at byte {position}: {error.message}") from error

    def _lost(self, start: int, end: int) -> int:
        bases = bases_among(self._listing())
        begins = f"its log starts at {bases[0]}" if bases and bases[0] > start else "its log ends before that"
        if self._fail_on_data_loss:
            where = shown(self._place)
            raise DataLoss(f"offsets {start} to {end - 1} of {where} are no longer available: {begins}")
        return end


def position_near(disk: Disk, folder: str, file: File, base_offset: int, offset: int) -> int:
    """Return the position of a batch at or before ``offset``: by the index if it is correct, else 0."""
    entry = index_of(disk, folder, base_offset).lookup_entry(offset - 1) if offset > base_offset else None
    if entry is None:
        return 0
    last_offset, position = entry
    found = base_offset_at(file, position)
    return position if found is not None and base_offset <= found <= last_offset else 0


def index_of(disk: Disk, folder: str, base_offset: int) -> OffsetIndex:
    """Return a segment's offset index; an empty one if it is missing or corrupt."""
    try:
        data = disk.read_file(posixpath.join(folder, names.offset_name(base_offset, names.INDEX_SUFFIX)))
        whole = data[: len(data) - len(data) % 8]  # the last entry may be incomplete
        return OffsetIndex.parse(base_offset, whole)
    except (FileNotFoundError, CorruptIndex):
        return OffsetIndex(base_offset)


def base_offset_at(file: File, position: int) -> int | None:
    """Return the base offset of the batch at ``position``; None if no batch begins there."""
    try:
        return read_header(file.read_at(position, HEADER_BYTES)).base_offset
    except KafkaError:
        return None


def _batch_size(buffer: bytes) -> int:
    return read_header(buffer).size if len(buffer) >= HEADER_BYTES else HEADER_BYTES
