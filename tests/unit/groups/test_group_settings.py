"""Settings that a group has of its own: what goes by them, and within which bounds."""

from __future__ import annotations

import pytest
from consumer_group_harness import CONSUMER_SESSION_MS, ConsumerWorld
from msgspec.structs import replace

from nilometer.config import ConfigError
from nilometer.groups.settings import (
    GroupConfig,
    ShareGroupConfig,
    ShareOffsetReset,
    config_of_group,
    definition_of,
    share_group_config,
)

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def test_a_group_with_settings_of_its_own_goes_by_them(world: ConsumerWorld) -> None:
    """From the next heartbeat on; other groups, and the group when it has none any more, by the broker's."""
    world.enter("A", "t")
    world.topics.configure("g", "consumer.session.timeout.ms", "50000")
    world.topics.configure("g", "consumer.heartbeat.interval.ms", "6000")
    world.topics.configure("other", "consumer.session.timeout.ms", "60000")
    assert world.beat("A", 2).heartbeat_interval_ms == 6_000
    world.pass_time(49_999)
    assert set(world.consumer_group().members) == {"A"}
    world.topics.configure("g", "consumer.session.timeout.ms", None)
    world.topics.configure("g", "consumer.heartbeat.interval.ms", None)
    assert world.beat("A", 2).heartbeat_interval_ms == 5_000
    world.pass_time(CONSUMER_SESSION_MS)
    assert not world.consumer_group().members


def test_a_group_has_its_own_interval_between_assignments(world: ConsumerWorld) -> None:
    world.topics.configure("g", "consumer.assignment.interval.ms", "2000")
    world.enter("A", "t")
    world.pass_time(300)
    assert world.enter("B", "t").heartbeat_interval_ms == 1_700
    world.pass_time(1_699)
    assert world.consumer_group().assignment_epoch == 2
    world.pass_time(1)
    assert world.consumer_group().assignment_epoch == 3


@pytest.mark.parametrize(
    ("texts", "session_ms", "heartbeat_ms"),
    [
        ({}, 45_000, 5_000),
        ({SESSION: "10", HEARTBEAT: "90000"}, 45_000, 15_000),
        ({SESSION: "90000", HEARTBEAT: "10"}, 60_000, 5_000),
        ({SESSION: "nonsense", "left by another version": "7"}, 45_000, 5_000),
    ],
)
def test_settings_of_a_group_stay_within_the_bounds_of_its_coordinator(
    texts: dict[str, str], session_ms: int, heartbeat_ms: int
) -> None:
    config = config_of_group(GroupConfig(), texts)
    assert config.group_consumer_session_timeout_ms == session_ms
    assert config.group_consumer_heartbeat_interval_ms == heartbeat_ms


def test_a_session_not_longer_than_the_heartbeat_interval_is_not_taken() -> None:
    broker = GroupConfig(group_consumer_max_heartbeat_interval_ms=60_000)
    assert config_of_group(broker, {SESSION: "45000", HEARTBEAT: "50000"}) == broker


BROKER = ShareGroupConfig(30_000, 5, 2_000, ShareOffsetReset("latest"), False, True)


