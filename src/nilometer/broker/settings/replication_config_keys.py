"""The broker's settings for topics, their replicas and leaderships."""

from __future__ import annotations

from nilometer.broker.settings.declaration import BOOLEAN, INT, LONG, STRING, setting

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
