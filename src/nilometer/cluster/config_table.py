"""The settings of topics, brokers and the cluster, and the value in force for a topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.records import ConfigResourceType
from nilometer.cluster.snapshot import ConfigSnapshot

_EMPTY: Mapping[str, str] = {}
_INT_MAX = 2**31 - 1


def min_insync_replicas_of(text: str) -> int | None:
    """None where the text is not a whole number from 1 to 2^31 - 1."""
    digits = text.strip().removeprefix("+")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        return None
    return number if 1 <= (number := int(digits)) <= _INT_MAX else None


class ConfigTable:
    """Invariant: the table holds a resource only while something is set for it."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[ConfigResource, dict[str, str]] = {}

    def of(self, resource: ConfigResource) -> Mapping[str, str]:
        """What was set for the resource itself; nothing inherited."""
        return self._values.get(resource, _EMPTY)

    def resources(self) -> list[ConfigResource]:
        return sorted(self._values, key=lambda resource: (resource.type.value, resource.name))

    def topic_setting(self, topic: str, key: str) -> str | None:
        """The value in force for a topic: its own, else the one for all brokers, else the controller's."""
        return next(self._topic_settings(topic, key), None)

    def min_insync_replicas(self, topic: str) -> int:
        """The first of the topic's, all brokers' and the controller's texts that is a whole number from 1 on;
        1 without one. Equal for every broker that holds this table, whatever the texts are."""
        for text in self._topic_settings(topic, "min.insync.replicas"):
            if (value := min_insync_replicas_of(text)) is not None:
                return value
        return 1

    def _topic_settings(self, topic: str, key: str) -> Iterator[str]:
        for resource in (
            ConfigResource(ConfigResourceType.TOPIC, topic),
            ConfigResource(ConfigResourceType.BROKER, ""),
            ConfigResource(ConfigResourceType.CLUSTER, ""),
        ):
            value = self.of(resource).get(key)
            if value is not None:
                yield value

    def put(self, resource: ConfigResource, key: str, value: str | None) -> None:
        """None removes the setting."""
        values = self._values.setdefault(resource, {})
        if value is None:
            values.pop(key, None)
            if not values:
                del self._values[resource]
        else:
            values[key] = value

    def forget_topic(self, name: str) -> dict[str, str]:
        """Returns what was set for it."""
        return self._values.pop(ConfigResource(ConfigResourceType.TOPIC, name), {})

    def restore_topic(self, name: str, values: dict[str, str]) -> None:
        """Undoes :meth:`forget_topic`."""
        if values:
            self._values[ConfigResource(ConfigResourceType.TOPIC, name)] = values

    def snapshot(self) -> tuple[ConfigSnapshot, ...]:
        return tuple(
            ConfigSnapshot(resource.type, resource.name, dict(sorted(self._values[resource].items())))
            for resource in self.resources()
        )

    def restore(self, configs: Iterable[ConfigSnapshot]) -> None:
        for config in configs:
            self._values[ConfigResource(config.resource_type, config.resource_name)] = dict(config.values)
