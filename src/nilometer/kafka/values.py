"""What the methods of the client take and return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.delivery import Delivery, RecordMetadata

__all__ = ["Data", "Delivery", "Headers", "RecordMetadata", "TopicPartition", "to_bytes", "to_headers"]

Data = bytes | str | None
"""A key or a value. Text is sent as UTF-8; None is Kafka's null, as a value a tombstone."""
Headers = Mapping[str, Data] | Sequence[tuple[str, Data]]


def to_bytes(data: Data) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def to_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, to_bytes(value)) for name, value in pairs]
