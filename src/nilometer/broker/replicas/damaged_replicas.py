"""The replicas in whose logs damaged records were found: each damage is reported once until its repair."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable

from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.partition_table import PartitionTable
from nilometer.storage import CorruptRecordFound

logger = logging.getLogger("nilometer.broker.replicas")


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
