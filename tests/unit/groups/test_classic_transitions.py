"""SPEC C-4: every state of a classic group, every event that may meet it there, and the state that follows.

Each row builds a group in a state, lets one thing happen, and says what the group is then. A transition that
no row takes is refused by the group itself.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from group_harness import DELAY_MS, REBALANCE_MS, SESSION_MS, GroupWorld, protocols

from nilometer.groups.classic_group import VALID_PREVIOUS, BrokenGroup, ClassicGroup, ClassicGroupState
from nilometer.groups.requests import DeleteGroups, DeleteGroupsResult
from nilometer.groups.settings import GroupConfig
from nilometer.wire.errors import ErrorCode

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = (state.value for state in ClassicGroupState)
Script = Callable[[GroupWorld], object]


# ── ways into a state: members a-1 (the leader) and b-2, but for `empty` ────────────────────────────
def no_group(world: GroupWorld) -> None:
    pass


def empty(world: GroupWorld) -> None:
    world.stable("a", "b")
    world.leave("a-1", "b-2")


def preparing_first(world: GroupWorld) -> None:
    world.join(client="a")
    world.join(client="b")


def preparing(world: GroupWorld) -> None:
    world.stable("a", "b")
    world.join("a-1")


def completing(world: GroupWorld) -> None:
    world.join(client="a")
    world.join(client="b")
    world.pass_time(2 * DELAY_MS)


def stable(world: GroupWorld) -> None:
    world.stable("a", "b")


def leader_syncs(world: GroupWorld) -> object:
    return world.sync("a-1", 1, {"a-1": b"x"})


def heartbeats_until(ms: int) -> Script:
    """a-1 keeps running, b-2 does not."""

    def script(world: GroupWorld) -> None:
        for _ in range(ms // 1000):
            world.pass_time(1000)
            world.heartbeat("a-1", 1)

    return script


TABLE: list[tuple[Script, str, Script, str, str]] = [
    # from                what happens                                              to
    (no_group, DEAD, lambda w: w.join(), PREPARING, "the first member comes"),
    (no_group, DEAD, lambda w: w.join(version=4), EMPTY, "an id is given out, and no member has joined"),
    (no_group, DEAD, lambda w: w.join("who-7"), DEAD, "a member of a group that is not"),
    (no_group, DEAD, lambda w: w.commit(5), EMPTY, "offsets from outside"),
    (empty, EMPTY, lambda w: w.join(), PREPARING, "a member comes back"),
    (empty, EMPTY, lambda w: w.join("a-1"), EMPTY, "a member that is none any more"),
    (empty, EMPTY, lambda w: w.commit(5), EMPTY, "offsets from outside"),
    (
        preparing_first,
        PREPARING,
        lambda w: w.pass_time(2 * DELAY_MS),
        COMPLETING,
        "the initial delay is over",
    ),
    (preparing_first, PREPARING, lambda w: w.join(client="c"), PREPARING, "others come meanwhile"),
    (preparing_first, PREPARING, lambda w: w.leave("b-2"), PREPARING, "one goes during the delay"),
    (
        preparing_first,
        PREPARING,
        lambda w: (w.leave("a-1", "b-2"), w.pass_time(DELAY_MS)),
        EMPTY,
        "all go during the delay",
    ),
    (preparing, PREPARING, lambda w: w.join("b-2"), COMPLETING, "the last one joins"),
    (preparing, PREPARING, lambda w: w.leave("b-2"), COMPLETING, "E-42: the last one leaves"),
    (preparing, PREPARING, lambda w: w.pass_time(SESSION_MS), COMPLETING, "E-42: the last one is gone"),
    (preparing, PREPARING, lambda w: w.leave("a-1"), PREPARING, "one leaves, another is awaited"),
    (preparing, PREPARING, lambda w: w.leave("a-1", "b-2"), EMPTY, "everyone leaves"),
    (preparing, PREPARING, lambda w: w.heartbeat("b-2", 1), PREPARING, "a heartbeat"),
    (preparing, PREPARING, lambda w: w.sync("b-2", 1), PREPARING, "a sync that comes too late"),
    (preparing, PREPARING, lambda w: w.join(client="c"), PREPARING, "a third comes"),
    (completing, COMPLETING, leader_syncs, STABLE, "the leader has assigned"),
    (completing, COMPLETING, lambda w: w.sync("b-2", 1), COMPLETING, "a follower asks"),
    (completing, COMPLETING, lambda w: w.join("b-2"), COMPLETING, "a follower did not hear that it joined"),
    (completing, COMPLETING, lambda w: w.join("a-1"), COMPLETING, "nor did the leader"),
    (
        completing,
        COMPLETING,
        lambda w: w.join("b-2", offers=protocols("range", topics=("u",))),
        PREPARING,
        "a follower wants something else",
    ),
    (completing, COMPLETING, lambda w: w.join(client="c"), PREPARING, "a third comes"),
    (completing, COMPLETING, lambda w: w.leave("b-2"), PREPARING, "one leaves"),
    (completing, COMPLETING, lambda w: w.leave("a-1", "b-2"), EMPTY, "everyone leaves"),
    (completing, COMPLETING, heartbeats_until(SESSION_MS), PREPARING, "one is silent"),
    (completing, COMPLETING, lambda w: w.pass_time(SESSION_MS), EMPTY, "all are silent"),
    (completing, COMPLETING, lambda w: w.heartbeat("b-2", 1), COMPLETING, "a heartbeat"),
    (completing, COMPLETING, lambda w: w.commit(5, member_id="a-1", generation=1), COMPLETING, "a commit"),
    (stable, STABLE, lambda w: w.join("a-1"), PREPARING, "the leader joins again"),
    (stable, STABLE, lambda w: w.join("b-2"), STABLE, "a follower joins again as it was"),
    (
        stable,
        STABLE,
        lambda w: w.join("b-2", offers=protocols("range", topics=("u",))),
        PREPARING,
        "a follower wants something else",
    ),
    (stable, STABLE, lambda w: w.join(client="c"), PREPARING, "a third comes"),
    (stable, STABLE, lambda w: w.join(version=4), STABLE, "a third asks for an id"),
    (stable, STABLE, lambda w: w.leave("b-2"), PREPARING, "one leaves"),
    (stable, STABLE, lambda w: w.leave("a-1", "b-2"), EMPTY, "everyone leaves"),
    (stable, STABLE, heartbeats_until(SESSION_MS), PREPARING, "one is silent"),
    (stable, STABLE, lambda w: w.pass_time(SESSION_MS), EMPTY, "all are silent"),
    (stable, STABLE, lambda w: w.sync("b-2", 1), STABLE, "an assignment is asked for again"),
    (stable, STABLE, lambda w: w.heartbeat("b-2", 1), STABLE, "a heartbeat"),
    (stable, STABLE, lambda w: w.fail_over(), STABLE, "another coordinator loads it"),
    (preparing, PREPARING, lambda w: w.fail_over(), STABLE, "back to the last stable generation"),
    (completing, COMPLETING, lambda w: w.fail_over(), EMPTY, "before the first one was stable"),
    (empty, EMPTY, lambda w: w.fail_over(), EMPTY, "another coordinator loads it"),
]


@pytest.mark.parametrize(
    ("build", "before", "event", "after", "why"),
    TABLE,
    ids=[f"{build.__name__}: {why} → {after}" for build, _, _, after, why in TABLE],
)
def test_transition(build: Script, before: str, event: Script, after: str, why: str) -> None:
    world = GroupWorld()
    build(world)
    assert world.state() == before
    event(world)
    assert world.state() == after


def test_the_rows_take_every_transition_between_living_states() -> None:
    taken = {(before, after) for _, before, _, after, _ in TABLE if before != after} - {
        # A failover is no transition: another object begins in the state that the log tells.
        (PREPARING, STABLE),
        (COMPLETING, EMPTY),
        (STABLE, EMPTY),
    }
    # Transitions that pass through PreparingRebalance within one call end where that leads.
    allowed = {
        (before.value, after.value)
        for after, previous in VALID_PREVIOUS.items()
        for before in previous
        if DEAD not in (before.value, after.value)
    }
    assert {(before, after) for before, after in taken if before != DEAD} == allowed


@pytest.mark.parametrize(("before", "after"), list(product(ClassicGroupState, ClassicGroupState)))
def test_only_the_tabled_transitions_are_possible(
    before: ClassicGroupState, after: ClassicGroupState
) -> None:
    group = ClassicGroup("g")
    group.state = before
    if before in VALID_PREVIOUS[after]:
        group.become(after, 5)
        assert (group.previous_state, group.state, group.state_wall_ms) == (before, after, 5)
    else:
        with pytest.raises(BrokenGroup):
            group.become(after, 5)
        assert group.state is before


def test_a_deleted_group_is_dead_to_every_client() -> None:
    world = GroupWorld()
    empty(world)
    assert world.describe().error_code is ErrorCode.none
    assert world.ask(DeleteGroups(("g",)), DeleteGroupsResult).results[0].error_code is ErrorCode.none
    assert world.state() == DEAD
    assert world.describe().error_code is ErrorCode.group_id_not_found
    world.fail_over()
    assert world.state() == DEAD


def test_a_rebalance_ends_without_those_who_do_not_join() -> None:
    """b runs and sends heartbeats, but will not join: the rebalance time-out ends the wait."""
    world = GroupWorld()
    stable(world)
    again = world.join("a-1")
    for _ in range(REBALANCE_MS // 1000):
        assert not world.is_answered(again)
        assert world.heartbeat("b-2", 1) is ErrorCode.rebalance_in_progress
        world.pass_time(1000)
    reply = world.joined(again)
    assert (reply.error_code, reply.generation_id, reply.leader) == (ErrorCode.none, 2, "a-1")
    assert [member.member_id for member in reply.members] == ["a-1"]
    assert world.heartbeat("b-2", 1) is ErrorCode.unknown_member_id


def test_a_member_that_never_syncs_is_removed() -> None:
    """b sends heartbeats for ever and never asks for its assignment: its partitions would lie idle."""
    world = GroupWorld()
    completing(world)
    leader_syncs(world)
    for _ in range(REBALANCE_MS // 1000):
        assert world.heartbeat("a-1", 1) is ErrorCode.none
        assert world.heartbeat("b-2", 1) is ErrorCode.none
        world.pass_time(1000)
    assert world.state() == PREPARING
    assert world.heartbeat("b-2", 1) is ErrorCode.unknown_member_id
    cause = world.describe().last_rebalance
    assert cause is not None
    assert (cause.member_id, cause.client_id) == ("b-2", "b")
    assert "SyncGroup" in cause.reason
    again = world.join("a-1")
    assert world.joined(again).generation_id == 2


def test_a_leader_that_never_syncs_gives_way() -> None:
    world = GroupWorld()
    completing(world)
    waiting = world.sync("b-2", 1)
    for _ in range(REBALANCE_MS // 1000):
        world.heartbeat("a-1", 1)
        world.heartbeat("b-2", 1)
        world.pass_time(1000)
    assert world.synced(waiting).error_code is ErrorCode.rebalance_in_progress
    again = world.join("b-2")
    reply = world.joined(again)
    assert (reply.generation_id, reply.leader) == (2, "b-2")


def test_kip_134_the_initial_delay_is_drawn_out_by_those_who_come() -> None:
    world = GroupWorld()
    first = world.join(client="a", rebalance_ms=10_000)
    world.pass_time(2_000)
    second = world.join(client="b", rebalance_ms=10_000)
    world.pass_time(1_000)
    assert not world.is_answered(first), "3 s: b came, so 3 s more"
    world.pass_time(2_000)
    third = world.join(client="c", rebalance_ms=10_000)
    world.pass_time(1_000)
    assert not world.is_answered(first), "6 s: c came"
    world.pass_time(2_000)
    world.join(client="d", rebalance_ms=10_000)
    world.pass_time(1_000)
    assert not world.is_answered(first), "9 s: d came, but only 1 s of the rebalance time-out is left"
    world.pass_time(1_000)
    replies = [world.joined(token) for token in (first, second, third)]
    assert {reply.generation_id for reply in replies} == {1}
    assert len(replies[0].members) == 4
    assert replies[1].members == ()


def test_without_a_delay_the_first_member_is_alone_in_its_first_generation() -> None:
    world = GroupWorld(GroupConfig(group_initial_rebalance_delay_ms=0))
    token = world.join()
    world.pass_time(0)
    assert world.joined(token).generation_id == 1
