"""Every topic-level key of Apache Kafka 4.x: types, defaults, ranges, broker synonyms; and the effective
settings of one log.

For a key of a feature that this project does not have, only the value that disables the feature is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import msgspec

from nilometer.config import ConfigDefinition, ConfigKey, ConfigRule, ConfigValue, ConfigValues, key_table

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
SEGMENT_BYTES_MIN = 1 << 20
HOUR_MS = 3_600_000
MINUTE_MS = 60_000
WEEK_MS = 7 * 24 * HOUR_MS
AS_RETENTION = -2
"""The value of ``local.retention.*`` that stands for that of ``retention.*``."""

_THROTTLED_REPLICA = re.compile(r"\d+:\d+")


def _gzip_level(value: ConfigValue) -> str | None:
    return None if value == -1 or (isinstance(value, int) and 1 <= value <= 9) else "must be -1 or 1 to 9"


def _throttled_replicas(value: ConfigValue) -> str | None:
    items = cast(tuple[str, ...], value)
    if items == ("*",) or all(_THROTTLED_REPLICA.fullmatch(item) for item in items):
        return None
    return "must be * or a list of partition:broker"


def _lags_apart(values: ConfigValues) -> str | None:
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if cast(int, least) <= cast(int, most):
        return None
    return (
        f"min.compaction.lag.ms ({least}) must not be above max.compaction.lag.ms ({most}): "
        "a record would have to be compacted before it may be"
    )


# Tiered topics: their records may be copied to remote storage, and stay here for a shorter time than there.
# A broker whose file contradicts a topic's settings applies them as far as it can: it must not take the topic
# for one that is not tiered, and so give up what is in remote storage.

ENABLE = "remote.storage.enable"
SYSTEM_ENABLE = "remote.log.storage.system.enable"
"""The broker's key that allows tiered topics. It is among the values that topics inherit."""
DELETE_ON_DISABLE = "remote.log.delete.on.disable"
_RETENTION = (("local.retention.bytes", "retention.bytes"), ("local.retention.ms", "retention.ms"))


def _tiers_without_remote_storage(values: ConfigValues) -> str | None:
    if not values[ENABLE] or values.get(SYSTEM_ENABLE):
        return None
    return (
        "Tiered Storage functionality is disabled in the broker. "
        "Topic cannot be configured with remote log storage."
    )


def _tiers_compacted(values: ConfigValues) -> str | None:
    if not values[ENABLE] or "compact" not in cast(tuple[str, ...], values["cleanup.policy"]):
        return None
    return (
        "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an empty "
        "list."
    )


def why_local_exceeds_total(values: ConfigValues, local: str, total: str) -> str | None:
    """Return why the value of key ``local`` cannot be that of ``total``'s local part, or None if it can."""
    kept, kept_in_all = cast(int, values[local]), cast(int, values[total])
    if kept_in_all < 0 or kept == AS_RETENTION or 0 <= kept <= kept_in_all:
        return None
    reason = (
        f"Value must not be -1 as {total} value is set as {kept_in_all}."
        if kept == -1
        else f"Value must not be more than {total} property value: {kept_in_all}"
    )
    return f"Invalid value {kept} for configuration {local}: {reason}"


def _local_rule(local: str, total: str) -> ConfigRule:
    return ConfigRule(
        (local, total),
        lambda values: why_local_exceeds_total(values, local, total) if values[ENABLE] else None,
        is_applied=True,
    )


def _not_copied_rule(local: str, total: str) -> ConfigRule:
    def why_broken(values: ConfigValues) -> str | None:
        is_copied = not values[ENABLE] or not values["remote.log.copy.disable"]
        if is_copied or values[local] in (AS_RETENTION, values[total]):
            return None
        return (
            f"When `remote.log.copy.disable` is set to true, the `{local}` and `{total}` must be set to the "
            "identical value because there will be no more logs copied to the remote storage."
        )

    return ConfigRule((local, total), why_broken, is_applied=True)


def _leaves_remote_data(before: ConfigValues, after: ConfigValues) -> str | None:
    if not before[ENABLE] or after[ENABLE] or after[DELETE_ON_DISABLE]:
        return None
    return (
        "It is invalid to disable remote storage without deleting remote data. If you want to keep the "
        f"remote data and turn to read only, please set `{ENABLE}=true,remote.log.copy.disable=true`. If you "
        f"want to disable remote storage and delete all remote data, please set `{ENABLE}=false,"
        f"{DELETE_ON_DISABLE}=true`."
    )


TOPIC_RULES = (
    ConfigRule(("min.compaction.lag.ms", "max.compaction.lag.ms"), _lags_apart),
    ConfigRule((ENABLE,), _tiers_without_remote_storage, is_applied=True),
    ConfigRule((ENABLE,), _tiers_compacted, is_applied=True),
    *(_local_rule(*keys) for keys in _RETENTION),
    *(_not_copied_rule(*keys) for keys in _RETENTION),
)


