"""Members of a share group: they join, get partitions, change their topics, leave and time out."""

from __future__ import annotations

import pytest
from share_group_harness import SHARE_SESSION_MS, ShareWorld

from nilometer.groups.requests import (
    DescribedTopicPartitions,
    ListGroups,
    OffsetDelete,
    OffsetDeleteResult,
    OffsetFetch,
    OffsetFetchResult,
    OffsetFetchTopic,
    ShareGroupHeartbeat,
    ShareGroupHeartbeatResult,
)
from nilometer.groups.settings import GroupConfig
from nilometer.wire.errors import ErrorCode


@pytest.fixture
def shares() -> ShareWorld:
    """A shard of groups, and a topic ``t`` of four partitions."""
    world = ShareWorld()
    world.create("t", 4)
    return world


def test_a_member_gets_its_partitions_after_their_state_has_begun(
    shares: ShareWorld,
) -> None:
    shares.answers_at_once = False
    first = shares.share_beat("A", 0, "t")
    assert (first.error_code, first.member_id, first.member_epoch) == (ErrorCode.none, "A", 2)
    assert first.assignment == ()
    assert first.heartbeat_interval_ms == 200, "it is to come back soon"
    assert shares.share_beat("A", 2).member_epoch == 2, "nothing has a state yet"
    shares.answer_state()
    reply = shares.share_beat("A", 2)
    assert (reply.member_epoch, reply.heartbeat_interval_ms) == (3, 5_000)
    assert shares.names(reply.assignment or ()) == {"t": [0, 1, 2, 3]}
    again = shares.share_beat("A", 3)
    assert (again.member_epoch, again.assignment) == (3, None), "unchanged"
    assert not shares.written


def test_members_divide_the_partitions_and_share_them_if_there_are_too_few(shares: ShareWorld) -> None:
    members = [shares.share_member(name) for name in "AB"]
    shares.share_settle(*members)
    assert sorted(partition for member in members for partition in member.assigned["t"]) == [0, 1, 2, 3]
    assert {len(member.assigned["t"]) for member in members} == {2}
    members += [shares.share_member(name) for name in "CDEF"]
    shares.share_settle(*members)
    held = sorted(partition for member in members for partition in member.assigned["t"])
    assert held == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {len(member.assigned["t"]) for member in members} == {1, 2}


def test_those_that_stay_take_over_from_one_that_leaves(shares: ShareWorld) -> None:
    a, b = shares.share_member("A"), shares.share_member("B")
    shares.share_settle(a, b)
    assert a.leave() is ErrorCode.none
    shares.share_settle(b)
    assert b.assigned == {"t": [0, 1, 2, 3]}
    assert b.leave() is ErrorCode.none
    assert shares.share_group().state == "Empty"
    assert shares.share_group().assignment_epoch == shares.share_group().group_epoch
    assert not shares.share_group().target


def test_a_member_without_heartbeats_is_removed_after_its_session(shares: ShareWorld) -> None:
    a, b = shares.share_member("A"), shares.share_member("B")
    shares.pass_time(SHARE_SESSION_MS - 1)
    assert b.step() is ErrorCode.none
    shares.pass_time(1)
    assert set(shares.share_group().members) == {"B"}
    assert a.step() is ErrorCode.unknown_member_id


def test_sessions_go_on_with_the_next_coordinator(shares: ShareWorld) -> None:
    shares.share_member("A")
    shares.pass_time(SHARE_SESSION_MS - 1)
    shares.fail_over()
    shares.pass_time(SHARE_SESSION_MS - 1)
    assert set(shares.share_group().members) == {"A"}
    shares.pass_time(1)
    assert not shares.share_group().members


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        ("A", 99, ErrorCode.fenced_member_epoch),
        ("A", 1, ErrorCode.fenced_member_epoch),
        ("B", 1, ErrorCode.unknown_member_id),
        ("B", -1, ErrorCode.unknown_member_id),
    ],
)
def test_epochs_and_members_that_are_not_known_are_rejected(
    shares: ShareWorld, member_id: str, epoch: int, error: ErrorCode
) -> None:
    a = shares.share_member("A")
    shares.share_settle(a)
    assert a.epoch == 3
    assert shares.share_beat(member_id, epoch).error_code is error
    assert not shares.written


def test_a_lost_reply_is_repeated_for_the_previous_epoch(shares: ShareWorld) -> None:
    a = shares.share_member("A")
    assert a.step(loses_reply=True) is ErrorCode.none
    assert shares.share_group().members["A"].member_epoch == a.epoch + 1
    assert a.step() is ErrorCode.none
    assert a.assigned == {"t": [0, 1, 2, 3]}


def test_a_member_may_join_again_with_epoch_0(shares: ShareWorld) -> None:
    a = shares.share_member("A")
    shares.share_settle(a)
    reply = shares.share_beat("A", 0, "t")
    assert (reply.member_epoch, shares.names(reply.assignment or ())) == (a.epoch, {"t": [0, 1, 2, 3]})


