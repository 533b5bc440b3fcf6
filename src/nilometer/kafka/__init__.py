"""The public client: ``async with nilometer.connect("host:port") as kafka``, or ``with`` without asyncio.

``kafka.send`` writes, ``kafka.consume`` reads, ``kafka.transaction`` does both atomically, and
``kafka.admin`` has topics, configurations, groups and offsets. docs/python.md has examples;
``nilometer.kafka.errors`` lists the errors.
"""

from nilometer.client.group.member import RebalanceListener
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import Delivery, RecordMetadata
from nilometer.kafka.admin import KafkaAdmin, OffsetRange
from nilometer.kafka.blocking import connect
from nilometer.kafka.connection import Kafka, Transaction, TypedProducer
from nilometer.kafka.errors import KafkaError
from nilometer.kafka.formats import JSON, Data, Format, Headers, nullable
from nilometer.kafka.records import Record, Records

__all__ = [
    "JSON",
    "Data",
    "Delivery",
    "Format",
    "Headers",
    "Kafka",
    "KafkaAdmin",
    "KafkaError",
    "OffsetRange",
    "RebalanceListener",
    "Record",
    "RecordMetadata",
    "Records",
    "TopicPartition",
    "Transaction",
    "TypedProducer",
    "connect",
    "nullable",
]
