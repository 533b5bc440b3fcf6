"""Computes which logs a broker will need from the metadata, before the broker applies it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from nilometer.cluster.entries import Entry
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    ConfigChanged,
    ConfigResourceType,
    PartitionChanged,
    PartitionCreated,
    TopicCreated,
)
from nilometer.cluster.states import PartitionState, Topic
from nilometer.identifiers import BrokerId, TopicId, uuid_from_text
from nilometer.storage import TopicPartition


class RequiredLog(NamedTuple):
    """The log of one replica."""

    name: TopicPartition
    topic_id: UUID
    is_new: bool
    """Whether the replica is new, so that no log directory can have its log yet."""
    topic_configs: Mapping[str, str]


def required_log(
    image: ClusterImage, topic: Topic, index: int, state: PartitionState, broker_id: BrokerId
) -> RequiredLog:
    """Return the required log of a partition that ``image`` assigns to ``broker_id``."""
    return RequiredLog(
        TopicPartition(topic.name, index),
        topic.uuid,
        not state.partition_epoch or broker_id in state.adding,
        image.config(ConfigResourceType.TOPIC, topic.name),
    )


def required_logs_on(image: ClusterImage, broker_id: BrokerId) -> Iterator[RequiredLog]:
    """Yield all logs that ``broker_id`` must have."""
    for key, state in image.partitions_on(broker_id):
        topic = image.topic_by_id(key.topic_id)
        assert topic is not None, "a partition has a topic"
        yield required_log(image, topic, key.partition, state, broker_id)


def required_logs_by(entry: Entry, image: ClusterImage, broker_id: BrokerId) -> Iterator[RequiredLog]:
    """Yield the logs of the replicas that ``entry``, not applied to ``image`` yet, newly assigns to
    ``broker_id``."""
    names: dict[TopicId, str] = {}
    configs: dict[str, dict[str, str]] = {}

    def wanted(topic_id: TopicId, index: int) -> Iterator[RequiredLog]:
        topic = image.topic_by_id(topic_id)
        name = names.get(topic_id) if topic is None else topic.name
        if name is None:
            return
        texts = image.config(ConfigResourceType.TOPIC, name) if topic is not None else configs.get(name, {})
        yield RequiredLog(TopicPartition(name, index), uuid_from_text(topic_id), True, texts)

    for record in entry.records:
        match record:
            case TopicCreated():
                names[record.topic_id] = record.name
            case ConfigChanged(resource_type=ConfigResourceType.TOPIC) if record.value is not None:
                configs.setdefault(record.resource_name, {})[record.key] = record.value
            case PartitionCreated() if broker_id in record.replicas:
                yield from wanted(record.topic_id, record.partition)
            case PartitionChanged() if broker_id in (record.adding or ()):
                yield from wanted(record.topic_id, record.partition)
            case _:
                pass
