"""Who is let into a classic group, under which name and with which protocol."""

from __future__ import annotations

import pytest
from group_harness import (
    DELAY_MS,
    RANGE,
    SESSION_MS,
    GroupWorld,
    group_record,
    protocols,
)

from nilometer.coordinators import Token
from nilometer.groups import classic_groups
from nilometer.groups.requests import (
    DeleteGroups,
    DeleteGroupsResult,
    JoinGroupProtocol,
    JoinGroupResult,
    LeaveGroupResult,
    ListGroups,
    SyncGroupResult,
)
from nilometer.groups.settings import GroupConfig
from nilometer.wire.errors import ErrorCode
from support.calls import counted_calls


def test_kip_394_a_member_is_given_an_id_and_joins_with_it() -> None:
    world = GroupWorld()
    refused = world.joined(world.join(version=4))
    assert refused == JoinGroupResult(ErrorCode.member_id_required, "a-1")
    assert group_record(world).members == ()
    again = world.join("a-1", version=4)
    world.pass_time(DELAY_MS)
    assert world.joined(again).member_id == "a-1"
    assert world.joined(again).generation_id == 1


def test_what_members_hold_is_known_without_a_look_at_them() -> None:
    """Each that joins asks, whatever its group."""
    world = GroupWorld()
    with counted_calls() as calls:
        world.join(version=4)
    of_first = calls[0]
    for number in range(1, 300):
        world.join(version=4)
        world.join(group=f"g{number}")
    with counted_calls() as calls:
        world.join(version=4)
        held = world.shard.metadata_bytes()
    assert calls[0] < of_first + 100
    for number in range(1, 301):
        world.leave(f"a-{2 * number - 1}", f"a-{2 * number}")
        world.leave(f"a-{2 * number + 1}", group=f"g{number}")
        world.check_held_bytes()
    assert held > world.shard.metadata_bytes() == 0


def test_timers_of_thousands_that_have_not_joined_a_deleted_group_are_cancelled_in_several_calls() -> None:
    world, count = GroupWorld(), 4 * classic_groups.CANCELLED_AT_ONCE
    for _ in range(count):
        world.join(version=4)
    deadlines = world.shard._state.timers._deadlines
    others = len(deadlines) - count
    assert world.ask(DeleteGroups(("g",)), DeleteGroupsResult).results[0].error_code is ErrorCode.none
    left = [len(deadlines) - others]
    while (due_ms := world.shard.next_deadline_ms()) is not None and due_ms < SESSION_MS:
        world.now_ms = due_ms
        world.on_time()
        left.append(len(deadlines) - others)
    assert left == [3 * count // 4 + 1, count // 2 + 1, count // 4 + 1, 1, 0]


def test_kip_394_a_group_gives_a_bounded_number_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the group does not count them, as in Kafka."""
    monkeypatch.setattr(classic_groups, "PENDING_MAX", 3)
    world = GroupWorld(GroupConfig(group_max_size=1))
    given = [world.joined(world.join(version=4)) for _ in range(4)]
    assert [one.error_code for one in given] == [
        *[ErrorCode.member_id_required] * 3,
        ErrorCode.group_max_size_reached,
    ]
    assert given[3].member_id == ""
    joins = world.join("a-1", version=4)
    world.pass_time(SESSION_MS)
    assert world.joined(joins).error_code is ErrorCode.none
    assert world.leave("a-1") == [ErrorCode.none]
    assert world.joined(world.join(version=4)).error_code is ErrorCode.member_id_required


def test_what_the_members_of_a_deleted_group_held_is_no_longer_counted() -> None:
    world = GroupWorld()
    world.join(version=4)
    assert world.shard.metadata_bytes() > 0
    world.ask(DeleteGroups(("g",)), DeleteGroupsResult)
    assert world.shard.metadata_bytes() == 0


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
    assert world.joined(new) == JoinGroupResult(ErrorCode.unknown_member_id)
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
    assert world.synced(leader) == SyncGroupResult(ErrorCode.none, "consumer", "range", b"both")
    assert world.synced(follower) == SyncGroupResult(ErrorCode.none, "consumer", "range", b"")
    record = group_record(world)
    assert (record.generation, record.protocol, record.leader) == (1, "range", "a-1")
    assert record.current_state_timestamp == world.wall_ms
    assert [(each.member_id, each.assignment) for each in record.members] == [("a-1", b"both"), ("b-2", b"")]
    assert record.members[1].client_host == "/b.host"


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
        ("a-1", 0, "g", ErrorCode.illegal_generation),
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


def test_every_token_is_answered_once_whatever_happens() -> None:
    """The world fails when a token is answered twice; here it is counted that none is left."""
    world = GroupWorld()
    tokens: list[Token] = [world.join(client=client) for client in "abc"]
    world.pass_time(3 * DELAY_MS)
    tokens += [world.sync("b-2", 1), world.join(client="d"), world.join("a-1"), world.join("b-2")]
    world.pass_time(120_000)
    assert all(world.is_answered(token) for token in tokens)
    assert world.listed(ListGroups())[0].group_state == "Empty"
    assert world.leave("a-1") == [ErrorCode.unknown_member_id]
    assert isinstance(world.replies[Token(max(world.replies))], LeaveGroupResult)


def test_what_members_have_sent_and_are_assigned_must_fit_in_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in Kafka, where the record must fit in its topic. A request of a hundred bytes writes it again."""
    monkeypatch.setattr(classic_groups, "RECORD_BYTES_MAX", 50)
    world = GroupWorld()
    offers = (JoinGroupProtocol("range", bytes(20)), JoinGroupProtocol("other", bytes(1_000)))
    token = world.join(offers=offers)
    world.pass_time(DELAY_MS)
    member_id = world.joined(token).member_id
    refused = world.synced(world.sync(member_id, 1, {member_id: bytes(31)}))
    assert refused == SyncGroupResult(ErrorCode.unknown_server_error) and not world.written
    assert world.synced(world.sync(member_id, 1, {member_id: bytes(30)})).error_code is ErrorCode.none
    assert len(group_record(world).members) == 1
