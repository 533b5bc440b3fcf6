"""Settings: the given values of a definition's keys, or their defaults, with typed access."""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.config.definition import ConfigDefinition, ConfigValue


class Settings:
    def __init__(self, definition: ConfigDefinition, texts: Mapping[str, str]) -> None:
        """Parse ``texts``. Raises ConfigError, which names the key."""
        self._definition = definition
        self._given = definition.parse(texts)

    def is_given(self, name: str) -> bool:
        return name in self._given

    def value(self, name: str) -> ConfigValue | None:
        """Return the given value of a known key, or its default."""
        given = self._given.get(name)
        return given if given is not None else self._definition.key(name).default

    def integer(self, name: str) -> int:
        value = self.value(name)
        assert isinstance(value, int), name
        return value

    def real(self, name: str) -> float:
        value = self.value(name)
        assert isinstance(value, float | int), name
        return float(value)

    def string(self, name: str) -> str:
        value = self.value(name)
        assert isinstance(value, str), name
        return value

    def optional_string(self, name: str) -> str | None:
        value = self.value(name)
        assert value is None or isinstance(value, str), name
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        value = self.value(name)
        assert isinstance(value, tuple), name
        return value

    def boolean(self, name: str) -> bool:
        value = self.value(name)
        assert isinstance(value, bool), name
        return value
