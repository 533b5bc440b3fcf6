"""The records of ``__transaction_state``: the latest record of a transactional id has its whole state."""

from __future__ import annotations

import msgspec

from nilometer.transactions.transaction import Transaction


class TransactionRecord(msgspec.Struct, frozen=True):
    transactional_id: str
    transaction: Transaction | None
    """None: a tombstone, since the id has expired."""
