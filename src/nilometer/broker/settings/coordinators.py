"""The settings of the coordinators of groups, transactions and share partitions: their keys, and what they
result in.
"""

from __future__ import annotations

from nilometer.config import ConfigError, Settings, key_table
from nilometer.groups.settings import ConsumerGroupMigrationPolicy, GroupConfig, why_repeated
from nilometer.share.state_shard import ShareStateConfig
from nilometer.storage.topic_config import SEGMENT_BYTES_MIN
from nilometer.transactions.transaction import TransactionConfig

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


SHARE_ASSIGNORS = {
    "simple": "simple",
    "org.apache.kafka.coordinator.group.assignor.SimpleAssignor": "simple",
}
"""The accepted names of the assignor of share groups, each with its short name."""


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
    The enabled rebalance protocols. Share groups are turned on by the feature share.version, and streams
    groups need streams.version, too.
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

SHARE_GROUPS = key_table(
    """
group.share.session.timeout.ms: int 1.. = 45_000
    A member of a share group without a heartbeat for this long is removed.
group.share.min.session.timeout.ms: int 1.. = 45_000
    The lowest session timeout allowed for a share group.
group.share.max.session.timeout.ms: int 1.. = 60_000
    The highest session timeout allowed for a share group.
group.share.heartbeat.interval.ms: int 1.. = 5000
    The heartbeat interval of members of a share group.
group.share.min.heartbeat.interval.ms: int 1.. = 5000
    The lowest heartbeat interval allowed for a share group.
group.share.max.heartbeat.interval.ms: int 1.. = 15_000
    The highest heartbeat interval allowed for a share group.
group.share.assignment.interval.ms: int 0.. = 1000
    The minimum time between two target assignments of one share group.
group.share.min.assignment.interval.ms: int 0.. = 0
    The lowest assignment interval allowed for a share group.
group.share.max.assignment.interval.ms: int 0.. = 15_000
    The highest assignment interval allowed for a share group.
group.share.max.size: int 1..1000 = 200
    The maximum number of members of one share group.
group.share.assignors: list = simple
    The server-side assignor of share groups.
group.share.record.lock.duration.ms: int 1000..3_600_000 = 30_000
    A record that a member of a share group has not acknowledged after this long is delivered again.
group.share.min.record.lock.duration.ms: int 1000..30_000 = 15_000
    The shortest lock of a record allowed for a share group.
group.share.max.record.lock.duration.ms: int 30_000..3_600_000 = 60_000
    The longest lock of a record allowed for a share group.
group.share.delivery.count.limit: int 2..10 = 5
    How often a record is delivered to a share group at most.
group.share.min.delivery.count.limit: int 2..5 = 2
    The lowest limit of deliveries allowed for a share group.
group.share.max.delivery.count.limit: int 5..25 = 10
    The highest limit of deliveries allowed for a share group.
group.share.partition.max.record.locks: int 100..10_000 = 2000
    How many records of one partition the members of a share group may hold at the same time.
group.share.min.partition.max.record.locks: int 100..2000 = 100
    The lowest limit of record locks allowed for a share group.
group.share.max.partition.max.record.locks: int 2000..10_000 = 4000
    The highest limit of record locks allowed for a share group.
""",
    choices={"group.share.assignors": tuple(SHARE_ASSIGNORS)},
)

STREAMS_ASSIGNORS = {
    "sticky": "sticky",
    "org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor": "sticky",
}
"""The accepted names of the task assignors of streams groups, each with its short name."""

