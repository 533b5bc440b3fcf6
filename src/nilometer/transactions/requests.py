"""The requests to a transaction shard, and their results. Field names are Kafka's.

A result with one error for a whole request has it in every error field of its API.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

import msgspec

from nilometer.steps import Listing
from nilometer.storage.names import TopicPartition
from nilometer.transactions.transaction import NO_EPOCH, NO_PRODUCER_ID
from nilometer.wire.errors import ErrorCode


# ── producers ───────────────────────────────────────────────────────────────────────────────────
class InitProducerId(msgspec.Struct, frozen=True, kw_only=True):
    transactional_id: str
    transaction_timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    """The producer's current producer id, with ``producer_epoch``, if it requests the next epoch
    (KIP-360)."""
    producer_epoch: int = NO_EPOCH
    new_producer_id: int | None = None
    """A newly allocated producer id, after the result :class:`ProducerIdNeeded`."""


class InitProducerIdResult(msgspec.Struct, frozen=True):
    error_code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class ProducerIdNeeded(msgspec.Struct, frozen=True):
    """The request must be submitted again with a ``new_producer_id``; nothing has changed yet."""


# ── partitions ──────────────────────────────────────────────────────────────────────────────────
class AddPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """AddPartitionsToTxn, or AddOffsetsToTxn with the partition that keeps a group's offsets."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    version: int = 0
    """The ``transaction.version`` that the producer uses."""


class AddPartitionsResult(msgspec.Struct, frozen=True):
    error_code: ErrorCode


class VerifyPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """A broker asks by AddPartitionsToTxn whether the partitions are in the transaction (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


class VerifyPartitionsResult(msgspec.Struct, frozen=True):
    errors: tuple[tuple[TopicPartition, ErrorCode], ...]


# ── ends ────────────────────────────────────────────────────────────────────────────────────────
class EndTransaction(msgspec.Struct, frozen=True, kw_only=True):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    version: int = 0
    """The ``transaction.version`` of the request; 2, from EndTxn 5 on: with an epoch bump."""
    new_producer_id: int | None = None


class EndTransactionResult(msgspec.Struct, frozen=True):
    error_code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    """The epoch, with ``producer_id``, for the producer's next transaction."""


class MarkersWritten(msgspec.Struct, frozen=True, kw_only=True):
    """From the broker itself: every marker of this end is committed, or its partition was deleted."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class MarkersWrittenResult(msgspec.Struct, frozen=True):
    completed: bool
    """False: the transaction is not prepared with this producer id and epoch any more."""


class TimeOut(msgspec.Struct, frozen=True, kw_only=True):
    """From the broker itself: abort the transaction if it is still open and has timed out."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    new_producer_id: int | None = None


class TimeOutResult(msgspec.Struct, frozen=True):
    aborted: bool


# ── views ───────────────────────────────────────────────────────────────────────────────────────
class DescribeTransaction(msgspec.Struct, frozen=True):
    transactional_id: str


class DescribeTransactionResult(msgspec.Struct, frozen=True):
    error_code: ErrorCode
    transactional_id: str
    transaction_state: str = ""
    transaction_timeout_ms: int = 0
    transaction_start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    partitions: tuple[TopicPartition, ...] = ()


class ListTransactions(msgspec.Struct, frozen=True, kw_only=True):
    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[int, ...] = ()
    duration_filter_ms: int = -1
    """List only transactions that began longer ago than this; negative: all."""


class ListedTransaction(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: int
    transaction_state: str


class ListTransactionsResult(msgspec.Struct, frozen=True):
    error_code: ErrorCode
    unknown_state_filters: tuple[str, ...] = ()
    transactions: Listing[ListedTransaction] | None = None


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
TransactionResult: TypeAlias = (
    InitProducerIdResult
    | ProducerIdNeeded
    | AddPartitionsResult
    | VerifyPartitionsResult
    | EndTransactionResult
    | MarkersWrittenResult
    | TimeOutResult
    | DescribeTransactionResult
    | ListTransactionsResult
)


def refusal(request: TransactionRequest, error_code: ErrorCode) -> TransactionResult:
    match request:
        case InitProducerId():
            return InitProducerIdResult(error_code)
        case AddPartitions():
            return AddPartitionsResult(error_code)
        case VerifyPartitions():
            return VerifyPartitionsResult(tuple((each, error_code) for each in request.partitions))
        case EndTransaction():
            return EndTransactionResult(error_code)
        case MarkersWritten():
            return MarkersWrittenResult(completed=False)
        case TimeOut():
            return TimeOutResult(aborted=False)
        case DescribeTransaction():
            return DescribeTransactionResult(error_code, request.transactional_id)
        case ListTransactions():
            return ListTransactionsResult(error_code)
        case _:
            assert_never(request)
