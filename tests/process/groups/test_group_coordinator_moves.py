"""A coordinator killed while its group is in each of its states: another loads the group, and it goes on.

The member is a connection that says what the test has it say, so that every state can be held at will.
"""

from __future__ import annotations

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_cluster import NilometerCluster
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.groups.coordinator_moves import commit, committed, coordinator, kill_coordinator, state_of
from support.groups.group_requests import Member, fetch_fields


@pytest.fixture
def cluster(groups_cluster: NilometerCluster) -> NilometerCluster:
    return groups_cluster


def moved(member: Member, side: Side) -> Member:
    """The same member, talking to the new coordinator."""
    same = Member(side, member.group, member.name, member.instance_id)
    same.id, same.generation = member.id, member.generation
    side.aliases[member.id] = member.name
    return same


def test_empty(cluster: NilometerCluster) -> None:
    _, side = coordinator(cluster, "empty")
    commit(side, "empty", {0: 10, 1: 20})
    side = kill_coordinator(cluster, "empty")
    assert committed(side, "empty") == {0: 10, 1: 20}
    assert state_of(side, "empty") == "Empty"


def test_stable(cluster: NilometerCluster) -> None:
    """The member keeps its generation, and commits on."""
    _, side = coordinator(cluster, "stable")
    member = Member(side, "stable", "one")
    member.join()
    member.sync({member.id: b"everything"})
    commit(side, "stable", {0: 5}, member)
    side = kill_coordinator(cluster, "stable")
    member = moved(member, side)
    assert state_of(side, "stable") == "Stable"
    assert member.heartbeat_message().error_code == ErrorCode.none
    assert member.sync()["assignment"] == b"everything"
    assert committed(side, "stable") == {0: 5, 1: -1}
    commit(side, "stable", {0: 6}, member)


def test_preparing_rebalance(cluster: NilometerCluster) -> None:
    """A member that waited joins again; the present member is notified as before."""
    _, side = coordinator(cluster, "preparing")
    one, other = Member(side, "preparing", "one"), Member(side, "preparing", "other")
    one.join()
    one.sync({one.id: b"everything"})
    other.ask_to_join()
    eventually(lambda: state_of(side, "preparing") == "PreparingRebalance", "a rebalance")
    side = kill_coordinator(cluster, "preparing")
    one, other = moved(one, side), Member(side, "preparing", "other")
    assert one.heartbeat_message().error_code == ErrorCode.none
    other.ask_to_join()
    eventually(
        lambda: one.heartbeat_message().error_code == ErrorCode.rebalance_in_progress, "a rebalance here too"
    )
    one.join()
    other.hear_joined()
    other.ask_to_sync()
    one.sync({one.id: b"half", other.id: b"other half"})
    assert other.hear_synced()["assignment"] == b"other half"


def test_completing_rebalance(cluster: NilometerCluster) -> None:
    """A generation that was never synced is not known any more: its members join again."""
    _, side = coordinator(cluster, "completing")
    member = Member(side, "completing", "one")
    member.join()
    assert state_of(side, "completing") == "CompletingRebalance"
    side = kill_coordinator(cluster, "completing")
    member = moved(member, side)
    assert member.sync({member.id: b"everything"})["error_code"] == "unknown_member_id"
    member.id = ""
    assert member.join()["error_code"] == "none"
    assert member.sync({member.id: b"everything"})["assignment"] == b"everything"
    assert state_of(side, "completing") == "Stable"


def test_dead(cluster: NilometerCluster) -> None:
    """What was deleted stays so."""
    _, side = coordinator(cluster, "dead")
    commit(side, "dead", {0: 10})
    deleted = side.message(ApiKey.DELETE_GROUPS, 2, groups_names=("dead",))
    assert deleted.results[0].error_code == ErrorCode.none
    side = kill_coordinator(cluster, "dead")
    assert committed(side, "dead") == {0: -1, 1: -1}
    assert state_of(side, "dead") == "Dead"


def test_a_waiting_join_is_answered_when_the_coordinator_stops(cluster: NilometerCluster) -> None:
    broker_id, side = coordinator(cluster, "waiting")
    one, other = Member(side, "waiting", "one"), Member(side, "waiting", "other")
    one.join()
    one.sync({one.id: b"everything"})
    other.ask_to_join()
    eventually(lambda: state_of(side, "waiting") == "PreparingRebalance", "a rebalance")
    assert cluster.stop(broker_id) == 0
    assert other.hear_joined()["error_code"] == "not_coordinator"


def test_a_broker_that_is_not_the_coordinator_says_so(cluster: NilometerCluster) -> None:
    broker_id, _ = coordinator(cluster, "elsewhere")
    other = next(one for one in cluster.running if one != broker_id)
    side = Side("another", cluster.brokers[other].bootstrap)
    answer = side.message(ApiKey.OFFSET_FETCH, 7, **fetch_fields(7, {"elsewhere": {"read": (0,)}}))
    assert answer.error_code == ErrorCode.not_coordinator
    listed = side.message(ApiKey.LIST_GROUPS, 5)
    assert (listed.error_code, listed.groups) == (ErrorCode.none, ())
    side.hang_up()
