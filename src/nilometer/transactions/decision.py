"""The decision on a request to one transactional id: the reply, and the next value of its transaction."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.transactions.requests import TransactionReply
from nilometer.transactions.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Decision:
    reply: TransactionReply
    after: Transaction | None = None
    """The transaction's next value, which must be committed before the reply is sent; None: no change."""
