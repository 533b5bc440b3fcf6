"""The broker's settings for its log directories, and for the compaction of logs.

Keys that have defaults for topics (``log.segment.bytes``, …) are in :mod:`.log_settings`.
"""

from __future__ import annotations

from nilometer.broker.settings.declaration import BOOLEAN, DOUBLE, INT, LIST, LONG, STRING, setting

LOGS = [
    setting("log.dir", STRING, "/tmp/kafka-logs", "The log directory, if log.dirs is not given."),
    setting("log.dirs", LIST, (), "The log directories."),
    setting(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        60_000,
        "Without effect: recovery points are checkpointed with the high watermarks.",
        minimum=0,
    ),
    setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        60_000,
        "Without effect: log start offsets are checkpointed with the high watermarks.",
        minimum=0,
    ),
    setting(
        "log.flush.scheduler.interval.ms",
        LONG,
        (1 << 63) - 1,
        "How long a record may stay unflushed if neither flush.ms nor log.flush.interval.ms is set.",
    ),
    setting("log.roll.hours", INT, None, "log.roll.ms, in hours.", minimum=1),
    setting("log.roll.jitter.hours", INT, None, "log.roll.jitter.ms, in hours.", minimum=0),
    setting("log.retention.minutes", INT, None, "log.retention.ms, in minutes; -1: no time limit."),
    setting("log.retention.hours", INT, None, "log.retention.ms, in hours; -1: no time limit."),
    setting(
        "log.retention.check.interval.ms",
        LONG,
        300_000,
        "How often logs are checked for segments to delete.",
        minimum=1,
    ),
    setting(
        "producer.id.expiration.ms",
        INT,
        86_400_000,
        "How long the state of an idempotent producer is kept after its last write.",
        minimum=1,
    ),
]

CLEANER = [
    setting("log.cleaner.enable", BOOLEAN, True, "Whether logs with cleanup.policy=compact are compacted."),
    setting("log.cleaner.threads", INT, 1, "How many logs are compacted at once.", minimum=0),
    setting(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        1.7976931348623157e308,
        "The maximum bytes a second that compaction reads and writes.",
        minimum=1,
    ),
    setting(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        128 << 20,
        "Memory of all cleaners together for the newest offset of each key (24 bytes a key);"
        " an eighth more marks the records that were read.",
        minimum=1 << 20,
    ),
    setting(
        "log.cleaner.io.buffer.size",
        INT,
        512 << 10,
        "Bytes that all cleaners together read and rewrite in one step.",
        minimum=1024,
    ),
    setting(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        0.9,
        "How full the cleaner's table of newest offsets may become, as a share of its size.",
        minimum=0.1,
        maximum=1,
    ),
    setting(
        "log.cleaner.backoff.ms",
        LONG,
        15_000,
        "How often logs are checked for one to compact.",
        minimum=1,
    ),
]
