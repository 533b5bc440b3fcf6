"""Who is let into a classic group, under which name, with which protocol; and how members go."""

from __future__ import annotations

import pytest
from group_world import DELAY_MS, RANGE, REBALANCE_MS, SESSION_MS, WALL_MS, GroupWorld, protocols

from nilometer.coordinators.effects import Token
from nilometer.groups.config import GroupConfig
from nilometer.groups.records import GroupMetadataKey, GroupMetadataValue
from nilometer.groups.requests import (
    DescribeGroups,
    DescribeGroupsReply,
    JoinGroupReply,
    LeaveGroupReply,
    ListedGroup,
    ListGroups,
    ListGroupsReply,
    SyncGroupReply,
)
from nilometer.wire.errors import ErrorCode


def group_record(world: GroupWorld) -> GroupMetadataValue:
    """The one record of the last call."""
    [record] = world.written
    assert record.key == GroupMetadataKey("g")
    assert isinstance(record.value, GroupMetadataValue)
    return record.value


# ── KIP-394: a member id first ──────────────────────────────────────────────────────────────────────
def test_kip_394_a_member_is_given_an_id_and_joins_with_it() -> None:
    world = GroupWorld()
    refused = world.joined(world.join(version=4))
    assert refused == JoinGroupReply(ErrorCode.member_id_required, "a-1")
    assert group_record(world).members == ()
    again = world.join("a-1", version=4)
    world.pass_time(DELAY_MS)
    assert world.joined(again).member_id == "a-1"
    assert world.joined(again).generation_id == 1


def test_kip_394_an_id_that_is_not_used_is_forgotten() -> None:
    world = GroupWorld()
    world.join(version=4)
    world.pass_time(SESSION_MS - 1)
    assert world.shard.next_deadline_ms() == SESSION_MS
    world.pass_time(1)
    assert world.joined(world.join("a-1", version=4)).error_code is ErrorCode.unknown_member_id


def test_kip_394_a_rebalance_waits_for_ids_that_were_given_out_until_they_expire() -> None:
    world = GroupWorld()
    world.stable("a")
    world.join(client="b", version=4)
    again = world.join("a-1")
    assert not world.is_answered(again)
    world.pass_time(SESSION_MS)
    assert world.joined(again).generation_id == 2


def test_edge_42_a_pending_member_that_leaves_is_not_waited_for() -> None:
    world = GroupWorld()
    world.stable("a")
    world.join(client="b", version=4)
    again = world.join("a-1")
    assert world.leave("b-2") == [ErrorCode.none]
    assert world.joined(again).generation_id == 2


def test_a_static_member_needs_no_id_first() -> None:
    world = GroupWorld()
    token = world.join(instance="i", version=9)
    world.pass_time(DELAY_MS)
    assert world.joined(token).member_id == "i-1"


# ── who is let in ─────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("session_ms", "allowed"), [(5_999, False), (6_000, True), (1_800_001, False)])
def test_the_session_time_out_must_be_within_bounds(session_ms: int, allowed: bool) -> None:
    world = GroupWorld()
    token = world.join(session_ms=session_ms)
    if allowed:
        assert not world.is_answered(token)
    else:
        assert world.joined(token).error_code is ErrorCode.invalid_session_timeout
        assert world.state() == "Dead"


def test_a_group_needs_a_name() -> None:
    world = GroupWorld()
    assert world.joined(world.join(group="")).error_code is ErrorCode.invalid_group_id
    assert world.heartbeat("a-1", 1, group="") is ErrorCode.invalid_group_id
    assert world.synced(world.sync("a-1", 1, group="")).error_code is ErrorCode.invalid_group_id
    assert world.leave("a-1", group="") == [ErrorCode.invalid_group_id]


@pytest.mark.parametrize(("protocol_type", "offers"), [("", RANGE), ("consumer", ())])
def test_the_first_member_must_have_a_protocol(protocol_type: str, offers: tuple[()]) -> None:
    world = GroupWorld()
    token = world.join(protocol_type=protocol_type, offers=offers)
    assert world.joined(token).error_code is ErrorCode.inconsistent_group_protocol
    assert world.state() == "Dead"
    assert world.log == []


