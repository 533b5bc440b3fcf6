"""Finds and creates the logs of the partitions that this broker hosts.

Creating a log takes a millisecond, or many while other logs are flushed, and an entry of the metadata log may
require thousands of logs. An entry is applied to the image in one step. So the logs that it requires are
created ahead, before that step: a few at a time, their files off the event loop, while other requests are
served.

Invariants:
- a log created ahead belongs to no partition until its entry is applied: a task cancelled in between leaves
  an empty log, which the next attempt or the next start finds;
- files are created by one task at a time: the next one waits for the files that a cancelled one began;
- no log is created in place of one that may be in an offline log directory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeVar

from nilometer.broker.replicas.log_configs import LogConfigs
from nilometer.broker.replicas.log_disposal import LogDisposal
from nilometer.broker.replicas.required_logs import RequiredLog
from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.image import ClusterImage
from nilometer.runtime import Runtime
from nilometer.storage import Log, LogConfig, LogFenced, TopicPartition
from nilometer.storage.directories.log_manager import (
    LogManager,
    NewFolder,
    NoLogDirectory,
    make_folders_durable,
)

T = TypeVar("T")

logger = logging.getLogger("nilometer.broker.replicas")

LOGS_AT_ONCE = 16
"""How many logs are put in use, which takes a few milliseconds, before other tasks run."""
FOLDERS_AT_ONCE = 256
"""How many folders are made and synced together."""


class HostedLogs:
    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        manager: LogManager,
        disposal: LogDisposal,
        is_hosted: Callable[[TopicPartition], bool],
    ) -> None:
        """``is_hosted`` says whether a partition uses the log of this name."""
        self._runtime = runtime
        self._manager = manager
        self._disposal = disposal
        self._is_hosted = is_hosted
        self.configs = LogConfigs(config)
        self._making: asyncio.Future[None] | None = None
        self.ahead: dict[TopicPartition, None] = {}
        """The logs created ahead that no partition uses yet."""

    def open(self, image: ClusterImage, wanted: RequiredLog) -> Log:
        """Return the log of replica ``wanted``, configured; create it if it does not exist.

        A log left by an earlier topic of the same name becomes a stray. Raises OSError, and NoLogDirectory if
        the log does not exist but may be in an offline directory: an empty log would count as the whole one.
        """
        self.ahead.pop(wanted.name, None)
        self._remove_earlier(wanted)
        log = self._manager.get(wanted.name)
        if log is None and not self._may_create(wanted):
            raise NoLogDirectory("it may be in an offline log directory")
        if log is None:
            log = self._create(image, wanted)
            self._disposal.request_checkpoint(log)
            return log
        log.configure(self._config_of(image, wanted))
        self._resolve_gap(log)
        if log.config.is_compacted:
            # A log that Kafka wrote may have gaps copied from its leader, and has no gap marker.
            log.allow_gaps()
        return log

    def _remove_earlier(self, wanted: RequiredLog) -> None:
        log = self._manager.get(wanted.name)
        if log is not None and log.topic_id != wanted.topic_id:
            self._disposal.make_stray(wanted.name, "belongs to an earlier topic of that name")

    def _resolve_gap(self, log: Log) -> None:
        """If records are missing inside the log, truncate it before the gap and report the damage.

        Raises OSError.
        """
        try:
            damage = self._manager.resolve_gap(log, wall_ms=self._runtime.clock.wall_ms())
        except LogFenced as fenced:
            raise fenced.reason from fenced
        if damage is not None:
            logger.error("Damage found: %s", damage)

    async def create_ahead(self, image: ClusterImage, wanted: Iterable[RequiredLog]) -> None:
        """Create the logs in ``wanted`` that do not exist; an error ends this without a report, since
        :meth:`open` meets it again."""
        missing = [one async for one in _with_pauses(wanted) if self._is_missing(one)]
        for first in range(0, len(missing), FOLDERS_AT_ONCE):
            some = [one for one in missing[first : first + FOLDERS_AT_ONCE] if self._may_create(one)]
            try:
                await self._create_some(image, some)
            except (OSError, NoLogDirectory):
                return  # open() meets the error again and reports it

    def _is_missing(self, wanted: RequiredLog) -> bool:
        log = self._manager.get(wanted.name)
        return log is None or (log.topic_id != wanted.topic_id and not self._is_hosted(wanted.name))

    async def _create_some(self, image: ClusterImage, wanted: Sequence[RequiredLog]) -> None:
        async for one in _with_pauses(wanted):
            self._remove_earlier(one)
        folders = self._manager.plan_folders([(one.name, one.topic_id) for one in wanted])
        await self._make(folders)
        async for one, folder in _with_pauses(list(zip(wanted, folders, strict=True))):
            self._create(image, one, folder)
            self.ahead[one.name] = None

    async def _make(self, folders: Sequence[NewFolder]) -> None:
        if self._making is not None:
            await asyncio.gather(asyncio.shield(self._making), return_exceptions=True)
        self._making = asyncio.ensure_future(
            self._runtime.disk.offload(lambda: make_folders_durable(folders))
        )
        await asyncio.shield(self._making)

    def _may_create(self, wanted: RequiredLog) -> bool:
        return wanted.is_new or not any(each.failure for each in self._manager.directories)

    def _config_of(self, image: ClusterImage, wanted: RequiredLog) -> LogConfig:
        return self.configs.of(image, wanted.name.topic, wanted.topic_id, wanted.topic_configs)

    def _create(self, image: ClusterImage, wanted: RequiredLog, folder: NewFolder | None = None) -> Log:
        return self._manager.create(
            wanted.name,
            self._config_of(image, wanted),
            topic_id=wanted.topic_id,
            wall_ms=self._runtime.clock.wall_ms(),
            folder=folder,
            sync=False,
        )


async def _with_pauses(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield ``items``; other tasks run before every :data:`LOGS_AT_ONCE` of them."""
    for number, item in enumerate(items):
        if number % LOGS_AT_ONCE == 0:
            await asyncio.sleep(0)
        yield item
