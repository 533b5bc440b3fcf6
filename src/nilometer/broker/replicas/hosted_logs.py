"""Finds and creates the logs of the partitions that this broker hosts, with the settings in force for them.

Which logs will be needed is computed from the metadata before it is applied. The settings are computed from
the texts in the metadata log; that never fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from nilometer.broker.replicas.file_work import LogDisposal
from nilometer.broker.settings.config import BrokerConfig
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
from nilometer.config import ConfigError, ConfigValue, ConfigValues
from nilometer.identifiers import BrokerId, TopicId, uuid_from_text
from nilometer.runtime import Runtime
from nilometer.runtime.gathering import gather
from nilometer.storage.directories.log_manager import (
    LogManager,
    NewFolder,
    NoLogDirectory,
    make_folders_durable,
)
from nilometer.storage.errors import LogFenced
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import TOPIC_CONFIG, LogConfig


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


logger = logging.getLogger("nilometer.broker.replicas")

_Texts = tuple[tuple[str, str], ...]
"""A topic's own settings as (key, text), sorted by key."""


class LogConfigs:
    """The log configuration of each topic on this broker."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._sound: dict[_Texts, tuple[LogConfig, ConfigValues]] = {}
        """Results without errors, shared by topics with equal settings. Cleared when any setting changes."""
        self._last_good: dict[UUID, ConfigValues] = {}
        """By topic id, the settings that this broker last used for the topic."""
        self._reported: dict[tuple[UUID, str], None] = {}
        self._deletion_delay_ms: int | None = None

    def of(self, image: ClusterImage, topic: str, topic_id: UUID, texts: Mapping[str, str]) -> LogConfig:
        """Return the log configuration in force for a topic.

        A key's value comes from ``texts``, the topic's own settings; else from the dynamic settings of
        brokers, this broker's file, or the default. A value that cannot be used is logged, and the
        last valid one stays in force.
        """
        key = tuple(sorted(texts.items()))
        if key not in self._sound:
            resolved = TOPIC_CONFIG.resolve(texts, self._inherited(image), self._last_good.get(topic_id))
            if resolved.errors:
                for error in resolved.errors:
                    self._report(topic, topic_id, error)
                self._last_good[topic_id] = resolved.values
                return LogConfig.of(resolved.values)
            self._sound[key] = LogConfig.of(resolved.values), resolved.values
        config, self._last_good[topic_id] = self._sound[key]
        return config

    def deletion_delay_ms(self, image: ClusterImage) -> int:
        """Return how long, by this broker's settings in force, what is deleted stays on the disk."""
        if self._deletion_delay_ms is None:
            values = TOPIC_CONFIG.resolve({}, self._inherited(image), None).values
            self._deletion_delay_ms = LogConfig.of(values).file_delete_delay_ms
        return self._deletion_delay_ms

    def of_topic(self, image: ClusterImage, name: str) -> LogConfig:
        """Return the log configuration in force for topic ``name``, which ``image`` must have."""
        topic = image.topic(name)
        assert topic is not None, "a partition has a topic"
        return self.of(image, name, topic.uuid, image.config(ConfigResourceType.TOPIC, name))

    def on_settings_changed(self) -> None:
        self._sound.clear()
        self._deletion_delay_ms = None

    def forget_topic(self, topic_id: UUID) -> None:
        """Drop what is kept for a topic that was deleted."""
        self._last_good.pop(topic_id, None)
        for reported in [one for one in self._reported if one[0] == topic_id]:
            del self._reported[reported]

    def _inherited(self, image: ClusterImage) -> dict[str, ConfigValue]:
        return self._config.topic_defaults(
            image.config(ConfigResourceType.BROKER, ""),
            image.config(ConfigResourceType.BROKER, str(self._config.node_id)),
        )

    def _report(self, topic: str, topic_id: UUID, error: ConfigError) -> None:
        if (topic_id, str(error)) in self._reported:
            return
        self._reported[topic_id, str(error)] = None
        logger.error(
            "This broker cannot apply a setting of topic %s; its last valid value remains in effect: %s",
            topic,
            error,
        )


T = TypeVar("T")


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
            self._disposal.request_checkpoint(log)

    async def create_ahead(self, image: ClusterImage, wanted: Iterable[RequiredLog]) -> None:
        """Create the logs in ``wanted`` that do not exist, before the metadata that needs them is applied. An
        error ends this without a report: :meth:`open` meets it again, and reports it."""
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
            await gather(asyncio.shield(self._making), return_exceptions=True)
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
