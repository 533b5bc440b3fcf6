"""Repair of a replica with damaged records: another replica leads, and this one fetches the records again.

    found ──▶ confirmed ──▶ forfeited ──▶ no role ──▶ truncated at the damage ──▶ follows, and catches up

A replica that no other one could replace stays in the ISR: it serves its records up to the damage, and sends
ForfeitReplicas again until another replica is available. A crash at any point leaves the replica in the state
from before the damage was found.

Invariants:
- the log is truncated only while the partition has no role here, under a leader epoch that begins after the
  damage was found: no leader counts what this replica acknowledged before;
- damage is read twice before anything is done, the second time by a read of its own: a read during a
  truncation may find damage that does not exist.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath

from nilometer.broker.control.controller_link import ControllerLink
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.tasks import Tasks
from nilometer.coordination.store import CoordinationError
from nilometer.replication.replica import NoRole
from nilometer.runtime import Runtime
from nilometer.storage import names
from nilometer.storage.errors import CorruptRecordFound
from nilometer.storage.log_reader import LogFolderReader
from nilometer.wire.errors import KafkaError

logger = logging.getLogger("nilometer.broker.replicas")

RETRY_S = 0.25
FORFEIT_RETRY_S = 2.0


class ReplicaRepair:
    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        replicas: ReplicaManager,
        link: ControllerLink,
    ) -> None:
        self._disk = runtime.disk
        self._tasks = tasks
        self._replicas = replicas
        self._link = link
        self._under_way: dict[Partition, None] = {}

    def begin(self, partition: Partition, found: CorruptRecordFound) -> None:
        """Start the repair of ``partition``, in whose log ``found`` was read; nothing if one is under way."""
        if partition not in self._under_way:
            self._under_way[partition] = None
            self._tasks.spawn(self._repair(partition, found), name=f"repair of {partition}", kind="repair")

    async def _repair(self, partition: Partition, found: CorruptRecordFound) -> None:
        try:
            damage = await self._confirmed(partition, found)
            if damage is None:
                logger.warning("No damage was found when %s was read again: nothing is repaired", found.path)
                return
            self._replicas.damaged.begin_repair(partition)
            try:
                if await self._leave_isr(partition):
                    self._cut(partition, damage)
            finally:
                self._replicas.end_repair(partition)
        finally:
            del self._under_way[partition]

    async def _confirmed(self, partition: Partition, found: CorruptRecordFound) -> CorruptRecordFound | None:
        """Return the first damage in the segment of ``found``; None if there is none, or no such segment."""
        while True:
            folder, end_offset = partition.log.folder, partition.log.log_end_offset
            damage = await self._disk.offload(
                lambda folder=folder, end=end_offset: self._look_for_damage(folder, found.path, end)
            )
            if damage is None or partition.log.log_end_offset >= end_offset:
                return damage
            # The log was truncated during the read: read again.

    def _look_for_damage(self, folder: str, path: str, end_offset: int) -> CorruptRecordFound | None:
        """Return the first damage in the segment file ``path``; None if every batch is sound. Waits for the
        disk.

        In the last segment one batch must end at ``end_offset``, the log end offset: a last batch with a
        damaged header may look like one that is just being written.
        """
        name = names.parse_offset_name(posixpath.basename(path))
        reader = LogFolderReader(self._disk, folder)
        bases = reader.base_offsets()
        if name is None or name[0] not in bases:
            return None  # deleted meanwhile
        following = next((base for base in bases if base > name[0]), None)
        place, offset = 0, name[0]
        try:
            for batch in reader.batches(name[0], following):
                if batch.header.next_offset > end_offset:
                    break
                place, offset = batch.position + batch.header.size, batch.header.next_offset
        except CorruptRecordFound as damage:
            return damage
        if following is None and offset < end_offset and name[0] in reader.base_offsets():
            error = f"no complete batch before the log end offset {end_offset}"
            return CorruptRecordFound(path, place, offset, error)
        return None

    async def _leave_isr(self, partition: Partition) -> bool:
        """Send ForfeitReplicas until the partition has no role here; false if it is no longer hosted."""
        is_reported = False
        while self._replicas.hosts(partition):
            try:
                outcome = await self._link.forfeit_replica(partition.key)
            except (KafkaError, CoordinationError) as error:
                logger.info("Cannot leave the ISR of %s yet: %s", partition, error)
                await asyncio.sleep(RETRY_S)
                continue
            if outcome.ok and isinstance(partition.replica.role, NoRole):
                return True
            if not outcome.ok and not is_reported:
                is_reported = True
                logger.warning("The damaged replica of %s stays in the ISR: %s", partition, outcome.message)
            await asyncio.sleep(FORFEIT_RETRY_S)
        return False

    def _cut(self, partition: Partition, damage: CorruptRecordFound) -> None:
        if not self._replicas.hosts(partition):
            return
        end_offset = partition.log.log_end_offset
        if not partition.remove_damaged(damage.offset):
            return
        logger.warning(
            "%s was truncated to offset %d, before the damage; records up to %d are fetched again",
            partition,
            partition.log.log_end_offset,
            end_offset,
        )
