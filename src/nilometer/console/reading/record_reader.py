"""Reads and writes single records for the pages of messages; every reading is bounded.

Records are read without a group: nothing is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.consumer.tail import (
    POLL_BYTES_MAX,
    Backwards,
    LogRange,
    log_ranges,
    newest,
    read_backwards,
)
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import RecordMetadata
from nilometer.client.producer.producer import Producer
from nilometer.client.producer.sender import MAYBE_WRITTEN
from nilometer.console.reading.connection import API_TIMEOUT_MS, REQUEST_TIMEOUT_MS, ClusterConnection
from nilometer.console.views.records import NO_SCHEMAS, WHOLE_BYTES, BySchema, JsonFilter, kept
from nilometer.runtime import Clock
from nilometer.schema_registry.client import SchemaRegistry, schema_id
from nilometer.schema_registry.decoding import Decoding, Limits
from nilometer.wire.errors import ErrorCode, KafkaError

# Keys and values of a page by the schemas of a registry. What one page costs the registry is bounded.

LIMITS = Limits(schemas=20, seconds=5.0, value_bytes=WHOLE_BYTES)
PAGES_MAX = 4
"""How many pages are decoded at once, each in a thread."""


class DecodedValues:
    def __init__(self, registry: SchemaRegistry | None) -> None:
        """``registry``: None to decode nothing."""
        self._decoding = None if registry is None else Decoding(registry)
        self._pages = asyncio.Semaphore(PAGES_MAX)

    async def of(self, records: Sequence[ConsumerRecord]) -> Sequence[BySchema]:
        """Return the key and the value of each record as their schemas say."""
        decoding = self._decoding
        data = [part for record in records for part in (record.key, record.value)]
        if decoding is None or not any(part is not None and schema_id(part) is not None for part in data):
            return [NO_SCHEMAS] * len(records)  # they do not wait for pages that wait for the registry
        async with self._pages:
            found = await asyncio.to_thread(decoding.decode, data, LIMITS)
        return list(zip(found[::2], found[1::2], strict=True))


COUNT_MAX = 200
SEARCHED_MAX = 200_000
"""How many records a search by key or value reads at most."""
SEARCH_TIMEOUT_MS = 10_000
PROGRESS_INTERVAL_S = 0.3
"""How long a search goes on before it shows again what it has found so far."""
MATCHING_MAX = 2
"""How many searches look at JSON values at once, each in a thread."""
MATCHED_BYTES_MAX = 2 * 1024 * 1024
"""No condition is met by a longer JSON value: to parse it would hold the event loop."""
READERS_MAX = 8
"""How many readings and writes there are at once."""
TAILS_MAX = 16
"""How many tails there are at once."""
FETCH_BYTES = 4 * 1024 * 1024
TAIL_RECORDS = 100
"""How many records of a tail one event has at most; older ones are skipped."""
TAIL_INTERVAL_S = 0.3
TAIL_WAIT_MS = 5_000
BEHIND_MAX = 1_000
"""A tail that is further behind the end of a partition skips records."""
MARKED_MAX = 200
"""A tail of more partitions has no positions: a browser sends them in a header to continue it."""

NEWEST, OLDEST, OFFSET, TIME = "newest", "oldest", "offset", "time"


@dataclass(frozen=True, slots=True)
class RecordQuery:
    topic: str
    partition: int | None
    start: str = NEWEST
    """``newest``, ``oldest``, ``offset`` or ``time``."""
    at: int = 0
    """The offset, or the time in ms since the epoch."""
    key: bytes | None = None
    """Only records with this key."""
    count: int = 50
    committed: bool = False
    """Only committed records: those below the last stable offset and of no aborted transaction."""
    value: JsonFilter | None = None
    """Only records whose JSON value meets this condition."""
    before: Mapping[int, int] = field(default_factory=dict[int, int])
    """With ``newest``: by partition, the offset below which to look; by default all offsets."""

    @property
    def searches(self) -> bool:
        """Whether it selects records by what they hold."""
        return self.key is not None or self.value is not None

    def selects(self, record: ConsumerRecord) -> bool:
        if self.key is not None and record.key != self.key:
            return False
        if self.value is None:
            return True
        return len(record.value or b"") <= MATCHED_BYTES_MAX and self.value.matches(record.value)


@dataclass(frozen=True, slots=True)
class Found:
    records: tuple[ConsumerRecord, ...]
    searched: int
    """How many records were read."""
    is_cut: bool
    """Whether the search ended before the end of the partitions, other than by finding enough; of a search
    that goes on, whether there is more to read."""
    next_offset: int | None
    """Where the next page of a single partition begins; None at its end and for several partitions."""
    logs: tuple[tuple[TopicPartition, LogRange], ...]
    before: Mapping[int, int] = field(default_factory=dict[int, int])
    """Where older records than the newest are: offsets by partition; empty if there are none, or above
    :data:`MARKED_MAX` partitions."""


class TailPart(msgspec.Struct, frozen=True):
    records: tuple[ConsumerRecord, ...]
    skipped: int
    """How many offsets were passed over since the previous part."""
    positions: Mapping[int, int]
    """Where the tail goes on after this part: offsets by partition; empty above :data:`MARKED_MAX`."""


class TooManyTails(Exception):
    def __init__(self) -> None:
        super().__init__(f"{TAILS_MAX} topics are followed already: stop following one of them.")


class MaybeWritten(KafkaError):
    """A record was sent and not acknowledged: it is in the log, or it is not."""


class RecordSlots:
    """How much the readers of one console do at once, whatever their number."""

    def __init__(self) -> None:
        self.readings = asyncio.Semaphore(READERS_MAX)
        self.matching = asyncio.Semaphore(MATCHING_MAX)
        self._tails = 0

    @contextmanager
    def tail(self) -> Generator[None]:
        """Count a tail, for as long as it lasts. Raises TooManyTails."""
        if self._tails >= TAILS_MAX:
            raise TooManyTails
        self._tails += 1
        try:
            yield
        finally:
            self._tails -= 1


class OutOfTime(Exception):
    """The time of a search is over, and records that were read have not been looked at."""


class Selection:
    """Looks at the records that a search reads. JSON values are parsed in another thread, since one of a
    megabyte with a condition on each of its elements takes half a second."""

    def __init__(self, query: RecordQuery, clock: Clock, slots: RecordSlots, deadline_ms: int) -> None:
        self._query, self._clock, self._slots, self._deadline_ms = query, clock, slots, deadline_ms
        self._is_over = False

    async def select(self, records: Sequence[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return what is kept of the records that are searched for. Raises OutOfTime."""
        if self._query.value is None:
            return [kept(record) for record in records if self._query.selects(record)]
        async with self._slots.matching:
            try:
                found = await asyncio.to_thread(self._matching, records)
            except asyncio.CancelledError:
                self._is_over = True
                raise
        if found is None:
            raise OutOfTime
        return found

    def _matching(self, records: Sequence[ConsumerRecord]) -> list[ConsumerRecord] | None:
        found: list[ConsumerRecord] = []
        for record in records:
            if self._is_over or self._clock.monotonic_ms() >= self._deadline_ms:
                return None
            if self._query.selects(record):
                found.append(kept(record))
        return found


