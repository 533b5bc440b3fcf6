"""The entries of a coordinator's log besides plain records: a transaction's records, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from nilometer.coordinators.effects import RecordT


@dataclass(frozen=True, slots=True)
class TransactionalRecord(Generic[RecordT]):
    """A record that counts once the producer's transaction is committed."""

    producer_id: int
    record: RecordT


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    producer_id: int
    committed: bool
