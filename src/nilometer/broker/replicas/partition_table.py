"""The partitions that this broker hosts, by key, topic name and topic id. Changed by the replica manager."""

from __future__ import annotations

from collections.abc import Iterator

from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.identifiers import TopicIdPartition, uuid_from_text
from nilometer.storage import TopicPartition


class PartitionTable:
    def __init__(self) -> None:
        self.by_key: dict[TopicIdPartition, Partition] = {}
        self.by_name: dict[tuple[str, int], Partition] = {}
        self.by_raw_id: dict[tuple[bytes, int], Partition] = {}
        """By the bytes of the topic's id: they are hashed much faster than a UUID."""

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.by_key.values())

    def __contains__(self, partition: Partition) -> bool:
        return self.by_key.get(partition.key) is partition

    def add(self, partition: Partition) -> None:
        """Add ``partition`` by its key, its topic's name and its topic's id."""
        key = partition.key
        self.by_key[key] = partition
        self.by_name[partition.topic, key.partition] = partition
        self.by_raw_id[uuid_from_text(key.topic_id).bytes, key.partition] = partition

    def remove(self, partition: Partition) -> None:
        """Remove ``partition``. Raises KeyError if it is not in the table."""
        key = partition.key
        del self.by_key[key]
        del self.by_name[partition.topic, key.partition]
        del self.by_raw_id[uuid_from_text(key.topic_id).bytes, key.partition]

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the high watermarks of all hosted partitions, for the checkpoint files."""
        # Read without the properties of Log and Replica: the event loop waits for all partitions.
        return {one.log.topic_partition: one.replica.role.high_watermark for one in self.by_key.values()}