_KEYS = key_table(
    f"""
cleanup.policy: list (compact|delete) by:log.cleanup.policy = delete
    What happens to old segments: delete removes them by retention.ms and retention.bytes, compact keeps
    the newest record of every key; both may be given.
compression.gzip.level: int by:compression.gzip.level = -1
    Level used when the broker compresses with gzip: 1 to 9, or -1 for the codec's own default.
compression.lz4.level: int 1..17 by:compression.lz4.level = 9
    Level used when the broker compresses with lz4.
compression.type: string (uncompressed|zstd|lz4|snappy|gzip|producer) by:compression.type = producer
    Codec of the batches in the log. producer keeps what the producer sent; anything else makes the leader
    recompress batches that differ.
compression.zstd.level: int -131_072..22 by:compression.zstd.level = 3
    Level used when the broker compresses with zstd.
delete.retention.ms: long 0.. by:log.cleaner.delete.retention.ms = {24 * HOUR_MS}
    How long a compacted topic keeps tombstones, so that consumers from the start see them.
errors.deadletterqueue.group.enable: boolean = false
    Whether share groups may use the topic for their dead letters (KIP-1191).
file.delete.delay.ms: long 0.. by:log.segment.delete.delay.ms = {MINUTE_MS}
    How long files renamed to .deleted are left before they are removed.
flush.messages: long 1.. by:log.flush.interval.messages = {LONG_MAX}
    The log is flushed after this many records. With 1, every acknowledgement waits for a flush.
flush.ms: long 0.. by:log.flush.interval.ms = {LONG_MAX}
    The log is flushed when its oldest unflushed record is this old.
follower.replication.throttled.replicas: list =
    Replicas (partition:broker, or *) whose replication is throttled on the follower's side.
index.interval.bytes: int 0.. by:log.index.interval.bytes = 4096
    Approximate bytes of records between two entries of an index; at most 64 KiB.
internal.segment.bytes: int 1..
    Overrides segment.bytes without its lower limit: for tests.
leader.replication.throttled.replicas: list =
    Replicas (partition:broker, or *) whose replication is throttled on the leader's side.
local.retention.bytes: long -2.. by:log.local.retention.bytes = -2
    Size above which the oldest segments of a tiered topic's partition are deleted here, once they are in
    remote storage; -2: that of retention.bytes.
local.retention.ms: long -2.. by:log.local.retention.ms = -2
    Age of a segment's newest record above which it is deleted here, once it is in remote storage; -2: that of
    retention.ms.
max.compaction.lag.ms: long 1.. by:log.cleaner.max.compaction.lag.ms = {LONG_MAX}
    The maximum time that a record remains uncompacted.
max.decompressed.message.bytes: int 1..2_147_483_639 by:max.decompressed.message.bytes = {128 << 20}
    The maximum decompressed size of a batch whose records the broker has to read: on a compacted topic,
    with `compression.type`, and to find an offset by time. Of a producer's batch at most 100 times
    `max.message.bytes` are accepted; a larger one gets `MESSAGE_TOO_LARGE`.
max.message.bytes: int 0.. by:message.max.bytes = 1_048_588
    Largest batch that is accepted, in bytes as sent (compressed).
message.timestamp.after.max.ms: long 0.. by:log.message.timestamp.after.max.ms = {HOUR_MS}
    How far a record's own timestamp may lie in the future. Not checked with LogAppendTime.
message.timestamp.before.max.ms: long 0.. by:log.message.timestamp.before.max.ms = {LONG_MAX}
    How far a record's own timestamp may lie in the past. Not checked with LogAppendTime.
message.timestamp.type: string (CreateTime|LogAppendTime) by:log.message.timestamp.type = CreateTime
    Whether a record has the producer's timestamp (CreateTime) or the leader's (LogAppendTime).
min.cleanable.dirty.ratio: double 0..1 by:log.cleaner.min.cleanable.ratio = 0.5
    Share of uncompacted bytes from which a log is compacted.
min.compaction.lag.ms: long 0.. by:log.cleaner.min.compaction.lag.ms = 0
    The minimum time that a record remains uncompacted.
min.insync.replicas: int 1.. by:min.insync.replicas = 1
    The minimum size of the ISR for a produce request with acks=all; otherwise it is rejected.
remote.log.copy.disable: boolean = false
    Whether a tiered topic is only read from remote storage: nothing more is copied there.
remote.log.delete.on.disable: boolean = false
    Whether remote.storage.enable may be set to false, which deletes what is in remote storage.
remote.storage.enable: boolean = false
    Whether the topic is tiered: its full segments are copied to remote storage, and read from there when they
    have been deleted here.
retention.bytes: long by:log.retention.bytes = -1
    Size of a partition's log above which its oldest segments are deleted; negative: no limit.
retention.ms: long -1.. by:log.retention.ms = {WEEK_MS}
    Age of a segment's newest record above which the segment is deleted; -1: no limit.
segment.bytes: int {SEGMENT_BYTES_MIN}.. by:log.segment.bytes = {1 << 30}
    Size above which a new segment is rolled.
segment.index.bytes: int 4.. by:log.index.size.max.bytes = {10 << 20}
    Size of an offset index above which a new segment is rolled.
segment.jitter.ms: long 0.. by:log.roll.jitter.ms = 0
    The maximum random reduction of segment.ms, so that segments do not all roll at once.
segment.ms: long 1.. by:log.roll.ms = {WEEK_MS}
    Time after which a new segment is rolled even if the active one is not full.
unclean.leader.election.enable: boolean by:unclean.leader.election.enable = false
    Whether a replica that may lack records can become leader if no other can. Loses records.
""",
    checks={
        "compression.gzip.level": _gzip_level,
        "follower.replication.throttled.replicas": _throttled_replicas,
        "leader.replication.throttled.replicas": _throttled_replicas,
    },
)


