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
from nilometer.kafka.schema_formats import Avro, JsonSchema
from nilometer.schema_registry.client import SchemaRegistry

__all__ = [
    "JSON",
    "Avro",
    "Data",
    "Delivery",
    "Format",
    "Headers",
    "JsonSchema",
    "Kafka",
    "KafkaAdmin",
    "KafkaError",
    "OffsetRange",
    "RebalanceListener",
    "Record",
    "RecordMetadata",
    "Records",
    "SchemaRegistry",
    "TopicPartition",
    "Transaction",
    "TypedProducer",
    "connect",
    "nullable",
]