@pytest.mark.parametrize(
    ("texts", "changed"),
    [
        ({}, {}),
        ({"share.record.lock.duration.ms": "20000"}, {"record_lock_duration_ms": 20_000}),
        ({"share.record.lock.duration.ms": "10"}, {"record_lock_duration_ms": 15_000}),
        ({"share.record.lock.duration.ms": "70000"}, {"record_lock_duration_ms": 60_000}),
        ({"share.delivery.count.limit": "7"}, {"delivery_count_limit": 7}),
        ({"share.delivery.count.limit": "1"}, {"delivery_count_limit": 2}),
        ({"share.delivery.count.limit": "11"}, {"delivery_count_limit": 10}),
        ({"share.partition.max.record.locks": "500"}, {"partition_max_record_locks": 500}),
        ({"share.partition.max.record.locks": "1"}, {"partition_max_record_locks": 100}),
        ({"share.partition.max.record.locks": "9999"}, {"partition_max_record_locks": 4_000}),
        ({"share.auto.offset.reset": "earliest"}, {"auto_offset_reset": ShareOffsetReset("earliest")}),
        (
            {"share.auto.offset.reset": "by_duration:PT1H"},
            {"auto_offset_reset": ShareOffsetReset("by_duration", 3_600_000)},
        ),
        ({"share.auto.offset.reset": "none"}, {}),
        ({"share.isolation.level": "read_committed"}, {"read_committed": True}),
        ({"share.isolation.level": "left by another version"}, {}),
        ({"share.renew.acknowledge.enable": "false"}, {"renew_acknowledge_enable": False}),
        ({"errors.deadletterqueue.topic.name": "dlq.a"}, {"dead_letter_topic": "dlq.a"}),
        ({"errors.deadletterqueue.topic.name": "__left_by_another_version"}, {}),
        ({"errors.deadletterqueue.copy.record.enable": "true"}, {"copies_dead_letters": True}),
    ],
)
def test_what_the_leader_of_a_share_partition_has_to_know(
    texts: dict[str, str], changed: dict[str, object]
) -> None:
    found = share_group_config(GroupConfig(), texts, may_have_dead_letters=True)
    assert found == replace(BROKER, **changed)
    assert share_group_config(GroupConfig(), texts) == replace(found, dead_letter_topic="")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind, names in {
            "consumer": ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"),
            "share": (
                "session.timeout.ms",
                "heartbeat.interval.ms",
                "assignment.interval.ms",
                "record.lock.duration.ms",
                "delivery.count.limit",
                "partition.max.record.locks",
            ),
        }.items()
        for name in names
    ],
)
def test_each_setting_of_a_group_has_bounds(kind: str, name: str) -> None:
    """Those of the broker, which its own value keeps, too."""
    words = name.replace(".", "_")
    value, low, high = (f"group_{kind}_{bound}{words}" for bound in ("", "min_", "max_"))
    default: int = getattr(GroupConfig(), value)
    broker = GroupConfig(**{value: default, low: default - 1, high: default + 1})  # type: ignore[arg-type]
    keys = definition_of(broker)
    for given, effective in ((default - 2, default - 1), (default + 2, default + 1)):
        with pytest.raises(ConfigError, match=rf"group\.{kind}\.(min|max)\.{name}"):
            keys.judge({f"{kind}.{name}": str(given)})
        assert getattr(config_of_group(broker, {f"{kind}.{name}": str(given)}), value) == effective
    for bounds in ({low: default + 1, high: default + 2}, {low: default - 2, high: default - 1}):
        with pytest.raises(ValueError, match="must not be above"):
            GroupConfig(**bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "text", "why"),
    [
        ("share.auto.offset.reset", "none", "must be earliest, latest or by_duration"),
        ("share.auto.offset.reset", "latest:PT1H", "must be earliest, latest or by_duration"),
        ("share.auto.offset.reset", "by_duration:1h", "is not a duration"),
        ("share.isolation.level", "serializable", "must be one of read_committed, read_uncommitted"),
        ("share.renew.acknowledge.enable", "maybe", "must be true or false"),
        ("errors.deadletterqueue.topic.name", "__consumer_offsets", "must not begin with __"),
        ("share.session.timeout.ms", "x", "must be a number"),
    ],
)
def test_invalid_settings_of_share_groups_are_rejected(key: str, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        definition_of(GroupConfig()).judge({key: text})


def test_the_session_of_a_share_group_is_longer_than_its_heartbeat_interval() -> None:
    broker = GroupConfig(group_share_max_heartbeat_interval_ms=60_000)
    texts = {"share.session.timeout.ms": "45000", "share.heartbeat.interval.ms": "50000"}
    assert config_of_group(broker, texts) == broker
    with pytest.raises(ConfigError, match=r"must be greater than share\.heartbeat\.interval\.ms"):
        definition_of(broker).judge(texts)
    with pytest.raises(ValueError, match=r"group\.share\.heartbeat\.interval\.ms must be below"):
        GroupConfig(group_share_max_heartbeat_interval_ms=60_000, group_share_heartbeat_interval_ms=50_000)


def test_share_groups_have_one_assignor() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        GroupConfig(group_share_assignors=("simple", "simple"))
