"""The settings in force for a topic, a broker or a group, and the source of each, for DescribeConfigs."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION, BrokerConfig
from nilometer.cluster.controller.configs import CLUSTER_WIDE_KEYS
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.config import ConfigKey
from nilometer.groups import settings
from nilometer.storage.topic_config import TOPIC_CONFIG


class ConfigSource(enum.IntEnum):
    """The sources of a setting, with their numbers in DescribeConfigs."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    DYNAMIC_GROUP = 8


class Synonym(msgspec.Struct, frozen=True):
    name: str
    text: str | None
    source: ConfigSource


class EffectiveConfig(msgspec.Struct, frozen=True):
    key: ConfigKey
    text: str | None
    source: ConfigSource
    synonyms: tuple[Synonym, ...]
    """All values that the key has at any level, the effective one first."""


def topic_config(
    image: ClusterImage, config: BrokerConfig, name: str, own: Mapping[str, str] | None = None
) -> list[EffectiveConfig]:
    """Return every setting of a topic.

    ``own``: the topic's own settings, if the image does not have the topic yet.
    """
    given = image.config(ConfigResourceType.TOPIC, name) if own is None else own
    return [_topic_entry(image, config, key, given) for key in TOPIC_CONFIG.keys.values()]


def broker_config(image: ClusterImage, config: BrokerConfig, broker_name: str) -> list[EffectiveConfig]:
    """Return every setting of this broker, or (empty name) the dynamic settings for all brokers."""
    if not broker_name:
        given = image.config(ConfigResourceType.BROKER, "")
        return [
            EffectiveConfig(key, given[name], ConfigSource.DYNAMIC_DEFAULT_BROKER, ())
            for name, key in BROKER_CONFIG_DEFINITION.keys.items()
            if name in given
        ]
    return [
        _effective(key, _broker_values(image, config, key)) for key in BROKER_CONFIG_DEFINITION.keys.values()
    ]


def group_config(image: ClusterImage, config: BrokerConfig, group_id: str) -> list[EffectiveConfig]:
    """Return every setting of a group; one that is not its own is the broker's, with the prefix `group.`, or
    the default if brokers have none."""
    given = image.config(ConfigResourceType.GROUP, group_id)
    entries: list[EffectiveConfig] = []
    for key in settings.definition_of(config.groups).keys.values():
        of_brokers = BROKER_CONFIG_DEFINITION.keys.get(f"group.{key.name}")
        if of_brokers is not None:
            values = _broker_values(image, config, of_brokers)
        else:
            assert key.default is not None, key.name
            values = [Synonym(key.name, key.format(key.default), ConfigSource.DEFAULT)]
        if key.name in given:
            values.insert(0, Synonym(key.name, given[key.name], ConfigSource.DYNAMIC_GROUP))
        entries.append(_effective(key, values))
    return entries


def _topic_entry(
    image: ClusterImage, config: BrokerConfig, key: ConfigKey, given: Mapping[str, str]
) -> EffectiveConfig:
    values: list[Synonym] = []
    if key.name in given:
        values.append(Synonym(key.name, given[key.name], ConfigSource.DYNAMIC_TOPIC))
    if key.synonym is not None:
        values.extend(
            _broker_values(image, config, BROKER_CONFIG_DEFINITION.keys[key.synonym], topic_key=key)
        )
    return _effective(key, values)


def _broker_values(
    image: ClusterImage, config: BrokerConfig, key: ConfigKey, topic_key: ConfigKey | None = None
) -> list[Synonym]:
    values = list[Synonym]()
    is_cluster_wide = key.name in CLUSTER_WIDE_KEYS
    own = () if is_cluster_wide else ((str(config.node_id), ConfigSource.DYNAMIC_BROKER),)
    for resource, source in (*own, ("", ConfigSource.DYNAMIC_DEFAULT_BROKER)):
        text = image.config(ConfigResourceType.BROKER, resource).get(key.name)
        if text is not None:
            values.append(Synonym(key.name, text, source))
    static = config.texts.get(key.name)
    if is_cluster_wide:  # all brokers use the value of the controller's file, which the image has
        static, topic_key = image.config(ConfigResourceType.CLUSTER, "").get(key.name), None
    if static is not None:
        values.append(Synonym(key.name, static, ConfigSource.STATIC_BROKER))
    elif topic_key is not None and (value := config.topic_defaults().get(topic_key.name)) is not None:
        values.append(Synonym(key.name, topic_key.format(value), ConfigSource.STATIC_BROKER))
    if key.default is not None:
        values.append(Synonym(key.name, key.format(key.default), ConfigSource.DEFAULT))
    return values


def _effective(key: ConfigKey, values: list[Synonym]) -> EffectiveConfig:
    if not values:
        text = None if key.default is None else key.format(key.default)
        return EffectiveConfig(key, text, ConfigSource.DEFAULT, ())
    return EffectiveConfig(key, values[0].text, values[0].source, tuple(values))
