"""The decision on a request to one transactional id: the reply, and the next value of its transaction."""

from __future__ import annotations

import msgspec

from nilometer.transactions.requests import TransactionReply
from nilometer.transactions.transaction import Transaction


class Decision(msgspec.Struct, frozen=True):
    reply: TransactionReply
    after: Transaction | None = None
    """The transaction's next value, which must be committed before the reply is sent; None: no change."""