class RecordReader:
    def __init__(self, connection: ClusterConnection, slots: RecordSlots) -> None:
        self._connection = connection
        self._clock = connection.runtime.clock
        self._slots = slots
        self._tails: dict[Consumer, None] = {}

    async def close(self) -> None:
        """End the tails."""
        for consumer in list(self._tails):
            await consumer.close()

    async def watch(self, query: RecordQuery) -> AsyncGenerator[tuple[Found, bool]]:
        """Yield what a search has found so far, and whether that is all. Raises KafkaError.

        The search does not wait for the one who watches, and ends with the watching.
        """
        newest: asyncio.Queue[Found | None] = asyncio.Queue(1)

        def put(found: Found | None) -> None:
            if newest.full():
                newest.get_nowait()
            newest.put_nowait(found)

        search = asyncio.create_task(self.read(query, put))
        search.add_done_callback(lambda _: put(None))
        try:
            while (found := await newest.get()) is not None:
                yield found, False
                await asyncio.sleep(PROGRESS_INTERVAL_S)
            yield await search, True
        finally:
            search.cancel()
            await asyncio.wait([search])  # its consumer is closed, and its place is free

    async def read(self, query: RecordQuery, progress: Callable[[Found], None] = lambda _: None) -> Found:
        """Return the records that a query selects. Raises KafkaError.

        ``progress`` is called with what was found whenever a part of the partitions has been read.
        """
        async with self._slots.readings, self._consumer(committed=query.committed) as consumer:
            partitions = await self._partitions(consumer, query.topic, query.partition)
            consumer.assign(partitions)
            if query.start == NEWEST:
                return await self._newest(consumer, partitions, query, progress)
            return await self._search(consumer, partitions, query, progress)

    async def tail(
        self, topic: str, partition: int | None, after: Mapping[int, int]
    ) -> AsyncGenerator[TailPart]:
        """Yield a part without records once it has begun, then records as they are appended.

        ``after``: the positions of the tail that this one continues; a partition that is not in it is
        followed from its end. Raises KafkaError, TooManyTails.
        """
        with self._slots.tail():
            async with self._consumer(committed=False) as consumer:
                self._tails[consumer] = None
                try:
                    async for part in self._follow(consumer, topic, partition, after):
                        yield part
                finally:
                    del self._tails[consumer]

    async def _follow(
        self, consumer: Consumer, topic: str, partition: int | None, after: Mapping[int, int]
    ) -> AsyncGenerator[TailPart]:
        partitions = await self._partitions(consumer, topic, partition)
        consumer.assign(partitions)
        skipped = 0
        for one, log in (await log_ranges(consumer, partitions)).items():
            position, missed = continued(after.get(one.partition), log)
            consumer.seek(one, position)
            skipped += missed
        yield TailPart((), skipped, await _positions(consumer, partitions))
        while True:
            records = await consumer.poll(BEHIND_MAX, timeout_ms=TAIL_WAIT_MS, max_bytes=POLL_BYTES_MAX)
            if consumer.closed:
                return
            shown = tuple(kept(record) for record in records[-TAIL_RECORDS:])
            skipped = len(records) - len(shown) + await self._skip(consumer, partitions)
            del records
            yield TailPart(shown, skipped, await _positions(consumer, partitions))
            await asyncio.sleep(TAIL_INTERVAL_S)

    async def produce(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> RecordMetadata:
        """Write one record, and return where it is when all in-sync replicas have it.

        Raises KafkaError if it is not written, MaybeWritten if that is not known.
        """
        settings = {
            **self._connection.common,
            "delivery.timeout.ms": 2 * API_TIMEOUT_MS,
            "max.block.ms": API_TIMEOUT_MS,
            "linger.ms": 0,
            "allow.auto.create.topics": "false",
        }
        async with self._slots.readings, Producer(self._connection.runtime, settings) as producer:
            delivery = await producer.send(topic, value, key=key, headers=headers, partition=partition)
            try:
                return await delivery
            except KafkaError as error:
                if error.code in MAYBE_WRITTEN:
                    raise MaybeWritten(error.code, error.message) from error
                raise

    def _consumer(self, *, committed: bool) -> Consumer:
        return Consumer(
            self._connection.runtime,
            {
                **self._connection.common,
                "request.timeout.ms": REQUEST_TIMEOUT_MS + TAIL_WAIT_MS,
                "default.api.timeout.ms": API_TIMEOUT_MS,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "auto.offset.reset": "earliest",
                "fetch.max.bytes": FETCH_BYTES,
                "max.partition.fetch.bytes": FETCH_BYTES // 4,
                "allow.auto.create.topics": "false",
            },
        )

    async def _partitions(
        self, consumer: Consumer, topic: str, partition: int | None
    ) -> list[TopicPartition]:
        found = await consumer.partitions_for(topic)
        if partition is None:
            return found
        if partition >= len(found):
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {topic} has {len(found)} partitions; there is no partition {partition}",
            )
        return [found[partition]]

    async def _newest(
        self,
        consumer: Consumer,
        partitions: Sequence[TopicPartition],
        query: RecordQuery,
        progress: Callable[[Found], None],
    ) -> Found:
        """Look from the ends backwards, the newest record first, until there are enough or a bound is met."""
        logs = await log_ranges(consumer, partitions)
        ends = {one: min(log.end, query.before.get(one.partition, log.end)) for one, log in logs.items()}
        deadline_ms = self._clock.monotonic_ms() + SEARCH_TIMEOUT_MS
        found = _newest_found(Backwards([], 0, ends, is_done=True), logs, query)
        select = Selection(query, self._clock, self._slots, deadline_ms).select
        reading = read_backwards(consumer, logs, ends, query.count, select, searches=query.searches)
        with suppress(OutOfTime):
            async with aclosing(reading) as rounds:
                async for so_far in rounds:
                    found = _newest_found(so_far, logs, query)
                    if so_far.read >= SEARCHED_MAX or self._clock.monotonic_ms() >= deadline_ms:
                        break
                    progress(found)
        return found

    async def _search(
        self,
        consumer: Consumer,
        partitions: Sequence[TopicPartition],
        query: RecordQuery,
        progress: Callable[[Found], None],
    ) -> Found:
        logs = await log_ranges(consumer, partitions)
        await self._seek(consumer, partitions, query, logs)
        matching: list[ConsumerRecord] = []
        deadline_ms = self._clock.monotonic_ms() + SEARCH_TIMEOUT_MS
        searched = 0
        selection = Selection(query, self._clock, self._slots, deadline_ms)
        stopped_at: int | None = None
        unread = await _unread(consumer, partitions, logs)
        while unread and searched < SEARCHED_MAX:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0 or len(matching) == query.count:
                break
            room = BEHIND_MAX if query.searches else query.count - len(matching)
            polled = await consumer.poll(room, timeout_ms=min(left_ms, 1_000), max_bytes=POLL_BYTES_MAX)
            below_end = [
                one for one in polled if one.offset < logs[TopicPartition(one.topic, one.partition)].end
            ]
            try:
                matching += await selection.select(below_end)
            except OutOfTime:
                stopped_at = polled[0].offset
                break
            await asyncio.sleep(0)  # a poll that has records does not wait, and decompresses a batch
            del matching[query.count :]
            searched += len(polled)
            unread = await _unread(consumer, partitions, logs)
            progress(Found(_merged(matching), searched, bool(unread), None, tuple(logs.items())))
        is_full = len(matching) == query.count
        after = None
        if (unread or stopped_at is not None) and len(partitions) == 1:
            after = matching[-1].offset + 1 if is_full else stopped_at
            if after is None:
                after = await consumer.position(partitions[0])
        is_cut = (bool(unread) or stopped_at is not None) and not is_full
        return Found(_merged(matching), searched, is_cut, after, tuple(logs.items()))

    async def _seek(
        self,
        consumer: Consumer,
        partitions: Sequence[TopicPartition],
        query: RecordQuery,
        logs: dict[TopicPartition, LogRange],
    ) -> None:
        if query.start == TIME:
            times = await consumer.offsets_for_times(dict.fromkeys(partitions, query.at))
            for one in partitions:
                listed = times.get(one)
                consumer.seek(one, logs[one].end if listed is None else listed.offset)
            return
        for one in partitions:
            log = logs[one]
            consumer.seek(one, min(max(query.at, log.start), log.end) if query.start == OFFSET else log.start)

    async def _skip(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> int:
        """Move the positions that are too far behind the end; return how many offsets were skipped."""
        skipped = 0
        for one in partitions:
            end = consumer.high_watermark(one)
            behind = 0 if end is None else end - await consumer.position(one)
            if end is not None and behind > BEHIND_MAX:
                consumer.seek(one, end - TAIL_RECORDS)
                skipped += behind - TAIL_RECORDS
        return skipped


def _newest_found(found: Backwards, logs: Mapping[TopicPartition, LogRange], query: RecordQuery) -> Found:
    before = {one.partition: end for one, end in found.before.items()}
    has_older = any(end > logs[one].start for one, end in found.before.items())
    return Found(
        tuple(found.records[::-1]),
        found.read if query.searches else len(found.records),
        not found.is_done,
        None,
        tuple(logs.items()),
        before if has_older and len(before) <= MARKED_MAX else {},
    )


def _merged(records: Sequence[ConsumerRecord]) -> tuple[ConsumerRecord, ...]:
    """Return the records of several partitions by time, those of a partition in its order."""
    by_partition: dict[TopicPartition, list[ConsumerRecord]] = {}
    for record in records:
        by_partition.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
    return tuple(newest(by_partition, len(records)))


def continued(after: int | None, log: LogRange) -> tuple[int, int]:
    """Return where in a log a tail begins, and how many offsets it passes over.

    ``after``: where the tail that it continues had come to; None for one that begins.
    """
    if after is None or after > log.end:  # above the end: the topic was created again, or records were lost
        return log.end, 0
    position = max(after, log.start)
    if log.end - position > BEHIND_MAX:
        position = log.end - TAIL_RECORDS
    return position, position - after


async def _positions(consumer: Consumer, partitions: Sequence[TopicPartition]) -> dict[int, int]:
    if len(partitions) > MARKED_MAX:
        return {}
    return {one.partition: await consumer.position(one) for one in partitions}


async def _unread(
    consumer: Consumer, partitions: Sequence[TopicPartition], logs: dict[TopicPartition, LogRange]
) -> list[TopicPartition]:
    """Return the partitions that are not read to the end yet; the others are paused."""
    unread = [one for one in partitions if await consumer.position(one) < logs[one].end]
    consumer.pause(*(one for one in partitions if one not in unread))
    return unread
