"""Settings that a consumer group has of its own: what goes by them, and within which bounds."""

from __future__ import annotations

import pytest
from consumer_group_harness import CONSUMER_SESSION_MS, ConsumerWorld

from nilometer.groups.settings import HEARTBEAT_INTERVAL as HEARTBEAT
from nilometer.groups.settings import SESSION_TIMEOUT as SESSION
from nilometer.groups.settings import GroupConfig, config_of_group


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
