"""Settings described and changed as Apache Kafka does it, in every version.

`support.brokers.comparison` says how the two are compared.
"""

from __future__ import annotations

import pytest

from nilometer.wire.api_keys import ApiKey
from support.brokers.comparison import each_version, same
from support.brokers.two_brokers import CLOSED, Plain, Side
from support.eventually import eventually
from support.wire.wire_peer import make

pytestmark = pytest.mark.java
TOPIC, BROKER = 2, 4
COMPARED = ("retention.ms", "cleanup.policy", "segment.bytes", "max.message.bytes", "message.timestamp.type")
SYNONYMS = COMPARED[1:]
"""Kafka's log.retention.ms has no default of its own: there it is log.retention.hours that has one."""


def describe(side: Side, version: int, kind: int, name: str, *keys: str, **fields: object) -> Plain:
    resource = make(
        ApiKey.DESCRIBE_CONFIGS,
        version,
        "DescribeConfigsResource",
        resource_type=kind,
        resource_name=name,
        configuration_keys=keys or None,
    )
    answer = side.ask(ApiKey.DESCRIBE_CONFIGS, version, resources=(resource,), **fields)
    if answer != CLOSED:
        for result in answer["results"]:
            for config in result["configs"]:
                # Words of its own, and the order of what is looked up: the one in force is first.
                config.pop("documentation", None)
    return answer


@each_version(ApiKey.DESCRIBE_CONFIGS)
def test_describe_configs(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"described-{version}", retention_ms="1234", cleanup_policy="compact,delete")
        return {
            "some": describe(side, version, TOPIC, name, *COMPARED),
            "synonyms": describe(side, version, TOPIC, name, *SYNONYMS, include_synonyms=True),
            "documented": describe(side, version, TOPIC, name, *COMPARED, include_documentation=True),
            "no such key": describe(side, version, TOPIC, name, "no.such.key"),
            "unknown topic": describe(side, version, TOPIC, "nowhere"),
            "bad topic": describe(side, version, TOPIC, "a b"),
            "no topic": describe(side, version, TOPIC, ""),
            "other broker": describe(side, version, BROKER, "7", "num.partitions"),
            "no broker": describe(side, version, BROKER, "x", "num.partitions"),
            "kind": describe(side, version, 77, "x"),
            "defaults of brokers": describe(side, version, BROKER, "", "num.partitions"),
            "broker": describe(side, version, BROKER, "1", "num.partitions", "message.max.bytes"),
        }

    same(sides, scenario, version)


SET, DELETE, APPEND, SUBTRACT = range(4)


def alter(
    side: Side, version: int, kind: int, name: str, *changes: tuple[str, int, str | None], **fields: object
) -> Plain:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    configs = tuple(
        make(key, version, "AlterableConfig", name=what, config_operation=how, value=value)
        for what, how, value in changes
    )
    resource = make(
        key, version, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs
    )
    return side.ask(key, version, resources=(resource,), **fields)


@each_version(ApiKey.INCREMENTAL_ALTER_CONFIGS)
def test_alter_configs(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"altered-{version}")
        steps: dict[str, Plain] = {}

        def step(what: str, *changes: tuple[str, int, str | None], **fields: object) -> None:
            steps[what] = alter(side, version, TOPIC, name, *changes, **fields)
            eventually(
                lambda: describe(side, 4, TOPIC, name, *COMPARED) is not None, "settings can be described"
            )

        step("set", ("retention.ms", SET, "5000"))
        step("append", ("cleanup.policy", APPEND, "compact"))
        step("append again", ("cleanup.policy", APPEND, "compact"))
        step("subtract", ("cleanup.policy", SUBTRACT, "delete"))
        step("delete", ("retention.ms", DELETE, None))
        step("delete what is not set", ("retention.bytes", DELETE, None))
        step("validate", ("retention.ms", SET, "7777"), validate_only=True)
        step("unknown", ("no.such.key", SET, "1"))
        step("delete unknown", ("no.such.key", DELETE, None))
        step("bad value", ("retention.ms", SET, "soon"))
        step("below its range", ("min.insync.replicas", SET, "0"))
        step("no value", ("retention.ms", SET, None))
        step("append to what is no list", ("retention.ms", APPEND, "1"))
        step("bad item", ("cleanup.policy", APPEND, "shred"))
        step("two", ("retention.ms", SET, "1"), ("segment.bytes", SET, "2097152"))
        step("one of two bad", ("retention.ms", SET, "2"), ("segment.bytes", SET, "x"))
        step("twice", ("retention.ms", SET, "3"), ("retention.ms", SET, "4"))
        step("nothing")
        steps["unknown topic"] = alter(side, version, TOPIC, "nowhere", ("retention.ms", SET, "1"))
        steps["bad topic"] = alter(side, version, TOPIC, "a b", ("retention.ms", SET, "1"))
        steps["kind"] = alter(side, version, 77, "x", ("retention.ms", SET, "1"))
        for bad in ("x", "-1", "1.0", "99999999999"):
            steps[f"bad broker {bad}"] = alter(side, version, BROKER, bad, ("log.retention.ms", SET, "1"))
        steps["unknown broker"] = alter(side, version, BROKER, "7", ("log.retention.ms", SET, "1"))
        steps["broker, not dynamic"] = alter(side, version, BROKER, "1", ("node.id", SET, "1"))
        steps["in the end"] = describe(side, 4, TOPIC, name, *COMPARED)
        return steps

    same(sides, scenario, version)


def test_settings_of_all_brokers_reach_topics(sides: tuple[Side, Side]) -> None:
    """Set for all, then for one broker, then taken back: what is nearest to the topic wins."""

    def scenario(side: Side, version: int) -> Plain:
        name = side.create("inheriting")
        own = side.create("own-settings", max_message_bytes="1111")
        told: dict[str, Plain] = {}

        def step(what: str, broker: str, how: int, value: str | None, expected: str) -> None:
            told[what] = alter(side, version, BROKER, broker, ("message.max.bytes", how, value))

            def arrived() -> bool:
                answer = describe(side, 4, TOPIC, name, "max.message.bytes")
                return answer["results"][0]["configs"][0]["value"] == expected

            eventually(arrived, f"{side.name} says {expected}")
            for topic in (name, own):
                told[f"{what}, {topic}"] = describe(
                    side, 4, TOPIC, topic, "max.message.bytes", include_synonyms=True
                )
            told[f"{what}, broker"] = describe(
                side, 4, BROKER, "1", "message.max.bytes", include_synonyms=True
            )

        default = describe(side, 4, TOPIC, name, "max.message.bytes")["results"][0]["configs"][0]["value"]
        step("for all", "", SET, "5555", "5555")
        step("for one", "1", SET, "7777", "7777")
        step("one taken back", "1", DELETE, None, "5555")
        step("all taken back", "", DELETE, None, default)
        return told

    same(sides, scenario, 1)


def test_documentation_comes_when_asked_for(nilometer: Side) -> None:
    name = nilometer.create("documented")
    for asked in (True, False):
        resource = make(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            "DescribeConfigsResource",
            resource_type=TOPIC,
            resource_name=name,
            configuration_keys=None,
        )
        answer = nilometer.message(
            ApiKey.DESCRIBE_CONFIGS, 4, resources=(resource,), include_documentation=asked
        )
        configs = answer.results[0].configs
        assert len(configs) > 20
        assert all(bool(config.documentation) is asked for config in configs)
