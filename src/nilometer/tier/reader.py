"""Reading what is in the tier: records from an offset, offsets by time, the state of a log that begins later.

A manifest says which segment has an offset, the segment's index object says where in its bytes. Indexes and
bytes pass through two caches (:class:`RemoteCache`), which all partitions of a broker share: what several
readers ask for at once is requested once, and a reader that leaves does not take it from the others. Both are
bounded in bytes.

Every batch's CRC is checked. Raises ObjectStoreError, DamagedObject, and OffsetOutOfRange if the manifest
has no such offset; an object that was removed since the manifest was read is ObjectNotFound: read the chain
again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar, cast

from nilometer.runtime import Disk
from nilometer.runtime.gathering import gather
from nilometer.runtime.object_store import ObjectStore
from nilometer.storage.errors import OffsetOutOfRange
from nilometer.storage.reading import ABORTED_MAX
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.storage.time_search import TimestampOffset
from nilometer.tier.format import (
    SEGMENTS_OF_A_LINE,
    DamagedObject,
    IndexSections,
    Manifest,
    RemoteIndexes,
    RemoteSegment,
    decode_index,
    parse_indexes,
)
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import (
    BatchHeader,
    batches,
    check_batch,
    read_header,
    skip_good_batches,
)
from nilometer.wire.record_heads import record_heads

T = TypeVar("T")

CHUNK_BYTES = 1 << 20
"""Objects are read in ranges that begin at a multiple of this."""
READ_AHEAD_CHUNKS = 2
"""How many chunks are requested beyond those that a read needs: the next read continues there."""
CHUNKS_CACHED_BYTES = 64 << 20
PIECE_BYTES_MAX = 8 << 20
"""The most bytes that one read returns, unless its first batch is larger."""
_PIECE_BYTES_MIN = 16 << 10
SEARCHED_BYTES = 64 << 10
"""So many bytes of batches are searched for a timestamp before other clients are served."""
BATCHES_MAX = 16_384
"""So many batches are checked at once: those of many megabytes would take the event loop too long."""

# The cache.


class SharedCache(Generic[T]):
    """Values by key, fetched once for all who wait, and kept while they fit."""

    def __init__(self, bytes_max: int, weight: Callable[[T], int]) -> None:
        self.bytes_max = bytes_max
        self._weight = weight
        self._values: OrderedDict[object, T] = OrderedDict()
        self.bytes = 0
        self._fetches: dict[object, asyncio.Task[T]] = {}

    async def get(self, key: object, fetch: Callable[[], Awaitable[T]]) -> T:
        """Return the value of ``key``; ``fetch`` it unless it is here or on its way."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
            return value
        # Shielded: a reader that is cancelled must not take the value from the others that wait for it.
        return await asyncio.shield(self.begin(key, fetch))

    def begin(self, key: object, fetch: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """Fetch the value of ``key``, which is not here, unless it is on its way."""
        task = self._fetches.get(key)
        if task is None:
            task = self._fetches[key] = asyncio.create_task(self._fetch(key, fetch))
            task.add_done_callback(_look_at)
        return task

    def has(self, key: object) -> bool:
        return key in self._values

    def forget(self, is_meant: Callable[[object], bool]) -> None:
        """Fetch the values of these keys again when they are asked for."""
        for key in [key for key in self._values if is_meant(key)]:
            self.bytes -= self._weight(self._values.pop(key))

    def resize(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._shrink()

    async def close(self) -> None:
        """Cancel what is on its way."""
        for task in tuple(self._fetches.values()):
            task.cancel()
        await gather(*self._fetches.values(), return_exceptions=True)

    async def _fetch(self, key: object, fetch: Callable[[], Awaitable[T]]) -> T:
        try:
            value = await fetch()
        finally:
            del self._fetches[key]
        self._values[key] = value
        self.bytes += self._weight(value)
        self._shrink()
        return value

    def _shrink(self) -> None:
        while self.bytes > self.bytes_max and len(self._values) > 1:
            self.bytes -= self._weight(self._values.popitem(last=False)[1])


def _look_at(task: asyncio.Task[T]) -> None:
    """Keep asyncio from reporting an error for which no reader waits any more: a later reader asks again."""
    if not task.cancelled():
        task.exception()


async def _next_iteration() -> None:
    await asyncio.sleep(0)


class RemoteCache:
    """The bytes and indexes of remote segments that were read last."""

    def __init__(
        self,
        store: ObjectStore,
        disk: Disk,
        index_bytes_max: int,
        before_request: Callable[[int], Awaitable[None]] | None = None,
        next_turn: Callable[[], Awaitable[None]] = _next_iteration,
    ) -> None:
        """``disk``: on whose threads indexes are parsed, and batches checked. ``before_request``: waits until
        so many bytes may be requested, for a limit on the bandwidth. ``next_turn``: waits until a search may
        take its next step."""
        self._store = store
        self.next_turn = next_turn
        self.disk = disk
        self._before_request = before_request
        self.chunks: SharedCache[bytes] = SharedCache(CHUNKS_CACHED_BYTES, len)
        self.indexes: SharedCache[RemoteIndexes] = SharedCache(index_bytes_max, _index_weight)

    async def sections(self, folder: str, segment: RemoteSegment) -> IndexSections:
        """Return the segment's index object, which is not kept."""
        name = folder + segment.index_name
        data = await self._request(name, 0, segment.index_bytes)
        return await self.disk.offload(lambda: decode_index(data, name))

    async def indexes_of(self, folder: str, segment: RemoteSegment) -> RemoteIndexes:
        async def fetch() -> RemoteIndexes:
            sections = await self.sections(folder, segment)
            name = folder + segment.index_name
            return await self.disk.offload(lambda: parse_indexes(sections, segment.base_offset, name))

        return await self.indexes.get(folder + segment.index_name, fetch)

    async def bytes_of(self, folder: str, segment: RemoteSegment, start: int, end: int) -> bytes:
        """Return bytes ``[start, end)`` of the segment's log file, and request those that follow."""
        name, size = folder + segment.log_name, segment.log_bytes
        end = min(end, size)
        first, last = start // CHUNK_BYTES, (max(end, start + 1) - 1) // CHUNK_BYTES
        for number in range(first, min(last + READ_AHEAD_CHUNKS, (size - 1) // CHUNK_BYTES) + 1):
            if not self.chunks.has((name, number)):
                self.chunks.begin((name, number), self._chunk(name, number, size))
        parts = [
            await self.chunks.get((name, number), self._chunk(name, number, size))
            for number in range(first, last + 1)
        ]
        start, end = start - first * CHUNK_BYTES, end - first * CHUNK_BYTES
        if len(parts) == 1:
            return parts[0][start:end]
        return await self.disk.offload(lambda: b"".join(parts)[start:end])

    @contextmanager
    def forgetting_damage(self, folder: str) -> Generator[None]:
        """Forget the bytes of a partition's objects if what is done finds damage: they may have been damaged
        on their way, and whole when they are requested again. Bytes are kept before they are checked."""
        try:
            yield
        except DamagedObject:
            self.chunks.forget(lambda key: cast(tuple[str, int], key)[0].startswith(folder))
            raise

    async def close(self) -> None:
        await self.chunks.close()
        await self.indexes.close()

    def _chunk(self, name: str, number: int, size: int) -> Callable[[], Awaitable[bytes]]:
        start = number * CHUNK_BYTES
        return lambda: self._request(name, start, min(CHUNK_BYTES, size - start))

    async def _request(self, name: str, start: int, length: int) -> bytes:
        if self._before_request is not None:
            await self._before_request(length)
        data = await self._store.get(name, start, length)
        if len(data) != length:
            raise DamagedObject(f"{name} ends at byte {start + len(data)} instead of {start + length}")
        return data


def _index_weight(indexes: RemoteIndexes) -> int:
    return 256 + 8 * len(indexes.offsets) + 12 * len(indexes.times) + 34 * len(indexes.aborted)


# Records.


class RemoteRecords(NamedTuple):
    """Complete batches of one remote segment."""

    records: bytes
    next_offset: int


class LogState(NamedTuple):
    """What a replica needs to begin its log at ``start_offset``, without the records below."""

    start_offset: int
    epochs: tuple[tuple[int, int], ...]
    """The leader epochs of all records below."""
    producers: bytes
    """A snapshot of the producers at ``start_offset``; empty if there are none."""


class RemoteReader:
    """Reads the segments of one manifest, in the partition's folder."""

    def __init__(self, cache: RemoteCache, folder: str, manifest: Manifest) -> None:
        self._cache = cache
        self._folder = folder
        self._manifest = manifest

    async def read(self, offset: int, max_bytes: int) -> RemoteRecords:
        """Return the batches from the one that contains ``offset`` on: about ``max_bytes``, at least one.

        Those after a gap that contains ``offset``, which compaction may have left; none if the tier ends
        with the gap: the local log has what follows.
        """
        segment = self._segment_with(offset)
        with self._cache.forgetting_damage(self._folder):
            while (found := await self._read_in(segment, offset, max_bytes)) is None:
                place = self._manifest.holding(segment.end_offset)
                if place is None:
                    return RemoteRecords(b"", segment.end_offset)
                segment = self._manifest.segments[place]
        return found

    async def _read_in(self, segment: RemoteSegment, offset: int, max_bytes: int) -> RemoteRecords | None:
        """Return batches of the segment; None if it ends with a gap that contains ``offset``."""
        if not segment.log_bytes:
            return None
        indexes = await self._cache.indexes_of(self._folder, segment)
        indexed, position = indexes.offsets.lookup_entry(offset) or (segment.base_offset, 0)
        start, floor = position, segment.base_offset
        before: tuple[_Piece, int, BatchHeader] | None = None
        while True:
            piece = await self._piece(segment, position, min(max_bytes, PIECE_BYTES_MAX))
            behind: tuple[int, BatchHeader] | None = None
            for at, header in piece.batches():
                if header.base_offset < floor:
                    raise piece.damage(at, f"offset {header.base_offset} where {floor} is the least")
                if header.last_offset >= offset:
                    if header.base_offset <= offset:
                        return await self._records_from(piece, at, header, max_bytes, segment)
                    behind = at, header
                    break
                before, floor = (piece, at, header), header.next_offset
            position += piece.end
            if behind is None and position < segment.log_bytes:
                await self._cache.next_turn()
                continue
            if start == 0 or floor > indexed:
                break
            # No batch has the indexed offset: the index was wrong when it was copied.
            position, start, floor, before = 0, 0, segment.base_offset, None
        _check_last(before)
        if behind is None:
            return None
        await self._check_behind(segment, piece, *behind)
        return await self._records_from(piece, *behind, max_bytes, segment)

    def _records_from(
        self, piece: _Piece, at: int, header: BatchHeader, max_bytes: int, segment: RemoteSegment
    ) -> Awaitable[RemoteRecords]:
        """Check batches beside the event loop: 4 MiB of small ones take 10 ms."""
        return self._cache.disk.offload(lambda: piece.records_from(at, header, max_bytes, segment))

    async def _check_behind(
        self, segment: RemoteSegment, piece: _Piece, at: int, header: BatchHeader
    ) -> None:
        """Check the offsets of the batch behind a gap: a CRC does not cover the base offset."""
        following, end_offset = piece.position + at + header.size, segment.end_offset
        if following < segment.log_bytes:
            end_offset = (await self._piece(segment, following, 0)).first.base_offset
        if header.next_offset > end_offset:
            raise piece.damage(
                at, f"offsets {header.base_offset} to {header.last_offset}, but {end_offset} follows"
            )

    async def aborted(
        self, from_offset: int, upper_bound_offset: int, records: bytes
    ) -> tuple[list[AbortedTxn], int | None]:
        """Return the aborted transactions that overlap the range, from the segments of the tier.

        ``records``: those in the range; if thousands of transactions were open then, those of other producers
        are left out. The second value is None if these are all, or else the offset from which the local log
        has the others: a transaction that begins in the range may end behind the tier.
        """
        found, local_from = await self._aborted(from_offset, upper_bound_offset, at_most=ABORTED_MAX)
        are_few = len(found) <= ABORTED_MAX
        if not are_few:
            producers = {header.producer_id for _, header in batches(records)}
            found, local_from = await self._aborted(from_offset, upper_bound_offset, producers)
        return list(found), local_from

    async def _aborted(
        self,
        from_offset: int,
        upper_bound_offset: int,
        producers: Collection[int] | None = None,
        at_most: int | None = None,
    ) -> tuple[dict[AbortedTxn, None], int | None]:
        found: dict[AbortedTxn, None] = {}
        place = self._manifest.holding(from_offset)
        for number, some in enumerate(self._lines(place)):
            if number:
                await self._cache.next_turn()
            for segment in [one for one in some if one.has_aborted]:
                indexes = await self._cache.indexes_of(self._folder, segment)
                entries, is_done = indexes.aborted.collect(
                    from_offset, upper_bound_offset, producers, at_most
                )
                found |= dict.fromkeys(entries)
                if is_done:
                    return found, None
                if at_most is not None and len(found) > at_most:
                    return found, self._manifest.end_offset
        return found, self._manifest.end_offset

    def _lines(self, place: int | None = 0) -> Iterator[tuple[RemoteSegment, ...]]:
        """Yield the segments from ``place`` on, none if that is None, in parts between which others have
        their turn."""
        segments = self._manifest.segments
        for at in range(len(segments) if place is None else place, len(segments), SEGMENTS_OF_A_LINE):
            yield segments[at : at + SEGMENTS_OF_A_LINE]

    async def offset_for_timestamp(self, timestamp: int, offset_min: int) -> TimestampOffset | None:
        """Return the first record from ``offset_min`` on with a timestamp of at least ``timestamp``.

        None if the tier has none.
        """
        with self._cache.forgetting_damage(self._folder):
            return await self._offset_for_timestamp(timestamp, offset_min)

    async def _offset_for_timestamp(self, timestamp: int, offset_min: int) -> TimestampOffset | None:
        for number, some in enumerate(self._lines()):
            if number:
                await self._cache.next_turn()
            for segment in some:
                if segment.max_timestamp >= timestamp and segment.last_offset >= offset_min:
                    found = await self._first_of(segment, timestamp, offset_min)
                    if found is not None:
                        return found
        return None

    async def _first_of(
        self, segment: RemoteSegment, timestamp: int, offset_min: int
    ) -> TimestampOffset | None:
        indexes = await self._cache.indexes_of(self._folder, segment)
        entry = indexes.times.lookup_entry(timestamp - 1)
        position = max(
            0 if entry is None else indexes.offsets.lookup(entry[1]), indexes.offsets.lookup(offset_min)
        )
        while position < segment.log_bytes:
            piece = await self._piece(segment, position, SEARCHED_BYTES)
            for at, header in piece.batches():
                piece.check(at, header)  # or a damaged header could hide the wanted record
                if header.max_timestamp >= timestamp and header.last_offset >= offset_min:
                    found = await self._first_in(piece, at, header, timestamp, offset_min)
                    if found is not None:
                        return found
            position += piece.end
            await self._cache.next_turn()
        return None

    async def _first_in(
        self, piece: _Piece, at: int, header: BatchHeader, timestamp: int, offset_min: int
    ) -> TimestampOffset | None:
        try:
            for heads in record_heads(piece.buffer, at, header):
                for delta, stamp in zip(heads.offset_deltas, heads.timestamps, strict=True):
                    if stamp >= timestamp and header.base_offset + delta >= offset_min:
                        return TimestampOffset(
                            stamp, header.base_offset + delta, header.partition_leader_epoch
                        )
                await self._cache.next_turn()  # each step may take a millisecond
        except KafkaError as error:
            raise piece.damage(at, str(error)) from error
        return None

    async def state_at(self, offset: int) -> LogState:
        """Return the state of a log that begins where the segment with the record before ``offset`` ends."""
        segment = self._segment_with(offset - 1)
        epochs = dict[int, int]()
        for number, some in enumerate(self._lines()):
            if number:
                await self._cache.next_turn()
            for one in some:
                if one.base_offset <= segment.base_offset:
                    for epoch, start in one.epochs:
                        epochs.setdefault(epoch, start)
            if some[-1].base_offset > segment.base_offset:
                break
        sections = await self._cache.sections(self._folder, segment)
        return LogState(segment.end_offset, tuple(epochs.items()), sections.producers)

    def _segment_with(self, offset: int) -> RemoteSegment:
        place = self._manifest.holding(offset)
        if place is None:
            segments = self._manifest.segments
            start = segments[0].base_offset if segments else self._manifest.log_start_offset
            raise OffsetOutOfRange(offset, start, self._manifest.end_offset, self._folder)
        return self._manifest.segments[place]

    async def _piece(self, segment: RemoteSegment, position: int, wanted: int) -> _Piece:
        """Return bytes of the segment from ``position`` on, which begin with a whole batch."""
        name, wanted = self._folder + segment.log_name, max(wanted, _PIECE_BYTES_MIN)
        while True:
            buffer = await self._cache.bytes_of(self._folder, segment, position, position + wanted)
            piece = _Piece(name, position, buffer)
            whole = piece.first.size
            if whole <= len(buffer):
                return piece
            if len(buffer) < wanted:
                raise piece.damage(0, "the object ends within a batch")
            wanted = whole


class _Piece:
    """A part of a log file from ``position`` on. Raises DamagedObject."""

    def __init__(self, name: str, position: int, buffer: bytes) -> None:
        self._name = name
        self.position = position
        self.buffer = buffer
        self.end = 0
        """Where the last batch ends that :meth:`batches` has yielded."""

    @property
    def first(self) -> BatchHeader:
        try:
            return read_header(self.buffer)
        except KafkaError as error:
            raise self.damage(0, str(error)) from error

    def batches(self) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the whole batches, each with its place in the buffer."""
        try:
            for at, header in batches(self.buffer):
                self.end = at + header.size
                yield at, header
        except KafkaError as error:
            raise self.damage(self.end, str(error)) from error

    def records_from(
        self, at: int, header: BatchHeader, max_bytes: int, segment: RemoteSegment
    ) -> RemoteRecords:
        """Return the batches from the one at ``at`` on: what fits, and at least that one."""
        limit = min(at + max(max_bytes, header.size), len(self.buffer))
        end, next_offset, _ = skip_good_batches(
            self.buffer, at, limit, header.base_offset, segment.end_offset, BATCHES_MAX
        )
        if end == at:
            self.check(at, header)
            raise self.damage(at, f"offsets up to {header.last_offset} are beyond the segment")
        return RemoteRecords(self.buffer[at:end], next_offset)

    def check(self, at: int, header: BatchHeader) -> None:
        try:
            check_batch(self.buffer, at, header)
        except KafkaError as error:
            raise self.damage(at, str(error)) from error

    def damage(self, at: int, reason: str) -> DamagedObject:
        return DamagedObject(f"{self._name}, byte {self.position + at}: {reason}")


def _check_last(before: tuple[_Piece, int, BatchHeader] | None) -> None:
    """Check the batch before a gap: with other bytes it may reach further."""
    if before is not None:
        piece, at, header = before
        piece.check(at, header)
