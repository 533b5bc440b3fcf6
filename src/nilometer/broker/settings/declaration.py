"""What the tables of keys are written with: kinds of values by bare names, and a key in a line or two."""

from __future__ import annotations

from nilometer.config import ConfigKey, ConfigKind
from nilometer.config.definition import ConfigValue

BOOLEAN, INT, LONG, SHORT = ConfigKind.BOOLEAN, ConfigKind.INT, ConfigKind.LONG, ConfigKind.SHORT
DOUBLE, LIST, STRING = ConfigKind.DOUBLE, ConfigKind.LIST, ConfigKind.STRING


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
