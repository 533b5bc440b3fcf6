"""The broker's settings for its log directories, and for the compaction of logs.

Keys that have defaults for topics (``log.segment.bytes``, …) are in :mod:`.log_settings`.
"""

from __future__ import annotations

from nilometer.broker.settings.declaration import setting
from nilometer.config import ConfigKind

_BOOLEAN, _INT, _LONG = ConfigKind.BOOLEAN, ConfigKind.INT, ConfigKind.LONG
_STRING, _LIST, _DOUBLE = ConfigKind.STRING, ConfigKind.LIST, ConfigKind.DOUBLE

LOGS = [
    setting("log.dir", _STRING, "/tmp/kafka-logs", "The log directory, if log.dirs is not given."),
    setting("log.dirs", _LIST, (), "The log directories."),
    setting(
        "log.flush.offset.checkpoint.interval.ms",
        _INT,
        60_000,
        "Without effect: recovery points are checkpointed with the high watermarks.",
        minimum=0,
    ),
    setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        _INT,
        60_000,
        "Without effect: log start offsets are checkpointed with the high watermarks.",
        minimum=0,
    ),
    setting(
        "log.flush.scheduler.interval.ms",
        _LONG,
        (1 << 63) - 1,
        "How long a record may stay unflushed if neither flush.ms nor log.flush.interval.ms is set.",
    ),
    setting("log.roll.hours", _INT, None, "log.roll.ms, in hours.", minimum=1),
    setting("log.roll.jitter.hours", _INT, None, "log.roll.jitter.ms, in hours.", minimum=0),
    setting("log.retention.minutes", _INT, None, "log.retention.ms, in minutes; -1: no time limit."),
    setting("log.retention.hours", _INT, None, "log.retention.ms, in hours; -1: no time limit."),
    setting(
        "log.retention.check.interval.ms",
        _LONG,
        300_000,
        "How often logs are checked for segments to delete.",
        minimum=1,
    ),
    setting(
        "producer.id.expiration.ms",
        _INT,
        86_400_000,
        "How long the state of an idempotent producer is kept after its last write.",
        minimum=1,
    ),
]

CLEANER = [
    setting("log.cleaner.enable", _BOOLEAN, True, "Whether logs with cleanup.policy=compact are compacted."),
    setting("log.cleaner.threads", _INT, 1, "How many logs are compacted at once.", minimum=0),
    setting(
        "log.cleaner.io.max.bytes.per.second",
        _DOUBLE,
        1.7976931348623157e308,
        "The maximum bytes a second that compaction reads and writes.",
        minimum=1,
    ),
    setting(
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        128 << 20,
        "Memory of all cleaners together for the newest offset of each key (24 bytes a key);"
        " an eighth more marks the records that were read.",
        minimum=1 << 20,
    ),
    setting(
        "log.cleaner.io.buffer.size",
        _INT,
        512 << 10,
        "Bytes that all cleaners together read and rewrite in one step.",
        minimum=1024,
    ),
    setting(
        "log.cleaner.io.buffer.load.factor",
        _DOUBLE,
        0.9,
        "How full the cleaner's table of newest offsets may become, as a share of its size.",
        minimum=0.1,
        maximum=1,
    ),
    setting(
        "log.cleaner.backoff.ms",
        _LONG,
        15_000,
        "How often logs are checked for one to compact.",
        minimum=1,
    ),
]
