"""Functions that declare a client's configuration key, one per type of value."""

from __future__ import annotations

from nilometer.config import ConfigKey, ConfigKind

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
