"""The settings of topics, brokers and the cluster in the metadata, and a topic's effective values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.entries import ConfigSnapshot
from nilometer.cluster.records import ConfigResourceType

_EMPTY: Mapping[str, str] = {}
_INT_MAX = 2**31 - 1


def min_insync_replicas_of(text: str) -> int | None:
    """Parse a value of min.insync.replicas; None if it is not a whole number from 1 to 2^31 - 1."""
    digits = text.strip().removeprefix("+")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        return None
    return number if 1 <= (number := int(digits)) <= _INT_MAX else None


class ConfigTable:
    """All settings by resource. Invariant: the table has a resource only while a setting of it is set."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[ConfigResource, dict[str, str]] = {}

    def of(self, resource: ConfigResource) -> Mapping[str, str]:
        """Return the settings of the resource itself, without inherited ones."""
        return self._values.get(resource, _EMPTY)

    def resources(self) -> list[ConfigResource]:
        return sorted(self._values, key=lambda resource: (resource.type.value, resource.name))

    def topic_setting(self, topic: str, key: str) -> str | None:
        """Return a topic's effective value: its own, else the one for all brokers, else the controller's."""
        return next(self._topic_settings(topic, key), None)

    def min_insync_replicas(self, topic: str) -> int:
        """Return a topic's effective min.insync.replicas, ignoring invalid values; 1 if none is set.

        All brokers with the same table get the same result.
        """
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
        """Set a value; None removes the setting."""
        values = self._values.setdefault(resource, {})
        if value is None:
            values.pop(key, None)
            if not values:
                del self._values[resource]
        else:
            values[key] = value

    def forget_topic(self, name: str) -> dict[str, str]:
        """Remove all settings of a topic; return them."""
        return self._values.pop(ConfigResource(ConfigResourceType.TOPIC, name), {})

    def restore_topic(self, name: str, values: dict[str, str]) -> None:
        """Undo :meth:`forget_topic`, which returned ``values``."""
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
