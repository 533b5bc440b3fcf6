"""What a queue is made of: a topic, a dead-letter topic, retry topics if it has pauses of minutes to days,
and the settings of the group of its workers.

The delivery limit, the lock, the isolation level and where to begin belong to the *group*, so that one place
sets them: :func:`create`, which ``kafka.admin.create_queue`` calls. A worker reads them, and refuses to start
with others.

Who buries a job that was delivered too often: brokers with ``share.version`` 2 do (KIP-1191). Others archive
it without a word; there the workers bury it when they receive it once more, which the brokers' limit must
permit.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Final

import msgspec

from nilometer.client.admin.admin import (
    BROKER_DEFAULT,
    Admin,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    NewTopic,
    ResourceType,
)
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import TopicPartition, metadata_request, read_metadata
from nilometer.kafka.errors import InvalidSetting
from nilometer.kafka.records import Send, partition_of
from nilometer.runtime import Clock
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError

# Retry topics of a queue: for pauses of minutes to days, after which a job that failed is put again.
#
# A job that fails on its last permitted delivery is moved to the retry topic of its *round*:
# ``retry.QUEUE.600`` for ten minutes, then that of the next longer pause; after the last one it is buried. So
# ``max_deliveries`` are those of a round. A record of a retry topic is due when its pause is over, by the
# time at which the broker appended it: those of a topic are due in the order of their offsets. The workers of
# a queue put again what is due (:class:`Returner`), as the members of a consumer group of their own.
#
# A move is two writes, first the one that keeps the job: a worker that dies in between leaves it twice.

logger = logging.getLogger("nilometer.kafka.queue_retries")

RETRY_PREFIX: Final = "retry."
ROUND_HEADER: Final = "__retry.round"
"""How many retry topics a job has been in, as digits."""
PAUSE_S_MAX: Final = 30 * 86_400
KEPT_S: Final = 7 * 86_400
"""So much longer than its pause a record is kept, for workers that are down."""
POLL_MS: Final = 500
"""How late a job is put again at most, if its workers are up and idle."""
FAILURE_PAUSE_S: Final = 5.0

_ROUND = re.compile(rb"[0-9]{1,4}")


def retry_topic(queue: str, pause_s: int) -> str:
    return f"{RETRY_PREFIX}{queue}.{pause_s}"


def retry_group(queue: str) -> str:
    """Return the group whose committed offsets say which jobs were put again."""
    return f"{queue}.retry"


def pauses_among(topics: Iterable[str], queue: str) -> tuple[int, ...]:
    """Return the pauses of a queue's retry topics in seconds, the shortest first."""
    name = re.compile(re.escape(RETRY_PREFIX + queue) + r"\.([1-9][0-9]{0,9})")
    return tuple(sorted(int(match[1]) for topic in topics if (match := name.fullmatch(topic))))


def round_of(record: ConsumerRecord) -> int:
    """Return how many retry topics a job has been in. A header that is no number counts as none."""
    value = record.header(ROUND_HEADER)
    return int(value) if value is not None and _ROUND.fullmatch(value) else 0


def of_next_round(record: ConsumerRecord) -> list[tuple[str, bytes | None]]:
    """Return the headers of a job that goes to a retry topic."""
    own = [one for one in record.headers if one[0] != ROUND_HEADER]
    return [*own, (ROUND_HEADER, str(round_of(record) + 1).encode())]


