"""The broker's settings for quotas of clients and for the number of connections."""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.config import ConfigKey, ConfigKind
from nilometer.config.definition import ConfigValue
from nilometer.quotas.entity import canonical_address

INT_MAX = 2**31 - 1


def addresses_with_limits(text: str) -> Mapping[str, int]:
    """Parse ``address:number,…``, the value of ``max.connections.per.ip.overrides``. Raises ValueError."""
    found: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, _, number = item.rpartition(":")
        address = canonical_address(host.strip().removeprefix("[").removesuffix("]"))
        if address is None:
            raise ValueError(
                f"{item!r} is not ADDRESS:NUMBER, as in 127.0.0.1:100 (host names are not known)"
            )
        if not number.strip().isdecimal():
            raise ValueError(f"{item!r} has no number of connections")
        found[address] = int(number)
    return found


def _why_invalid_overrides(text: ConfigValue) -> str | None:
    try:
        addresses_with_limits(str(text))
    except ValueError as error:
        return str(error)
    return None


def _count(name: str, default: int, doc: str, *, minimum: int = 1) -> ConfigKey:
    return ConfigKey(name=name, kind=ConfigKind.INT, default=default, doc=doc, minimum=minimum)


QUOTA_KEYS = [
    _count("max.connections", INT_MAX, "The maximum number of open connections.", minimum=0),
    _count(
        "max.connections.per.ip",
        INT_MAX,
        "The maximum number of open connections from one address; more are closed at once.",
        minimum=0,
    ),
    ConfigKey(
        name="max.connections.per.ip.overrides",
        kind=ConfigKind.STRING,
        default="",
        doc="Addresses with another maximum, as in 127.0.0.1:100,::1:50.",
        validate=_why_invalid_overrides,
    ),
    _count(
        "max.connection.creation.rate",
        INT_MAX,
        "How many connections per second may be opened, on the broker or on one listener; others wait up to "
        "5 s before they are read, or are closed.",
    ),
    _count(
        "quota.window.num",
        11,
        "The number of windows over which quotas of clients are measured, the begun one included.",
    ),
    _count("quota.window.size.seconds", 1, "The length of each of these windows."),
    _count(
        "controller.quota.window.num",
        11,
        "With the length of the windows: for how many seconds of its controller_mutation_rate a client may "
        "create and delete partitions at once.",
    ),
    _count("controller.quota.window.size.seconds", 1, "The length of each of these windows."),
]
