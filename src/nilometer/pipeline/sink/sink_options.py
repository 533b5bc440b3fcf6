"""The options of ``df.write.format("nilometer")`` and the columns it takes: those of Spark's Kafka sink.

Pure. An invalid option raises :class:`OptionError`, with the option, its value and the allowed values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nilometer.client.producer.producer_settings import PRODUCER_CONFIG_DEFINITION, ProducerConfig
from nilometer.client.settings.client_settings import ClientSettings
from nilometer.config import ConfigError
from nilometer.pipeline.errors import OptionError

ALLOWED = {
    "topic": "the topic to write to; without it, the column topic names it for each row",
    "repeatHeaders": "true or false: headers that identify records sent again; true unless exactlyOnce is",
    "exactlyOnce": "true or false (default): each task writes exactly once, even if Spark runs it again",
    "writerId": "the writer's name in these headers, after the query's id; see repeats for foreachBatch",
}
BY_SPARK = frozenset({"checkpointlocation", "path", "queryname", "outputmode"})
"""Options that Spark passes to every sink although they are its own; they are ignored."""
KAFKA_PREFIX = "kafka."
NOT_FOR_SPARK = {
    "key.serializer": "give the column key as binary or string",
    "value.serializer": "give the column value as binary or string",
    "transactional.id": "the sink names its transactions itself",
}
DEFAULTS = {"batch.size": str(256 * 1024), "linger.ms": "20"}
"""The producer's defaults here: a task waits only once, at its end, so large batches cost no latency."""

TRANSACTION_TIMEOUT_MS = 15 * 60_000
"""The default of the brokers' ``transaction.max.timeout.ms``. It is long because a task's transaction stays
open while Spark computes the task's rows."""

COLUMNS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}

_CANONICAL = {name.lower(): name for name in ALLOWED}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    producer: tuple[tuple[str, str], ...]
    """The producer settings, sorted; a process shares one producer per value of this."""
    topic: str | None
    repeat_headers: bool
    writer_id: str | None
    exactly_once: bool = False

    @property
    def bootstrap_servers(self) -> str:
        return dict(self.producer)["bootstrap.servers"]


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options that Spark passes; keys are case-insensitive. Raises OptionError."""
    own: dict[str, str] = {}
    producer = dict(DEFAULTS)
    for key, value in given.items():
        name = key.lower()
        if name.startswith(KAFKA_PREFIX):
            producer[name.removeprefix(KAFKA_PREFIX)] = value
        elif name in _CANONICAL:
            own[_CANONICAL[name]] = value
        elif name not in BY_SPARK:
            allowed = ", ".join([*ALLOWED, "kafka.bootstrap.servers, kafka.*"])
            raise OptionError(key, value, f"there is no such option of the sink; allowed are {allowed}")
    exactly_once = _boolean(own, "exactlyOnce", default=False)
    if exactly_once:
        producer.setdefault("transaction.timeout.ms", str(TRANSACTION_TIMEOUT_MS))
    _check_producer(producer, exactly_once)
    if own.get("topic") == "":
        raise OptionError(
            "topic", "", "names no topic: give one, or omit the option and write a column topic"
        )
    return SinkOptions(
        producer=tuple(sorted(producer.items())),
        topic=own.get("topic"),
        repeat_headers=_boolean(own, "repeatHeaders", default=not exactly_once),
        writer_id=own.get("writerId"),
        exactly_once=exactly_once,
    )


def check_columns(types: Mapping[str, str], options: SinkOptions) -> None:
    """Check the columns of a DataFrame, given Spark's names of their types; other columns are ignored.

    Raises OptionError for a missing column or a wrong type.
    """
    if "value" not in types:
        raise OptionError("value", None, f"there is no such column; the columns are {', '.join(types)}")
    if options.topic is None and "topic" not in types:
        raise OptionError("topic", None, "must be given, as an option or as a column")
    for name, allowed in COLUMNS.items():
        kind = types.get(name)
        if kind is not None and kind not in allowed:
            raise OptionError(f"column {name}", kind, f"must be {' or '.join(allowed)}")


def _boolean(own: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = own.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(name, own[name], "must be true or false")
    return text == "true"


def _check_producer(producer: Mapping[str, str], exactly_once: bool) -> None:
    if "bootstrap.servers" not in producer:
        raise OptionError("kafka.bootstrap.servers", None, "must be given: host:port[,host:port...]")
    for name, reason in NOT_FOR_SPARK.items():
        if name in producer:
            raise OptionError(KAFKA_PREFIX + name, producer[name], reason)
    settings = {**producer, "transactional.id": "any"} if exactly_once else producer
    try:
        ProducerConfig.of(ClientSettings(PRODUCER_CONFIG_DEFINITION, settings))
    except ConfigError as error:
        raise OptionError(KAFKA_PREFIX + error.key, producer.get(error.key), str(error)) from error
