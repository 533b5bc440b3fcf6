"""Nilometer: a replicated, partitioned log that speaks Kafka's wire protocol.

``nilometer.connect`` is the client (docs/python.md), ``nilometer.testing`` starts clusters for tests
(docs/testing.md). Importing this package imports neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from nilometer import compiled
from nilometer.version import __version__

compiled.use()

if TYPE_CHECKING:
    from nilometer.client.group.member import RebalanceListener as RebalanceListener
    from nilometer.client.network.cluster_metadata import TopicPartition as TopicPartition
    from nilometer.kafka.blocking import connect as connect
    from nilometer.kafka.connection import Kafka as Kafka
    from nilometer.kafka.errors import AbortableTransactionError as AbortableTransactionError
    from nilometer.kafka.errors import CommitFailed as CommitFailed
    from nilometer.kafka.errors import ConnectionLost as ConnectionLost
    from nilometer.kafka.errors import ErrorCode as ErrorCode
    from nilometer.kafka.errors import FatalTransactionError as FatalTransactionError
    from nilometer.kafka.errors import InvalidSetting as InvalidSetting
    from nilometer.kafka.errors import KafkaError as KafkaError
    from nilometer.kafka.errors import LockLost as LockLost
    from nilometer.kafka.errors import ProducerFenced as ProducerFenced
    from nilometer.kafka.errors import RecordDeserializationError as RecordDeserializationError
    from nilometer.kafka.errors import RegistryError as RegistryError
    from nilometer.kafka.errors import RequestTimedOut as RequestTimedOut
    from nilometer.kafka.errors import TransactionError as TransactionError
    from nilometer.kafka.formats import JSON as JSON
    from nilometer.kafka.formats import Format as Format
    from nilometer.kafka.formats import nullable as nullable
    from nilometer.kafka.queue import Queue as Queue
    from nilometer.kafka.queue_jobs import Backoff as Backoff
    from nilometer.kafka.queue_jobs import Job as Job
    from nilometer.kafka.records import Record as Record
    from nilometer.kafka.records import Records as Records
    from nilometer.kafka.schema_formats import Avro as Avro
    from nilometer.kafka.schema_formats import JsonSchema as JsonSchema
    from nilometer.schema_registry.client import SchemaRegistry as SchemaRegistry

__all__ = [
    "JSON",
    "AbortableTransactionError",
    "Avro",
    "Backoff",
    "CommitFailed",
    "ConnectionLost",
    "ErrorCode",
    "FatalTransactionError",
    "Format",
    "InvalidSetting",
    "Job",
    "JsonSchema",
    "Kafka",
    "KafkaError",
    "LockLost",
    "ProducerFenced",
    "Queue",
    "RebalanceListener",
    "Record",
    "RecordDeserializationError",
    "Records",
    "RegistryError",
    "RequestTimedOut",
    "SchemaRegistry",
    "TopicPartition",
    "TransactionError",
    "__version__",
    "connect",
    "nullable",
]

_CLIENT = frozenset(
    {
        *("JSON", "Avro", "Backoff", "Format", "Job", "JsonSchema", "Kafka", "Queue"),
        *("RebalanceListener", "Record", "Records"),
        *("SchemaRegistry", "TopicPartition", "connect", "nullable"),
    }
)
_ERRORS = frozenset(__all__) - _CLIENT - {"__version__"}


def __getattr__(name: str) -> object:
    if name in _CLIENT:
        return getattr(importlib.import_module("nilometer.kafka"), name)
    if name in _ERRORS:
        return getattr(importlib.import_module("nilometer.kafka.errors"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
