"""Declares a key of the broker's settings, in the tables of keys."""

from __future__ import annotations

from nilometer.config import ConfigKey, ConfigKind
from nilometer.config.definition import ConfigValue


def setting(
    name: str,
    kind: ConfigKind,
    default: ConfigValue | None,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    dynamic: bool = False,
) -> ConfigKey:
    return ConfigKey(
        name=name,
        kind=kind,
        default=default,
        doc=doc,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        dynamic=dynamic,
    )
