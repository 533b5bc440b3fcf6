"""The settings of transactions: those of the coordinator, and of ``__transaction_state``, and their values
for ``transactions``.
"""

from __future__ import annotations

from nilometer.config.definition import Settings
from nilometer.config.key_table import key_table
from nilometer.storage.topic_config import SEGMENT_BYTES_MIN
from nilometer.transactions.config import TransactionConfig

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
