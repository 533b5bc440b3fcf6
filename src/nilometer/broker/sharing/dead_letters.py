"""Writes the dead letters of share groups: a record for each one that was rejected, or delivered as often as
it may be, in the topic that the group's ``errors.deadletterqueue.topic.name`` names (KIP-1191).

The records are archiving while this broker, which leads their share partition, writes their letters, and
archived afterwards. A letter that may be missing because a leader was lost is written by the next one, so it
may exist twice. One that cannot be written is not: its record is archived all the same, and the reason is
logged and counted, as in Apache Kafka. Errors that may pass are tried again, ``ATTEMPTS`` times in all.

A letter is in the partition whose number is that of its record's partition, modulo their count. Its headers
say where the record is, and why it is dead. With ``errors.deadletterqueue.copy.record.enable`` it has the
record's key, value and headers, too (Apache Kafka copies no headers), unless the record cannot be read, or is
too large for the topic.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol, cast

from nilometer.broker.control.broker_peers import PeerConnections
from nilometer.broker.control.controller_link import ControllerLink
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.replicas.delayed_requests import DelayedProduce, ProduceOutcome
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.record_reading import RecordReading
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.rooms import BROKER_ITSELF
from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION, BrokerConfig
from nilometer.broker.sharing.counts import ShareCounts
from nilometer.broker.tasks import Tasks
from nilometer.cluster.controller.topics import NewTopic
from nilometer.cluster.records import ConfigResourceType
from nilometer.cluster.states import Topic
from nilometer.config import ConfigValue
from nilometer.coordination.store import CoordinationError
from nilometer.groups.settings import DEAD_LETTER_TOPIC, ShareGroupConfig
from nilometer.runtime import Runtime
from nilometer.share.partition_events import Dead, DeadReason, OffsetRange
from nilometer.share.state_records import SharePartitionKey
from nilometer.storage.record_validation import ReadingAllowance, UnreadRecords
from nilometer.storage.topic_config import TOPIC_CONFIG
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import NONE, ErrorCode, KafkaError, is_retriable
from nilometer.wire.record_batch import HEADER_BYTES, batches
from nilometer.wire.records import RECORD_OVERHEAD_MAX, BatchBuilder, Header, Record, records_between

logger = logging.getLogger("nilometer.broker.sharing")
records_logger = logging.getLogger("nilometer.broker.records")

AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
TOPIC_PREFIX = "errors.deadletterqueue.topic.name.prefix"
TOPIC_ENABLE = "errors.deadletterqueue.group.enable"
HEADER_PREFIX = "__dlq.errors."
MESSAGES = {
    DeadReason.REJECTED: b"Offset rejected by client.",
    DeadReason.DELIVERY_LIMIT: b"Offset delivery count exceeded the threshold.",
}
"""Kafka's texts: programs may compare them."""

ATTEMPTS = 5
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 1_000, 30_000
TIMEOUT_MS = 30_000
"""For the replicas of a letter's partition to have it."""
LETTERS_MAX = 1_000
LETTERS_BYTES_MAX = 1 << 20
"""So many letters, and bytes of them, are written at once; fewer if ``max.message.bytes`` is lower."""
READ_BYTES_MAX = 1 << 17
PASSED_OVER_MAX = 32
"""After so many batches without a record that is wanted, the next one is looked up."""
DECOMPRESSED_BYTES_MAX = 8 << 20
"""The records of a batch that holds more are not copied."""
AT_ONCE = 16
"""So many batches of letters are in memory at the same time, on a broker."""
LENGTH_BYTES_MAX = 5
"""Of the length of a key, a value, or a part of a header."""
LETTER_STEP = 200
"""So many letters are built between two turns of the event loop."""
BURIED_AT_ONCE = 100
"""So many ranges are archived between two turns of the event loop: a millisecond of work."""
LOG_EVERY_MS = 60_000
LOGGED_GROUPS_MAX = 1_000
ACKS_ALL = -1
NAMES_TOPICS_MAX = 12
"""The newest version of Produce that names topics by name."""


