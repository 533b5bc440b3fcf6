"""Reading from remote storage for requests: what a broker's other parts know of it.

Reads of the same records are one, also if their requests come one after another: a client whose fetch has
waited long enough asks again, and gets what is read for the first one. So a read goes on until it has ended,
even if no request waits any more. How many go on at once is bounded, and how many wait for those; of one
origin fewer, and origins take turns.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from nilometer.broker.connection import Origin
from nilometer.broker.replicas.readable_partition import ReadablePartition
from nilometer.broker.rooms import Room
from nilometer.broker.settings.tiering import FETCH_WAIT_MS, SEARCH_WAIT_MS, TierConfig
from nilometer.broker.tasks import Tasks
from nilometer.storage.errors import OffsetOutOfRange
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.storage.time_search import TimestampOffset
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")

SHARES = 2
"""Into so many the reads that go on at once are divided: one client may have many partitions to read."""
ORIGINS = 8
"""An origin that has begun less than this part of the reads that may wait begins further ones when no other
may, until there are twice as many."""
STARTS_AT_ONCE = 4
"""How many followers read at once what they need to go on behind remote storage."""


class RemoteRecords(NamedTuple):
    records: Bytes
    """Whole batches, the first one with the offset that was asked for."""
    aborted: Sequence[AbortedTxn]
    """The aborted transactions among them, for a reader of committed records."""


class RemoteState(Protocol):
    """What a log needs in order to go on behind records in remote storage."""

    @property
    def start_offset(self) -> int:
        """Where it goes on: the records below are in remote storage."""
        ...

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """The leader epochs of the records below, with their start offsets."""
        ...

    @property
    def producers(self) -> bytes:
        """A snapshot of the producers at the start offset."""
        ...


class RemoteReader(Protocol):
    """Reads what partitions have in remote storage. Each method raises KafkaError."""

    async def read(
        self, partition: ReadablePartition, offset: int, max_bytes: int, *, read_committed: bool
    ) -> tuple[Bytes, Sequence[AbortedTxn]]:
        """Return batches from the one that contains ``offset``: at least one, and no more than ``max_bytes``
        of them otherwise. Raises OffsetOutOfRange if they are not in remote storage."""
        ...

    async def offset_for_timestamp(
        self, partition: ReadablePartition, timestamp: int
    ) -> TimestampOffset | None:
        """Return the first record, from the log start offset on, that is not older than ``timestamp``; None
        if there is none in remote storage."""
        ...

    async def state_at(self, partition: ReadablePartition, offset: int) -> RemoteState:
        """Return the state at the end of the segment that contains the record before ``offset``."""
        ...

    async def check_own(self, partition: ReadablePartition) -> None:
        """Raises KafkaError if remote storage has records of another cluster, or of another leader, in place
        of this leader's."""
        ...


