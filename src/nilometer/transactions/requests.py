"""The requests to a transaction shard, and their replies. Field names are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from nilometer.storage import TopicPartition
from nilometer.transactions.transaction import NO_EPOCH, NO_PRODUCER_ID
from nilometer.wire.errors import ErrorCode


# ── producers ───────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerId:
    transactional_id: str
    transaction_timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    """The producer's current producer id, with ``producer_epoch``, if it requests the next epoch
    (KIP-360)."""
    producer_epoch: int = NO_EPOCH
    new_producer_id: int | None = None
    """A newly allocated producer id, after the reply :class:`ProducerIdNeeded`."""


@dataclass(frozen=True, slots=True)
class InitProducerIdReply:
    error_code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class ProducerIdNeeded:
    """The request must be submitted again with a ``new_producer_id``; nothing has changed yet."""


# ── partitions ──────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """AddPartitionsToTxn, or AddOffsetsToTxn with the partition that keeps a group's offsets."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    version: int = 0
    """The ``transaction.version`` that the producer uses."""


@dataclass(frozen=True, slots=True)
class AddPartitionsReply:
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartitions:
    """AddPartitionsToTxn of a broker that verifies that the partitions have been added (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class VerifyPartitionsReply:
    errors: tuple[tuple[TopicPartition, ErrorCode], ...]


# ── ends ────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    version: int = 0
    """The ``transaction.version`` of the request; 2, from EndTxn 5 on: with an epoch bump."""
    new_producer_id: int | None = None


@dataclass(frozen=True, slots=True)
class EndTransactionReply:
    error_code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    """The epoch, with ``producer_id``, for the producer's next transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersWritten:
    """From the broker itself: every marker of this end is committed, or its partition was deleted."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class MarkersWrittenReply:
    completed: bool
    """False: the transaction is not prepared with this producer id and epoch any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOut:
    """From the broker itself: abort the transaction if it is still open and has timed out."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    new_producer_id: int | None = None


@dataclass(frozen=True, slots=True)
class TimeOutReply:
    aborted: bool


# ── views ───────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class DescribeTransaction:
    transactional_id: str


@dataclass(frozen=True, slots=True)
class DescribeTransactionReply:
    error_code: ErrorCode
    transactional_id: str
    transaction_state: str = ""
    transaction_timeout_ms: int = 0
    transaction_start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactions:
    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[int, ...] = ()
    duration_filter_ms: int = -1
    """List only transactions that began longer ago than this; negative: all."""
    transactional_id_pattern: str = ""
    """An RE2 expression, matched against whole ids; empty: all."""


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    transactional_id: str
    producer_id: int
    transaction_state: str


@dataclass(frozen=True, slots=True)
class ListTransactionsReply:
    error_code: ErrorCode
    unknown_state_filters: tuple[str, ...] = ()
    transactions: tuple[ListedTransaction, ...] = ()


TransactionRequest: TypeAlias = (
    InitProducerId
    | AddPartitions
    | VerifyPartitions
    | EndTransaction
    | MarkersWritten
    | TimeOut
    | DescribeTransaction
    | ListTransactions
)
TransactionReply: TypeAlias = (
    InitProducerIdReply
    | ProducerIdNeeded
    | AddPartitionsReply
    | VerifyPartitionsReply
    | EndTransactionReply
    | MarkersWrittenReply
    | TimeOutReply
    | DescribeTransactionReply
    | ListTransactionsReply
)
