"""The transaction coordinator's settings, as a value for ``transactions``."""

from __future__ import annotations

from nilometer.config import Settings
from nilometer.transactions.config import TransactionConfig


def transaction_config(config: Settings) -> TransactionConfig:
    return TransactionConfig(
        max_timeout_ms=config.integer("transaction.max.timeout.ms"),
        id_expiration_ms=config.integer("transactional.id.expiration.ms"),
        abort_check_interval_ms=config.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        expiration_check_interval_ms=config.integer(
            "transaction.remove.expired.transaction.cleanup.interval.ms"
        ),
    )
