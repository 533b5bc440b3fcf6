"""Settings of single listeners: ``listener.name.NAME.KEY``, as Kafka names them.

A listener has the broker's settings, except for those that are given with its prefix. For SASL a mechanism
may follow the name: ``listener.name.NAME.MECHANISM.KEY``. Names and mechanisms are in small letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nilometer.broker.settings.security_config_keys import LISTENER_KEYS, MECHANISM_KEYS
from nilometer.config import ConfigError

PREFIX = "listener.name."


def split_overrides(texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of the broker, and those of single listeners with their whole keys."""
    broker = {key: text for key, text in texts.items() if not key.startswith(PREFIX)}
    return broker, {key: text for key, text in texts.items() if key.startswith(PREFIX)}


def overrides_by_listener(
    given: Mapping[str, str], names: Iterable[str], mechanisms: Iterable[str]
) -> dict[str, dict[str, str]]:
    """Return the settings of single listeners by listener name, their keys without the prefix.

    ``given`` is the second result of :func:`split_overrides`, ``names`` are the listeners'. Raises
    ConfigError for a key that a listener or a mechanism cannot have, and for an unknown listener.
    """
    prefixes = {f"{PREFIX}{name.lower()}.": name for name in names}
    heads = tuple(f"{mechanism.lower()}." for mechanism in mechanisms)
    found: dict[str, dict[str, str]] = {name: {} for name in prefixes.values()}
    for key, text in given.items():
        prefix = max((one for one in prefixes if key.startswith(one)), key=len, default=None)
        if prefix is None:
            raise ConfigError(key, f"{key}: no listener has this name; there are {', '.join(found)}")
        rest = key.removeprefix(prefix)
        head = next((head for head in heads if rest.startswith(head)), "")
        if rest.removeprefix(head) not in (MECHANISM_KEYS if head else LISTENER_KEYS):
            raise ConfigError(key, f"{key}: {rest} cannot be set for a single listener")
        found[prefixes[prefix]][rest] = text
    return found
