"""The logs of the partitions that this broker hosts: found, created, and created ahead.

To create a log takes a millisecond, or many while others sync, and an entry of the metadata log may ask for
thousands. Entries are acted on in one piece; so what an entry is going to ask for is created before it is
folded, a few logs at a time, their files away from the event loop, and others are served meanwhile.

Invariants:
- a log created ahead belongs to no partition until its entry is folded: whoever is told to stop in between
  leaves an empty log, which is found again by whoever goes on, or by the next start;
- no two pieces of work make files at once: one that was given up is waited for by the next;
- nothing is created in the place of a log that may lie in a folder that is offline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from nilometer.broker.replicas.log_configs import LogConfigs
from nilometer.broker.replicas.log_disposal import LogDisposal
from nilometer.broker.replicas.required_logs import RequiredLog
from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.image import ClusterImage
from nilometer.runtime import Runtime
from nilometer.storage import Log, LogConfig, LogFenced, TopicPartition
from nilometer.storage.directories.log_manager import LogManager, NoLogDirectory
from nilometer.storage.directories.new_folder import NewFolder

logger = logging.getLogger("nilometer.broker")

LOGS_AT_ONCE = 16
"""How many are created ahead before others get their turn: a few milliseconds' worth."""


class HostedLogs:
    def __init__(
        self, config: BrokerConfig, runtime: Runtime, manager: LogManager, disposal: LogDisposal
    ) -> None:
        self._runtime = runtime
        self._manager = manager
        self._disposal = disposal
        self.configs = LogConfigs(config)
        self._making: asyncio.Future[None] | None = None
        self.ahead: dict[TopicPartition, None] = {}
        """Created, and not asked for yet."""

    def open(self, image: ClusterImage, wanted: RequiredLog) -> Log:
        """The log of this very topic: one left by an earlier topic of the same name is set aside.

        Where a folder is offline, a log that is not to be found may lie there: an empty one in its place
        would pass for all that there is. Raises OSError, NoLogDirectory.
        """
        self.ahead.pop(wanted.name, None)
        log = self._manager.get(wanted.name)
        if log is not None and log.topic_id is not None and log.topic_id != wanted.topic_id:
            logger.warning("%s belonged to an earlier topic of that name and is removed", log.folder)
            self._disposal.delete(wanted.name)
            log = None
        if log is None and not self._may_create(wanted):
            raise NoLogDirectory("it may lie in a folder that is offline")
        if log is None:
            return self._create(image, wanted)
        log.config = self._config_of(image, wanted)
        self._resolve_gap(log)
        if log.config.is_compacted:
            log.allow_gaps()  # Kafka, too, may have copied them from a leader, and leaves no marker
        log.assign_topic_id(wanted.topic_id)
        return log

    def _resolve_gap(self, log: Log) -> None:
        """Records were lost: the log ends before them. Raises OSError."""
        if log.gap is None:
            return
        try:
            damage = self._manager.resolve_gap(log, wall_ms=self._runtime.clock.wall_ms())
        except LogFenced as fenced:
            raise fenced.reason from fenced
        if damage is not None:
            logger.error("Damage found: %s", damage)

    async def create_ahead(self, image: ClusterImage, wanted: Iterable[RequiredLog]) -> None:
        """Have what is ``wanted`` and not there created when this returns, as far as that can be."""
        missing = [one for one in wanted if self._manager.get(one.name) is None]
        for first in range(0, len(missing), LOGS_AT_ONCE):
            some = [one for one in missing[first : first + LOGS_AT_ONCE] if self._may_create(one)]
            try:
                folders = self._manager.plan_folders([(one.name, one.topic_id) for one in some])
                await self._make(folders)
                for one, folder in zip(some, folders, strict=True):
                    self._create(image, one, folder.directory)
                    self.ahead[one.name] = None
            except (OSError, NoLogDirectory):
                return  # met again, and reported, where the rest is asked for

    async def _make(self, folders: Sequence[NewFolder]) -> None:
        def make() -> None:
            for folder in folders:
                folder.make()

        if self._making is not None:
            await asyncio.gather(asyncio.shield(self._making), return_exceptions=True)
        self._making = asyncio.ensure_future(self._runtime.disk.offload(make))
        await asyncio.shield(self._making)

    def _may_create(self, wanted: RequiredLog) -> bool:
        return wanted.is_new or not any(each.failure for each in self._manager.directories)

    def _config_of(self, image: ClusterImage, wanted: RequiredLog) -> LogConfig:
        return self.configs.of(image, wanted.name.topic, wanted.topic_id, wanted.topic_configs)

    def _create(self, image: ClusterImage, wanted: RequiredLog, directory: str | None = None) -> Log:
        return self._manager.create(
            wanted.name,
            self._config_of(image, wanted),
            topic_id=wanted.topic_id,
            wall_ms=self._runtime.clock.wall_ms(),
            directory=directory,
        )
