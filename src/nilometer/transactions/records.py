"""The records of ``__transaction_state``: the latest of a transactional id is all that is kept of it."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.transactions.transaction import Transaction


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    transactional_id: str
    transaction: Transaction | None
    """None: the id has expired."""
