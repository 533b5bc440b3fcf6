"""Internal topics: created when they are first needed, with as many replicas as the cluster allows (E-44).

This module has the partition counts, replication factors and settings of internal topics; the controller
assigns their replicas. No request waits for a bigger cluster: with fewer brokers than
``offsets.topic.replication.factor`` there are fewer replicas, and the controller adds the missing ones as
brokers join.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from nilometer.broker.control import decision_log
from nilometer.broker.control.controller import Controller
from nilometer.broker.control.controller_link import ControllerLink
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.controller.topics import NewTopic, decide_internal_topic_growth, internal_topic
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.states import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from nilometer.coordination.store import CoordinationError
from nilometer.runtime import Entropy
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger("nilometer.broker.control")

RETRY_S = 1.0
ADMIN_CLIENT_ID = "__admin_client"
"""The client id with which a client may write to internal topics."""
_CREATED_OR_EXISTS = (ErrorCode.none, ErrorCode.topic_already_exists)


class InternalTopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of an internal topic's partition count, replication factor and settings, as in Kafka."""

    num_partitions: str
    """The broker's setting that has the partition count."""
    replication_factor: str
    """The broker's setting that has the replication factor."""
    configs: Mapping[str, str]
    """Topic settings with fixed values."""
    configs_by_key: Mapping[str, str]
    """By topic setting, the broker's setting that has its value."""


INTERNAL_TOPIC_SETTINGS: Mapping[str, InternalTopicSettings] = {
    GROUP_METADATA_TOPIC: InternalTopicSettings(
        num_partitions="offsets.topic.num.partitions",
        replication_factor="offsets.topic.replication.factor",
        configs={"cleanup.policy": "compact", "compression.type": "producer"},
        configs_by_key={"segment.bytes": "offsets.topic.segment.bytes"},
    ),
    TRANSACTION_STATE_TOPIC: InternalTopicSettings(
        num_partitions="transaction.state.log.num.partitions",
        replication_factor="transaction.state.log.replication.factor",
        configs={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "unclean.leader.election.enable": "false",
        },
        configs_by_key={
            "min.insync.replicas": "transaction.state.log.min.isr",
            "segment.bytes": "transaction.state.log.segment.bytes",
        },
    ),
    SHARE_GROUP_STATE_TOPIC: InternalTopicSettings(
        num_partitions="share.coordinator.state.topic.num.partitions",
        replication_factor="share.coordinator.state.topic.replication.factor",
        configs={"cleanup.policy": "delete", "compression.type": "producer", "retention.ms": "-1"},
        configs_by_key={
            "min.insync.replicas": "share.coordinator.state.topic.min.isr",
            "segment.bytes": "share.coordinator.state.topic.segment.bytes",
        },
    ),
}


def new_internal_topic(config: BrokerConfig, image: ClusterImage, name: str) -> NewTopic | None:
    """Return the internal topic ``name`` with its settings; None if brokers create no topic of that name."""
    settings = INTERNAL_TOPIC_SETTINGS.get(name)
    if settings is None:
        return None
    return internal_topic(
        image,
        name,
        num_partitions=config.integer(settings.num_partitions),
        replication_factor=config.integer(settings.replication_factor),
        configs={
            **settings.configs,
            **{key: str(config.integer(of_broker)) for key, of_broker in settings.configs_by_key.items()},
        },
    )


def check_client_may_write(topic: str, client_id: str | None) -> None:
    """Raise KafkaError if ``topic`` is internal, since only its coordinator writes to it, unless the client
    id is ``ADMIN_CLIENT_ID``."""
    if topic in INTERNAL_TOPICS and client_id != ADMIN_CLIENT_ID:
        raise KafkaError(ErrorCode.invalid_topic_exception, f"Cannot append to internal topic {topic}")


class InternalTopics:
    def __init__(
        self, config: BrokerConfig, metadata: MetadataLog, link: ControllerLink, entropy: Entropy
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._link = link
        self._entropy = entropy
        self._creating = asyncio.Lock()

    async def ensure(self, name: str) -> bool:
        """Create the topic unless it exists; return whether it exists, and this broker has folded it."""
        async with self._creating:
            image = self._metadata.image
            if image.topic(name) is not None:
                return True
            topic = new_internal_topic(self._config, image, name)
            assert topic is not None, f"{name} is an internal topic"
            try:
                errors = await self._link.create_topics([topic], self._entropy)
            except (KafkaError, CoordinationError) as error:
                logger.info("%s could not be created yet: %s", name, error)
                return False
            if errors[name] not in _CREATED_OR_EXISTS:
                logger.warning("%s could not be created: %s", name, errors[name].name.upper())
            return self._metadata.image.topic(name) is not None


class InternalTopicGrowth:
    """Runs on the controller: adds replicas to internal topics when brokers join or a reassignment
    completes."""

    def __init__(self, config: BrokerConfig, controller: Controller, metadata: MetadataLog) -> None:
        self._factors = {
            name: config.integer(settings.replication_factor)
            for name, settings in INTERNAL_TOPIC_SETTINGS.items()
        }
        self._controller = controller
        self._due = asyncio.Event()
        metadata.subscribe(self._on_delta, lambda _image: self._due.set())

    async def run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            if not self._controller.is_active:
                continue
            try:
                for name, factor in self._factors.items():
                    await self._controller.decide(
                        lambda image, name=name, factor=factor: decide_internal_topic_growth(
                            image, name, factor
                        ),
                        decision_log.INTERNAL_TOPIC_GROWTH,
                    )
            except (KafkaError, CoordinationError) as error:
                logger.info(
                    "No replicas could be added to internal topics; the next change tries again: %s", error
                )
                await asyncio.sleep(RETRY_S)
                self._due.set()

    def _on_delta(self, delta: ImageDelta, image: ClusterImage) -> None:
        if delta.controller_changed or delta.brokers or self._completes(delta, image):
            self._due.set()

    def _completes(self, delta: ImageDelta, image: ClusterImage) -> bool:
        """Whether a reassignment of an internal topic has completed."""
        topics = [topic for name in self._factors if (topic := image.topic(name)) is not None]
        return any(
            key.topic_id == topic.id
            and change.before is not None
            and change.before.is_reassigning
            and change.after is not None
            and not change.after.is_reassigning
            for topic in topics
            for key, change in delta.partitions.items()
        )
