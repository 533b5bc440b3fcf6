"""Computes the settings in force for the logs hosted here from the texts in the metadata log. Never fails.

The metadata log may have settings that this broker cannot apply: it was written by a newer controller, or the
broker's own file differs from the controller's. For such a setting the value that was last in force for the
topic on this broker stays, or else the inherited one applies; it is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import UUID

from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.config import ConfigError
from nilometer.config.definition import ConfigValue, ConfigValues
from nilometer.storage import LogConfig
from nilometer.storage.topic_config import TOPIC_CONFIG

logger = logging.getLogger("nilometer.broker.replicas")

_Texts = tuple[tuple[str, str], ...]
"""A topic's own settings as (key, text), sorted by key."""


class LogConfigs:
    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._sound: dict[_Texts, tuple[LogConfig, ConfigValues]] = {}
        """Results without errors, shared by topics with equal settings. Cleared when any setting changes."""
        self._last_good: dict[UUID, ConfigValues] = {}
        """By topic id, the settings that this broker last used for the topic."""
        self._reported: dict[tuple[UUID, str], None] = {}

    def of(self, image: ClusterImage, topic: str, topic_id: UUID, texts: Mapping[str, str]) -> LogConfig:
        """Return the log configuration in force for a topic.

        A key's value comes from ``texts``, the topic's own settings; else from the dynamic settings of
        brokers, this broker's file, or the default.
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

    def of_topic(self, image: ClusterImage, name: str) -> LogConfig:
        """Return the log configuration in force for topic ``name``, which ``image`` must have."""
        topic = image.topic(name)
        assert topic is not None, "a partition has a topic"
        return self.of(image, name, topic.uuid, image.config(ConfigResourceType.TOPIC, name))

    def on_settings_changed(self) -> None:
        self._sound.clear()

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
