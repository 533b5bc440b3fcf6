"""A coordinator killed while a group of KIP-848 is in each of its states: members keep their ids and epochs.

A member is what the test says in its name. ``a`` came first; ``b`` came second, and is to have one of the two
partitions that ``a`` had.
"""

from __future__ import annotations

from typing import Any

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_cluster import NilometerCluster
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.groups.consumer_group_requests import ConsumerGroup
from support.groups.coordinator_moves import TOPIC, coordinator, kill_coordinator


def talk(side: Side, name: str) -> ConsumerGroup:
    side.leaders(TOPIC)
    return ConsumerGroup(side, name)


def first(cluster: NilometerCluster, name: str) -> ConsumerGroup:
    return talk(coordinator(cluster, f"kip-848 {name}")[1], name)


def after_a_kill(cluster: NilometerCluster, group: ConsumerGroup) -> ConsumerGroup:
    name = group.name.removeprefix("kip-848 ")
    return talk(kill_coordinator(cluster, group.name), name)


def state(group: ConsumerGroup) -> str:
    return group.describe()["groups"][0]["group_state"]


def given(answer: Any) -> list[int] | None:
    """The partitions that a heartbeat's answer assigns; None where it says nothing of them."""
    assert answer["error_code"] == "none", answer
    if answer["assignment"] is None:
        return None
    return [one for topic in answer["assignment"]["topic_partitions"] for one in topic["partitions"]]


def enter(group: ConsumerGroup, member_id: str) -> Any:
    return group.enter(member_id, TOPIC)


def epoch_of(group: ConsumerGroup, member_id: str) -> int:
    members = {one["member_id"]: one for one in group.describe()["groups"][0]["members"]}
    return members[member_id]["member_epoch"]


def two_members(cluster: NilometerCluster, name: str) -> ConsumerGroup:
    """``a`` has both partitions; ``b`` has just come, and the target gives it one of them."""
    group = first(cluster, name)
    assert given(enter(group, "a")) == [0, 1]
    assert given(enter(group, "b")) == []
    eventually(lambda: state(group) == "Reconciling", "the target is known")
    group.beat("b", epoch_of(group, "b"))
    assert epoch_of(group, "b") == epoch_of(group, "a") + 1, "b has nothing to let go of: it is in the newest"
    return group


def commit(group: ConsumerGroup, member_id: str, epoch: int, partition: int) -> str:
    return group.commit(member_id, epoch, partition, topic=TOPIC)["topics"][0]["partitions"][0]["error_code"]


def test_consumer_group_empty(groups_cluster: NilometerCluster) -> None:
    """Its epoch does not start again: a member that comes back is given a later one."""
    group = first(groups_cluster, "empty")
    before = enter(group, "a")["member_epoch"]
    assert commit(group, "a", before, 0) == "none"
    group.beat("a", -1)
    assert state(group) == "Empty"
    group = after_a_kill(groups_cluster, group)
    assert state(group) == "Empty"
    back = enter(group, "a")
    assert given(back) == [0, 1] and back["member_epoch"] > before
    assert [one["committed_offset"] for one in offsets(group, "a", back["member_epoch"])] == [7]


def offsets(group: ConsumerGroup, member_id: str, epoch: int) -> list[dict[str, Any]]:
    told = group.fetch(member_id, epoch)["groups"][0]
    assert told["error_code"] == "none", told
    return [one for topic in told["topics"] for one in topic["partitions"]]


def test_consumer_group_assigning(groups_cluster: NilometerCluster) -> None:
    """What was due is made up for by the one that takes over."""
    group = first(groups_cluster, "assigning")
    assert given(enter(group, "a")) == [0, 1]
    assert given(enter(group, "b")) == []
    assert state(group) == "Assigning", "two members within the assignment interval"
    group = after_a_kill(groups_cluster, group)
    settle(group)


