"""The settings of one client, with Kafka's keys: the given values, checked, with defaults for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nilometer.config import ConfigDefinition, Settings

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


GivenValue = str | int | float | bool | Sequence[str]
GivenConfig = Mapping[str, GivenValue]


class ClientSettings(Settings):
    def __init__(self, definition: ConfigDefinition, given: GivenConfig) -> None:
        super().__init__(definition, {name: _text(value) for name, value in given.items()})


def _text(value: GivenValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    return ",".join(value)