@pytest.mark.parametrize("epoch", [1, -1])
def test_only_a_member_that_joins_creates_the_group(shares: ShareWorld, epoch: int) -> None:
    assert shares.share_beat("A", epoch).error_code is ErrorCode.group_id_not_found
    assert not shares.shard.groups()


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (ShareGroupHeartbeat("g", "", 0, None, ("t",)), "Invalid member id"),
        (ShareGroupHeartbeat("g", "m" * 37, 0, None, ("t",)), "Invalid member id"),
        (ShareGroupHeartbeat("g", " ", 0, None, ("t",)), "MemberId can't be empty"),
        (ShareGroupHeartbeat(" ", "A", 0, None, ("t",)), "GroupId can't be empty"),
        (ShareGroupHeartbeat("g", "A", 0, "", ("t",)), "RackId can't be empty"),
        (ShareGroupHeartbeat("g", "A", 0, None, ()), "SubscribedTopicNames must be set"),
        (ShareGroupHeartbeat("g", "A", 0), "SubscribedTopicNames must be set"),
        (ShareGroupHeartbeat("g", "A", -2), "MemberEpoch is invalid"),
    ],
)
def test_invalid_heartbeats_are_rejected(
    shares: ShareWorld, request_: ShareGroupHeartbeat, says: str
) -> None:
    reply = shares.ask(request_, ShareGroupHeartbeatResult)
    assert reply.error_code is ErrorCode.invalid_request
    assert says in (reply.error_message or "")
    assert not shares.shard.groups()


def test_a_full_group_takes_no_more_members(shares: ShareWorld) -> None:
    shares = ShareWorld(config=GroupConfig(group_share_max_size=1))
    shares.create("t", 4)
    a = shares.share_member("A")
    assert shares.share_beat("B", 0, "t").error_code is ErrorCode.group_max_size_reached
    assert a.step() is ErrorCode.none
    assert a.leave() is ErrorCode.none
    assert shares.share_beat("B", 0, "t").error_code is ErrorCode.none


def test_members_that_subscribe_to_different_topics_divide_each_topic(shares: ShareWorld) -> None:
    shares.create("u", 2)
    a, b = shares.share_member("A", "t"), shares.share_member("B", "t", "u")
    shares.share_settle(a, b)
    assert sorted(a.assigned["t"] + b.assigned["t"]) == [0, 1, 2, 3]
    assert b.assigned["u"] == [0, 1]
    b.subscribe("u")
    assert "t" not in b.assigned, "at once"
    shares.share_settle(a, b)
    assert (a.assigned, b.assigned) == ({"t": [0, 1, 2, 3]}, {"u": [0, 1]})


def test_a_topic_that_does_not_exist_yet_is_assigned_when_it_does(shares: ShareWorld) -> None:
    a = shares.share_member("A", "later")
    shares.share_settle(a)
    assert a.assigned == {}
    shares.create("later", 1)
    shares.share_settle(a)
    assert a.assigned == {"later": [0]}


def test_target_assignments_keep_their_distance_in_time() -> None:
    shares = ShareWorld(config=GroupConfig(group_share_assignment_interval_ms=1_000))
    shares.create("t", 4)
    a = shares.share_member("A")
    a.step()
    assert a.assigned == {"t": [0, 1, 2, 3]}, "the first one does not wait"
    shares.pass_time(300)
    b = shares.share_member("B")
    assert (b.assigned, b.last.heartbeat_interval_ms) == ({}, 700)
    shares.pass_time(699)
    b.step()
    assert b.assigned == {}
    shares.pass_time(1)
    b.step()
    assert len(b.assigned["t"]) == 2


def test_a_topic_that_a_member_gives_up_does_not_wait_for_the_next_target() -> None:
    shares = ShareWorld(config=GroupConfig(group_share_assignment_interval_ms=1_000))
    for name in ("t", "u"):
        shares.create(name, 2)
    a = shares.share_member("A", "t", "u")
    shares.share_settle(a)
    shares.share_member("B", "u")
    a.step()
    shares.pass_time(300)
    a.subscribe("t")
    assert shares.share_group().assignment_epoch < shares.share_group().group_epoch, "it has to wait"
    assert a.assigned == {"t": [0, 1]}


def test_a_computed_assignment_is_for_those_that_are_still_there(shares: ShareWorld) -> None:
    shares.create("wide", 1_500)
    members = [shares.share_member(name, "wide") for name in "AB"]
    while shares.needed:
        shares.compute()
    shares.share_settle(*members)
    members.append(shares.share_member("C", "wide"))
    assert shares.needed
    members.pop().leave()
    shares.compute()
    assert set(shares.share_group().target) == {"A", "B"}
    shares.share_settle(*members)
    shares.share_member("C", "wide")
    assert shares.needed
    for member_id in "ABC":
        assert shares.share_beat(member_id, -1).error_code is ErrorCode.none
    shares.compute()
    group = shares.share_group()
    assert (group.target, group.assignment_epoch) == ({}, group.group_epoch)
    assert not shares.written


