"""A setting that is accepted has its effect, is refused, or is named as without effect at start (SPEC A-3).

Every key of a topic (of which none is without effect) and of a broker is held to one of these. That a key has
its effect is judged by the code that is shipped: something outside of the tables of keys reads its value.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import nilometer
from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION, BrokerConfig, notices_at_start
from nilometer.broker.settings.config_keys import IGNORED_KEYS, KNOWN_KEYS_WITHOUT_EFFECT
from nilometer.broker.settings.coordinators import GROUP_KEYS
from nilometer.config import ConfigError, ConfigKey
from nilometer.groups.settings import GroupConfig
from nilometer.storage.topic_config import TOPIC_CONFIG, LogConfig

DECLARE = {"ConfigKey", "key_table", "_absent"}
"""The functions that declare keys: their names and synonyms there do not read them."""
NAME_ONLY = {"ConfigError"}
SHARED_WITH_CLIENTS = {"client/settings.py"}
OTHER_TEXTS = ("true", "false", "5", "2000000", "*", "0:1", "compact", "gzip", "LogAppendTime", "0.25", "1")
READ_UNDER_ANOTHER_NAME = {
    "cleanup.policy": "is_compacted",
    "message.timestamp.type": "is_log_append_time",
    "internal.segment.bytes": "segment_bytes",
}
READ_BY_SIDE = {
    f"{side}.replication.throttled.{what}" for side in ("leader", "follower") for what in ("replicas", "rate")
}
"""``replication_quota.py`` makes their names of the side."""
READ_BY_STORE = {
    f"zookeeper.ssl.{store}.{what}"
    for store in ("keystore", "truststore")
    for what in ("location", "password", "type")
}
"""``zookeeper_settings.py`` makes their names of the store."""
READ_BY_GROUPS = {
    f"group.{kind}.{bound}{what}"
    for kind, limits in {
        "consumer": ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"),
        "share": (
            "session.timeout.ms",
            "heartbeat.interval.ms",
            "assignment.interval.ms",
            "record.lock.duration.ms",
            "delivery.count.limit",
            "partition.max.record.locks",
        ),
        "streams": ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"),
    }.items()
    for what in limits
    for bound in ("", "min.", "max.")
} | {
    f"group.streams.{name}"
    for name in (
        "num.standby.replicas",
        "max.standby.replicas",
        "task.offset.interval.ms",
        "min.task.offset.interval.ms",
    )
}
"""``groups/settings.py`` makes their names of that of the setting that a single group may have."""
OF_GROUPS_IN_MINUTES = {"offsets.retention.minutes": "offsets_retention_ms"}


@cache
def code() -> tuple[frozenset[str], frozenset[str]]:
    """All attributes that the broker's code reads, and all texts that it names without declaring a key."""
    attributes: set[str] = set()
    texts: set[str] = set()
    for path in Path(nilometer.__file__).parent.rglob("*.py"):
        place = f"{path.parent.name}/{path.name}"
        others = {"simulation", "client", "cli", "pipeline"} & set(path.parts)
        if others and place not in SHARED_WITH_CLIENTS:
            continue
        tree = ast.parse(path.read_text())
        declared = set(_declared(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                attributes.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in declared:
                texts.add(node.value)
    return frozenset(attributes), frozenset(texts)


def _declared(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the texts of declarations and errors, which name keys without reading them."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in DECLARE | NAME_ONLY
        ):
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.Constant))


def is_refused(key: ConfigKey) -> bool:
    """Whether no value but the default is accepted."""
    others = 0
    for text in OTHER_TEXTS:
        try:
            others += key.parse(text) != key.default
        except ConfigError:
            continue
    return not others


def topic_key_has_effect(name: str) -> bool:
    attributes, texts = code()
    field = READ_UNDER_ANOTHER_NAME.get(name, name.replace(".", "_"))
    is_field = field in {one.name for one in dataclasses.fields(LogConfig)}
    return (is_field and field in attributes) or (not is_field and name in texts) or name in READ_BY_SIDE


@pytest.mark.parametrize("name", TOPIC_CONFIG.keys)
def test_a_topic_key_has_its_effect_or_is_refused(name: str) -> None:
    held_to = {"effect": topic_key_has_effect(name), "refused": is_refused(TOPIC_CONFIG.key(name))}
    assert sum(held_to.values()) == 1, held_to


def broker_key_has_effect(name: str) -> bool:
    attributes, texts = code()
    if name in READ_BY_GROUPS:
        return True
    if name in {key.name for key in GROUP_KEYS}:
        field = OF_GROUPS_IN_MINUTES.get(name, name.replace(".", "_"))
        if field in GroupConfig.__struct_fields__:
            return field in attributes
        if field + "_ms" in GroupConfig.__struct_fields__:
            return field + "_ms" in attributes
    of_topics = [key.name for key in TOPIC_CONFIG.keys.values() if key.synonym == name]
    is_read = name in texts or name in READ_BY_SIDE or name in READ_BY_STORE
    return is_read or any(topic_key_has_effect(topic) for topic in of_topics)


@pytest.mark.parametrize("name", sorted({*BROKER_CONFIG_DEFINITION.keys, *IGNORED_KEYS}))
def test_a_broker_key_has_its_effect_or_is_named_where_it_is_given(name: str) -> None:
    key = BROKER_CONFIG_DEFINITION.keys.get(name)
    default = None if key is None or key.default is None else key.format(key.default)
    given = {"node.id": "1", name: default or "1"}
    if name in IGNORED_KEYS | KNOWN_KEYS_WITHOUT_EFFECT:
        assert name in notices_at_start(BrokerConfig(given))[0]
    else:
        assert broker_key_has_effect(name)


def test_features_that_are_not_here_can_only_be_left_off() -> None:
    for name, text in {
        "remote.copy.lag.ms": "1",
        "preallocate": "true",
    }.items():
        key = TOPIC_CONFIG.key(name)
        with pytest.raises(ConfigError, match="is not supported"):
            key.parse(text)
        assert key.default is not None
        assert key.parse(key.format(key.default)) == key.default


def test_nothing_is_named_where_all_that_was_given_has_its_effect() -> None:
    assert notices_at_start(BrokerConfig({"node.id": "1", "log.cleanup.policy": "delete,compact"})) == []


def test_segments_of_the_internal_topic_have_the_limit_of_all_segments() -> None:
    with pytest.raises(ConfigError, match=r"offsets\.topic\.segment\.bytes"):
        BrokerConfig({"node.id": "1", "offsets.topic.segment.bytes": "1048575"})
    least = BrokerConfig({"node.id": "1", "offsets.topic.segment.bytes": "1048576"})
    TOPIC_CONFIG.key("segment.bytes").parse(str(least.integer("offsets.topic.segment.bytes")))
