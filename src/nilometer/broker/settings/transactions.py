"""The settings of transactions: those of the coordinator, and of ``__transaction_state``, and their values
for ``transactions``.
"""

from __future__ import annotations

from nilometer.broker.settings.declaration import BOOLEAN, INT, SHORT
from nilometer.config import ConfigKey, ConfigKind, Settings
from nilometer.storage.topic_config import SEGMENT_BYTES_MIN
from nilometer.transactions.config import TransactionConfig


def _number(name: str, default: int, doc: str, *, kind: ConfigKind = INT, minimum: int = 1) -> ConfigKey:
    return ConfigKey(name=name, kind=kind, default=default, doc=doc, minimum=minimum)


TRANSACTION_KEYS = [
    _number(
        "transaction.max.timeout.ms",
        900_000,
        "The longest timeout that a transactional producer may request.",
    ),
    _number(
        "transactional.id.expiration.ms",
        604_800_000,
        "After this long without a transaction a transactional id is removed.",
    ),
    _number(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "How often the coordinator checks for transactions that have timed out.",
    ),
    _number(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often the coordinator checks for transactional ids that have expired.",
    ),
    ConfigKey(
        name="transaction.partition.verification.enable",
        kind=BOOLEAN,
        default=True,
        doc="Whether the leader verifies with the coordinator before it appends the first batch of a "
        "transaction.",
    ),
    _number(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        "How long the leader waits before it asks the coordinator again to add a partition, while the end of "
        "the producer's previous transaction is still being written.",
    ),
    _number(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        "After this long the producer gets CONCURRENT_TRANSACTIONS.",
        minimum=0,
    ),
    _number("transaction.state.log.num.partitions", 50, "Partitions of __transaction_state."),
    _number(
        "transaction.state.log.replication.factor",
        3,
        "Replicas of __transaction_state; fewer if the cluster has fewer brokers.",
        kind=SHORT,
    ),
    _number("transaction.state.log.min.isr", 2, "min.insync.replicas of __transaction_state."),
    _number(
        "transaction.state.log.segment.bytes",
        104_857_600,
        "segment.bytes of __transaction_state.",
        minimum=SEGMENT_BYTES_MIN,
    ),
    _number(
        "transaction.state.log.load.buffer.size",
        5_242_880,
        "Bytes of a partition of __transaction_state that are read at once when its coordinator is loaded.",
    ),
]


def transaction_config(config: Settings) -> TransactionConfig:
    return TransactionConfig(
        max_timeout_ms=config.integer("transaction.max.timeout.ms"),
        id_expiration_ms=config.integer("transactional.id.expiration.ms"),
        abort_check_interval_ms=config.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        expiration_check_interval_ms=config.integer(
            "transaction.remove.expired.transaction.cleanup.interval.ms"
        ),
    )
