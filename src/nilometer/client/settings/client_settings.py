"""The settings of one client, with Kafka's keys: the given values, checked, and defaults for the others.

A value may be given as the text that a properties file would hold or as the Python value itself
(``True``, ``5``, a list of strings). Unknown keys and bad values raise
:class:`~nilometer.config.ConfigError`, which names the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nilometer.config import ConfigDefinition, Settings

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
