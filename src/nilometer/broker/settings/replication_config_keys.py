"""The broker's settings for topics, their replicas, leaderships and logs: log directories and compaction as
well.
"""

from __future__ import annotations

from nilometer.broker.settings.declaration import BOOLEAN, DOUBLE, INT, LIST, LONG, STRING, setting

LONG_MAX = (1 << 63) - 1
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"

TOPICS = [
    setting(
        "num.partitions",
        INT,
        1,
        "Partitions of a topic that is created without a partition count.",
        minimum=1,
    ),
    setting(
        "default.replication.factor",
        INT,
        1,
        "Replicas of a topic that is created without a replication factor.",
        minimum=1,
        maximum=32767,
    ),
    setting(
        "auto.create.topics.enable",
        BOOLEAN,
        True,
        "Whether a Metadata request for an unknown topic creates it, if the client allows that.",
    ),
    setting("delete.topic.enable", BOOLEAN, True, "Whether topics can be deleted."),
]

REPLICATION = [
    setting(
        "replica.lag.time.max.ms",
        LONG,
        10_000,
        "A follower that has not caught up for this long leaves the ISR.",
        minimum=1,
    ),
    setting(
        "replica.fetch.max.bytes",
        INT,
        1_048_576,
        "Bytes that a follower requests for each partition.",
        minimum=0,
    ),
    setting(
        "replica.fetch.response.max.bytes",
        INT,
        10_485_760,
        "Bytes that a follower requests in one fetch.",
        minimum=0,
    ),
    setting(
        "replica.fetch.min.bytes",
        INT,
        1,
        "Bytes that a follower's fetch waits for at the leader.",
        minimum=0,
    ),
    setting(
        "replica.fetch.wait.max.ms",
        INT,
        500,
        "The longest time that a follower's fetch waits at the leader.",
        minimum=1,
    ),
    setting(
        "replica.fetch.backoff.ms",
        INT,
        1_000,
        "How long a follower waits after an error before it fetches again.",
        minimum=0,
    ),
    setting(
        "num.replica.fetchers",
        INT,
        1,
        "Fetchers, each with a connection, for each other broker.",
        minimum=1,
        maximum=64,
    ),
    setting(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5_000,
        "How often high watermarks are checkpointed.",
        minimum=1,
    ),
    setting(
        "replica.selector.class",
        STRING,
        None,
        "How consumers' preferred replica is chosen (KIP-392).",
        choices=(RACK_AWARE_SELECTOR, LEADER_SELECTOR),
    ),
    setting(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        True,
        "Whether leaderships are moved back to preferred replicas.",
    ),
    setting(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        "How often the controller checks for leaderships to move back to preferred replicas.",
        minimum=1,
    ),
    setting(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        "The percentage of its preferred leaderships that a broker may lack before they are moved back.",
        minimum=0,
    ),
    setting(
        "leader.replication.throttled.rate",
        LONG,
        LONG_MAX,
        "Bytes a second that this broker sends to throttled replicas.",
        minimum=0,
        dynamic=True,
    ),
    setting(
        "follower.replication.throttled.rate",
        LONG,
        LONG_MAX,
        "Bytes a second that this broker fetches for its throttled replicas.",
        minimum=0,
        dynamic=True,
    ),
    setting(
        "controlled.shutdown.enable",
        BOOLEAN,
        True,
        "Whether a broker that stops first moves its leaderships to other brokers.",
    ),
]


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
