"""The broker's settings for topics, their replicas and leaderships."""

from __future__ import annotations

from nilometer.broker.settings.declaration import setting
from nilometer.config import ConfigKind

_BOOLEAN, _INT, _LONG, _STRING = ConfigKind.BOOLEAN, ConfigKind.INT, ConfigKind.LONG, ConfigKind.STRING

LONG_MAX = (1 << 63) - 1
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"

TOPICS = [
    setting(
        "num.partitions",
        _INT,
        1,
        "Partitions of a topic that is created without a partition count.",
        minimum=1,
    ),
    setting(
        "default.replication.factor",
        _INT,
        1,
        "Replicas of a topic that is created without a replication factor.",
        minimum=1,
        maximum=32767,
    ),
    setting(
        "auto.create.topics.enable",
        _BOOLEAN,
        True,
        "Whether a Metadata request for an unknown topic creates it, if the client allows that.",
    ),
    setting("delete.topic.enable", _BOOLEAN, True, "Whether topics can be deleted."),
]

REPLICATION = [
    setting(
        "replica.lag.time.max.ms",
        _LONG,
        10_000,
        "A follower that has not caught up for this long leaves the ISR.",
        minimum=1,
    ),
    setting(
        "replica.fetch.max.bytes",
        _INT,
        1_048_576,
        "Bytes that a follower requests for each partition.",
        minimum=0,
    ),
    setting(
        "replica.fetch.response.max.bytes",
        _INT,
        10_485_760,
        "Bytes that a follower requests in one fetch.",
        minimum=0,
    ),
    setting(
        "replica.fetch.min.bytes",
        _INT,
        1,
        "Bytes that a follower's fetch waits for at the leader.",
        minimum=0,
    ),
    setting(
        "replica.fetch.wait.max.ms",
        _INT,
        500,
        "The longest time that a follower's fetch waits at the leader.",
        minimum=1,
    ),
    setting(
        "replica.fetch.backoff.ms",
        _INT,
        1_000,
        "How long a follower waits after an error before it fetches again.",
        minimum=0,
    ),
    setting(
        "num.replica.fetchers",
        _INT,
        1,
        "Fetchers, each with a connection, for each other broker.",
        minimum=1,
        maximum=64,
    ),
    setting(
        "replica.high.watermark.checkpoint.interval.ms",
        _LONG,
        5_000,
        "How often high watermarks are checkpointed.",
        minimum=1,
    ),
    setting(
        "replica.selector.class",
        _STRING,
        None,
        "How consumers' preferred replica is chosen (KIP-392).",
        choices=(RACK_AWARE_SELECTOR, LEADER_SELECTOR),
    ),
    setting(
        "auto.leader.rebalance.enable",
        _BOOLEAN,
        True,
        "Whether leaderships are moved back to preferred replicas.",
    ),
    setting(
        "leader.imbalance.check.interval.seconds",
        _LONG,
        300,
        "How often the controller checks for leaderships to move back to preferred replicas.",
        minimum=1,
    ),
    setting(
        "leader.imbalance.per.broker.percentage",
        _INT,
        10,
        "The percentage of its preferred leaderships that a broker may lack before they are moved back.",
        minimum=0,
    ),
    setting(
        "leader.replication.throttled.rate",
        _LONG,
        LONG_MAX,
        "Bytes a second that this broker sends to throttled replicas.",
        minimum=0,
        dynamic=True,
    ),
    setting(
        "follower.replication.throttled.rate",
        _LONG,
        LONG_MAX,
        "Bytes a second that this broker fetches for its throttled replicas.",
        minimum=0,
        dynamic=True,
    ),
    setting(
        "controlled.shutdown.enable",
        _BOOLEAN,
        True,
        "Whether a broker that stops first moves its leaderships to other brokers.",
    ),
]