class Returner:
    """Puts the jobs of retry topics again, each when it is due. Cancel :meth:`run` to end it."""

    def __init__(
        self, consumer: Consumer, queue: str, pauses_s: Collection[int], clock: Clock, send: Send
    ) -> None:
        """``consumer``: of :func:`retry_group`, without automatic commits; :meth:`run` starts and closes
        it."""
        self._consumer = consumer
        self._queue = queue
        self._pauses_ms = {retry_topic(queue, pause_s): pause_s * 1000 for pause_s in pauses_s}
        self._clock = clock
        self._send = send
        self._due_ms: dict[TopicPartition, int] = {}
        """When the next record of a paused partition is due, on the wall clock."""
        self.has_looked = False
        """Whether what was due at the start has been put again, by this member of the group or another
        one."""

    async def run(self) -> None:
        """Put again what is due, for good. Errors are logged, and what they concern is tried again."""
        try:
            await self._until_done(self._start)
            while True:
                await self._until_done(self._put_due)
        finally:
            await self._consumer.close()

    async def _until_done(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await step()
            except KafkaError as error:
                self.has_looked = True  # else a worker would wait for it
                logger.warning("Failed jobs of %s are not put again now: %s", self._queue, error)
                await asyncio.sleep(FAILURE_PAUSE_S)

    async def _start(self) -> None:
        await self._consumer.start()
        await self._consumer.subscribe(tuple(self._pauses_ms))

    async def _put_due(self) -> None:
        """Put again the jobs of one poll that are due. Raises KafkaError."""
        self._resume()
        is_member = self._consumer.group_metadata().identity.is_member
        due = self._due(await self._consumer.poll(timeout_ms=POLL_MS))
        if due:
            await self._put(due)
        self.has_looked |= is_member

    async def _put(self, due: Sequence[ConsumerRecord]) -> None:
        try:
            await asyncio.gather(
                *(self._send(self._queue, one.value, key=one.key, headers=one.headers) for one in due)
            )
        except KafkaError:
            for one in reversed(due):
                self._read_again(one)
            raise
        logger.info("Put %d failed jobs of %s again", len(due), self._queue)
        # If this fails, they are put once more only if another worker takes the partition over.
        await self._consumer.commit({partition_of(one): one.offset + 1 for one in due})

    def _due(self, records: Iterable[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return the records that are due; read the others again when the first of them is."""
        now_ms = self._clock.wall_ms()
        due: list[ConsumerRecord] = []
        paused: set[TopicPartition] = set()
        for record in records:
            partition = partition_of(record)
            due_ms = record.timestamp + self._pauses_ms[record.topic]
            if partition in paused:
                continue
            if due_ms <= now_ms:
                due.append(record)
            else:
                paused.add(partition)
                self._due_ms[partition] = due_ms
                self._read_again(record)
                self._consumer.pause(partition)
        return due

    def _resume(self) -> None:
        now_ms = self._clock.wall_ms()
        assigned = self._consumer.assignment()
        for partition, due_ms in list(self._due_ms.items()):
            if partition not in assigned:
                del self._due_ms[partition]
            elif due_ms <= now_ms:
                del self._due_ms[partition]
                self._consumer.resume(partition)

    def _read_again(self, record: ConsumerRecord) -> None:
        partition = partition_of(record)
        if partition in self._consumer.assignment():
            self._consumer.seek(partition, record.offset, record.leader_epoch)


DEAD_LETTERS_PREFIX: Final = "dlq."
"""Kafka's default of errors.deadletterqueue.topic.name.prefix."""
SHARE_VERSION: Final = "share.version"
BURYING_SINCE: Final = 2
"""The level of share.version with which brokers write dead letters."""
BURYING_ROOM: Final = 2
"""How often more than ``max_deliveries`` a broker that does not bury must deliver a job, so that a worker can
bury it, and another one if that worker dies in between."""
DEFAULT_MAX_DELIVERIES: Final = 5

LIMIT = "share.delivery.count.limit"
LOCK = "share.record.lock.duration.ms"
START = "share.auto.offset.reset"
ISOLATION = "share.isolation.level"
DEAD_LETTERS = "errors.deadletterqueue.topic.name"
COPY_RECORD = "errors.deadletterqueue.copy.record.enable"
ACCEPTS_DEAD_LETTERS = "errors.deadletterqueue.group.enable"
"""Of a topic."""
BROKER_LIMIT = "group.share.delivery.count.limit"
KNOWN_TIMEOUT_MS: Final = 10_000
"""For the brokers to learn of a new queue. One that does not answer in this time is not waited for."""

Duration = str | float | timedelta
"""``"30s"``, ``"500ms"``, ``"10m"``, ``"2h"``, ``"7d"``; seconds; or a timedelta."""
_UNITS: Mapping[str, float] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d)")


def seconds_of(given: Duration, name: str) -> float:
    """Return a duration in seconds. Raises InvalidSetting, which names the argument ``name``."""
    if isinstance(given, timedelta):
        found = given.total_seconds()
    elif isinstance(given, str):
        match = _DURATION.fullmatch(given.strip())
        found = float(match[1]) * _UNITS[match[2]] if match is not None else -1.0
    else:
        found = float(given)
    if not 0 <= found < 1e10:
        raise InvalidSetting(f"{name} is a duration such as '30s', '10m' or 30, not {given!r}")
    return found


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that a worker goes by."""

    max_deliveries: int
    """How often a job is delivered at most; at least 1."""
    lock_ms: int | None
    """None: this user may not read it; fetched jobs tell it."""
    brokers_bury: bool
    retry_after_s: tuple[int, ...] = ()
    """The pauses of the retry topics, the shortest first."""


def dead_letter_topic(queue: str) -> str:
    return DEAD_LETTERS_PREFIX + queue


def _brokers_bury(admin: Admin, group: Mapping[str, ConfigEntry]) -> bool:
    """Whether the brokers can bury for this group; its setting says whether they do."""
    return DEAD_LETTERS in group and admin.client.connections.features.level(SHARE_VERSION) >= BURYING_SINCE


async def _group_settings(admin: Admin, queue: str) -> dict[str, ConfigEntry]:
    return await admin.describe_configs(ResourceType.GROUP, queue)


# --- creating


async def create(
    admin: Admin,
    queue: str,
    *,
    max_deliveries: int,
    lock: Duration,
    partitions: int | None,
    replication_factor: int | None,
    configs: Mapping[str, str],
    retry_after: Sequence[Duration] = (),
) -> None:
    """Create a queue, or check that there is one with these settings. Raises KafkaError, InvalidSetting."""
    if max_deliveries < 1:
        raise InvalidSetting(f"max_deliveries is at least 1, not {max_deliveries}")
    pauses = _pauses(retry_after)
    group = await _group_settings(admin, queue)
    wanted = await _wanted(admin, queue, group, max_deliveries, round(seconds_of(lock, "lock") * 1000))
    known = (await admin.describe_topics([queue]))[queue]
    if isinstance(known, KafkaError) and known.code is not ErrorCode.unknown_topic_or_partition:
        raise known
    given = {name for name in wanted if group[name].source is ConfigSource.DYNAMIC_GROUP_CONFIG}
    differences = {name: (group[name].value, wanted[name]) for name in given}
    if LIMIT in differences and not _brokers_bury(admin, group):
        present = int(group[LIMIT].value or 0) - BURYING_ROOM
        differences["max_deliveries"] = (str(present), str(max_deliveries))
        del differences[LIMIT]
    if not isinstance(known, KafkaError) and partitions is not None:
        differences["partitions"] = (str(len(known.partitions)), str(partitions))
    present = pauses_among(await admin.list_topics(), queue)
    is_queue = not isinstance(known, KafkaError) and bool(given)
    if is_queue or not set(present) <= set(pauses):  # else a creation was cut off
        differences["retry_after"] = (_in_words(present), _in_words(pauses))
    _refuse_others(queue, differences)
    buries = _brokers_bury(admin, group)
    places = (partitions or BROKER_DEFAULT, replication_factor or BROKER_DEFAULT)
    letters = {ACCEPTS_DEAD_LETTERS: "true"} if buries else {}
    await admin.ensure_topic(NewTopic(dead_letter_topic(queue), 1, places[1], letters))
    for pause_s in pauses:
        kept = {"message.timestamp.type": "LogAppendTime", "retention.ms": str((pause_s + KEPT_S) * 1000)}
        await admin.ensure_topic(NewTopic(retry_topic(queue, pause_s), 1, places[1], kept))
    if buries:
        await admin.incremental_alter_configs(
            ResourceType.TOPIC, dead_letter_topic(queue), [ConfigChange(ACCEPTS_DEAD_LETTERS, "true")]
        )
    changes = [ConfigChange(name, value) for name, value in wanted.items() if name not in given]
    if changes:
        await admin.incremental_alter_configs(ResourceType.GROUP, queue, changes)
    await admin.ensure_topic(NewTopic(queue, *places, configs))  # last: who sees it sees the settings
    with suppress(KafkaError):
        await admin.client.retry(lambda: _known_by_all(admin, queue), KNOWN_TIMEOUT_MS)
        await admin.client.retry(lambda: _settings_known(admin, queue, wanted), KNOWN_TIMEOUT_MS)


def _pauses(retry_after: Sequence[Duration]) -> tuple[int, ...]:
    """Return the pauses in seconds. Raises InvalidSetting."""
    found = tuple(seconds_of(each, "retry_after") for each in retry_after)
    for pause_s in found:
        if not 1 <= pause_s <= PAUSE_S_MAX or pause_s != int(pause_s):
            raise InvalidSetting(f"retry_after has whole seconds, from one to 30 days, not {pause_s:g} s")
    if any(later <= earlier for earlier, later in pairwise(found)):
        raise InvalidSetting(f"retry_after begins with the shortest pause, not {_in_words(found)}")
    return tuple(map(int, found))


def _in_words(pauses: Collection[float]) -> str:
    return ", ".join(f"{pause_s:g} s" for pause_s in pauses) or "none"


async def _wanted(
    admin: Admin, queue: str, group: Mapping[str, ConfigEntry], max_deliveries: int, lock_ms: int
) -> dict[str, str]:
    """Return the settings of the group that this queue must have. Raises InvalidSetting."""
    wanted = {LOCK: str(lock_ms), START: "earliest", ISOLATION: "read_committed"}
    limit = max_deliveries
    if _brokers_bury(admin, group):
        wanted |= {DEAD_LETTERS: dead_letter_topic(queue), COPY_RECORD: "true"}
    else:
        limit += BURYING_ROOM
    if LIMIT in group:
        return wanted | {LIMIT: str(limit)}
    allowed = await _limit_of_brokers(admin)
    if limit > allowed:
        raise InvalidSetting(
            f"max_deliveries is {max_deliveries}, and may be at most {allowed - BURYING_ROOM}: these brokers "
            f"bury no jobs, and deliver each at most {allowed} times ({BROKER_LIMIT})"
        )
    return wanted


async def _limit_of_brokers(admin: Admin) -> int:
    node_id = min(admin.client.metadata.brokers)
    found = await admin.describe_configs(ResourceType.BROKER, str(node_id))
    entry = found.get(BROKER_LIMIT)
    return int(entry.value or 0) if entry is not None else 0


async def _known_by_all(admin: Admin, queue: str) -> None:
    """Raise KafkaError if a broker does not know the queue yet: workers may ask any broker."""
    client = admin.client

    async def ask(node_id: int) -> ErrorCode | None:
        with suppress(KafkaError):  # what is down learns before it serves again
            response = await client.send_to(
                node_id, ApiKey.METADATA, lambda api: metadata_request(api, [queue])
            )
            return read_metadata(response).errors.get(queue)

    answers = await asyncio.gather(*map(ask, client.metadata.brokers))
    if ErrorCode.unknown_topic_or_partition in answers:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"a broker does not know topic {queue} yet")


async def _settings_known(admin: Admin, queue: str, wanted: Mapping[str, str]) -> None:
    """Raise KafkaError if a broker shows older settings yet: of a topic that was there, they come last."""
    group = await _group_settings(admin, queue)
    if any(group[name].value != value for name, value in wanted.items()):
        raise KafkaError(ErrorCode.request_timed_out, f"a broker does not know the settings of {queue} yet")


def _refuse_others(queue: str, differences: Mapping[str, tuple[str | None, str]]) -> None:
    """Raise InvalidSetting for each setting whose present value is not the wanted one."""
    said = [
        f"{name} is {present}, not {wanted}"
        for name, (present, wanted) in differences.items()
        if present != wanted
    ]
    if said:
        raise InvalidSetting(f"queue {queue} has other settings: {'; '.join(said)}")


# --- working


async def settings_of(
    admin: Admin, queue: str, *, max_deliveries: int | None, lock: Duration | None
) -> QueueSettings:
    """Return the settings of a queue; arguments that are given must be equal to them.

    A user who may not read the group's settings goes by the arguments, or the defaults of ``create_queue``.
    Raises InvalidSetting, which names both values, KafkaError.
    """
    known = (await admin.describe_topics([queue]))[queue]
    if isinstance(known, KafkaError):
        raise known
    pauses = pauses_among(await admin.list_topics(), queue)
    try:
        group = await _group_settings(admin, queue)
    except KafkaError as error:
        if error.code is not ErrorCode.group_authorization_failed:
            raise
        buries = admin.client.connections.features.level(SHARE_VERSION) >= BURYING_SINCE
        return QueueSettings(
            max_deliveries=max_deliveries or DEFAULT_MAX_DELIVERIES,
            lock_ms=None,
            brokers_bury=buries,
            retry_after_s=pauses,
        )
    if START not in group:
        raise KafkaError(
            ErrorCode.unsupported_version,
            "these brokers serve no share groups: a queue needs Kafka 4.2 or newer",
        )
    if group[START].value != "earliest":
        raise InvalidSetting(
            f"{queue} is no queue yet: its group begins at {group[START].value} ({START}), so that jobs "
            "would be passed over. Set it up with kafka.admin.create_queue or `nilometer queue create`"
        )
    buries = _brokers_bury(admin, group) and bool(group[DEAD_LETTERS].value)
    limit = int(group[LIMIT].value or 0) if LIMIT in group else await _limit_of_brokers(admin)
    permitted = limit if buries else limit - BURYING_ROOM
    lock_ms = int(group[LOCK].value or 0)
    differences: dict[str, tuple[str | None, str]] = {}
    if max_deliveries is not None:
        differences["max_deliveries"] = (str(permitted), str(max_deliveries))
    if lock is not None:
        differences["lock"] = (f"{lock_ms} ms", f"{round(seconds_of(lock, 'lock') * 1000)} ms")
    _refuse_others(queue, differences)
    if permitted < 1:
        raise InvalidSetting(
            f"the brokers deliver a job of queue {queue} {limit} times, and do not bury it: the limit must "
            f"be at least {1 + BURYING_ROOM} ({LIMIT}), so that a worker can"
        )
    return QueueSettings(max_deliveries=permitted, lock_ms=lock_ms, brokers_bury=buries, retry_after_s=pauses)