def test_members_without_a_protocol_in_common_stay_out() -> None:
    world = GroupWorld()
    world.stable("a", "b", offers=protocols("range", "sticky"))
    for offers, protocol_type in ((protocols("roundrobin"), "consumer"), (RANGE, "connect")):
        token = world.join(client="c", offers=offers, protocol_type=protocol_type)
        assert world.joined(token).error_code is ErrorCode.inconsistent_group_protocol
    changed = world.joined(world.join("b-2", offers=protocols("roundrobin")))
    assert changed.error_code is ErrorCode.inconsistent_group_protocol
    assert world.state() == "Stable"


def test_the_protocol_is_the_one_that_most_prefer_of_those_that_all_speak() -> None:
    world = GroupWorld()
    tokens = [
        world.join(client="a", offers=protocols("x", "range", "sticky")),
        world.join(client="b", offers=protocols("sticky", "range")),
        world.join(client="c", offers=protocols("y", "sticky", "range")),
    ]
    world.pass_time(2 * DELAY_MS)
    assert [world.joined(token).protocol_name for token in tokens] == ["sticky"] * 3
    leader = world.joined(tokens[0])
    assert (leader.leader, leader.protocol_type) == ("a-1", "consumer")
    assert [member.metadata for member in leader.members] == [RANGE[0].metadata] * 3


def test_a_tie_of_votes_goes_to_the_member_that_joined_first() -> None:
    world = GroupWorld()
    tokens = [
        world.join(client="a", offers=protocols("range", "sticky")),
        world.join(client="b", offers=protocols("sticky", "range")),
    ]
    world.pass_time(2 * DELAY_MS)
    assert [world.joined(token).protocol_name for token in tokens] == ["range"] * 2


# ── KIP-389: group.max.size ───────────────────────────────────────────────────────────────────────
def test_kip_389_a_full_group_takes_no_other_member() -> None:
    world = GroupWorld(GroupConfig(group_max_size=2))
    world.stable("a", "b")
    assert world.joined(world.join(client="c")).error_code is ErrorCode.group_max_size_reached
    assert world.joined(world.join("b-2")).error_code is ErrorCode.none
    assert world.state() == "Stable"


def test_kip_389_while_it_rebalances_the_last_to_join_are_too_many() -> None:
    world = GroupWorld(GroupConfig(group_max_size=2))
    first, second = world.join(client="a"), world.join(client="b")
    assert world.joined(world.join(client="c")).error_code is ErrorCode.group_max_size_reached
    world.pass_time(2 * DELAY_MS)
    assert len(world.joined(first).members) == 2
    assert world.joined(second).error_code is ErrorCode.none


def test_kip_389_a_group_that_is_loaded_too_large_shrinks() -> None:
    world = GroupWorld()
    world.stable("a", "b", "c")
    world.config = GroupConfig(group_max_size=2)
    world.fail_over()
    assert world.state() == "PreparingRebalance"
    assert "group.max.size is 2" in world.describe().last_rebalance.reason  # type: ignore[union-attr]
    kept = [world.join("c-3"), world.join("a-1")]
    assert world.joined(world.join("b-2")).error_code is ErrorCode.group_max_size_reached
    assert {world.joined(token).leader for token in kept} == {"a-1"}


# ── members in the middle of something ────────────────────────────────────────────────────────────
def test_a_member_that_did_not_hear_the_answer_gets_it_again() -> None:
    world = GroupWorld()
    first, second = world.join(client="a"), world.join(client="b")
    world.pass_time(2 * DELAY_MS)
    assert world.joined(world.join("a-1")) == world.joined(first)
    assert world.joined(world.join("b-2")) == world.joined(second)


def test_of_two_requests_of_one_member_the_later_is_answered_with_the_generation() -> None:
    world = GroupWorld()
    world.stable("a", "b")
    superseded = world.join("a-1")
    later = world.join("a-1")
    assert world.joined(superseded).error_code is ErrorCode.rebalance_in_progress
    world.join("b-2")
    assert world.joined(later).generation_id == 2
    waiting = world.sync("b-2", 2)
    again = world.sync("b-2", 2)
    assert world.synced(waiting).error_code is ErrorCode.rebalance_in_progress
    world.sync("a-1", 2, {"b-2": b"all"})
    assert world.synced(again).assignment == b"all"


def test_a_client_that_is_gone_is_not_answered_and_its_group_goes_on() -> None:
    world = GroupWorld()
    gone, there = world.join(client="a"), world.join(client="b")
    world.forget(gone)
    world.pass_time(2 * DELAY_MS)
    assert not world.is_answered(gone)
    assert world.joined(there).generation_id == 1


