"""The public client: ``async with nilometer.connect("host:port") as kafka``.

``kafka.send`` writes, ``kafka.consume`` reads, ``kafka.transaction`` does both atomically, and
``kafka.admin`` has topics, configurations, groups and offsets. docs/python.md has examples;
``nilometer.kafka.errors`` lists the errors.
"""

from nilometer.kafka.admin import KafkaAdmin, OffsetRange
from nilometer.kafka.connection import (
    Data,
    Delivery,
    Headers,
    Kafka,
    RecordMetadata,
    TopicPartition,
    Transaction,
    connect,
)
from nilometer.kafka.errors import KafkaError
from nilometer.kafka.records import Record, Records

__all__ = [
    "Data",
    "Delivery",
    "Headers",
    "Kafka",
    "KafkaAdmin",
    "KafkaError",
    "OffsetRange",
    "Record",
    "RecordMetadata",
    "Records",
    "TopicPartition",
    "Transaction",
    "connect",
]
