"""What comes of a request to one transactional id: the reply, and the next value of its transaction."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.transactions.requests import TransactionReply
from nilometer.transactions.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Decision:
    reply: TransactionReply
    after: Transaction | None = None
    """To be written before the reply is given; None: nothing changes."""
