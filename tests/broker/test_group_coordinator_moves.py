"""A coordinator killed while its group is in each of its states: another loads the group, and it goes on.

The member is a connection that says what the test has it say, so that every state can be held at will.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.eventually import eventually
from support.group_talk import Member, commit_fields, fetch_fields, wait_for_coordinator
from support.nilometer_cluster import NilometerCluster
from support.two_brokers import Side
from support.wire_peer import WirePeer

OFFSETS_TOPIC = "__consumer_offsets"
TOPIC = "read"
AWAY = (ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress)


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    overrides = {
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "100",
    }
    with NilometerCluster(tmp_path_factory.mktemp("moves"), overrides=overrides) as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        with WirePeer(cluster.brokers[1].bootstrap) as peer:
            peer.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=("any",))
        yield cluster
        assert "Traceback" not in cluster.output()


@pytest.fixture
def cluster(_cluster: NilometerCluster) -> NilometerCluster:
    """All brokers up, and all replicas of the groups' log in sync."""
    if len(_cluster.running) < len(_cluster.brokers):
        _cluster.start()
    _cluster.wait_full_isr(OFFSETS_TOPIC)
    return _cluster


def coordinator(cluster: NilometerCluster, group: str, *, other_than: int | None = None) -> tuple[int, Side]:
    broker_id = cluster.wait_leader(OFFSETS_TOPIC, 0, other_than=other_than)
    side = Side(f"broker {broker_id}", cluster.brokers[broker_id].bootstrap)
    wait_for_coordinator(side, group)
    return broker_id, side


def kill_coordinator(cluster: NilometerCluster, group: str) -> Side:
    """The one that came after it."""
    broker_id = cluster.wait_leader(OFFSETS_TOPIC, 0)
    cluster.kill(broker_id)
    return coordinator(cluster, group, other_than=broker_id)[1]


def moved(member: Member, side: Side) -> Member:
    """The same member, talking to the new coordinator."""
    same = Member(side, member.group, member.name, member.instance_id)
    same.id, same.generation = member.id, member.generation
    side.aliases[member.id] = member.name
    return same


def committed(side: Side, group: str) -> dict[int, int]:
    answer = side.message(ApiKey.OFFSET_FETCH, 7, **fetch_fields(7, {group: {TOPIC: (0, 1)}}, stable=True))
    assert answer.error_code == ErrorCode.none, answer
    return {one.partition_index: one.committed_offset for one in answer.topics[0].partitions}


def commit(side: Side, group: str, offsets: dict[int, int], member: Member | None = None) -> None:
    whose = {} if member is None else {"member_id": member.id, "generation": member.generation}
    answer = side.message(ApiKey.OFFSET_COMMIT, 8, **commit_fields(8, group, TOPIC, offsets, **whose))
    errors = {one.error_code for topic in answer.topics for one in topic.partitions}
    assert errors == {ErrorCode.none}, errors


def state_of(side: Side, group: str) -> str:
    answer = side.message(ApiKey.DESCRIBE_GROUPS, 5, groups=(group,), include_authorized_operations=False)
    return answer.groups[0].group_state


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
    """Whoever waited joins again; the present member is told of it as before."""
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
    answer = side.message(ApiKey.OFFSET_FETCH, 7, **fetch_fields(7, {"elsewhere": {TOPIC: (0,)}}))
    assert answer.error_code == ErrorCode.not_coordinator
    listed = side.message(ApiKey.LIST_GROUPS, 5)
    assert (listed.error_code, listed.groups) == (ErrorCode.none, ())
    side.hang_up()
