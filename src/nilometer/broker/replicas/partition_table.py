"""The partitions that this broker hosts, by key, topic name and topic id; and those of them in whose logs
damaged records were found. Changed by the replica manager.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Iterator

from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.identifiers import TopicIdPartition, uuid_from_text
from nilometer.storage.errors import CorruptRecordFound
from nilometer.storage.names import TopicPartition

logger = logging.getLogger("nilometer.broker.replicas")


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


class DamagedReplicas:
    def __init__(self, partitions: PartitionTable) -> None:
        self._partitions = partitions
        self._reported: set[tuple[str, int]] = set()
        """The damaged positions (path, byte position) that have been reported."""
        self._in_repair: dict[Partition, None] = {}
        """The partitions under repair: they may lead, if no other replica can, but not follow before the
        damaged part of their log is truncated."""
        self._listeners: list[Callable[[Partition, CorruptRecordFound], None]] = []

    def add_listener(self, listener: Callable[[Partition, CorruptRecordFound], None]) -> None:
        """Call ``listener`` with each damage found in a log that is hosted here."""
        self._listeners.append(listener)

    def report(self, found: CorruptRecordFound) -> None:
        """Report damaged records that were found on disk: log an error, and notify the listeners, which begin
        the repair of the partition. Damage at a position that was reported before is ignored."""
        if (found.path, found.position) in self._reported:
            return
        self._reported.add((found.path, found.position))
        logger.error("Damage found: %s", found.message)
        folder = posixpath.dirname(found.path)
        for partition in self._partitions:
            if partition.log.folder == folder:
                for listener in self._listeners:
                    listener(partition, found)
                return

    def begin_repair(self, partition: Partition) -> None:
        """Mark the partition as under repair: it has no role here while another broker leads it, until
        :meth:`ReplicaManager.end_repair`."""
        self._in_repair[partition] = None

    def end_repair(self, partition: Partition) -> None:
        """End the repair: damage found in the partition's log from now on is reported again."""
        self._in_repair.pop(partition, None)
        folder = partition.log.folder
        self._reported = {place for place in self._reported if posixpath.dirname(place[0]) != folder}

    def is_in_repair(self, partition: Partition) -> bool:
        """Whether damaged records were found in the partition's log and are not truncated yet."""
        return partition in self._in_repair