class RemoteReads:
    """All methods are called on the event loop."""

    def __init__(self, config: TierConfig | None, tasks: Tasks) -> None:
        self._tasks = tasks
        self.reader: RemoteReader | None = None
        """None if the broker has no remote storage."""
        self.fetch_wait_ms = FETCH_WAIT_MS if config is None else config.fetch_wait_max_ms
        self.search_wait_ms = SEARCH_WAIT_MS if config is None else config.list_offsets_timeout_ms
        self._places = Room(0 if config is None else config.reads_at_once, SHARES)
        self._begun_max = 0 if config is None else config.reads_at_once + config.pending_reads_max
        self._begun = Counter[Origin]()
        """The reads that have begun, and wait or go on; no origin has 0."""
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._reads: dict[tuple[ReadablePartition, int, int, bool], asyncio.Task[RemoteRecords]] = {}

    def configure(self, config: TierConfig) -> None:
        """Take the waiting times; how many reads go on at once stays as it was."""
        self.fetch_wait_ms, self.search_wait_ms = config.fetch_wait_max_ms, config.list_offsets_timeout_ms

    def read(
        self,
        origin: Origin,
        partition: ReadablePartition,
        offset: int,
        max_bytes: int,
        *,
        read_committed: bool,
    ) -> asyncio.Task[RemoteRecords] | None:
        """Return the read of these records for a request of ``origin``, or None if too many reads wait.

        Do not cancel it, since others may wait for it, too."""
        key = partition, offset, max_bytes, read_committed
        found = self._reads.get(key)
        if found is None and not self._is_full_for(origin):
            work = self._in_place(origin, partition, lambda reader: _read(reader, *key))
            self._begun[origin] += 1
            found = self._reads[key] = self._tasks.spawn(work, kind="remote read")
            found.add_done_callback(lambda ended: self._forget(origin, key, ended))
        return found

    def _is_full_for(self, origin: Origin) -> bool:
        begun = self._begun.total()
        if self.reader is None or begun < self._begun_max:
            return False
        share = max(1, self._begun_max // ORIGINS)
        return begun >= 2 * self._begun_max or self._begun[origin] >= share

    def _end(self, origin: Origin) -> None:
        self._begun[origin] -= 1
        if not self._begun[origin]:
            del self._begun[origin]

    async def wait_for_any(self) -> None:
        """Wait until one of the reads ends, but no longer than a fetch may."""
        if self._reads:
            ends = list(self._reads.values())
            await asyncio.wait(ends, timeout=self.fetch_wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED)

    def _forget(
        self,
        origin: Origin,
        key: tuple[ReadablePartition, int, int, bool],
        ended: asyncio.Task[RemoteRecords],
    ) -> None:
        self._end(origin)
        del self._reads[key]
        if not ended.cancelled():
            ended.exception()  # it may be that none waits any more

    async def offset_for_timestamp(
        self, origin: Origin, partition: ReadablePartition, timestamp: int, ends_s: float
    ) -> TimestampOffset | None:
        """As :meth:`RemoteReader.offset_for_timestamp`. Raises KafkaError; at ``ends_s``, a time of the event
        loop, REQUEST_TIMED_OUT."""
        if self._is_full_for(origin):
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"too many reads from remote storage wait; {partition} is not read",
            )
        self._begun[origin] += 1
        try:
            async with asyncio.timeout_at(ends_s):
                return await self._in_place(
                    origin, partition, lambda reader: reader.offset_for_timestamp(partition, timestamp)
                )
        except TimeoutError as error:
            reason = f"remote storage did not answer in time about {partition}"
            raise KafkaError(ErrorCode.request_timed_out, reason) from error
        finally:
            self._end(origin)

    async def state_at(self, partition: ReadablePartition, offset: int) -> RemoteState:
        """Return as :meth:`RemoteReader.state_at`. The reads of clients take no place from it."""
        async with self._starts:
            return await self._reader_of(partition).state_at(partition, offset)

    async def check_own(self, partition: ReadablePartition, ends_s: float) -> None:
        """As :meth:`RemoteReader.check_own`, until ``ends_s``; nothing without remote storage."""
        if self.reader is None:
            return
        try:
            async with asyncio.timeout_at(ends_s), self._starts:
                await self.reader.check_own(partition)
        except TimeoutError as error:
            reason = f"remote storage did not answer in time about {partition}"
            raise KafkaError(ErrorCode.request_timed_out, reason) from error

    async def _in_place(
        self, origin: Origin, partition: ReadablePartition, work: Callable[[RemoteReader], Awaitable[T]]
    ) -> T:
        reader = self._reader_of(partition)
        await self._places.enter(origin, 1)
        try:
            return await work(reader)
        finally:
            self._places.leave(origin, 1)

    def _reader_of(self, partition: ReadablePartition) -> RemoteReader:
        if self.reader is None:
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"the first records of {partition} are in remote storage, which this broker does not have",
            )
        return self.reader


async def _read(
    reader: RemoteReader, partition: ReadablePartition, offset: int, max_bytes: int, read_committed: bool
) -> RemoteRecords:
    try:
        records, aborted = await reader.read(partition, offset, max_bytes, read_committed=read_committed)
    except OffsetOutOfRange as error:
        if offset < partition.log.log_start_offset:
            raise
        # A consumer that is told that it is out of range passes over records that should be there.
        reason = f"remote storage lacks the records of {partition} from offset {offset} on"
        raise KafkaError(ErrorCode.kafka_storage_error, reason) from error
    return RemoteRecords(records, aborted)
