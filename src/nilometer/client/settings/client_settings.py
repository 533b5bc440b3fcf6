"""The settings of one client, with Kafka's keys: how a key is declared, and the given values, checked, with
defaults for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nilometer.config import ConfigDefinition, ConfigKey, ConfigKind, Settings

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


def int_key(name: str, default: int, doc: str, minimum: int = 0, maximum: int = INT_MAX) -> ConfigKey:
    return ConfigKey(
        name=name, kind=ConfigKind.INT, default=default, doc=doc, minimum=minimum, maximum=maximum
    )


def long_key(name: str, default: int, doc: str, minimum: int = 0) -> ConfigKey:
    return ConfigKey(name=name, kind=ConfigKind.LONG, default=default, doc=doc, minimum=minimum)


def boolean_key(name: str, default: bool, doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=ConfigKind.BOOLEAN, default=default, doc=doc)


def text_key(name: str, doc: str, *, secret: bool = False) -> ConfigKey:
    """Declare a text without a default."""
    return ConfigKey(name=name, kind=ConfigKind.STRING, default=None, doc=doc, sensitive=secret)


def choice_key(name: str, default: str, choices: tuple[str, ...], doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=ConfigKind.STRING, default=default, doc=doc, choices=choices)


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
