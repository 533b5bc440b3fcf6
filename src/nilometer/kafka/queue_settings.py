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
import re
from collections.abc import Collection, Mapping, Sequence
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
from nilometer.client.network.cluster_metadata import metadata_request, read_metadata
from nilometer.kafka.errors import InvalidSetting
from nilometer.kafka.queue_retries import KEPT_S, PAUSE_S_MAX, pauses_among, retry_topic
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError

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
    await _create_topic(admin, NewTopic(dead_letter_topic(queue), 1, places[1], letters))
    for pause_s in pauses:
        kept = {"message.timestamp.type": "LogAppendTime", "retention.ms": str((pause_s + KEPT_S) * 1000)}
        await _create_topic(admin, NewTopic(retry_topic(queue, pause_s), 1, places[1], kept))
    if buries:
        await admin.incremental_alter_configs(
            ResourceType.TOPIC, dead_letter_topic(queue), [ConfigChange(ACCEPTS_DEAD_LETTERS, "true")]
        )
    changes = [ConfigChange(name, value) for name, value in wanted.items() if name not in given]
    if changes:
        await admin.incremental_alter_configs(ResourceType.GROUP, queue, changes)
    await _create_topic(admin, NewTopic(queue, *places, configs))  # last: who sees it sees the settings
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


async def _create_topic(admin: Admin, topic: NewTopic) -> None:
    outcome = (await admin.create_topics([topic]))[topic.name]
    if outcome is not None and outcome.code is not ErrorCode.topic_already_exists:
        raise outcome


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
