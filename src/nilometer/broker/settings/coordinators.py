"""The settings of the coordinators of groups and of transactions: their keys, and what they result in."""

from __future__ import annotations

from nilometer.config import ConfigError, Settings, key_table
from nilometer.groups.settings import ConsumerGroupMigrationPolicy, GroupConfig
from nilometer.storage.topic_config import SEGMENT_BYTES_MIN
from nilometer.transactions.config import TransactionConfig

# The settings of the group coordinator: their keys with Kafka's names, defaults and ranges, and their values
# for ``groups``.

INT_MAX = (1 << 31) - 1

ASSIGNORS = {
    "uniform": "uniform",
    "range": "range",
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
"""The accepted names of server-side assignors, each with its short name."""


CLASSIC_GROUPS = key_table(
    f"""
group.min.session.timeout.ms: int = 6000
    The shortest session.timeout.ms that a member of a classic group may request.
group.max.session.timeout.ms: int = 1_800_000
    The longest session.timeout.ms that a member of a classic group may request.
group.initial.rebalance.delay.ms: int = 3000
    How long an empty classic group waits for more members before its first rebalance.
group.max.size: int 1.. = {INT_MAX}
    The maximum number of members of one classic group.
"""
)

CONSUMER_GROUPS = key_table(
    f"""
group.coordinator.rebalance.protocols: list (classic|consumer|share|streams) = classic,consumer,streams
    The enabled rebalance protocols; streams and share are accepted but not supported.
group.consumer.session.timeout.ms: int 1.. = 45_000
    A member of a consumer group without a heartbeat for this long is removed.
group.consumer.min.session.timeout.ms: int 1.. = 45_000
    The lowest session timeout allowed for a consumer group.
group.consumer.max.session.timeout.ms: int 1.. = 60_000
    The highest session timeout allowed for a consumer group.
group.consumer.heartbeat.interval.ms: int 1.. = 5000
    The heartbeat interval of members of a consumer group.
group.consumer.min.heartbeat.interval.ms: int 1.. = 5000
    The lowest heartbeat interval allowed for a consumer group.
group.consumer.max.heartbeat.interval.ms: int 1.. = 15_000
    The highest heartbeat interval allowed for a consumer group.
group.consumer.assignment.interval.ms: int 0.. = 1000
    The minimum time between two target assignments of one consumer group.
group.consumer.min.assignment.interval.ms: int 0.. = 0
    The lowest assignment interval allowed for a consumer group.
group.consumer.max.assignment.interval.ms: int 0.. = 15_000
    The highest assignment interval allowed for a consumer group.
group.consumer.max.size: int 1.. = {INT_MAX}
    The maximum number of members of one consumer group.
group.consumer.assignors: list = uniform,range
    The server-side assignors; the first is used if members name none.
group.consumer.migration.policy: string (bidirectional|upgrade|downgrade|disabled) = bidirectional
    Whether groups with members may change from the classic to the consumer protocol (upgrade), back
    (downgrade), both (bidirectional), or neither (disabled).
""",
    choices={"group.consumer.assignors": tuple(ASSIGNORS)},
)

OFFSETS = key_table(
    f"""
offset.metadata.max.bytes: int = 4096
    The maximum bytes of metadata that may be committed with an offset.
offsets.load.buffer.size: int 1.. = {5 << 20}
    Bytes of a partition of __consumer_offsets that are read at once when its groups are loaded.
offsets.retention.minutes: int 1.. = 10_080
    How long the offsets of a group without members are kept.
offsets.retention.check.interval.ms: long 1.. = 600_000
    How often the coordinator checks for offsets that have expired.
offsets.commit.timeout.ms: int 1.. = 5000
    How long a request to a group coordinator may wait until its change is committed.
"""
)

OFFSETS_TOPIC = key_table(
    f"""
offsets.topic.num.partitions: int 1.. = 50
    Partitions of __consumer_offsets.
offsets.topic.replication.factor: short 1.. = 3
    Replicas of __consumer_offsets; fewer if the cluster has fewer brokers.
offsets.topic.segment.bytes: int {SEGMENT_BYTES_MIN}.. = 104_857_600
    segment.bytes of __consumer_offsets.
offsets.topic.compression.codec: int 0..4 = 0
    The codec of the coordinator's batches: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
"""
)

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
    named = config.fields_of(GroupConfig)
    named["group_consumer_assignors"] = tuple(
        dict.fromkeys(ASSIGNORS[name] for name in config.strings("group.consumer.assignors"))
    )
    named["group_consumer_migration_policy"] = ConsumerGroupMigrationPolicy(
        config.string("group.consumer.migration.policy")
    )
    try:
        return GroupConfig(
            offsets_retention_ms=config.integer("offsets.retention.minutes") * MINUTE_MS, **named
        )
    except ValueError as error:
        raise ConfigError(str(error).split(" ", 1)[0], str(error)) from None


# The settings of transactions: those of the coordinator, and of ``__transaction_state``, and their values
# for ``transactions``.

TRANSACTION_KEYS = key_table(
    f"""
transaction.max.timeout.ms: int 1.. = 900_000
    The longest timeout that a transactional producer may request.
transactional.id.expiration.ms: int 1.. = 604_800_000
    After this long without a transaction a transactional id is removed.
transaction.abort.timed.out.transaction.cleanup.interval.ms: int 1.. = 10_000
    How often the coordinator checks for transactions that have timed out.
transaction.remove.expired.transaction.cleanup.interval.ms: int 1.. = 3_600_000
    How often the coordinator checks for transactional ids that have expired.
transaction.partition.verification.enable: boolean = true
    Whether the leader verifies with the coordinator before it appends the first batch of a transaction.
add.partitions.to.txn.retry.backoff.ms: int 1.. = 20
    How long the leader waits before it asks the coordinator again to add a partition, while the end of
    the producer's previous transaction is still being written.
add.partitions.to.txn.retry.backoff.max.ms: int 0.. = 100
    After this long the producer gets CONCURRENT_TRANSACTIONS.
transaction.state.log.num.partitions: int 1.. = 50
    Partitions of __transaction_state.
transaction.state.log.replication.factor: short 1.. = 3
    Replicas of __transaction_state; fewer if the cluster has fewer brokers.
transaction.state.log.min.isr: int 1.. = 2
    min.insync.replicas of __transaction_state.
transaction.state.log.segment.bytes: int {SEGMENT_BYTES_MIN}.. = 104_857_600
    segment.bytes of __transaction_state.
transaction.state.log.load.buffer.size: int 1.. = 5_242_880
    Bytes of a partition of __transaction_state that are read at once when its coordinator is loaded.
"""
)


def transaction_config(config: Settings) -> TransactionConfig:
    return TransactionConfig(
        max_timeout_ms=config.integer("transaction.max.timeout.ms"),
        id_expiration_ms=config.integer("transactional.id.expiration.ms"),
        abort_check_interval_ms=config.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        expiration_check_interval_ms=config.integer(
            "transaction.remove.expired.transaction.cleanup.interval.ms"
        ),
    )
