"""Classifies errors of a transactional producer: retry, abort, or close the producer (KIP-1050). Pure.

After an *abortable* error, abort the transaction; the producer can begin the next one. After a *fatal* error,
close the producer: another producer has started with its transactional id, or the coordinator has forgotten
its producer id. The application may then create a new one. The classes are those of Kafka 4.3's producer.
"""

from __future__ import annotations

import enum

from nilometer.client.transactions.transaction_steps import (
    AddPartitions,
    EndTransaction,
    Step,
)
from nilometer.wire.errors import ErrorCode, KafkaError, is_retriable


class TransactionError(KafkaError):
    """An error of a transaction. Do not retry the call; the subclass says what to do instead."""

    @property
    def retriable(self) -> bool:
        return False


class AbortableTransactionError(TransactionError):
    """Call ``abort()``; the producer can then begin its next transaction."""


class FatalTransactionError(TransactionError):
    """Close the producer. The coordinator aborts its open transaction, or has aborted it already."""


class ProducerFenced(FatalTransactionError):
    """Another producer has started with the same transactional id, or the transaction timed out."""


class Severity(enum.Enum):
    RETRY = enum.auto()
    ABORTABLE = enum.auto()
    UNKNOWN_PRODUCER = enum.auto()
    """Abort the transaction, and get a new epoch before the next one."""
    FATAL = enum.auto()


FENCED = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch})

_ABORTABLE = frozenset(
    {
        ErrorCode.transaction_abortable,
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.fenced_instance_id,
        ErrorCode.fenced_member_epoch,
        ErrorCode.stale_member_epoch,
    }
)
_UNANSWERED = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
        # The coordinator before may have done what an earlier attempt asked for.
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
    }
)
_FATAL_OF_ALL = frozenset(
    {
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.unsupported_version,
    }
)


def severity_of_step(step: Step, code: ErrorCode) -> Severity:
    """Classify the error code ``code`` in the response to ``step``."""
    if is_retriable(code):
        return Severity.RETRY
    if code in FENCED or code in _FATAL_OF_ALL or code == ErrorCode.invalid_txn_state:
        return Severity.FATAL
    if isinstance(step, EndTransaction) and not step.committed:
        return Severity.FATAL  # an abort that fails cannot be aborted
    if code == ErrorCode.unknown_producer_id:
        return Severity.UNKNOWN_PRODUCER
    if code in _ABORTABLE or isinstance(step, AddPartitions):
        return Severity.ABORTABLE
    return Severity.FATAL


def is_answered(code: ErrorCode) -> bool:
    """Return whether a request that got the retriable ``code`` has certainly not been carried out."""
    return code not in _UNANSWERED


def severity_of_batch(code: ErrorCode) -> Severity:
    """Classify the error of a batch that failed and is not retried.

    INVALID_PRODUCER_EPOCH is only abortable here: a broker may also return it when there is no second
    producer. If there is one, the EndTxn request fails with a fatal error.
    """
    if code in _FATAL_OF_ALL or code == ErrorCode.producer_fenced:
        return Severity.FATAL
    return Severity.ABORTABLE


def fatal_error(code: ErrorCode, message: str) -> FatalTransactionError:
    if code in FENCED:
        return ProducerFenced(ErrorCode.producer_fenced, message)
    return FatalTransactionError(code, message)
