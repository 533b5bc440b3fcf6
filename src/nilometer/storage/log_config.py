"""The effective topic settings of one log.

The topic's own value is used, or else the broker's value under the key's synonym, or else the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from nilometer.config.definition import ConfigValue, ConfigValues
from nilometer.storage.topic_config import HOUR_MS, LONG_MAX, MINUTE_MS, TOPIC_CONFIG, WEEK_MS

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
