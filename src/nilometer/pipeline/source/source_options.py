"""The options of ``format("nilometer")``: those of Spark's Kafka source, checked by name and value.

Pure. Options that begin with ``kafka.`` are consumer settings, with Kafka's keys; the others are listed in
``ALLOWED``. An invalid option raises :class:`OptionError`, with the option, its value and the allowed values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, cast

from nilometer.client.consumer.consumer_settings import CONSUMER_CONFIG_DEFINITION
from nilometer.client.settings import ClientSettings
from nilometer.config import ConfigError
from nilometer.pipeline.errors import OptionError

EARLIEST = -2
LATEST = -1

_TIMES_OF_PARTITIONS = 'milliseconds since 1970 as JSON: {"topic": {"0": 1700000000000, "1": 1700000000000}}'

ALLOWED = {
    "subscribe": "topics, separated by commas",
    "assign": 'partitions as JSON: {"topic": [0, 1]}',
    "subscribePattern": "a regular expression that whole topic names match",
    "startingOffsets": 'earliest, latest (streams only) or JSON: {"topic": {"0": 23, "1": -2}}',
    "startingOffsetsByTimestamp": _TIMES_OF_PARTITIONS,
    "startingTimestamp": "milliseconds since 1970, for all partitions",
    "startingOffsetsByTimestampStrategy": "error or latest: if no record has this time or a later one",
    "endingOffsets": 'latest or JSON: {"topic": {"0": 42, "1": -1}} (batch only)',
    "endingOffsetsByTimestamp": f"{_TIMES_OF_PARTITIONS} (batch only)",
    "endingTimestamp": "milliseconds since 1970, for all partitions (batch only)",
    "maxOffsetsPerTrigger": "the maximum number of records per micro-batch (streams only)",
    "minOffsetsPerTrigger": "wait for this many records, at most for maxTriggerDelay (streams only)",
    "maxTriggerDelay": "how long to wait for minOffsetsPerTrigger: 30s, 15m, 1h ... (streams only)",
    "minPartitions": "the minimum number of tasks",
    "maxRecordsPerPartition": "the maximum number of records per task",
    "failOnDataLoss": "true or false",
    "includeHeaders": "true or false",
    "pushDownFilters": "true or false: do not read records that filters exclude (batch only)",
    "groupIdPrefix": "the name under which the brokers see this reader",
    "fetchOffset.numRetries": "0 or more; without effect: kafka.default.api.timeout.ms limits the retries",
    "fetchOffset.retryIntervalMs": "the pause before a request is retried, in milliseconds",
    "kafkaConsumer.pollTimeoutMs": "how long a task tries to read, with retries, in milliseconds",
}
KAFKA_PREFIX = "kafka."
NOT_FOR_SPARK = {
    "auto.offset.reset": "use startingOffsets instead",
    "max.poll.records": "use maxOffsetsPerTrigger instead",
    "allow.auto.create.topics": "reading creates no topics",
    "enable.auto.commit": "nothing is committed: positions are stored in the checkpoint",
    "key.deserializer": "keys are bytes; cast the column instead",
    "value.deserializer": "values are bytes; cast the column instead",
}
STREAMS_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
BATCHES_ONLY = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp", "pushDownFilters")
RETRY_PAUSE_MAX_MS = 1_000
"""Kafka's default for retry.backoff.max.ms."""
MAX_TRIGGER_DELAY_MS = 15 * 60 * 1000
"""Spark's default for maxTriggerDelay."""
FETCH_BYTES = 8 * 1024 * 1024
"""The default for ``kafka.max.partition.fetch.bytes``."""

_CANONICAL = {name.lower(): name for name in ALLOWED}
_STRATEGIES = ("subscribe", "assign", "subscribePattern")

_DURATION = re.compile(r"([0-9]+) ?(ms|s|m|min|h|d)")
_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

PartitionOffsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after a timestamp in milliseconds: one for all partitions, or one for each."""

    option: str
    milliseconds: int | PartitionOffsets
    or_latest: bool
    """Whether to use the end of a partition without a record that late; otherwise that is an error."""


Bound = int | PartitionOffsets | AtTime
"""EARLIEST, LATEST, an offset for each partition, or a time."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which partitions to read; exactly one of the three is given."""

    topics: tuple[str, ...] = ()
    assigned: Mapping[str, tuple[int, ...]] | None = None
    pattern: str | None = None

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the topics; None if a pattern selects them."""
        if self.pattern is not None:
            return None
        return tuple(sorted(self.assigned)) if self.assigned is not None else self.topics

    def matches(self, topic: str) -> bool:
        return self.pattern is not None and re.fullmatch(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    consumer: tuple[tuple[str, str], ...]
    """The consumer settings, sorted; a process shares one client per value of this."""
    selection: Selection
    starting: Bound
    ending: Bound
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    push_down_filters: bool

    @property
    def bootstrap_servers(self) -> str:
        return dict(self.consumer)["bootstrap.servers"]


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse the options that Spark passes; keys are case-insensitive. Raises OptionError.

    ``streaming`` tells whether they are for a stream or a batch.
    """
    own, consumer = _split(given)
    for name in BATCHES_ONLY if streaming else STREAMS_ONLY:
        if name in own:
            raise OptionError(name, own[name], f"has no effect in a {'stream' if streaming else 'batch'}")
    most, least = _positive(own, "maxOffsetsPerTrigger"), _positive(own, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError(
            "minOffsetsPerTrigger",
            own["minOffsetsPerTrigger"],
            f"must not be above maxOffsetsPerTrigger, {most}",
        )
    return SourceOptions(
        consumer=consumer,
        selection=_selection(own),
        starting=_starting(own, streaming),
        ending=_ending(own),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_duration_ms(own, "maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        min_partitions=_positive(own, "minPartitions"),
        max_records_per_partition=_positive(own, "maxRecordsPerPartition"),
        fail_on_data_loss=_boolean(own, "failOnDataLoss", True),
        include_headers=includes_headers(own),
        push_down_filters=_boolean(own, "pushDownFilters", False),
    )


def _starting(own: Mapping[str, str], streaming: bool) -> Bound:
    strategy = own.get("startingOffsetsByTimestampStrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise OptionError("startingOffsetsByTimestampStrategy", strategy, "must be error or latest")
    at_time = _at_time(own, "startingTimestamp", "startingOffsetsByTimestamp", strategy == "latest")
    if at_time is not None:
        return at_time
    starting = _offsets(own, "startingOffsets", LATEST if streaming else EARLIEST)
    if not streaming and (starting == LATEST or _names(starting, LATEST)):
        raise OptionError(
            "startingOffsets", own["startingOffsets"], "a batch cannot start at the latest offset"
        )
    return starting


def _ending(own: Mapping[str, str]) -> Bound:
    at_time = _at_time(own, "endingTimestamp", "endingOffsetsByTimestamp", True)
    if at_time is not None:
        return at_time
    ending = _offsets(own, "endingOffsets", LATEST)
    if ending == EARLIEST or _names(ending, EARLIEST):
        raise OptionError("endingOffsets", own["endingOffsets"], "reading cannot end at the earliest offset")
    return ending


def _at_time(own: Mapping[str, str], for_all: str, by_partition: str, or_latest: bool) -> AtTime | None:
    """Return the timestamps of these options, or None if neither is given.

    As in Spark, the option for all partitions has priority over the one by partition, and both over offsets.
    """
    if for_all in own:
        if not own[for_all].strip().isdecimal():
            raise OptionError(for_all, own[for_all], f"must be {ALLOWED[for_all]}")
        return AtTime(for_all, int(own[for_all]), or_latest)
    if by_partition in own:
        return AtTime(by_partition, _by_partition(own, by_partition, 0), or_latest)
    return None


def includes_headers(given: Mapping[str, str]) -> bool:
    """Return the option includeHeaders, which decides the schema."""
    return _boolean(
        {_CANONICAL.get(key.lower(), key): value for key, value in given.items()}, "includeHeaders", False
    )


def _split(given: Mapping[str, str]) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    own: dict[str, str] = {}
    consumer = {"max.partition.fetch.bytes": str(FETCH_BYTES)}
    for key, value in given.items():
        name = key.lower()
        if name.startswith(KAFKA_PREFIX):
            consumer[name.removeprefix(KAFKA_PREFIX)] = value
        elif name in _CANONICAL:
            own[_CANONICAL[name]] = value
        else:
            allowed = ", ".join([*ALLOWED, "kafka.bootstrap.servers, kafka.*"])
            close = get_close_matches(name, _CANONICAL, 1)
            meant = f" (did you mean {_CANONICAL[close[0]]}?)" if close else ""
            raise OptionError(key, value, f"there is no such option{meant}; allowed are {allowed}")
    _whole_number(own, "fetchOffset.numRetries")
    # Spark's source joins no group either; it assigns partitions in the name of one, before any prefix.
    if "group.id" in consumer:
        own["groupIdPrefix"] = consumer.pop("group.id")
    for name, setting in (
        ("groupIdPrefix", "client.id"),
        ("fetchOffset.retryIntervalMs", "retry.backoff.ms"),
        ("kafkaConsumer.pollTimeoutMs", "default.api.timeout.ms"),
    ):
        if name in own:
            consumer.setdefault(setting, own[name])
    if "fetchOffset.retryIntervalMs" in own:
        pause = _whole_number(own, "fetchOffset.retryIntervalMs") or 0
        consumer.setdefault("retry.backoff.max.ms", str(max(pause, RETRY_PAUSE_MAX_MS)))
    if "bootstrap.servers" not in consumer:
        raise OptionError("kafka.bootstrap.servers", None, "must be given: host:port[,host:port...]")
    for name, reason in NOT_FOR_SPARK.items():
        if name in consumer:
            raise OptionError(KAFKA_PREFIX + name, consumer[name], reason)
    try:
        ClientSettings(CONSUMER_CONFIG_DEFINITION, consumer)
    except ConfigError as error:
        raise OptionError(KAFKA_PREFIX + error.key, consumer.get(error.key), str(error)) from error
    return own, tuple(sorted(consumer.items()))


def _selection(own: Mapping[str, str]) -> Selection:
    chosen = [name for name in _STRATEGIES if name in own]
    if len(chosen) != 1:
        raise OptionError(
            " + ".join(chosen) or "subscribe", None, f"exactly one of {', '.join(_STRATEGIES)} must be given"
        )
    match chosen[0]:
        case "subscribe":
            topics = tuple(sorted({name.strip() for name in own["subscribe"].split(",")} - {""}))
            if not topics:
                raise OptionError(
                    "subscribe", own["subscribe"], "names no topic: give topic names, separated by commas"
                )
            return Selection(topics=topics)
        case "assign":
            return Selection(assigned=_assigned(own["assign"]))
        case _:
            try:
                re.compile(own["subscribePattern"])
            except re.error as error:
                raise OptionError(
                    "subscribePattern",
                    own["subscribePattern"],
                    f"is not a valid regular expression: {error}",
                ) from error
            return Selection(pattern=own["subscribePattern"])


def _assigned(text: str) -> Mapping[str, tuple[int, ...]]:
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, numbers in sorted(_json("assign", text).items()):
        partitions = cast(list[Any], numbers) if isinstance(numbers, list) else []
        if not partitions or not all(type(one) is int and one >= 0 for one in partitions):
            raise OptionError("assign", text, f"must be {ALLOWED['assign']}")
        assigned[topic] = tuple(sorted(set(partitions)))
    if not assigned:
        raise OptionError("assign", text, f"must be {ALLOWED['assign']}")
    return assigned


def _offsets(own: Mapping[str, str], name: str, default: int) -> int | PartitionOffsets:
    text = own.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    return _by_partition(own, name, EARLIEST)


def _by_partition(own: Mapping[str, str], name: str, minimum: int) -> PartitionOffsets:
    text = own[name]
    offsets: dict[str, dict[int, int]] = {}
    for topic, partitions in _json(name, text).items():
        if not isinstance(partitions, dict):
            raise OptionError(name, text, f"must be {ALLOWED[name]}")
        for partition, offset in cast(dict[str, Any], partitions).items():
            if not partition.isdecimal() or type(offset) is not int or offset < minimum:
                raise OptionError(name, text, f"must be {ALLOWED[name]}")
            offsets.setdefault(topic, {})[int(partition)] = offset
    if not offsets:
        raise OptionError(name, text, f"must be {ALLOWED[name]}")
    return offsets


def _names(offsets: int | PartitionOffsets, special: int) -> bool:
    if isinstance(offsets, int):
        return False
    return any(offset == special for partitions in offsets.values() for offset in partitions.values())


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        parsed: Any = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise OptionError(name, text, f"must be {ALLOWED[name]}")
    return cast(dict[str, Any], parsed)


def _positive(own: Mapping[str, str], name: str) -> int | None:
    text = own.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionError(name, text, "must be a whole number, 1 or more")
    return int(text)


def _whole_number(own: Mapping[str, str], name: str) -> int | None:
    text = own.get(name)
    if text is not None and not text.strip().isdecimal():
        raise OptionError(name, text, "must be a whole number, 0 or more")
    return None if text is None else int(text)


def _duration_ms(own: Mapping[str, str], name: str, default: int) -> int:
    text = own.get(name)
    if text is None:
        return default
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise OptionError(name, text, f"must be a number and one of {', '.join(_MILLISECONDS)}, such as 15m")
    return int(found[1]) * _MILLISECONDS[found[2]]


def _boolean(own: Mapping[str, str], name: str, default: bool) -> bool:
    text = own.get(name)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(name, text, "must be true or false")
    return text.strip().lower() == "true"
