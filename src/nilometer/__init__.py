"""Nilometer: a replicated, partitioned log that speaks Kafka's wire protocol.

``nilometer.connect`` is the client (docs/python.md), ``nilometer.testing`` starts clusters for tests
(docs/testing.md). Importing this package imports neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from nilometer.version import __version__

if TYPE_CHECKING:
    from nilometer.kafka.connection import Kafka as Kafka
    from nilometer.kafka.connection import connect as connect
    from nilometer.kafka.errors import AbortableTransactionError as AbortableTransactionError
    from nilometer.kafka.errors import CommitFailed as CommitFailed
    from nilometer.kafka.errors import ConnectionLost as ConnectionLost
    from nilometer.kafka.errors import ErrorCode as ErrorCode
    from nilometer.kafka.errors import FatalTransactionError as FatalTransactionError
    from nilometer.kafka.errors import InvalidSetting as InvalidSetting
    from nilometer.kafka.errors import KafkaError as KafkaError
    from nilometer.kafka.errors import ProducerFenced as ProducerFenced
    from nilometer.kafka.errors import RequestTimedOut as RequestTimedOut
    from nilometer.kafka.errors import TransactionError as TransactionError

__all__ = [
    "AbortableTransactionError",
    "CommitFailed",
    "ConnectionLost",
    "ErrorCode",
    "FatalTransactionError",
    "InvalidSetting",
    "Kafka",
    "KafkaError",
    "ProducerFenced",
    "RequestTimedOut",
    "TransactionError",
    "__version__",
    "connect",
]

_CLIENT = frozenset({"Kafka", "connect"})
_ERRORS = frozenset(__all__) - _CLIENT - {"__version__"}


def __getattr__(name: str) -> object:
    if name in _CLIENT:
        return getattr(importlib.import_module("nilometer.kafka"), name)
    if name in _ERRORS:
        return getattr(importlib.import_module("nilometer.kafka.errors"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
