"""What Apache Kafka's tools ask beside data and topics, answered as Apache Kafka answers it.

`support.brokers.comparison` says how the two are compared.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from nilometer.broker.api.configs import check_level, logger_levels, set_level
from nilometer.runtime.loggers import SystemLoggers
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from support.brokers.comparison import each_version, same
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Plain, Side
from support.eventually import eventually
from support.wire.wire_peer import make

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2


# ── settings ────────────────────────────────────────────────────────────────────────────────────────
def replace_all(
    side: Side, version: int, kind: int, name: str, *configs: tuple[str, str | None], **fields: object
) -> Plain:
    key = ApiKey.ALTER_CONFIGS
    given = tuple(make(key, version, "AlterableConfig", name=each, value=value) for each, value in configs)
    resource = make(
        key, version, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=given
    )
    return side.ask(key, version, resources=(resource,), **fields)


def own_settings(side: Side, name: str, kind: int = TOPIC) -> dict[str, str]:
    resource = make(
        ApiKey.DESCRIBE_CONFIGS, 4, "DescribeConfigsResource", resource_type=kind, resource_name=name
    )
    [answer] = side.message(ApiKey.DESCRIBE_CONFIGS, 4, resources=(resource,)).results
    source = {TOPIC: 1, GROUP: 8}[kind]
    return {config.name: config.value for config in answer.configs if config.config_source == source}


@pytest.mark.java
@each_version(ApiKey.ALTER_CONFIGS)
def test_all_settings_of_a_topic_are_replaced(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"replaced-{version}", retention_ms="1000", cleanup_policy="compact")
        told: list[Plain] = []

        def step(expected: dict[str, str], *configs: tuple[str, str | None], **fields: object) -> None:
            told.append(replace_all(side, version, TOPIC, name, *configs, **fields))
            eventually(lambda: own_settings(side, name) == expected, f"{name} has {expected}")

        step({"retention.ms": "5"}, ("retention.ms", "5"), validate_only=False)
        step({"retention.ms": "5"}, ("retention.ms", "6"), validate_only=True)
        for refused in (
            [("retention.ms", "7"), ("retention.ms", "8")],
            [("retention.ms", None)],
            [("retention.ms", "soon")],
            [("nope", "1")],
        ):
            step({"retention.ms": "5"}, *refused)
        step({})
        for kind, other in ((TOPIC, "nowhere"), (TOPIC, "a b"), (BROKER, "7"), (LOGGER, "1"), (99, "x")):
            told.append(replace_all(side, version, kind, other))
        told.append(replace_all(side, version, BROKER, "1", ("node.id", "3")))
        return told

    same(sides, scenario, version)


SESSION, HEARTBEAT, ASSIGNMENT = GROUP_KEYS = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
)


def alter_group(side: Side, name: str, *configs: tuple[str, str | None, int]) -> Plain:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    given = tuple(
        make(key, 1, "AlterableConfig", name=each, config_operation=operation, value=value)
        for each, value, operation in configs
    )
    resource = make(key, 1, "AlterConfigsResource", resource_type=GROUP, resource_name=name, configs=given)
    return side.ask(key, 1, resources=(resource,), validate_only=False)


def describe_group(side: Side, name: str, keys: tuple[str, ...] = GROUP_KEYS) -> Plain:
    resource = make(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        "DescribeConfigsResource",
        resource_type=GROUP,
        resource_name=name,
        configuration_keys=keys,
    )
    return side.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=(resource,), include_synonyms=True)


@pytest.mark.java
def test_settings_of_groups(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side, _version: int) -> Plain:
        name = "group-with-settings"
        told: list[Plain] = [describe_group(side, name)]

        def is_listed() -> bool:
            listed = side.message(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=(GROUP,))
            return name in [each.resource_name for each in listed.config_resources]  # other tests have groups

        def step(expected: dict[str, str], outcome: Plain) -> None:
            told.append(outcome)
            eventually(lambda: own_settings(side, name, GROUP) == expected, f"{name} has {expected}")
            told.append(describe_group(side, name))

        both = {SESSION: "50000", HEARTBEAT: "6000"}
        step(both, alter_group(side, name, (SESSION, "50000", SET), (HEARTBEAT, "6000", SET)))
        refused: list[tuple[str, str | None, int]] = [
            (SESSION, "44999", SET),
            (SESSION, "60001", SET),
            (HEARTBEAT, "4999", SET),
            (HEARTBEAT, "15001", SET),
            (ASSIGNMENT, "-1", SET),
            (ASSIGNMENT, "15001", SET),
            (SESSION, "soon", SET),
            (SESSION, None, SET),
            (SESSION, "1", APPEND),
            ("no.such.setting", "1", SET),
        ]
        told.extend(alter_group(side, name, each) for each in refused)
        told.append(alter_group(side, "", (SESSION, "50000", SET)))
        told.append(alter_group(side, name, (SESSION, "50000", SET), (SESSION, "50001", SET)))
        step({SESSION: "50000"}, alter_group(side, name, (HEARTBEAT, None, DELETE)))
        step({ASSIGNMENT: "7"}, replace_all(side, 2, GROUP, name, (ASSIGNMENT, "7"), validate_only=False))
        told.append(is_listed())
        step({}, replace_all(side, 2, GROUP, name, validate_only=False))
        told.append(is_listed())
        told.append(describe_group(side, ""))
        return told

    same(sides, scenario, 1)


def test_subscriptions_to_client_metrics_are_refused_with_the_reason(sides: tuple[Side, Side]) -> None:
    """Kafka takes them; here they would have no effect."""
    _, nilometer = sides
    answer = nilometer.message(
        ApiKey.ALTER_CONFIGS,
        2,
        resources=(
            make(
                ApiKey.ALTER_CONFIGS,
                2,
                "AlterConfigsResource",
                resource_type=CLIENT_METRICS,
                resource_name="m",
                configs=(make(ApiKey.ALTER_CONFIGS, 2, "AlterableConfig", name="interval.ms", value="1000"),),
            ),
        ),
    )
    [outcome] = answer.responses
    assert outcome.error_code is ErrorCode.invalid_request
    assert "metrics are not collected" in outcome.error_message


@pytest.mark.java
@each_version(ApiKey.LIST_CONFIG_RESOURCES)
def test_config_resources_are_listed(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"listed-resource-{version}")
        told: list[Plain] = []
        for kinds in ((), (TOPIC,), (LOGGER, BROKER), (99,), (TOPIC, 0)) if version else (None,):
            asked = {} if kinds is None else {"resource_types": kinds}
            answer = side.message(ApiKey.LIST_CONFIG_RESOURCES, version, **asked)
            # Both brokers have topics and settings of groups of other tests.
            found = [
                (getattr(each, "resource_type", CLIENT_METRICS), each.resource_name)
                for each in answer.config_resources
                if each.resource_name in (name, "1")
            ]
            told.append([answer.error_code.name, sorted(found)])
        return told

    same(sides, scenario, version)


# ── log levels ──────────────────────────────────────────────────────────────────────────────────────
def alter_logger(
    side: Side, broker: str, name: str, level: str | None, operation: int = SET, **fields: object
) -> Plain:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    config = make(key, 1, "AlterableConfig", name=name, config_operation=operation, value=level)
    resource = make(
        key, 1, "AlterConfigsResource", resource_type=LOGGER, resource_name=broker, configs=(config,)
    )
    return side.ask(key, 1, resources=(resource,), **fields)


def level_of(side: Side, name: str) -> Plain:
    resource = make(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        "DescribeConfigsResource",
        resource_type=LOGGER,
        resource_name="1",
        configuration_keys=(name,),
    )
    return side.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=(resource,), include_synonyms=True)


@pytest.mark.java
def test_log_levels(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side, _version: int) -> Plain:
        told = [
            alter_logger(side, "1", "root", "ERROR"),
            level_of(side, "root"),
            alter_logger(side, "1", "root", "DEBUG", validate_only=True),
            level_of(side, "root"),
            alter_logger(side, "1", "root", "LOUD"),
            alter_logger(side, "1", "root", "warn"),
            alter_logger(side, "1", "root", None),
            alter_logger(side, "1", "root", None, DELETE),
            alter_logger(side, "1", "root", "WARN", APPEND),
            alter_logger(side, "1", "no.such.logger", "WARN"),
            level_of(side, "no.such.logger"),
            *(alter_logger(side, broker, "root", "WARN") for broker in ("2", "", "x")),
        ]
        alter_logger(side, "1", "root", "INFO")
        for answer in told:
            for result in answer.get("results", ()):
                for config in result["configs"]:
                    config.pop("documentation", None)
        return told

    same(sides, scenario, 1)


def test_a_changed_log_level_is_in_force_at_once(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "data") as broker:
        side = Side("Nilometer", broker.bootstrap)
        for level, name in (("ERROR", "silent"), ("INFO", "logged")):
            alter_logger(side, "1", "nilometer.broker", level)
            side.create(name)
            side.message(ApiKey.DELETE_TOPICS, 5, topic_names=(name,), timeout_ms=10_000)
        eventually(lambda: "logged-0 is deleted" in broker.output, "the broker logs at INFO again")
        side.hang_up()
        assert "silent-0 is deleted" not in broker.output


def test_levels_of_loggers_in_this_process() -> None:
    logger = logging.getLogger("nilometer.test.levels")
    loggers = SystemLoggers()
    set_level(loggers, logger.name, "TRACE")
    assert (logger.level, logger_levels(loggers)[logger.name]) == (5, "TRACE")
    set_level(loggers, logger.name, None)
    assert logger_levels(loggers)[logger.name] == logger_levels(loggers)["root"]
    with pytest.raises(KafkaError, match=r"nilometer\.test does not exist"):
        check_level(loggers, "nilometer.test", "INFO")


# ── what is not there ───────────────────────────────────────────────────────────────────────────────
@pytest.mark.java
@each_version(ApiKey.DESCRIBE_ACLS)
def test_acls_are_disabled(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        creation = make(
            ApiKey.CREATE_ACLS,
            version,
            "AclCreation",
            resource_type=2,
            resource_name="t",
            resource_pattern_type=3,
            principal="User:a",
            host="*",
            operation=3,
            permission_type=3,
        )
        deletion = make(
            ApiKey.DELETE_ACLS,
            version,
            "DeleteAclsFilter",
            resource_type_filter=2,
            pattern_type_filter=3,
            operation=1,
            permission_type=1,
        )
        return [
            side.ask(
                ApiKey.DESCRIBE_ACLS,
                version,
                resource_type_filter=2,
                pattern_type_filter=1,
                operation=1,
                permission_type=1,
            ),
            side.ask(ApiKey.CREATE_ACLS, version, creations=(creation, creation)),
            side.ask(ApiKey.DELETE_ACLS, version, filters=(deletion,)),
        ]

    same(sides, scenario, version)


@pytest.mark.java
def test_there_are_no_scram_credentials(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side, version: int) -> Plain:
        key = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
        x, y = (make(key, 0, "UserName", name=name) for name in ("x", "y"))
        return [side.ask(key, 0, users=users) for users in (None, (), (x, y), (x, x))]

    same(sides, scenario, 0)


@pytest.mark.java
def test_scram_credentials_are_altered_and_described(sides: tuple[Side, Side]) -> None:
    key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS

    def put(name: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = b"salt") -> Any:
        fields = {"iterations": iterations, "salt": salt, "salted_password": bytes(32)}
        return make(key, 0, "ScramCredentialUpsertion", name=name, mechanism=mechanism, **fields)

    def drop(name: str, mechanism: int = 1) -> Any:
        return make(key, 0, "ScramCredentialDeletion", name=name, mechanism=mechanism)

    describe = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS

    def described(side: Side) -> set[tuple[str, int]]:
        results = side.message(describe, 0, users=()).results
        return {(each.user, info.mechanism) for each in results for info in each.credential_infos}

    def scenario(side: Side, version: int) -> Plain:
        told: list[Plain] = []
        there: set[tuple[str, int]] = set()
        for deletions, upsertions in (
            ((), (put("a"), put("b", 2), put("c"), put("c", 2, 16_384))),
            ((), (put("d", iterations=4095),)),
            ((), (put("d", iterations=16_385),)),
            ((), (put("d", 3),)),
            ((), (put("d", 0),)),
            ((), (put(""),)),
            ((), (put("d"), put("d"))),
            ((drop("a"),), (put("a"),)),
            ((drop("a"),), (put("a", 2),)),
            ((drop("eve"),), ()),
            ((drop("c"), drop("eve")), ()),
            ((drop("b", 7), drop("")), ()),
        ):
            answer: Any = side.ask(key, version, deletions=deletions, upsertions=upsertions)
            done = {each["user"] for each in answer["results"] if each["error_code"] == "none"}
            there -= {(each.name, each.mechanism) for each in deletions if each.name in done}
            there |= {(each.name, each.mechanism) for each in upsertions if each.name in done}
            # Kafka's broker applies the change after the response.
            eventually(lambda there=frozenset(there): described(side) == there, f"{side.name} has {there}")
            told += [answer, side.ask(describe, 0, users=())]
        return told

    same(sides, scenario, 0)


@pytest.mark.java
def test_no_client_is_asked_for_metrics(sides: tuple[Side, Side]) -> None:
    for side in sides:
        answer = side.message(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, client_instance_id=None)
        assert (answer.error_code, answer.requested_metrics) == (ErrorCode.none, ())
        assert answer.client_instance_id is not None
        pushed = side.message(
            ApiKey.PUSH_TELEMETRY,
            0,
            client_instance_id=answer.client_instance_id,
            subscription_id=answer.subscription_id + 1,
            metrics=b"",
        )
        assert pushed.error_code is ErrorCode.unknown_subscription_id


def test_a_client_keeps_the_id_that_it_has(nilometer: Side) -> None:
    mine = UUID(int=7)
    answer = nilometer.message(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, client_instance_id=mine)
    assert answer.client_instance_id == mine
    last = nilometer.message(
        ApiKey.PUSH_TELEMETRY,
        0,
        client_instance_id=mine,
        subscription_id=answer.subscription_id,
        terminating=True,
        metrics=b"",
    )
    assert last.error_code is ErrorCode.none


@pytest.mark.java
@each_version(ApiKey.DESCRIBE_QUORUM)
def test_the_quorum(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        def ask(*topics: tuple[str, int]) -> Plain:
            key = ApiKey.DESCRIBE_QUORUM
            answer = side.ask(
                key,
                version,
                topics=tuple(
                    make(
                        key,
                        version,
                        "TopicData",
                        topic_name=name,
                        partitions=(make(key, version, "PartitionData", partition_index=index),),
                    )
                    for name, index in topics
                ),
            )
            for topic in answer["topics"]:
                for partition in topic["partitions"]:
                    assert (partition.pop("high_watermark") > 0) == (partition["error_code"] == "none")
                    for replica in partition["current_voters"]:
                        for moving in ("log_end_offset", "last_fetch_timestamp", "last_caught_up_timestamp"):
                            assert replica.pop(moving, 1) > 0
            for node in answer.pop("nodes", ()):
                assert node["listeners"]
            return answer

        return [ask(("__cluster_metadata", 0)), ask(("__cluster_metadata", 1)), ask(("t", 0)), ask()]

    same(sides, scenario, version)