class ArchivingPartition(Protocol):
    """A share partition at its leader, with records that are archiving."""

    key: SharePartitionKey
    partition: Partition
    is_dropped: bool
    """Another leader writes its letters."""

    def on_buried(self, ranges: Sequence[OffsetRange]) -> None:
        """The letters of these ranges are written, or cannot be."""
        ...


class _Refused(Exception):
    """Letters cannot be written, and trying again would not help."""


class _Letter(NamedTuple):
    offset: int
    delivery_count: int
    reason: DeadReason


class _Batch(NamedTuple):
    letters: Sequence[_Letter]
    records: bytes
    """The letters, encoded."""


class DeadLetters:
    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        tasks: Tasks,
        metadata: MetadataLog,
        link: ControllerLink,
        replicas: ReplicaManager,
        reading: RecordReading,
        connections: PeerConnections,
        counts: ShareCounts,
        settings_of: Callable[[str], ShareGroupConfig],
    ) -> None:
        """``settings_of`` returns the configuration of a group."""
        self._config = config
        self._runtime = runtime
        self._tasks = tasks
        self._metadata = metadata
        self._link = link
        self._replicas = replicas
        self._reading = reading
        self._connections = connections
        self._counts = counts
        self._settings_of = settings_of
        self._waiting: dict[ArchivingPartition, deque[Dead]] = {}
        """In order; a task writes while there is an entry. The records in flight limit what waits."""
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._creating = asyncio.Lock()
        self._logged: dict[str, int] = {}
        """By group, when a failure was last logged (ms)."""

    def bury(self, archiving: ArchivingPartition, dead: Sequence[Dead]) -> None:
        """Write the letters of the records, after all earlier ones of the share partition."""
        waiting = self._waiting.get(archiving)
        if waiting is None:
            self._waiting[archiving] = deque(dead)
            self._tasks.spawn(self._write_all(archiving), name=f"writing dead letters of {archiving}")
        else:
            waiting.extend(dead)

    async def _write_all(self, archiving: ArchivingPartition) -> None:
        waiting = self._waiting[archiving]
        try:
            while waiting and not archiving.is_dropped:
                letters = _take(waiting)
                written = await self._write(archiving, letters)
                for letter in reversed(letters[written:]):
                    waiting.appendleft(
                        Dead(letter.offset, letter.offset, letter.delivery_count, letter.reason, True)
                    )
                ranges = _ranges(letters[:written])
                for first in range(0, len(ranges), BURIED_AT_ONCE):
                    archiving.on_buried(ranges[first : first + BURIED_AT_ONCE])
                    await asyncio.sleep(0)
        finally:
            del self._waiting[archiving]

    async def _write(self, archiving: ArchivingPartition, letters: Sequence[_Letter]) -> int:
        """Write as many of the letters as fit into a batch, or give them up; return how many."""
        pause_ms, group_id = FIRST_PAUSE_MS, archiving.key.group_id
        why = ""
        for attempt in range(1, ATTEMPTS + 1):
            if archiving.is_dropped:
                return 0
            try:
                async with self._slots:
                    topic = await self._topic(group_id)
                    batch = await self._batch(archiving, topic, letters)
                    for counts in self._counts.of(group_id):
                        counts.letter_requests += 1
                    await self._produce(archiving, topic, batch.records)
            except _Refused as refused:
                why = str(refused)
                break
            except (KafkaError, CoordinationError) as error:
                why = str(error)
                if isinstance(error, KafkaError) and not is_retriable(error.code):
                    break
            else:
                for counts in self._counts.of(group_id):
                    counts.letters += len(batch.letters)
                return len(batch.letters)
            if attempt < ATTEMPTS:
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, LONGEST_PAUSE_MS)
        self._give_up(archiving, letters, why)
        return len(letters)

    def _give_up(self, archiving: ArchivingPartition, letters: Sequence[_Letter], why: str) -> None:
        now_ms, group_id = self._runtime.clock.monotonic_ms(), archiving.key.group_id
        for counts in self._counts.of(group_id):
            counts.letters_failed += len(letters)
            counts.letter_requests_failed += 1
        if now_ms < self._logged.get(group_id, now_ms):
            return
        if len(self._logged) >= LOGGED_GROUPS_MAX:
            self._logged.clear()
        self._logged[group_id] = now_ms + LOG_EVERY_MS
        logger.error(
            "%d records from offset %d of %s on are archived without dead letters, which cannot be written: "
            "%s. Further ones of the group are logged after a minute at the earliest.",
            len(letters),
            letters[0].offset,
            archiving,
            why,
        )

    # --- where to

    async def _topic(self, group_id: str) -> Topic:
        """Return the topic for the letters of a group, created if need be. Raises _Refused, KafkaError,
        CoordinationError."""
        name = self._settings_of(group_id).dead_letter_topic
        if not name:
            raise _Refused(f"the group has no {DEAD_LETTER_TOPIC}")
        prefix = cast(str, self._setting(TOPIC_PREFIX))
        if not name.startswith(prefix):
            raise _Refused(f"the name of topic {name} does not begin with {TOPIC_PREFIX} ({prefix})")
        topic = self._metadata.image.topic(name)
        if topic is None:
            topic = await self._create(name)
        if not self._topic_value(name, TOPIC_ENABLE):
            raise _Refused(f"topic {name} does not have {TOPIC_ENABLE}=true")
        return topic

    async def _create(self, name: str) -> Topic:
        if not self._setting(AUTO_CREATE):
            raise _Refused(f"topic {name} does not exist, and {AUTO_CREATE} is false")
        async with self._creating:
            topic = self._metadata.image.topic(name)
            if topic is not None:
                return topic
            new = NewTopic(
                name=name,
                num_partitions=self._config.integer("num.partitions"),
                replication_factor=self._config.integer("default.replication.factor"),
                configs={TOPIC_ENABLE: "true", "message.timestamp.type": "CreateTime"},
            )
            errors = await self._link.create_topics([new], self._runtime.entropy)
            topic = self._metadata.image.topic(name)
            if topic is None:
                error = errors[name]
                raise KafkaError(
                    ErrorCode.leader_not_available if error is NONE else error,
                    f"topic {name} could not be created: {error.name.upper()}",
                )
            return topic

    def _setting(self, key: str) -> ConfigValue:
        """Return a broker's setting, which may change while it runs."""
        value = self._config.value(key)
        for name in ("", str(self._config.node_id)):  # the later one wins, if it can be read
            texts = self._metadata.image.config(ConfigResourceType.BROKER, name)
            if key in texts:
                value = BROKER_CONFIG_DEFINITION.readable({key: texts[key]}).get(key, value)
        assert value is not None, f"{key} has a default"
        return value

    def _topic_value(self, topic: str, key: str) -> ConfigValue:
        text = self._metadata.image.topic_setting(topic, key)
        known = TOPIC_CONFIG.key(key)
        value = None if text is None else TOPIC_CONFIG.readable({key: text}).get(key)
        if value is None:
            value = self._config.topic_defaults().get(key, known.default)
        assert value is not None, f"{key} has a default"
        return value

    # --- what

    async def _batch(self, archiving: ArchivingPartition, topic: Topic, letters: Sequence[_Letter]) -> _Batch:
        size_max = min(LETTERS_BYTES_MAX, cast(int, self._topic_value(topic.name, "max.message.bytes")))
        copies = self._settings_of(archiving.key.group_id).copies_dead_letters
        partition, wall_ms = archiving.partition, self._runtime.clock.wall_ms()
        source = _Source(partition, size_max, letters) if copies else None
        return await self._reading.run(
            BROKER_ITSELF, _build(source, archiving.key, partition.topic, letters, size_max, wall_ms)
        )

    # --- writing

    async def _produce(self, archiving: ArchivingPartition, topic: Topic, records: bytes) -> None:
        """Write a batch, and return when its replicas have it. Raises KafkaError."""
        index = archiving.key.partition % len(topic.partitions)
        state = topic.partition(index)
        if state is None or not state.has_leader:
            raise KafkaError(ErrorCode.leader_not_available, f"{topic.name}-{index} has no leader")
        if state.leader == self._config.node_id:
            await self._append(self._replicas.partition(topic.name, index), records)
            return
        connection = await self._connections.to(int(state.leader))
        response = await connection.request(
            ApiKey.PRODUCE,
            lambda api: _request(api, topic.name, index, records),
            at_most=NAMES_TOPICS_MAX,
            timeout_ms=2 * TIMEOUT_MS,
        )
        for of_topic in response.responses:
            for part in of_topic.partition_responses:
                if part.error_code is not NONE:
                    raise KafkaError(part.error_code, f"{topic.name}-{index}: {part.error_message or ''}")

    async def _append(self, partition: Partition, records: bytes) -> None:
        outcome = ProduceOutcome(partition.key.partition)
        done = asyncio.Event()
        delayed = DelayedProduce(done.set)
        try:
            info = partition.append(records, all_replicas=True, allowance=ReadingAllowance())
        except UnreadRecords as unread:
            validated = await self._reading.run(BROKER_ITSELF, unread.steps)
            info = partition.append(records, all_replicas=True, validated=validated)
        partition.acknowledge_when_committed(info, outcome, delayed)
        if delayed.is_waiting:
            delayed.start_timer(TIMEOUT_MS)
            await done.wait()
        delayed.close()
        if outcome.error is not NONE:
            raise KafkaError(outcome.error, outcome.message or f"{partition}")


