"""What is reported of a classic group: who keeps it rebalancing (E-43), its state, its members."""

from __future__ import annotations

from group_harness import (
    RANGE,
    SESSION_MS,
    WALL_MS,
    GroupWorld,
    protocols,
)

from nilometer.groups.classic_group import RebalanceCause, last_rebalance
from nilometer.groups.requests import (
    DeleteGroups,
    DeleteGroupsResult,
    DescribeGroups,
    DescribeGroupsResult,
    ListedGroup,
    ListGroups,
    ListGroupsResult,
)
from nilometer.steps import at_once
from nilometer.wire.errors import ErrorCode


def test_edge_43_the_member_that_keeps_a_group_rebalancing_is_named() -> None:
    """b comes with other metadata each time; the group converges between, and says who it was."""
    world = GroupWorld()
    world.stable("a", "b")
    for turn in range(1, 4):
        topics = ("t", f"u{turn}")
        again = world.join("b-2", offers=protocols("range", topics=topics), reason="found new topics")
        world.pass_time(1_000)
        leader = world.join("a-1")
        assert world.joined(again).generation_id == turn + 1
        world.settle(["a-1", "b-2"], world.joined(leader).generation_id)
        cause = world.describe().last_rebalance
        assert cause is not None
        assert (cause.member_id, cause.client_id, cause.client_host) == ("b-2", "b", "/b.host")
        assert cause.reason == "member b-2 changed its metadata in Stable; client reason: found new topics"
        assert (cause.times_in_a_row, cause.generation) == (turn, turn)
        assert cause.wall_ms == WALL_MS + world.now_ms - 1_000
    world.join("a-1")
    cause = world.describe().last_rebalance
    assert cause is not None
    assert (cause.member_id, cause.times_in_a_row) == ("a-1", 1)
    assert cause.reason.startswith("leader a-1 re-joining in Stable")


def test_edge_43_a_client_that_always_joins_as_a_new_member_is_known_again() -> None:
    world = GroupWorld()
    world.stable("a")
    for turn in range(1, 4):
        new = world.join(client="b")
        world.join("a-1")
        generation = world.joined(new).generation_id
        world.settle(["a-1", world.joined(new).member_id], generation)
        cause = world.describe().last_rebalance
        assert cause is not None
        assert (cause.client_id, cause.times_in_a_row) == ("b", 2 * turn - 1)
        world.leave(world.joined(new).member_id)
        world.join("a-1")
        world.settle(["a-1"], generation + 1)


def test_edge_43_a_missed_heartbeat_names_its_member() -> None:
    world = GroupWorld()
    world.stable("a", "b")
    for _ in range(SESSION_MS // 1000):
        world.pass_time(1_000)
        world.heartbeat("a-1", 1)
    cause = world.describe().last_rebalance
    assert cause is not None
    assert (cause.member_id, cause.reason) == ("b-2", "removing member b-2: no heartbeat for 10000 ms")


def test_a_group_that_clients_have_left_remembers_little_of_them() -> None:
    """It may stay for days: of ids and types of 32,000 characters, a prefix is enough."""
    world, long = GroupWorld(), "c" * 32_000
    token = world.join(client=long, instance=long, protocol_type=long)
    world.pass_time(3_000)
    joined = world.joined(token)
    assert (joined.protocol_type, len(joined.member_id) > len(long)) == (long, True)
    assert world.leave((joined.member_id, long)) == [ErrorCode.none]
    group = world.describe()
    assert (group.group_state, group.protocol_type) == ("Empty", long[:256])
    last = group.last_rebalance
    assert last is not None
    assert last.group_instance_id == long[:256]
    assert len(last.reason) + len(last.member_id) + len(last.client_id) <= 1_512
    lines = [note.cause.removesuffix(f"{long}.host") for note in world.notes]
    assert max(map(len, lines)) <= 2_000, "so does a line of the log; the host is an address"
    world.load()
    assert world.describe().protocol_type == long[:256]


def test_a_client_with_a_long_id_that_causes_each_rebalance_is_known_again() -> None:
    long, last = "c" * 32_000, None
    for turn in range(1, 4):
        cause = RebalanceCause("joined", f"{long}-{turn}", None, long, "/host")
        last = last_rebalance(cause, last, WALL_MS, turn)
        assert last.times_in_a_row == turn
    by_instance = last_rebalance(RebalanceCause("joined", "m", long), last, WALL_MS, 4)
    assert by_instance.times_in_a_row == 1
    assert last_rebalance(RebalanceCause("left", "n", long), by_instance, WALL_MS, 5).times_in_a_row == 2


def test_groups_are_listed_by_state_and_type() -> None:
    world = GroupWorld()
    world.stable("a")
    world.commit(1, group="simple")
    g = ListedGroup("g", "consumer", "Stable", "classic")
    simple = ListedGroup("simple", "", "Empty", "classic")
    assert world.listed(ListGroups()) == [g, simple]
    assert world.listed(ListGroups(frozenset({"empty", "dead"}))) == [simple]
    assert world.listed(ListGroups(types_filter=frozenset({"classic"}))) == [g, simple]
    assert world.listed(ListGroups(types_filter=frozenset({"consumer"}))) == []


def test_each_group_is_a_step_of_the_listing() -> None:
    """A client may list tens of thousands: others are served in between."""
    world = GroupWorld()
    for number in range(3):
        world.commit(1, group=f"group {number}")
    steps = world.ask(ListGroups(frozenset({"dead"})), ListGroupsResult).groups
    assert steps is not None
    assert list(steps) == [1, 1, 1]


def test_a_group_is_listed_as_it_is_at_its_step() -> None:
    world = GroupWorld()
    for name in ("deleted", "joined"):
        world.commit(1, group=name)
    steps = world.ask(ListGroups(), ListGroupsResult).groups
    assert steps is not None
    world.ask(DeleteGroups(("deleted",)), DeleteGroupsResult)
    world.join(group="joined")
    assert at_once(steps) == [ListedGroup("joined", "consumer", "PreparingRebalance", "classic")]


def test_groups_are_described() -> None:
    world = GroupWorld()
    world.stable("a")
    group, missing = world.ask(DescribeGroups(("g", "h")), DescribeGroupsResult).groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    [member] = group.members
    assert (member.member_id, member.client_id, member.client_host) == ("a-1", "a", "/a.host")
    assert (member.member_metadata, member.member_assignment) == (RANGE[0].metadata, b"a-1")
    assert (missing.error_code, missing.group_state) == (ErrorCode.group_id_not_found, "Dead")
    assert missing.error_message == "Group h not found."
    world.join("a-1", offers=RANGE)
    assert world.describe().protocol_data == ""