def test_a_large_assignment_is_computed_outside(shares: ShareWorld) -> None:
    shares.create("wide", 1_500)
    a = shares.share_member("A", "wide")
    a.step()
    assert (shares.share_group().assigning_epoch, a.last.heartbeat_interval_ms) == (3, 1_000)
    b = shares.share_member("B", "wide")
    shares.compute()
    assert shares.share_group().assignment_epoch == 3
    a.step()
    shares.compute()
    shares.share_settle(a, b)
    assert sorted(a.assigned["wide"] + b.assigned["wide"]) == list(range(1_500))


def test_groups_are_listed_and_described(shares: ShareWorld) -> None:
    a = shares.share_member("A")
    shares.share_beat("A", a.epoch, rack="r")
    [listed] = shares.listed(ListGroups(types_filter=frozenset({"share"})))
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
        "g",
        "share",
        "Stable",
        "share",
    )
    assert not shares.listed(ListGroups(states_filter=frozenset({"empty"})))
    described = shares.describe_share()
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Stable", 3, 3)
    assert described.assignor_name == "simple"
    [member] = described.members
    assert (member.member_id, member.rack_id, member.member_epoch, member.client_host) == (
        "A",
        "r",
        3,
        "/c.host",
    )
    assert member.subscribed_topic_names == ("t",)
    partitions = DescribedTopicPartitions(shares.topics.id_of("t"), "t", (0, 1, 2, 3))
    assert member.assignment == (partitions,)
    assert shares.describe_share("h").error_code is ErrorCode.group_id_not_found
    assert shares.describe().error_code is ErrorCode.group_id_not_found, "by DescribeGroups"
    assert shares.describe().group_state == "Dead"
    shares.enter("A", "t", group="consumers")
    assert shares.describe_share("consumers").error_message == "Group consumers is not a share group."


def test_requests_of_other_kinds_of_groups_are_rejected(shares: ShareWorld) -> None:
    shares.share_member("A")
    assert shares.joined(shares.join()).error_code is ErrorCode.inconsistent_group_protocol
    assert shares.heartbeat("A", 2) is ErrorCode.unknown_member_id
    assert shares.synced(shares.sync("A", 2)).error_code is ErrorCode.unknown_member_id
    assert shares.leave("A") == [ErrorCode.unknown_member_id]
    assert shares.enter("B", "t").error_code is ErrorCode.group_id_not_found
    assert shares.beat("A", 2).error_code is ErrorCode.group_id_not_found
    assert shares.describe_consumer().error_code is ErrorCode.group_id_not_found
    assert set(shares.share_group().members) == {"A"}
    shares.enter("A", "t", group="consumers")
    shares.join(group="classic")
    shares.commit(1, group="simple")
    for group in ("consumers", "classic", "simple"):
        assert shares.share_beat("A", 0, "t", group=group).error_code is ErrorCode.group_id_not_found


def test_share_groups_have_no_offsets(shares: ShareWorld) -> None:
    a = shares.share_member("A")
    assert shares.commit(7) is ErrorCode.group_id_not_found
    assert shares.commit(7, knows_member_epochs=False) is ErrorCode.group_id_not_found
    assert shares.commit(7, member_id="A", generation=a.epoch) is ErrorCode.group_id_not_found
    fetched = shares.ask(OffsetFetch("g", (OffsetFetchTopic("t", (0,)),)), OffsetFetchResult)
    assert fetched.error_code is ErrorCode.none
    assert fetched.topics[0].partitions[0].committed_offset == -1
    assert shares.ask(OffsetDelete("g", ()), OffsetDeleteResult).error_code is ErrorCode.group_id_not_found


def test_an_empty_share_group_does_not_expire(shares: ShareWorld) -> None:
    assert shares.share_member("A").leave() is ErrorCode.none
    shares.pass_time(30 * 24 * 3_600_000)
    assert shares.has_group()


def test_a_group_with_settings_of_its_own_goes_by_them(shares: ShareWorld) -> None:
    a = shares.share_member("A")
    shares.topics.configure("g", "share.session.timeout.ms", "50000")
    shares.topics.configure("g", "share.heartbeat.interval.ms", "6000")
    shares.topics.configure("g", "consumer.heartbeat.interval.ms", "7000")
    shares.share_settle(a)
    assert a.last.heartbeat_interval_ms == 6_000
    shares.pass_time(49_999)
    assert set(shares.share_group().members) == {"A"}
    shares.pass_time(1)
    assert not shares.share_group().members