def _absent(feature: str, table: str) -> list[ConfigKey]:
    """Return keys of a feature that is not implemented: they accept only their defaults."""

    def refused(key: ConfigKey) -> ConfigKey:
        def why(value: ConfigValue) -> str | None:
            return None if value == key.default else f"{feature} is not supported"

        return msgspec.structs.replace(key, validate=why)

    return [refused(key) for key in key_table(table)]


_ABSENT_KEYS = (
    *_absent(
        "preallocation",
        """
preallocate: boolean = false
    Whether to preallocate new segment files. Not supported: files grow as needed.
""",
    ),
    *_absent(
        "a delay of what is copied to remote storage",
        """
remote.copy.lag.bytes: long = -1
    Bytes of the newest records that are not copied to remote storage yet.
remote.copy.lag.ms: long = 0
    The time for which new records are not copied to remote storage yet.
""",
    ),
)
TOPIC_CONFIG = ConfigDefinition.of(
    "topic",
    [
        msgspec.structs.replace(key, dynamic=True)
        for key in sorted((*_KEYS, *_ABSENT_KEYS), key=lambda key: key.name)
    ],
    rules=TOPIC_RULES,
    change_rules=(_leaves_remote_data,),
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
    if broker_values.get(SYSTEM_ENABLE):
        defaults[SYSTEM_ENABLE] = True
    return defaults


AS_PRODUCED = "producer"
"""The ``compression.type`` with which a batch keeps its codec."""
DECOMPRESSED_FACTOR = 100
"""How many times ``max.message.bytes`` a producer's batch may have when it is decompressed. Logs compress 20
to 50 times."""


INDEX_INTERVAL_MAX = 64 << 10
"""A fetch walks over the batches that follow an entry of an index: of a longer interval they may be
millions."""


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
    local_retention_bytes: int = AS_RETENTION
    local_retention_ms: int = AS_RETENTION
    max_compaction_lag_ms: int = LONG_MAX
    max_decompressed_message_bytes: int = 128 << 20
    max_message_bytes: int = 1048588
    message_timestamp_after_max_ms: int = HOUR_MS
    message_timestamp_before_max_ms: int = LONG_MAX
    is_log_append_time: bool = False
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    remote_log_copy_disable: bool = False
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = WEEK_MS
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    segment_jitter_ms: int = 0
    segment_ms: int = WEEK_MS
    keeps_as_produced: bool = field(init=False)
    """Whether no batch of a producer is recompressed, or needs keys."""

    def __post_init__(self) -> None:
        keeps = self.compression_type == AS_PRODUCED and not self.is_compacted
        object.__setattr__(self, "keeps_as_produced", keeps)

    @property
    def decompressed_bytes_max(self) -> int:
        """The largest decompressed size (bytes) of a producer's batch whose records the leader must read."""
        return min(self.max_decompressed_message_bytes, DECOMPRESSED_FACTOR * self.max_message_bytes)

    @property
    def indexed_bytes(self) -> int:
        """How many bytes of batches may follow an entry of an index before there is another one."""
        return min(self.index_interval_bytes, INDEX_INTERVAL_MAX)

    @property
    def is_copied_to_tier(self) -> bool:
        """Whether what is sealed is copied to remote storage."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def local_bytes(self) -> int:
        """How many bytes of a log that is copied to remote storage stay here; negative: no limit."""
        return _local(self.local_retention_bytes, self.retention_bytes)

    @property
    def local_ms(self) -> int:
        """How long records that were copied to remote storage stay here; negative: no limit."""
        return _local(self.local_retention_ms, self.retention_ms)

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
            is_compacted="compact" in policies and not values[ENABLE],
            is_deleted_by_retention="delete" in policies,
            is_log_append_time=values["message.timestamp.type"] == "LogAppendTime",
            segment_bytes=cast(int, segment_bytes),
            **plain,  # pyright: ignore[reportArgumentType]  # parsed by the keys of the same names
        )


def _local(kept: int, kept_in_all: int) -> int:
    if kept < 0:
        return kept_in_all if kept == AS_RETENTION else kept
    return kept if kept_in_all < 0 else min(kept, kept_in_all)
