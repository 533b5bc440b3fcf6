"""The small parts under a group shard: timers, the hash of group ids, the settings."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nilometer.groups.config import ConsumerGroupMigrationPolicy, GroupConfig
from nilometer.groups.effects import NOTHING, Effects, Token, records_only, reply
from nilometer.groups.partitioning import java_string_hash, partition_for_group
from nilometer.groups.records import CoordinatorRecord, GroupMetadataKey
from nilometer.groups.requests import HeartbeatReply
from nilometer.groups.timers import TimerKey, TimerKind, Timers
from nilometer.wire.errors import ErrorCode

A, B, C = (TimerKey(TimerKind.CLASSIC_HEARTBEAT, "g", name) for name in "abc")


# ── SPEC C-3 ──────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("group_id", "hashed", "partition"),
    [
        ("", 0, 0),
        ("a", 97, 47),
        ("my-group", -1_906_497_762, 12),
        ("polygenelubricants", -(2**31), 0),
        ("grp😀", 100_399_368, 18),
        ("Zürich", -1_482_116_162, 12),
    ],
)
def test_c_3_a_group_is_kept_where_java_would_look_for_it(group_id: str, hashed: int, partition: int) -> None:
    assert (java_string_hash(group_id), partition_for_group(group_id, 50)) == (hashed, partition)


# ── timers ────────────────────────────────────────────────────────────────────────────────────────
def test_timers_are_due_by_time_and_then_by_age() -> None:
    timers = Timers()
    for key, at_ms in ((A, 20), (B, 10), (C, 10)):
        timers.schedule(key, at_ms)
    assert timers.take_due(9) is None
    assert [timers.take_due(20) for _ in range(4)] == [B, C, A, None]
    assert timers.next_deadline_ms() is None


KEYS = st.sampled_from((A, B, C))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("schedule"), KEYS, st.integers(0, 50)),
        st.tuples(st.just("cancel"), KEYS, st.just(0)),
        st.tuples(st.just("take"), KEYS, st.integers(0, 50)),
    ),
    max_size=40,
)


@settings(derandomize=True, max_examples=200)
@given(STEPS)
def test_timers_are_a_dictionary_of_deadlines(steps: list[tuple[str, TimerKey, int]]) -> None:
    timers, model = Timers(), dict[TimerKey, int]()
    for what, key, at_ms in steps:
        if what == "schedule":
            timers.schedule(key, at_ms)
            model[key] = at_ms
        elif what == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            earliest = min(model.values(), default=None)
            taken = timers.take_due(at_ms)
            if earliest is None or earliest > at_ms:
                assert taken is None
            else:
                assert taken is not None
                assert model.pop(taken) == earliest
        assert timers.next_deadline_ms() == min(model.values(), default=None)
        assert {each: timers.deadline(each) for each in (A, B, C)} == {
            each: model.get(each) for each in (A, B, C)
        }


def test_a_deadline_that_moves_with_every_heartbeat_costs_no_memory() -> None:
    timers = Timers()
    for at_ms in range(10_000):
        timers.schedule(A, at_ms)
    assert len(timers._heap) == 1
    assert timers.next_deadline_ms() == 9_999


# ── effects and settings ──────────────────────────────────────────────────────────────────────────
def test_effects_follow_each_other() -> None:
    written = records_only([CoordinatorRecord(GroupMetadataKey("g"), None)])
    answered = reply(Token(1), HeartbeatReply(ErrorCode.none))
    assert not NOTHING
    assert written.then(NOTHING) is written
    assert NOTHING.then(answered) is answered
    assert written.then(answered) == Effects(written.records, answered.replies)


@pytest.mark.parametrize(
    ("settings_", "problem"),
    [
        (
            {"group_min_session_timeout_ms": 10, "group_max_session_timeout_ms": 9},
            "group.min.session.timeout",
        ),
        ({"group_consumer_session_timeout_ms": 44_999}, "group.consumer.min.session.timeout"),
        ({"group_consumer_session_timeout_ms": 60_001}, "group.consumer.max.session.timeout"),
        ({"group_consumer_heartbeat_interval_ms": 4_999}, "group.consumer.min.heartbeat.interval"),
        ({"group_consumer_assignors": ()}, "group.consumer.assignors"),
        (
            {
                "group_consumer_max_heartbeat_interval_ms": 50_000,
                "group_consumer_heartbeat_interval_ms": 45_000,
            },
            "heartbeat.interval.ms must be below",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings_: dict[str, int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        GroupConfig(**settings_)  # type: ignore[arg-type]


def test_the_migration_policy_says_which_way_is_open() -> None:
    ways = {each: (each.allows_upgrade, each.allows_downgrade) for each in ConsumerGroupMigrationPolicy}
    assert list(ways.values()) == [(False, False), (False, True), (True, False), (True, True)]
