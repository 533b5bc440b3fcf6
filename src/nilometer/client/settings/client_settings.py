"""The settings of one client, in Kafka's keys: what was given, checked, over the defaults.

A value may be given as the text that a properties file would hold or as the Python value itself
(``True``, ``5``, a list of strings). Unknown keys and bad values raise
:class:`~nilometer.config.ConfigProblem`, which names the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nilometer.config import ConfigDefinition
from nilometer.config.definition import ConfigValue

GivenValue = str | int | float | bool | Sequence[str]
GivenConfig = Mapping[str, GivenValue]


class ClientSettings:
    """Typed look-ups over one closed set of keys."""

    def __init__(self, definition: ConfigDefinition, given: GivenConfig) -> None:
        self._definition = definition
        self._given = definition.parse({name: _text(value) for name, value in given.items()})

    def is_given(self, name: str) -> bool:
        return name in self._given

    def value(self, name: str) -> ConfigValue | None:
        """The value in force for a known key."""
        given = self._given.get(name)
        return given if given is not None else self._definition.key(name).default

    def integer(self, name: str) -> int:
        value = self.value(name)
        assert isinstance(value, int), name
        return value

    def string(self, name: str) -> str:
        value = self.value(name)
        assert isinstance(value, str), name
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        value = self.value(name)
        assert isinstance(value, tuple), name
        return value

    def boolean(self, name: str) -> bool:
        value = self.value(name)
        assert isinstance(value, bool), name
        return value


def _text(value: GivenValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    return ",".join(value)
