"""The records of ``__transaction_state``: the latest record of a transactional id has its whole state."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.transactions.transaction import Transaction


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    transactional_id: str
    transaction: Transaction | None
    """None: a tombstone, since the id has expired."""
