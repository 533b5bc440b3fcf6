"""Settings of single listeners: ``listener.name.NAME.KEY``, as Kafka names them.

A listener has the broker's settings, except for those that are given with its prefix. For SASL a mechanism
may follow the name: ``listener.name.NAME.MECHANISM.KEY``. Names and mechanisms are in small letters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from nilometer.config import ConfigError

PREFIX = "listener.name."


def split_overrides(texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of the broker, and those of single listeners with their whole keys."""
    broker = {key: text for key, text in texts.items() if not key.startswith(PREFIX)}
    return broker, {key: text for key, text in texts.items() if key.startswith(PREFIX)}


def overrides_by_listener(
    given: Mapping[str, str], names: Iterable[str], allowed: Collection[str], mechanisms: Iterable[str]
) -> dict[str, dict[str, str]]:
    """Return the settings of single listeners by listener name, their keys without the prefix.

    ``given`` is the second result of :func:`split_overrides`, ``names`` are the listeners', ``allowed`` the
    keys that one listener may have. Raises ConfigError for another key or listener.
    """
    prefixes = {f"{PREFIX}{name.lower()}.": name for name in names}
    heads = tuple(f"{mechanism.lower()}." for mechanism in mechanisms)
    found: dict[str, dict[str, str]] = {name: {} for name in prefixes.values()}
    for key, text in given.items():
        prefix = max((one for one in prefixes if key.startswith(one)), key=len, default=None)
        if prefix is None:
            raise ConfigError(key, f"{key}: no listener has this name; there are {', '.join(found)}")
        rest = key.removeprefix(prefix)
        bare = next((rest.removeprefix(head) for head in heads if rest.startswith(head)), rest)
        if bare not in allowed:
            raise ConfigError(key, f"{key}: {bare} cannot be set for a single listener")
        found[prefixes[prefix]][rest] = text
    return found