def _request(api: Api, topic: str, index: int, records: bytes) -> Message:
    part = api.make_request("PartitionProduceData", index=index, records=records)
    data = api.make_request("TopicProduceData", name=topic, topic_id=None, partition_data=(part,))
    return api.request(transactional_id=None, acks=ACKS_ALL, timeout_ms=TIMEOUT_MS, topic_data=(data,))


def _take(waiting: deque[Dead]) -> list[_Letter]:
    """Take up to ``LETTERS_MAX`` letters from the front; return them in the order of their records."""
    letters: list[_Letter] = []
    while waiting and len(letters) < LETTERS_MAX:
        dead = waiting.popleft()
        end = min(dead.last_offset + 1, dead.first_offset + LETTERS_MAX - len(letters))
        letters += (
            _Letter(offset, dead.delivery_count, dead.reason) for offset in range(dead.first_offset, end)
        )
        if end <= dead.last_offset:
            waiting.appendleft(
                Dead(end, dead.last_offset, dead.delivery_count, dead.reason, has_letters=True)
            )
    return sorted(letters, key=lambda letter: letter.offset)


def _ranges(letters: Sequence[_Letter]) -> list[OffsetRange]:
    """Return the offsets of letters as ranges, in their order."""
    ranges: list[OffsetRange] = []
    for letter in letters:
        if ranges and ranges[-1].last_offset + 1 == letter.offset:
            ranges[-1] = ranges[-1]._replace(last_offset=letter.offset)
        else:
            ranges.append(OffsetRange(letter.offset, letter.offset))
    return ranges


