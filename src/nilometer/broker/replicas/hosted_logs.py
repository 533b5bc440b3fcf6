"""The logs of the partitions that this broker hosts: found, created, and created ahead.

Creating a log takes a millisecond, or many while others sync, and an entry of the metadata log may require
thousands. Entries are applied in one step; so the logs that an entry will require are created before it is
folded, a few at a time, their files off the event loop, and other requests are served meanwhile.

Invariants:
- a log created ahead belongs to no partition until its entry is folded: a task cancelled in between leaves an
  empty log, which the next attempt or the next start finds again;
- files are created by one task at a time: the next one waits for a cancelled one;
- no log is created in place of one that may be in an offline log directory.
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
"""How many logs are created ahead before other tasks get their turn: a few milliseconds' worth."""


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
        """Created, and not in use yet."""

    def open(self, image: ClusterImage, wanted: RequiredLog) -> Log:
        """The log of the topic with this id; one left by an earlier topic of the same name is removed.

        If a log directory is offline, a missing log may be there: an empty one in its place would be taken
        for the complete log. Raises OSError, NoLogDirectory.
        """
        self.ahead.pop(wanted.name, None)
        log = self._manager.get(wanted.name)
        if log is not None and log.topic_id is not None and log.topic_id != wanted.topic_id:
            logger.warning(
                "The log of %s belongs to an earlier topic of that name and is removed", log.folder
            )
            self._disposal.delete(wanted.name)
            log = None
        if log is None and not self._may_create(wanted):
            raise NoLogDirectory("it may be in an offline log directory")
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
        """Create the logs in ``wanted`` that do not exist, as far as possible."""
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
                return  # found again, and reported, when the log is requested

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