STREAMS_GROUPS = key_table(
    f"""
group.streams.session.timeout.ms: int 1.. = 45_000
    A member of a streams group without a heartbeat for this long is removed.
group.streams.min.session.timeout.ms: int 1.. = 45_000
    The lowest session timeout allowed for a streams group.
group.streams.max.session.timeout.ms: int 1.. = 60_000
    The highest session timeout allowed for a streams group.
group.streams.heartbeat.interval.ms: int 1.. = 5000
    The heartbeat interval of members of a streams group.
group.streams.min.heartbeat.interval.ms: int 1.. = 5000
    The lowest heartbeat interval allowed for a streams group.
group.streams.max.heartbeat.interval.ms: int 1.. = 15_000
    The highest heartbeat interval allowed for a streams group.
group.streams.assignment.interval.ms: int 0.. = 1000
    The minimum time between two target assignments of one streams group.
group.streams.min.assignment.interval.ms: int 0.. = 0
    The lowest assignment interval allowed for a streams group.
group.streams.max.assignment.interval.ms: int 0.. = 15_000
    The highest assignment interval allowed for a streams group.
group.streams.max.size: int 1.. = {INT_MAX}
    The maximum number of members of one streams group.
group.streams.assignors: list = sticky
    The task assignors of streams groups; the first is used if a group names none.
group.streams.num.standby.replicas: int 0.. = 0
    How many standby tasks each task with state has.
group.streams.max.standby.replicas: int 0.. = 2
    The highest number of standby tasks allowed for a streams group.
group.streams.initial.rebalance.delay.ms: int 0.. = 3000
    How long an empty streams group waits for more members before its first assignment.
group.streams.rack.aware.assignment.tags: list =
    Tags (client.tag.NAME of Kafka Streams) that each member of a streams group is to have.
group.streams.task.offset.interval.ms: int 1.. = 60_000
    How often members of a streams group tell how far they have the state of their tasks.
group.streams.min.task.offset.interval.ms: int 1.. = 15_000
    The shortest such interval allowed for a streams group.
group.streams.acceptable.recovery.lag: long 0.. = 10_000
    Up to how many records behind a member may count as having the state of a task.
""",
    choices={"group.streams.assignors": tuple(STREAMS_ASSIGNORS)},
    checks={"group.streams.rack.aware.assignment.tags": why_repeated},
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

GROUP_KEYS = [*CLASSIC_GROUPS, *CONSUMER_GROUPS, *SHARE_GROUPS, *STREAMS_GROUPS, *OFFSETS, *OFFSETS_TOPIC]

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
SESSIONS_MAX_KEY = "group.share.max.share.sessions"


def group_config(config: Settings) -> GroupConfig:
    """Return the settings for ``groups``. Raises ConfigError if they contradict each other."""
    members, sessions = config.integer("group.share.max.size"), config.integer(SESSIONS_MAX_KEY)
    if members > sessions:
        raise ConfigError(
            "group.share.max.size",
            f"group.share.max.size ({members}) must not be above {SESSIONS_MAX_KEY} ({sessions})",
        )
    named = config.fields_of(GroupConfig)
    named["group_consumer_assignors"] = tuple(
        dict.fromkeys(ASSIGNORS[name] for name in config.strings("group.consumer.assignors"))
    )
    named["group_share_assignors"] = tuple(
        SHARE_ASSIGNORS[name] for name in config.strings("group.share.assignors")
    )
    named["group_streams_assignors"] = tuple(
        dict.fromkeys(STREAMS_ASSIGNORS[name] for name in config.strings("group.streams.assignors"))
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

# The settings of the dead letters of share groups (KIP-1191).

DEAD_LETTER_KEYS = key_table(
    """
errors.deadletterqueue.auto.create.topics.enable: boolean dynamic = false
    Whether a broker creates the topic for a share group's dead letters when the first is written.
errors.deadletterqueue.topic.name.prefix: string dynamic = dlq.
    How the names of topics for dead letters of share groups begin; empty: they may have any name.
"""
)

# The settings of share coordinators and of ``__share_group_state``.

SHARE_STATE_KEYS = key_table(
    f"""
group.share.max.share.sessions: int 1.. = 2_000
    How many members of share groups may fetch from this broker at the same time.
share.coordinator.state.topic.num.partitions: int 1.. = 50
    Partitions of __share_group_state.
share.coordinator.state.topic.replication.factor: short 1.. = 3
    Replicas of __share_group_state; fewer if the cluster has fewer brokers.
share.coordinator.state.topic.min.isr: short 1.. = 2
    min.insync.replicas of __share_group_state.
share.coordinator.state.topic.segment.bytes: int {SEGMENT_BYTES_MIN}.. = 104_857_600
    segment.bytes of __share_group_state.
share.coordinator.state.topic.compression.codec: int 0..4 = 0
    The codec of a share coordinator's batches: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
share.coordinator.load.buffer.size: int 1.. = 5_242_880
    Bytes of a partition of __share_group_state that are read at once when its coordinator is loaded.
share.coordinator.write.timeout.ms: int 1.. = 5_000
    How long a request to a share coordinator may wait until its change is committed.
share.coordinator.snapshot.update.records.per.snapshot: int 0..500 = 500
    After so many updates of a share partition the next write is a snapshot of its whole state.
share.coordinator.cold.partition.snapshot.interval.ms: int 1.. = 300_000
    How often a share coordinator writes snapshots of share partitions that have had none for as long.
share.coordinator.state.topic.prune.interval.ms: int 1.. = 300_000
    How often a share coordinator deletes the records that no share partition's state needs.
"""
)


def share_state_config(config: Settings) -> ShareStateConfig:
    return ShareStateConfig(
        updates_per_snapshot=config.integer("share.coordinator.snapshot.update.records.per.snapshot"),
        cold_snapshot_interval_ms=config.integer("share.coordinator.cold.partition.snapshot.interval.ms"),
        prune_interval_ms=config.integer("share.coordinator.state.topic.prune.interval.ms"),
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
