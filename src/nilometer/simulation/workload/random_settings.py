"""Random settings of topics and brokers: valid, extreme, invalid, and contradicting each other."""

from __future__ import annotations

import random
from collections.abc import Sequence

from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION
from nilometer.config import ConfigDefinition, ConfigKey, ConfigKind
from nilometer.storage.topic_config import TOPIC_CONFIG

NONSENSE = (
    "", " ", "nonsense", "-1", "-2", "0", "1", "true", "TRUE", "*", "0:1,1:2", ",", "1e3", "1_000", "nan",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 400, "x" * 3000, "\x00",
    "٣", "ä水𝄞",
)  # fmt: skip
UNKNOWN_KEYS = (
    "",
    " ",
    "nonsense",
    "segment.byte",
    "Retention.ms",
    "k" * 3000,
    "\x00",
    "log.dirs",
    "node.id",
)
CONTRADICTIONS = (
    ("min.compaction.lag.ms", "max.compaction.lag.ms"),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
)
_RARE = 0.08


def random_topic_settings(chance: random.Random) -> list[tuple[str, str | None]]:
    return _random_settings(chance, TOPIC_CONFIG, CONTRADICTIONS[0])


def random_broker_settings(chance: random.Random) -> list[tuple[str, str | None]]:
    return _random_settings(chance, BROKER_CONFIG_DEFINITION, CONTRADICTIONS[1])


def _random_settings(
    chance: random.Random, definition: ConfigDefinition, pair: tuple[str, str]
) -> list[tuple[str, str | None]]:
    """Return (key, text) pairs, mostly of known keys; a key may occur twice."""
    if chance.random() < 0.2:
        if chance.random() < 0.5:
            return list(zip(pair, ("100", "1"), strict=True))
        return [(key, str(chance.choice((0, 1, 100)))) for key in pair[: chance.choice((1, 2, 2))]]
    keys: Sequence[str] = list(definition.keys)
    found: list[tuple[str, str | None]] = []
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        if chance.random() < _RARE:
            found.append((chance.choice(UNKNOWN_KEYS), chance.choice(NONSENSE)))
        else:
            key = definition.keys[chance.choice(keys)]
            found.append((key.name, random_text(chance, key)))
    if found and chance.random() < _RARE:
        found.append(found[0])
    return found


def random_text(chance: random.Random, key: ConfigKey) -> str | None:
    """Return a text for ``key``, mostly a valid one; or None."""
    if chance.random() < 0.3:
        return chance.choice((None, *NONSENSE))
    match key.kind:
        case ConfigKind.BOOLEAN:
            return chance.choice(("true", "false"))
        case ConfigKind.STRING:
            return chance.choice(key.choices or ("nonsense",))
        case ConfigKind.LIST:
            items = key.choices or ("0:1", "1:2", "*", "nonsense")
            return ",".join(chance.sample(items, chance.randrange(len(items) + 1)))
        case ConfigKind.DOUBLE:
            return str(chance.choice((0, 0.5, 1, 2, chance.random())))
        case ConfigKind.INT | ConfigKind.SHORT | ConfigKind.LONG:
            return str(_random_number(chance, key))


def _random_number(chance: random.Random, key: ConfigKey) -> int:
    bounds = [int(bound) for bound in (key.minimum, key.maximum) if bound is not None]
    near = [bound + step for bound in bounds for step in (-1, 0, 1)]
    usual = [key.default] if isinstance(key.default, int) else []
    return chance.choice((*near, *usual, 1, 2, 1000, 10_000_000, 2**31 - 1, 2**31, 2**63 - 1))
