"""The settings of a transaction coordinator, with Kafka's defaults. Times are in milliseconds."""

from __future__ import annotations

import msgspec

DAY_MS = 24 * 60 * 60_000

EPOCH_BUMP_VERSION = 2
"""From this ``transaction.version`` on, every end of a transaction bumps the producer epoch (KIP-890)."""


class TransactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    max_timeout_ms: int = 15 * 60_000
    """``transaction.max.timeout.ms``: the longest transaction timeout that a producer may request."""
    id_expiration_ms: int = 7 * DAY_MS
    """``transactional.id.expiration.ms``: how long an id without a transaction is kept."""
    abort_check_interval_ms: int = 10_000
    """``transaction.abort.timed.out.transaction.cleanup.interval.ms``."""
    expiration_check_interval_ms: int = 60 * 60_000
    """``transaction.remove.expired.transaction.cleanup.interval.ms``."""
    first_epoch: int = 0
    """The first epoch of a new transactional id. Simulations set it near the highest, so that epochs are soon
    exhausted."""

    def __post_init__(self) -> None:
        for name in ("max_timeout_ms", "id_expiration_ms", "abort_check_interval_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.expiration_check_interval_ms < 1:
            raise ValueError("expiration_check_interval_ms must be at least 1")
        if self.first_epoch < 0:
            raise ValueError("first_epoch must not be negative")