# ── building, on the disk's threads ─────────────────────────────────────────────────────────────
class _Source:
    """Reads the records of letters, which are asked for in order, and decodes few others."""

    def __init__(self, partition: Partition, size_max: int, letters: Sequence[_Letter]) -> None:
        """``size_max``: after so many bytes of keys and values one read ends. ``letters``: in order."""
        self._partition = partition
        # The records were committed when they were delivered. A new leader's high watermark may be lower.
        self._end = partition.log.log_end_offset
        self._size_max = size_max
        self._wanted = [letter.offset for letter in letters]
        self._found: dict[int, Record] = {}
        self._read_to = 0
        """Below it, what was not found cannot be read."""

    def record(self, offset: int) -> Generator[int, None, Record | None]:
        """Return the record at ``offset``; None if it cannot be read. Read others that are wanted with it."""
        if offset >= self._read_to:
            self._found = {}
            self._read_to = offset + 1
            try:
                yield from self._read(offset)
            except (KafkaError, OSError) as error:
                records_logger.warning(
                    "Offset %d of %s cannot be read, so its dead letter has no copy of it: %s",
                    offset,
                    self._partition,
                    error,
                )
        return self._found.get(offset)

    def _read(self, first_offset: int) -> Generator[int, None, None]:
        piece = self._partition.log.read(first_offset, READ_BYTES_MAX, self._end, min_one=True)
        assert piece is not None, "only a read from memory may return None"
        wanted, size, passed_over = self._wanted, 0, 0
        at = bisect_left(wanted, first_offset)
        for position, header in batches(piece.records):
            if at == len(wanted) or size >= self._size_max or passed_over >= PASSED_OVER_MAX:
                break
            self._read_to = max(self._read_to, header.last_offset + 1)
            first, at = at, bisect_right(wanted, header.last_offset, at)
            if header.is_control or first == at:
                passed_over += 1
                continue
            passed_over = 0
            records = yield from records_between(
                piece.records, position, header, wanted[first], wanted[at - 1], DECOMPRESSED_BYTES_MAX
            )
            for record in records:
                size += len(record.key or b"") + len(record.value or b"")
                self._found[record.offset] = record


