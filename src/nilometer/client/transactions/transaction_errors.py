"""What an error means to a transactional producer: ask again, abort, or close the producer (KIP-1050). Pure.

An *abortable* error ends the transaction, not the producer: abort it and begin the next one. A *fatal* error
ends the producer: another one has taken its transactional id over, or the coordinator does not know it any
more. The application then closes it and may start with a new one. The groups follow Kafka 4.3's producer.
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
    """An error of a transaction. It is not retriable: see its subclass for what to do."""

    @property
    def retriable(self) -> bool:
        return False


class AbortableTransactionError(TransactionError):
    """Call ``abort()``; the producer can then begin its next transaction."""


class FatalTransactionError(TransactionError):
    """Close the producer. What its open transaction wrote is aborted by the coordinator, or was already."""


class ProducerFenced(FatalTransactionError):
    """Another producer uses the transactional id, or the transaction was open for too long and timed out."""


class Severity(enum.Enum):
    RETRY = enum.auto()
    ABORTABLE = enum.auto()
    UNKNOWN_PRODUCER = enum.auto()
    """Abortable where the next transaction can have another epoch."""
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
_FATAL_OF_ALL = frozenset(
    {
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.unsupported_version,
    }
)


def severity_of_step(step: Step, code: ErrorCode) -> Severity:
    """Of the answer to a request of the transaction itself."""
    if is_retriable(code):
        return Severity.RETRY
    if code in FENCED or code in _FATAL_OF_ALL or code == ErrorCode.invalid_txn_state:
        return Severity.FATAL
    if isinstance(step, EndTransaction) and not step.committed:
        return Severity.FATAL  # what cannot be aborted has no other way out
    if code == ErrorCode.unknown_producer_id:
        return Severity.UNKNOWN_PRODUCER
    if code in _ABORTABLE or isinstance(step, AddPartitions):
        return Severity.ABORTABLE
    return Severity.FATAL


def severity_of_batch(code: ErrorCode) -> Severity:
    """Of a batch that is given up. An old epoch is no proof of a second producer: the end will show."""
    if code in _FATAL_OF_ALL or code == ErrorCode.producer_fenced:
        return Severity.FATAL
    return Severity.ABORTABLE


def fatal_error(code: ErrorCode, message: str) -> FatalTransactionError:
    if code in FENCED:
        return ProducerFenced(ErrorCode.producer_fenced, message)
    return FatalTransactionError(code, message)
