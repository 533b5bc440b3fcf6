"""The tables of docs/settings.md: every setting, from its definition, and how it differs from Kafka's.

A difference is found by comparing a definition with Kafka's own (`kafka_settings`); none is written by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION
from nilometer.broker.settings.config_keys import IGNORED_KEYS, KNOWN_KEYS_WITHOUT_EFFECT
from nilometer.client.admin.admin import ADMIN_CONFIG_DEFINITION
from nilometer.client.consumer.consumer_settings import CONSUMER_CONFIG_DEFINITION
from nilometer.client.producer.producer_settings import PRODUCER_CONFIG_DEFINITION
from nilometer.config import ConfigDefinition, ConfigKey, ConfigKind, ConfigValue
from nilometer.groups.settings import GroupConfig, definition_of
from nilometer.storage.topic_config import TOPIC_CONFIG

from .code_blocks import DOCS
from .generated_parts import cell
from .kafka_settings import KafkaKey, kafka_settings

PAGE = DOCS / "settings.md"
_PROBES: dict[ConfigKind, tuple[ConfigValue, ...]] = {
    ConfigKind.STRING: ("\0", ""),
    ConfigKind.LIST: (("\0",), ()),
    ConfigKind.BOOLEAN: (True, False),
    ConfigKind.DOUBLE: (-1e300, 1e300),
}
"""Values that a key's own check rejects, if it has one: its message says what is valid."""
_NUMBERS: tuple[ConfigValue, ...] = (-(1 << 31), (1 << 31) - 1, 0)
_LARGEST = {2**63 - 1: "2⁶³-1", 2**31 - 1: "2³¹-1", 1.7976931348623157e308: "unlimited"}


def settings_parts() -> dict[str, str]:
    """Return the generated parts of the page, by their names."""
    kafka = kafka_settings()
    broker = {
        name: key
        for name, key in BROKER_CONFIG_DEFINITION.keys.items()
        if name not in KNOWN_KEYS_WITHOUT_EFFECT
    }
    clients: dict[str, tuple[ConfigDefinition, Mapping[str, KafkaKey]]] = {
        "producer": (PRODUCER_CONFIG_DEFINITION, kafka["producer"]),
        "consumer": (CONSUMER_CONFIG_DEFINITION, kafka["consumer"]),
        "admin": (ADMIN_CONFIG_DEFINITION, kafka["admin"]),
    }
    without_effect = sorted(IGNORED_KEYS | KNOWN_KEYS_WITHOUT_EFFECT)
    return {
        "broker": _table(broker.values(), kafka["broker"]),
        "topic": _table(TOPIC_CONFIG.keys.values(), kafka["topic"], synonyms=True),
        "group": _table(definition_of(GroupConfig()).keys.values(), kafka["group"]),
        **{
            name: _table(definition.keys.values(), keys, dynamic=False)
            for name, (definition, keys) in clients.items()
        },
        "without_effect": _list(without_effect),
        "refused_broker": _list(_unknown(kafka["broker"], {*BROKER_CONFIG_DEFINITION.keys, *IGNORED_KEYS})),
        **{
            f"refused_{name}": _list(_unknown(keys, definition.keys))
            for name, (definition, keys) in clients.items()
        },
    }


def _unknown(kafka: Mapping[str, KafkaKey], known: Iterable[str]) -> list[str]:
    return sorted(set(kafka) - set(known))


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) + "\n"


def _table(
    keys: Iterable[ConfigKey],
    kafka: Mapping[str, KafkaKey],
    *,
    synonyms: bool = False,
    dynamic: bool = True,
) -> str:
    """Return a table of keys. ``synonyms``: with a broker's key for the default; ``dynamic``: with when a
    value is applied."""
    heads = ["key", "default", "valid values", *(["applied"] if dynamic else []), "meaning", "Kafka"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for key in sorted(keys, key=lambda one: one.name):
        meaning = key.doc
        if synonyms and key.synonym:
            meaning += f" A broker's default: `{key.synonym}`."
        cells = [
            f"`{key.name}`",
            default_of(key),
            cell(valid_values(key)),
            *(["running" if key.dynamic else "at start"] if dynamic else []),
            cell(meaning),
            cell("; ".join(differences(key, kafka.get(key.name)))),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def default_of(key: ConfigKey) -> str:
    if key.default is None:
        return ""
    if isinstance(key.default, int | float) and key.default in _LARGEST and not isinstance(key.default, bool):
        return _LARGEST[key.default]
    text = key.format(key.default)
    return f"`{text}`" if text else "empty"


def valid_values(key: ConfigKey) -> str:
    """Return the type of a key's values and what limits them, as its definition has it."""
    kind = key.kind.name.lower()
    if is_fixed(key):
        return f"{kind}: only the default"
    if key.choices:
        names = ", ".join(choice or "(empty)" for choice in key.choices)
        return f"{kind} of {names}" if key.kind is ConfigKind.LIST else names
    limits = [
        *([f"at least {_number(key.minimum)}"] if key.minimum is not None else []),
        *([f"at most {_number(key.maximum)}"] if key.maximum is not None else []),
        *_reasons(key),
    ]
    return f"{kind}, {', '.join(limits)}" if limits else kind


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _reasons(key: ConfigKey) -> list[str]:
    """Return what the key's own check says of a value that it rejects."""
    if key.validate is None:
        return []
    for probe in _PROBES.get(key.kind, _NUMBERS):
        reason = key.validate(probe)
        if reason is not None and "\0" not in reason and "\\x00" not in reason:
            return [reason]
    return []


def is_fixed(key: ConfigKey) -> bool:
    """Whether a key has a feature that is not here: no value but the default is accepted."""
    reasons = _reasons(key)
    return bool(reasons) and reasons[0].endswith("is not supported")


def differences(key: ConfigKey, kafka: KafkaKey | None) -> list[str]:
    """Return how a key differs from Kafka's of the same name."""
    if kafka is None:
        return ["not in Kafka"]
    found: list[str] = []
    if not _same(key, kafka["default"]):
        default = kafka["default"]
        found.append(f"default: `{default}`" if default else "default: none")
    if kafka["dynamic"] and not key.dynamic:
        found.append("can change while a broker runs")
    if key.dynamic and not kafka["dynamic"]:
        found.append("changes only at a start")
    return found


def _same(key: ConfigKey, default: str | None) -> bool:
    """Whether Kafka's default is this key's; an empty text and list is as none."""
    if key.default is None or not default:
        return not default and key.default in (None, "", ())
    if isinstance(key.default, float | int) and not isinstance(key.default, bool):
        return float(default) == float(key.default)
    return key.format(key.default) == default
