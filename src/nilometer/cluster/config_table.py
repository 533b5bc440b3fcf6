"""What was configured for topics, brokers and the cluster, and which of it is in force for a topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.records import ConfigChanged, ConfigResourceType
from nilometer.cluster.snapshot import ConfigSnapshot

_EMPTY: Mapping[str, str] = {}


class ConfigTable:
    """Invariant: a resource is here only while something is set for it."""

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
        for resource in (
            ConfigResource(ConfigResourceType.TOPIC, topic),
            ConfigResource(ConfigResourceType.BROKER, ""),
            ConfigResource(ConfigResourceType.CLUSTER, ""),
        ):
            value = self.of(resource).get(key)
            if value is not None:
                return value
        return None

    def change(self, record: ConfigChanged) -> ConfigResource:
        """Returns what it was set for."""
        resource = ConfigResource(record.resource_type, record.resource_name)
        values = self._values.setdefault(resource, {})
        if record.value is None:
            values.pop(record.key, None)
            if not values:
                del self._values[resource]
        else:
            values[record.key] = record.value
        return resource

    def forget_topic(self, name: str) -> None:
        self._values.pop(ConfigResource(ConfigResourceType.TOPIC, name), None)

    def snapshot(self) -> tuple[ConfigSnapshot, ...]:
        return tuple(
            ConfigSnapshot(resource.type, resource.name, dict(sorted(self._values[resource].items())))
            for resource in self.resources()
        )

    def restore(self, configs: Iterable[ConfigSnapshot]) -> None:
        for config in configs:
            self._values[ConfigResource(config.resource_type, config.resource_name)] = dict(config.values)