def _build(
    source: _Source | None,
    key: SharePartitionKey,
    topic: str,
    letters: Sequence[_Letter],
    size_max: int,
    wall_ms: int,
) -> Generator[int, None, _Batch]:
    """Build a batch of at most ``size_max`` bytes from the first letters. ``topic``: of their records."""
    builder = BatchBuilder(size_max=size_max)
    where = (
        (HEADER_PREFIX + "topic", topic.encode()),
        (HEADER_PREFIX + "partition", b"%d" % key.partition),
    )
    group = (HEADER_PREFIX + "group", key.group_id.encode())
    letters_of = f"{topic}-{key.partition} in share group {key.group_id}"
    for letter in letters:
        record = None
        if source is not None:
            record = yield from source.record(letter.offset)
        headers: list[Header] = [
            *where,
            (HEADER_PREFIX + "offset", b"%d" % letter.offset),
            group,
            (HEADER_PREFIX + "delivery.count", b"%d" % letter.delivery_count),
            (HEADER_PREFIX + "message", MESSAGES[letter.reason]),
        ]
        if not _append(builder, record, headers, size_max, wall_ms, letters_of):
            break
        if not builder.records_count % LETTER_STEP:
            yield builder.estimated_size
    return _Batch(letters[: builder.records_count], builder.build())


def _append(
    builder: BatchBuilder,
    record: Record | None,
    headers: list[Header],
    size_max: int,
    wall_ms: int,
    letters_of: str,
) -> bool:
    """Add a letter, without its record if no batch has room for that; return false if it is for the next."""
    if record is not None:
        own = [header for header in record.headers if not header[0].startswith(HEADER_PREFIX)]
        size = HEADER_BYTES + RECORD_OVERHEAD_MAX + _size(record.key, record.value, [*own, *headers])
        if size <= size_max:
            return builder.append(wall_ms, record.key, record.value, [*own, *headers])
        records_logger.warning(
            "The dead letter of offset %d of %s has no copy of the record: with it, it would have "
            "up to %d bytes, and %d are allowed",
            record.offset,
            letters_of,
            size,
            size_max,
        )
    return builder.append(wall_ms, None, None, headers)


def _size(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """Return the size in bytes of a record's key, value and headers, at most."""
    of_headers = sum(len(name.encode()) + len(text or b"") + 2 * LENGTH_BYTES_MAX for name, text in headers)
    return len(key or b"") + len(value or b"") + of_headers + 3 * LENGTH_BYTES_MAX
