"""The settings of the coordinators of groups, transactions and share partitions: their keys, and what they
result in.
"""

from __future__ import annotations

from nilometer.config import Settings, key_table
from nilometer.groups import settings
from nilometer.share.state_shard import ShareStateConfig
from nilometer.storage.topic_config import SEGMENT_BYTES_MIN
from nilometer.transactions.transaction import TransactionConfig

# The settings of the group coordinator; those about groups are in ``groups``.

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

GROUP_KEYS = [*settings.GROUP_KEYS, *OFFSETS, *OFFSETS_TOPIC]

GROUP_KEYS_WITHOUT_EFFECT = frozenset(
    {
        "group.coordinator.threads",
        "group.coordinator.background.threads",
        "group.coordinator.append.linger.ms",
        "group.coordinator.cached.buffer.max.bytes",
    }
)
"""Kafka's keys for threads and buffers that a single event loop does not have."""


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
