"""The public client: ``async with nilometer.connect("host:port") as kafka``, or ``with`` without asyncio.

``kafka.send`` writes, ``kafka.consume`` reads, ``kafka.transaction`` does both atomically, ``kafka.queue``
hands out work, and ``kafka.admin`` has topics, configurations, groups and offsets. docs/python.md has
examples; ``nilometer.kafka.errors`` lists the errors.
"""

from nilometer.client.group.member import RebalanceListener
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import Delivery, RecordMetadata
from nilometer.kafka.admin import KafkaAdmin, OffsetRange
from nilometer.kafka.blocking import connect
from nilometer.kafka.clients import Transaction
from nilometer.kafka.connection import Kafka, TypedProducer
from nilometer.kafka.errors import KafkaError
from nilometer.kafka.formats import JSON, Data, Format, Headers, nullable
from nilometer.kafka.queue import DeadLetter, Jobs, Queue, QueueStats
from nilometer.kafka.queue_jobs import Backoff, Ended, Job
from nilometer.kafka.records import Record, Records
from nilometer.kafka.schema_formats import Avro, JsonSchema
from nilometer.schema_registry.client import SchemaRegistry

__all__ = [
    "JSON",
    "Avro",
    "Backoff",
    "Data",
    "DeadLetter",
    "Delivery",
    "Ended",
    "Format",
    "Headers",
    "Job",
    "Jobs",
    "JsonSchema",
    "Kafka",
    "KafkaAdmin",
    "KafkaError",
    "OffsetRange",
    "Queue",
    "QueueStats",
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
