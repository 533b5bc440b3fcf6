"""Every topic-level key of Apache Kafka 4.x: types, defaults, ranges, broker synonyms; and the effective
settings of one log.

For a key of a feature that this project does not have, only the value that disables the feature is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from nilometer.config import ConfigDefinition, ConfigKey, ConfigKind
from nilometer.config.definition import ConfigRule, ConfigValue, ConfigValues

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
SEGMENT_BYTES_MIN = 1 << 20
HOUR_MS = 3_600_000
MINUTE_MS = 60_000
WEEK_MS = 7 * 24 * HOUR_MS

_THROTTLED_REPLICA = re.compile(r"\d+:\d+")


def _key(
    name: str,
    kind: ConfigKind,
    default: ConfigValue | None,
    doc: str,
    *,
    synonym: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
) -> ConfigKey:
    return ConfigKey(
        name=name,
        kind=kind,
        default=default,
        doc=doc,
        synonym=synonym,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        dynamic=True,
    )


def _gzip_level(value: ConfigValue) -> str | None:
    return None if value == -1 or (isinstance(value, int) and 1 <= value <= 9) else "must be -1 or 1 to 9"


def _throttled_replicas(value: ConfigValue) -> str | None:
    items = cast(tuple[str, ...], value)
    if items == ("*",) or all(_THROTTLED_REPLICA.fullmatch(item) for item in items):
        return None
    return "must be * or a list of partition:broker"


def _throttle_key(name: str, side: str) -> ConfigKey:
    return ConfigKey(
        name=name,
        kind=ConfigKind.LIST,
        default=(),
        doc=f"Replicas (partition:broker, or *) whose replication is throttled on the {side}'s side.",
        validate=_throttled_replicas,
        dynamic=True,
    )


def _lags_apart(values: ConfigValues) -> str | None:
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if cast(int, least) <= cast(int, most):
        return None
    return (
        f"min.compaction.lag.ms ({least}) must not be above max.compaction.lag.ms ({most}): "
        "a record would have to be compacted before it may be"
    )


TOPIC_RULES = (ConfigRule(("min.compaction.lag.ms", "max.compaction.lag.ms"), _lags_apart),)


def _absent_feature(name: str, kind: ConfigKind, default: ConfigValue, doc: str, feature: str) -> ConfigKey:
    """Return a key that accepts only its default, because the feature is not implemented."""

    def validate(value: ConfigValue) -> str | None:
        return None if value == default else f"{feature} is not supported"

    return ConfigKey(name=name, kind=kind, default=default, doc=doc, validate=validate, dynamic=True)


_TIERED = "tiered storage"
_K = ConfigKind

TOPIC_CONFIG = ConfigDefinition.of(
    "topic",
    (
        _key(
            "cleanup.policy",
            _K.LIST,
            ("delete",),
            "What happens to old segments: delete removes them by retention.ms and retention.bytes, compact"
            " keeps the newest record of every key; both may be given.",
            synonym="log.cleanup.policy",
            choices=("compact", "delete"),
        ),
        ConfigKey(
            name="compression.gzip.level",
            kind=_K.INT,
            default=-1,
            doc="Level used when the broker compresses with gzip: 1 to 9, or -1 for the codec's own default.",
            validate=_gzip_level,
            synonym="compression.gzip.level",
            dynamic=True,
        ),
        _key(
            "compression.lz4.level",
            _K.INT,
            9,
            "Level used when the broker compresses with lz4.",
            synonym="compression.lz4.level",
            minimum=1,
            maximum=17,
        ),
        _key(
            "compression.type",
            _K.STRING,
            "producer",
            "Codec of the batches in the log. producer keeps what the producer sent; anything else makes the"
            " leader recompress batches that differ.",
            synonym="compression.type",
            choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        ),
        _key(
            "compression.zstd.level",
            _K.INT,
            3,
            "Level used when the broker compresses with zstd.",
            synonym="compression.zstd.level",
            minimum=-131072,
            maximum=22,
        ),
        _key(
            "delete.retention.ms",
            _K.LONG,
            24 * HOUR_MS,
            "How long a compacted topic keeps tombstones, so that consumers from the start see them.",
            synonym="log.cleaner.delete.retention.ms",
            minimum=0,
        ),
        _absent_feature(
            "errors.deadletterqueue.group.enable",
            _K.BOOLEAN,
            False,
            "Whether share groups may use the topic as a dead letter queue.",
            "share group",
        ),
        _key(
            "file.delete.delay.ms",
            _K.LONG,
            MINUTE_MS,
            "How long files renamed to .deleted are left before they are removed.",
            synonym="log.segment.delete.delay.ms",
            minimum=0,
        ),
        _key(
            "flush.messages",
            _K.LONG,
            LONG_MAX,
            "The log is flushed after this many records. With 1, every acknowledgement waits for a flush.",
            synonym="log.flush.interval.messages",
            minimum=1,
        ),
        _key(
            "flush.ms",
            _K.LONG,
            LONG_MAX,
            "The log is flushed when its oldest unflushed record is this old.",
            synonym="log.flush.interval.ms",
            minimum=0,
        ),
        _throttle_key("follower.replication.throttled.replicas", "follower"),
        _key(
            "index.interval.bytes",
            _K.INT,
            4096,
            "Approximate bytes of records between two entries of an index.",
            synonym="log.index.interval.bytes",
            minimum=0,
        ),
        _key(
            "internal.segment.bytes",
            _K.INT,
            None,
            "Overrides segment.bytes without its lower limit: for tests.",
            minimum=1,
        ),
        _throttle_key("leader.replication.throttled.replicas", "leader"),
        _absent_feature(
            "local.retention.bytes",
            _K.LONG,
            -2,
            "Retention by size of the local part of a tiered topic; -2: as retention.bytes.",
            _TIERED,
        ),
        _absent_feature(
            "local.retention.ms",
            _K.LONG,
            -2,
            "Retention by time of the local part of a tiered topic; -2: as retention.ms.",
            _TIERED,
        ),
        _key(
            "max.compaction.lag.ms",
            _K.LONG,
            LONG_MAX,
            "The maximum time that a record remains uncompacted.",
            synonym="log.cleaner.max.compaction.lag.ms",
            minimum=1,
        ),
        _key(
            "max.decompressed.message.bytes",
            _K.INT,
            128 << 20,
            "The maximum decompressed size of a batch whose records the broker has to read: on a compacted "
            "topic, with `compression.type`, and to find an offset by time. Of a producer's batch at most "
            "100 times `max.message.bytes` are accepted; a larger one gets `MESSAGE_TOO_LARGE`.",
            synonym="max.decompressed.message.bytes",
            minimum=1,
            maximum=2147483639,
        ),
        _key(
            "max.message.bytes",
            _K.INT,
            1048588,
            "Largest batch that is accepted, in bytes as sent (compressed).",
            synonym="message.max.bytes",
            minimum=0,
        ),
        _key(
            "message.timestamp.after.max.ms",
            _K.LONG,
            HOUR_MS,
            "How far a record's own timestamp may lie in the future. Not checked with LogAppendTime.",
            synonym="log.message.timestamp.after.max.ms",
            minimum=0,
        ),
        _key(
            "message.timestamp.before.max.ms",
            _K.LONG,
            LONG_MAX,
            "How far a record's own timestamp may lie in the past. Not checked with LogAppendTime.",
            synonym="log.message.timestamp.before.max.ms",
            minimum=0,
        ),
        _key(
            "message.timestamp.type",
            _K.STRING,
            "CreateTime",
            "Whether a record has the producer's timestamp (CreateTime) or the leader's (LogAppendTime).",
            synonym="log.message.timestamp.type",
            choices=("CreateTime", "LogAppendTime"),
        ),
        _key(
            "min.cleanable.dirty.ratio",
            _K.DOUBLE,
            0.5,
            "Share of uncompacted bytes from which a log is compacted.",
            synonym="log.cleaner.min.cleanable.ratio",
            minimum=0,
            maximum=1,
        ),
        _key(
            "min.compaction.lag.ms",
            _K.LONG,
            0,
            "The minimum time that a record remains uncompacted.",
            synonym="log.cleaner.min.compaction.lag.ms",
            minimum=0,
        ),
        _key(
            "min.insync.replicas",
            _K.INT,
            1,
            "The minimum size of the ISR for a produce request with acks=all; otherwise it is rejected.",
            synonym="min.insync.replicas",
            minimum=1,
        ),
        _absent_feature(
            "preallocate",
            _K.BOOLEAN,
            False,
            "Whether to preallocate new segment files. Not supported: files grow as needed.",
            "preallocation",
        ),
        _absent_feature(
            "remote.copy.lag.bytes",
            _K.LONG,
            -1,
            "Bytes of the newest records that are not copied to remote storage yet.",
            _TIERED,
        ),
        _absent_feature(
            "remote.copy.lag.ms",
            _K.LONG,
            0,
            "The time for which new records are not copied to remote storage yet.",
            _TIERED,
        ),
        _absent_feature(
            "remote.log.copy.disable",
            _K.BOOLEAN,
            False,
            "Whether copying to remote storage is stopped.",
            _TIERED,
        ),
        _absent_feature(
            "remote.log.delete.on.disable",
            _K.BOOLEAN,
            False,
            "Whether the remote part is deleted when tiered storage is disabled.",
            _TIERED,
        ),
        _absent_feature(
            "remote.storage.enable", _K.BOOLEAN, False, "Whether tiered storage is enabled.", _TIERED
        ),
        _key(
            "retention.bytes",
            _K.LONG,
            -1,
            "Size of a partition's log above which its oldest segments are deleted; negative: no limit.",
            synonym="log.retention.bytes",
        ),
        _key(
            "retention.ms",
            _K.LONG,
            WEEK_MS,
            "Age of a segment's newest record above which the segment is deleted; -1: no limit.",
            synonym="log.retention.ms",
            minimum=-1,
        ),
        _key(
            "segment.bytes",
            _K.INT,
            1 << 30,
            "Size above which a new segment is rolled.",
            synonym="log.segment.bytes",
            minimum=SEGMENT_BYTES_MIN,
        ),
        _key(
            "segment.index.bytes",
            _K.INT,
            10 << 20,
            "Size of an offset index above which a new segment is rolled.",
            synonym="log.index.size.max.bytes",
            minimum=4,
        ),
        _key(
            "segment.jitter.ms",
            _K.LONG,
            0,
            "The maximum random reduction of segment.ms, so that segments do not all roll at once.",
            synonym="log.roll.jitter.ms",
            minimum=0,
        ),
        _key(
            "segment.ms",
            _K.LONG,
            WEEK_MS,
            "Time after which a new segment is rolled even if the active one is not full.",
            synonym="log.roll.ms",
            minimum=1,
        ),
        _key(
            "unclean.leader.election.enable",
            _K.BOOLEAN,
            False,
            "Whether a replica that may lack records can become leader if no other can. Loses records.",
            synonym="unclean.leader.election.enable",
        ),
    ),
    rules=TOPIC_RULES,
)


# In the effective settings of one log the topic's own value is used, or else the broker's value under the
# key's synonym, or else the default.

_COARSER_SYNONYMS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "segment.ms": (("log.roll.hours", HOUR_MS),),
    "segment.jitter.ms": (("log.roll.jitter.hours", HOUR_MS),),
    "retention.ms": (("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)),
    "flush.ms": (("log.flush.scheduler.interval.ms", 1),),
}
"""Broker keys that set a topic key's default in a coarser unit, with the factor to milliseconds. They are
tried in this order if the synonym is not set."""


def topic_defaults(broker_values: Mapping[str, ConfigValue | None]) -> dict[str, ConfigValue]:
    """Return the topic defaults that a broker's settings give, by topic key.

    ``broker_values`` are parsed, by broker key; a key that is absent or None is not set.
    """
    defaults: dict[str, ConfigValue] = {}
    for key in TOPIC_CONFIG.keys.values():
        value = broker_values.get(key.synonym) if key.synonym else None
        for coarser, factor in _COARSER_SYNONYMS.get(key.name, ()):
            if value is None and (given := broker_values.get(coarser)) is not None:
                value = cast(int, given) * factor if cast(int, given) >= 0 else given
        if value is not None:
            defaults[key.name] = value
    return defaults


DECOMPRESSED_FACTOR = 100
"""How many times ``max.message.bytes`` a producer's batch may have when it is decompressed. Logs compress 20
to 50 times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The settings of one log, as typed values. Times are in milliseconds."""

    is_compacted: bool = False
    is_deleted_by_retention: bool = True
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = 24 * HOUR_MS
    file_delete_delay_ms: int = MINUTE_MS
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = LONG_MAX
    max_decompressed_message_bytes: int = 128 << 20
    max_message_bytes: int = 1048588
    message_timestamp_after_max_ms: int = HOUR_MS
    message_timestamp_before_max_ms: int = LONG_MAX
    is_log_append_time: bool = False
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    retention_bytes: int = -1
    retention_ms: int = WEEK_MS
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    segment_jitter_ms: int = 0
    segment_ms: int = WEEK_MS

    @property
    def decompressed_bytes_max(self) -> int:
        """The largest decompressed size (bytes) of a producer's batch whose records the leader must read."""
        return min(self.max_decompressed_message_bytes, DECOMPRESSED_FACTOR * self.max_message_bytes)

    @classmethod
    def parse(cls, texts: Mapping[str, str], defaults: Mapping[str, ConfigValue] | None = None) -> LogConfig:
        """Build from a topic's own settings and the broker's defaults for topic keys (``topic_defaults``).

        Raises ConfigError.
        """
        return cls.of(TOPIC_CONFIG.judge(texts, defaults))

    @classmethod
    def of(cls, values: ConfigValues) -> LogConfig:
        """Build from one parsed value for every topic key, as ``TOPIC_CONFIG`` returns them."""
        policies = cast(tuple[str, ...], values["cleanup.policy"])
        segment_bytes = values["internal.segment.bytes"] or values["segment.bytes"]
        plain = {
            name: values[name.replace("_", ".")]
            for name in cls.__slots__
            if name.replace("_", ".") in TOPIC_CONFIG.keys and name != "segment_bytes"
        }
        return cls(
            is_compacted="compact" in policies,
            is_deleted_by_retention="delete" in policies,
            is_log_append_time=values["message.timestamp.type"] == "LogAppendTime",
            segment_bytes=cast(int, segment_bytes),
            **plain,  # pyright: ignore[reportArgumentType]  # parsed by the keys of the same names
        )
