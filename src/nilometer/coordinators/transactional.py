"""The entries of a coordinator's log besides plain records: a transaction's records, and its end."""

from __future__ import annotations

from typing import Generic

import msgspec

from nilometer.coordinators.effects import RecordT


class TransactionalRecord(msgspec.Struct, Generic[RecordT], frozen=True):
    """A record that counts once the producer's transaction is committed."""

    producer_id: int
    record: RecordT


class TransactionEnd(msgspec.Struct, frozen=True):
    producer_id: int
    committed: bool
