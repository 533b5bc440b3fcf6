"""The settings of the group coordinator: their keys with Kafka's names, defaults and ranges, and their values
for ``groups``.
"""

from __future__ import annotations

from nilometer.broker.settings.declaration import INT, LIST, LONG, SHORT, STRING, setting
from nilometer.config import ConfigError, Settings
from nilometer.groups.settings import ConsumerGroupMigrationPolicy, GroupConfig
from nilometer.storage.topic_config import SEGMENT_BYTES_MIN

INT_MAX = (1 << 31) - 1

ASSIGNORS = {
    "uniform": "uniform",
    "range": "range",
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
"""The accepted names of server-side assignors, each with its short name."""


CLASSIC_GROUPS = [
    setting(
        "group.min.session.timeout.ms",
        INT,
        6_000,
        "The shortest session.timeout.ms that a member of a classic group may request.",
    ),
    setting(
        "group.max.session.timeout.ms",
        INT,
        1_800_000,
        "The longest session.timeout.ms that a member of a classic group may request.",
    ),
    setting(
        "group.initial.rebalance.delay.ms",
        INT,
        3_000,
        "How long an empty classic group waits for more members before its first rebalance.",
    ),
    setting("group.max.size", INT, INT_MAX, "The maximum number of members of one classic group.", minimum=1),
]

CONSUMER_GROUPS = [
    setting(
        "group.coordinator.rebalance.protocols",
        LIST,
        ("classic", "consumer", "streams"),
        "The enabled rebalance protocols; streams and share are accepted but not supported.",
        choices=("classic", "consumer", "share", "streams"),
    ),
    setting(
        "group.consumer.session.timeout.ms",
        INT,
        45_000,
        "A member of a consumer group without a heartbeat for this long is removed.",
        minimum=1,
    ),
    setting(
        "group.consumer.min.session.timeout.ms",
        INT,
        45_000,
        "The lowest session timeout allowed for a consumer group.",
        minimum=1,
    ),
    setting(
        "group.consumer.max.session.timeout.ms",
        INT,
        60_000,
        "The highest session timeout allowed for a consumer group.",
        minimum=1,
    ),
    setting(
        "group.consumer.heartbeat.interval.ms",
        INT,
        5_000,
        "The heartbeat interval of members of a consumer group.",
        minimum=1,
    ),
    setting(
        "group.consumer.min.heartbeat.interval.ms",
        INT,
        5_000,
        "The lowest heartbeat interval allowed for a consumer group.",
        minimum=1,
    ),
    setting(
        "group.consumer.max.heartbeat.interval.ms",
        INT,
        15_000,
        "The highest heartbeat interval allowed for a consumer group.",
        minimum=1,
    ),
    setting(
        "group.consumer.assignment.interval.ms",
        INT,
        1_000,
        "The minimum time between two target assignments of one consumer group.",
        minimum=0,
    ),
    setting(
        "group.consumer.min.assignment.interval.ms",
        INT,
        0,
        "The lowest assignment interval allowed for a consumer group.",
        minimum=0,
    ),
    setting(
        "group.consumer.max.assignment.interval.ms",
        INT,
        15_000,
        "The highest assignment interval allowed for a consumer group.",
        minimum=0,
    ),
    setting(
        "group.consumer.max.size",
        INT,
        INT_MAX,
        "The maximum number of members of one consumer group.",
        minimum=1,
    ),
    setting(
        "group.consumer.assignors",
        LIST,
        ("uniform", "range"),
        "The server-side assignors; the first is used if members name none.",
        choices=tuple(ASSIGNORS),
    ),
    setting(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "Whether groups with members may change from the classic to the consumer protocol (upgrade), back"
        " (downgrade), both (bidirectional), or neither (disabled).",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    ),
]

OFFSETS = [
    setting(
        "offset.metadata.max.bytes",
        INT,
        4_096,
        "The maximum bytes of metadata that may be committed with an offset.",
    ),
    setting(
        "offsets.load.buffer.size",
        INT,
        5 << 20,
        "Bytes of a partition of __consumer_offsets that are read at once when its groups are loaded.",
        minimum=1,
    ),
    setting(
        "offsets.retention.minutes",
        INT,
        10_080,
        "How long the offsets of a group without members are kept.",
        minimum=1,
    ),
    setting(
        "offsets.retention.check.interval.ms",
        LONG,
        600_000,
        "How often the coordinator checks for offsets that have expired.",
        minimum=1,
    ),
    setting(
        "offsets.commit.timeout.ms",
        INT,
        5_000,
        "How long a request to a group coordinator may wait until its change is committed.",
        minimum=1,
    ),
]

OFFSETS_TOPIC = [
    setting("offsets.topic.num.partitions", INT, 50, "Partitions of __consumer_offsets.", minimum=1),
    setting(
        "offsets.topic.replication.factor",
        SHORT,
        3,
        "Replicas of __consumer_offsets; fewer if the cluster has fewer brokers.",
        minimum=1,
    ),
    setting(
        "offsets.topic.segment.bytes",
        INT,
        104_857_600,
        "segment.bytes of __consumer_offsets.",
        minimum=SEGMENT_BYTES_MIN,
    ),
    setting(
        "offsets.topic.compression.codec",
        INT,
        0,
        "The codec of the coordinator's batches: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        minimum=0,
        maximum=4,
    ),
]

GROUP_KEYS = [*CLASSIC_GROUPS, *CONSUMER_GROUPS, *OFFSETS, *OFFSETS_TOPIC]

GROUP_KEYS_WITHOUT_EFFECT = frozenset(
    {
        "group.coordinator.threads",
        "group.coordinator.background.threads",
        "group.coordinator.append.linger.ms",
        "group.coordinator.cached.buffer.max.bytes",
    }
)
"""Kafka's keys for threads and buffers that a single event loop does not have."""


MINUTE_MS = 60_000


def group_config(config: Settings) -> GroupConfig:
    """Return the settings for ``groups``. Raises ConfigError if they contradict each other."""
    integer = config.integer
    assignors = tuple(dict.fromkeys(ASSIGNORS[name] for name in config.strings("group.consumer.assignors")))
    try:
        return GroupConfig(
            group_min_session_timeout_ms=integer("group.min.session.timeout.ms"),
            group_max_session_timeout_ms=integer("group.max.session.timeout.ms"),
            group_initial_rebalance_delay_ms=integer("group.initial.rebalance.delay.ms"),
            group_max_size=integer("group.max.size"),
            offset_metadata_max_bytes=integer("offset.metadata.max.bytes"),
            offsets_retention_ms=integer("offsets.retention.minutes") * MINUTE_MS,
            offsets_retention_check_interval_ms=integer("offsets.retention.check.interval.ms"),
            group_consumer_session_timeout_ms=integer("group.consumer.session.timeout.ms"),
            group_consumer_min_session_timeout_ms=integer("group.consumer.min.session.timeout.ms"),
            group_consumer_max_session_timeout_ms=integer("group.consumer.max.session.timeout.ms"),
            group_consumer_heartbeat_interval_ms=integer("group.consumer.heartbeat.interval.ms"),
            group_consumer_min_heartbeat_interval_ms=integer("group.consumer.min.heartbeat.interval.ms"),
            group_consumer_max_heartbeat_interval_ms=integer("group.consumer.max.heartbeat.interval.ms"),
            group_consumer_max_size=integer("group.consumer.max.size"),
            group_consumer_assignors=assignors,
            group_consumer_migration_policy=ConsumerGroupMigrationPolicy(
                config.string("group.consumer.migration.policy")
            ),
            group_consumer_assignment_interval_ms=integer("group.consumer.assignment.interval.ms"),
            group_consumer_min_assignment_interval_ms=integer("group.consumer.min.assignment.interval.ms"),
            group_consumer_max_assignment_interval_ms=integer("group.consumer.max.assignment.interval.ms"),
        )
    except ValueError as error:
        raise ConfigError(str(error).split(" ", 1)[0], str(error)) from None
