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
    from nilometer.kafka.errors import KafkaError as KafkaError

__all__ = ["Kafka", "KafkaError", "__version__", "connect"]

_CLIENT = frozenset({"Kafka", "KafkaError", "connect"})


def __getattr__(name: str) -> object:
    if name not in _CLIENT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("nilometer.kafka"), name)