def test_a_new_member_whose_client_is_gone_is_not_kept_for_ever() -> None:
    """It cannot miss heartbeats, as it does not know its id; so the wait itself has an end."""
    patience_ms = 20 * 60_000
    world = GroupWorld(GroupConfig(group_new_member_join_timeout_ms=60_000))
    world.stable("a", rebalance_ms=patience_ms)
    new = world.join(client="b", rebalance_ms=patience_ms)
    for _ in range(60):
        assert not world.is_answered(new)
        world.heartbeat("a-1", 1)
        world.pass_time(1_000)
    assert world.joined(new) == JoinGroupReply(ErrorCode.unknown_member_id)
    assert world.joined(world.join("a-1")).generation_id == 2


def test_who_waits_for_the_others_need_not_send_heartbeats() -> None:
    world = GroupWorld()
    world.stable("a", "b")
    waiting = world.join("a-1")
    for _ in range(3 * SESSION_MS // 1000 - 1):
        world.pass_time(1_000)
        assert world.heartbeat("b-2", 1) is ErrorCode.rebalance_in_progress
    assert not world.is_answered(waiting)
    world.join("b-2")
    assert world.joined(waiting).error_code is ErrorCode.none
    world.pass_time(SESSION_MS)
    assert world.state() == "Empty", "from the answer on, sessions count again"


def test_a_members_assignment_is_what_its_leader_says_and_nothing_if_it_says_nothing() -> None:
    world = GroupWorld()
    world.join(client="a")
    world.join(client="b")
    world.pass_time(2 * DELAY_MS)
    follower = world.sync("b-2", 1)
    leader = world.sync("a-1", 1, {"a-1": b"both", "none-9": b"lost"})
    assert world.synced(leader) == SyncGroupReply(ErrorCode.none, "consumer", "range", b"both")
    assert world.synced(follower) == SyncGroupReply(ErrorCode.none, "consumer", "range", b"")
    record = group_record(world)
    assert (record.generation, record.protocol, record.leader) == (1, "range", "a-1")
    assert record.current_state_timestamp == world.wall_ms
    assert [(each.member_id, each.assignment) for each in record.members] == [("a-1", b"both"), ("b-2", b"")]
    assert record.members[1].client_host == "/b.host"


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────
def test_a_client_that_is_no_member_or_of_another_generation_is_refused() -> None:
    world = GroupWorld()
    world.stable("a", "b")
    assert world.heartbeat("who-9", 1) is ErrorCode.unknown_member_id
    assert world.heartbeat("a-1", 1, group="other") is ErrorCode.unknown_member_id
    assert world.heartbeat("a-1", 2) is ErrorCode.illegal_generation
    assert world.heartbeat("a-1", 0) is ErrorCode.illegal_generation
    assert world.heartbeat("a-1", 1, instance="i") is ErrorCode.unknown_member_id
    for member_id, generation, group, verdict in (
        ("who-9", 1, "g", ErrorCode.unknown_member_id),
        ("a-1", 7, "g", ErrorCode.illegal_generation),
        ("a-1", 1, "other", ErrorCode.unknown_member_id),
    ):
        token = world.sync(member_id, generation, {"a-1": b"!"}, group=group)
        assert world.synced(token).error_code is verdict
    for wrong in ({"protocol_type": "connect"}, {"protocol_name": "sticky"}):
        token = world.sync("a-1", 1, **wrong)
        assert world.synced(token).error_code is ErrorCode.inconsistent_group_protocol
    right = world.sync("a-1", 1, protocol_type="consumer", protocol_name="range")
    assert world.synced(right).assignment == b"a-1"
    assert world.leave("who-9") == [ErrorCode.unknown_member_id]
    assert world.leave("a-1", group="other") == [ErrorCode.unknown_member_id]
    assert world.state() == "Stable"


# ── KIP-345: static members ───────────────────────────────────────────────────────────────────────
def test_kip_345_a_static_member_that_restarts_keeps_its_place_without_a_rebalance() -> None:
    world = GroupWorld()
    leader = world.join(client="a", instance="one")
    follower = world.join(client="b", instance="two")
    world.pass_time(2 * DELAY_MS)
    assert world.joined(follower).leader == world.joined(leader).member_id == "one-1"
    world.settle(["one-1", "two-2"], 1)

    back = world.joined(world.join(client="b", instance="two"))
    assert (back.member_id, back.generation_id, back.leader) == ("two-3", 1, "one-1")
    assert [each.member_id for each in group_record(world).members] == ["one-1", "two-3"]
    assert world.synced(world.sync("two-3", 1, instance="two")).assignment == b"two-2"
    assert world.heartbeat("two-2", 1, instance="two") is ErrorCode.fenced_instance_id
    assert world.heartbeat("two-2", 1) is ErrorCode.unknown_member_id
    assert world.state() == "Stable"
    world.fail_over()
    assert world.heartbeat("two-3", 1, instance="two") is ErrorCode.none


@pytest.mark.parametrize(
    ("version", "leader", "members", "skip"), [(8, "one-1", 0, False), (9, "one-2", 1, True)]
)
def test_kip_814_a_leader_that_restarts_is_kept_from_assigning_again(
    version: int, leader: str, members: int, skip: bool
) -> None:
    """Older versions are told the leader's former id, so that they do not know themselves for it."""
    world = GroupWorld()
    world.stable("a", instance="one")
    back = world.joined(world.join(instance="one", version=version))
    assert (back.leader, len(back.members), back.skip_assignment) == (leader, members, skip)
    assert back.member_id == "one-2"
    assert world.joined(world.join("one-2", instance="one")).generation_id == 2, (
        "it is the leader all the same"
    )


def test_kip_345_a_static_member_that_restarts_with_another_choice_of_protocols_rebalances() -> None:
    world = GroupWorld()
    world.stable("a", instance="one", offers=protocols("range", "sticky"))
    back = world.joined(world.join(instance="one", offers=protocols("sticky", "range")))
    assert (back.generation_id, back.protocol_name) == (2, "sticky")


def test_kip_345_two_members_with_one_instance_id_the_later_counts() -> None:
    """In every phase: the former is fenced at once, also if it waits for an answer."""
    world = GroupWorld()
    former = world.join(instance="i")
    later = world.join(instance="i")
    assert world.joined(former) == JoinGroupReply(ErrorCode.fenced_instance_id, "i-1")
    world.pass_time(2 * DELAY_MS)
    assert world.joined(later).member_id == "i-2"
    other = world.join(client="b")
    world.join("i-2", instance="i")
    assert world.joined(other).generation_id == 2
    latest = world.join(instance="i")
    assert world.state() == "PreparingRebalance", "the leader may have been told of the former id"
    assert world.synced(world.sync("i-2", 2, instance="i")).error_code is ErrorCode.fenced_instance_id
    world.join("b-3")
    assert world.joined(latest).generation_id == 3
    assert world.joined(world.join("i-2", instance="i")).error_code is ErrorCode.fenced_instance_id
    assert world.commit(1, member_id="i-2", generation=3, instance="i") is ErrorCode.fenced_instance_id
    assert world.leave(("i-2", "i")) == [ErrorCode.fenced_instance_id]


def test_kip_345_a_rebalance_keeps_static_members_that_do_not_join() -> None:
    world = GroupWorld()
    first = world.join(client="a")
    world.join(client="b", instance="i")
    world.pass_time(2 * DELAY_MS)
    assert world.joined(first).error_code is ErrorCode.none
    world.settle(["a-1", "i-2"], 1)
    again = world.join("a-1")
    for _ in range(30):
        world.pass_time(1_000)
        world.heartbeat("i-2", 1, instance="i")
    reply = world.joined(again)
    assert [member.member_id for member in reply.members] == ["a-1", "i-2"]
    assert reply.members[1].group_instance_id == "i"


def test_kip_345_if_none_of_the_static_members_joins_the_wait_starts_again() -> None:
    world = GroupWorld()
    world.join(client="a", instance="i")
    world.join(client="b", instance="j")
    world.pass_time(2 * DELAY_MS)
    world.settle(["i-1", "j-2"], 1)
    world.join(client="c")
    world.leave("c-3")
    for _ in range(2 * REBALANCE_MS // 1000):
        assert world.heartbeat("i-1", 1, instance="i") is ErrorCode.rebalance_in_progress
        assert world.heartbeat("j-2", 1, instance="j") is ErrorCode.rebalance_in_progress
        world.pass_time(1_000)
    first = world.join("i-1", instance="i")
    assert not world.is_answered(first)
    world.join("j-2", instance="j")
    assert world.joined(first).generation_id == 2


def test_a_pending_id_cannot_be_joined_as_a_static_member() -> None:
    world = GroupWorld()
    world.join(version=4)
    assert world.joined(world.join("a-1", instance="i")).error_code is ErrorCode.unknown_member_id
    assert not world.is_answered(world.join("a-1"))


# ── LeaveGroup ────────────────────────────────────────────────────────────────────────────────────
def test_several_leave_at_once_each_by_the_name_it_has() -> None:
    world = GroupWorld()
    world.join(client="a", instance="i")
    world.join(client="b", instance="j")
    world.join(client="c")
    world.join(client="d")
    world.pass_time(3 * DELAY_MS)
    assert world.leave(("", "i"), ("j-2", "j"), "c-3", ("", "k"), "who-9", ("d-4", "i"), ("", None)) == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
    ]
    assert world.state() == "PreparingRebalance"
    reply = world.joined(world.join("d-4"))
    assert (reply.generation_id, reply.leader) == (2, "d-4")


def test_leaving_while_others_wait_answers_the_leaver_and_lets_them_go_on() -> None:
    world = GroupWorld()
    world.stable("a", "b")
    leaver, waiting = world.join("a-1"), world.join(client="c")
    world.join("b-2")
    assert world.is_answered(leaver)
    assert world.is_answered(waiting)
    parked = world.join(client="d")
    assert world.leave("b-2", "c-3") == [ErrorCode.none] * 2
    reply = world.joined(world.join("a-1"))
    assert world.joined(parked).generation_id == reply.generation_id == 3


def test_a_member_taken_out_while_its_join_waits_is_told() -> None:
    world = GroupWorld()
    world.stable("a", "b", instance=None)
    parked = world.join("a-1")
    assert world.leave("a-1") == [ErrorCode.none]
    assert world.joined(parked) == JoinGroupReply(ErrorCode.unknown_member_id)


def test_the_last_one_to_leave_writes_that_the_group_is_empty() -> None:
    world = GroupWorld()
    world.stable("a")
    world.leave("a-1")
    record = group_record(world)
    assert (record.generation, record.protocol, record.leader, record.members) == (2, None, None, ())
    assert record.protocol_type == "consumer"


def test_leave_of_no_member_is_an_answer_too() -> None:
    world = GroupWorld()
    world.stable("a")
    assert world.leave() == []
    assert world.state() == "Stable"


# ── E-43: who keeps a group rebalancing ──────────────────────────────────────────────────────────
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


# ── looking on ────────────────────────────────────────────────────────────────────────────────────
def test_groups_are_listed_by_state_and_type() -> None:
    world = GroupWorld()
    world.stable("a")
    world.commit(1, group="simple")
    g = ListedGroup("g", "consumer", "Stable", "classic")
    simple = ListedGroup("simple", "", "Empty", "classic")
    assert world.ask(ListGroups(), ListGroupsReply).groups == (g, simple)
    assert world.ask(ListGroups(("EMPTY", "dead")), ListGroupsReply).groups == (simple,)
    assert world.ask(ListGroups((), ("Classic",)), ListGroupsReply).groups == (g, simple)
    assert world.ask(ListGroups((), ("consumer",)), ListGroupsReply).groups == ()


def test_groups_are_described() -> None:
    world = GroupWorld()
    world.stable("a")
    group, missing = world.ask(DescribeGroups(("g", "h")), DescribeGroupsReply).groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    [member] = group.members
    assert (member.member_id, member.client_id, member.client_host) == ("a-1", "a", "/a.host")
    assert (member.member_metadata, member.member_assignment) == (RANGE[0].metadata, b"a-1")
    assert (missing.error_code, missing.group_state) == (ErrorCode.group_id_not_found, "Dead")
    assert missing.error_message == "Group h not found."
    world.join("a-1", offers=RANGE)
    assert world.describe().protocol_data == ""


def test_every_token_is_answered_once_whatever_happens() -> None:
    """The world fails when a token is answered twice; here it is counted that none is left."""
    world = GroupWorld()
    tokens: list[Token] = [world.join(client=client) for client in "abc"]
    world.pass_time(3 * DELAY_MS)
    tokens += [world.sync("b-2", 1), world.join(client="d"), world.join("a-1"), world.join("b-2")]
    world.pass_time(120_000)
    assert all(world.is_answered(token) for token in tokens)
    assert world.ask(ListGroups(), ListGroupsReply).groups[0].group_state == "Empty"
    assert world.leave("a-1") == [ErrorCode.unknown_member_id]
    assert isinstance(world.replies[Token(max(world.replies))], LeaveGroupReply)
