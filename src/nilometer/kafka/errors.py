"""The errors of the client. Each is a :class:`KafkaError`.

``error.name`` is Kafka's name of the error (``"UNKNOWN_TOPIC_OR_PARTITION"``), ``error.code`` its number (an
enumeration), ``error.retriable`` says whether the same call may succeed later, and ``error.message`` has the
details. The client has retried a retriable error already, until ``default.api.timeout.ms`` or
``delivery.timeout.ms``. Subclasses are those errors after which a program must do something else:

- ConnectionLost (NETWORK_EXCEPTION, retriable): no broker could be reached, or the connection ended.
- RequestTimedOut (REQUEST_TIMED_OUT, retriable): a broker did not respond in time.
- CommitFailed (not retriable): the consumer has lost its partitions; other members read its records again.
- LockLost (not retriable): a job of a queue is not this worker's any more, and is delivered again.
- TransactionError (not retriable): either AbortableTransactionError, after which the next transaction may
  begin, or FatalTransactionError. ProducerFenced is a fatal one: another program uses the transactional id.
- InvalidSetting (INVALID_CONFIG, not retriable): a setting that does not exist, or has a wrong value.
- RegistryError: the registry of schemas does not answer (NETWORK_EXCEPTION, retriable), refuses
  (INVALID_REQUEST), or lacks the schema that is to be written (INVALID_RECORD).
- RecordDeserializationError (INVALID_RECORD, not retriable): a record is not in the format that its consumer
  was given. ``error.record`` is the record as bytes; the consumer goes on after it.
"""

from __future__ import annotations

from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.group.committer import CommitFailed
from nilometer.client.network.connection import ConnectionLost, RequestTimedOut
from nilometer.client.producer.transaction_manager import (
    AbortableTransactionError,
    FatalTransactionError,
    ProducerFenced,
    TransactionError,
)
from nilometer.schema_registry.client import RegistryError
from nilometer.wire.errors import ErrorCode, KafkaError

__all__ = [
    "AbortableTransactionError",
    "CommitFailed",
    "ConnectionLost",
    "ErrorCode",
    "FatalTransactionError",
    "InvalidSetting",
    "KafkaError",
    "LockLost",
    "ProducerFenced",
    "RecordDeserializationError",
    "RegistryError",
    "RequestTimedOut",
    "TransactionError",
]


class InvalidSetting(KafkaError):
    """A setting does not exist, has a wrong value, or is given by an argument instead."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.invalid_config, message)


class LockLost(KafkaError):
    """A job is not this worker's any more, or it is not known whether the broker has written its end.

    The lock ended, or the connection, or the partition has another leader: the job is delivered again, unless
    what this worker said of it was written and only the answer is missing.
    """


class RecordDeserializationError(KafkaError):
    """The key or the value of a record is not in the format that its consumer was given."""

    def __init__(self, record: ConsumerRecord, field: str, cause: Exception) -> None:
        super().__init__(
            ErrorCode.invalid_record,
            f"the {field} of {record.topic}-{record.partition} at offset {record.offset} cannot be decoded: "
            f"{cause}",
        )
        self.record = record
        self.field = field