def settle(group: ConsumerGroup) -> None:
    """``a`` lets go of what it is told to, ``b`` takes it, and the group is at rest."""
    eventually(lambda: given(say_all(group, "a", 0, 1)) == [0], "a hears")
    moved = group.beat("a", epoch_of(group, "a"), owned={TOPIC: [0]})
    assert moved["error_code"] == "none"
    eventually(lambda: given(say_all(group, "b")) == [1], "b is given")
    assert given(group.beat("b", epoch_of(group, "b"), owned={TOPIC: [1]})) is None
    assert state(group) == "Stable"
    assert epoch_of(group, "a") == epoch_of(group, "b") == moved["member_epoch"]


def say_all(group: ConsumerGroup, member_id: str, *owned: int) -> Any:
    """As members do towards a coordinator that is new to them: it answers with all that they are given."""
    return group.beat(
        member_id, epoch_of(group, member_id), topics=(TOPIC,), owned={TOPIC: owned}, rebalance_ms=30_000
    )


def test_consumer_group_reconciling_before_it_was_told(groups_cluster: NilometerCluster) -> None:
    group = two_members(groups_cluster, "not told")
    group = after_a_kill(groups_cluster, group)
    assert state(group) == "Reconciling"
    settle(group)


def test_consumer_group_reconciling_while_one_revokes(groups_cluster: NilometerCluster) -> None:
    """Told by the former coordinator, and not done: ``b`` is not given what ``a`` may still read."""
    group = two_members(groups_cluster, "revokes")
    before = epoch_of(group, "a")
    assert given(group.beat("a", before)) == [0]
    group = after_a_kill(groups_cluster, group)
    assert epoch_of(group, "a") == before, "its epoch waits for it to let go"
    assert given(say_all(group, "b")) == []
    assert commit(group, "a", before, 1) == "none", "what it has read until it lets go"
    settle(group)


def test_consumer_group_reconciling_while_one_waits_for_the_other(groups_cluster: NilometerCluster) -> None:
    """``b`` is in the newest epoch; what ``a`` has let go of is still free, whichever coordinator it told."""
    group = two_members(groups_cluster, "waits")
    before = epoch_of(group, "a")
    assert given(group.beat("a", before)) == [0]
    entered = group.beat("a", before, owned={TOPIC: [0]})
    assert entered["error_code"] == "none" and entered["member_epoch"] == epoch_of(group, "b")
    group = after_a_kill(groups_cluster, group)
    assert epoch_of(group, "a") == entered["member_epoch"]
    assert given(say_all(group, "b")) == [1]
    assert state(group) == "Stable"


def test_consumer_group_stable(groups_cluster: NilometerCluster) -> None:
    """No member has to start again, and no former member is let in."""
    group = two_members(groups_cluster, "stable")
    former = epoch_of(group, "a")
    settle(group)
    epoch = epoch_of(group, "a")
    group = after_a_kill(groups_cluster, group)
    assert state(group) == "Stable"
    assert group.beat("a", epoch)["error_code"] == "none"
    assert group.beat("b", epoch)["error_code"] == "none"
    assert epoch_of(group, "a") == epoch_of(group, "b") == epoch
    assert commit(group, "a", epoch, 0) == "none"
    assert commit(group, "a", former, 0) == "none", "its own since then (KIP-1251)"
    assert commit(group, "a", former, 1) == "stale_member_epoch", "the other's by now"
    assert group.beat("a", former - 1)["error_code"] == "fenced_member_epoch"


def test_consumer_group_dead(groups_cluster: NilometerCluster) -> None:
    group = first(groups_cluster, "dead")
    enter(group, "a")
    group.beat("a", -1)
    deleted = group.side.message(ApiKey.DELETE_GROUPS, 2, groups_names=(group.name,))
    assert deleted.results[0].error_code == ErrorCode.none
    group = after_a_kill(groups_cluster, group)
    assert group.describe()["groups"][0]["error_code"] == "group_id_not_found"
    assert group.listed() == []
