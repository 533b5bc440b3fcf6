"""Members of a consumer group: joining, reconciling, being fenced, coming back."""

from __future__ import annotations

from uuid import UUID

import pytest
from consumer_group_harness import CONSUMER_SESSION_MS, ConsumerWorld, no_wait_config

from nilometer.groups.consumer.group import MemberState
from nilometer.groups.requests import ConsumerGroupHeartbeat, ConsumerGroupHeartbeatResult, TopicPartitions
from nilometer.wire.errors import ErrorCode


def test_the_first_member_gets_everything_at_once(world: ConsumerWorld) -> None:
    reply = world.enter("A", "t")
    assert (reply.error_code, reply.member_id, reply.member_epoch) == (ErrorCode.none, "A", 2)
    assert reply.heartbeat_interval_ms == 5_000
    assert world.names(reply.assignment or ()) == {"t": [0, 1, 2, 3]}
    assert world.consumer_group().state == "Stable"
    assert world.of("A").state is MemberState.STABLE


def test_a_second_member_is_given_nothing_before_the_first_let_go(world: ConsumerWorld) -> None:
    world.enter("A", "t")
    reply = world.enter("B", "t")
    assert reply.member_epoch == 3 and reply.assignment == ()
    assert world.of("B").state is MemberState.UNRELEASED_PARTITIONS
    assert world.target("A") == {"t": [0, 1]} and world.target("B") == {"t": [2, 3]}

    # A is told to revoke; its epoch waits until it says that it did.
    reply = world.beat("A", 2)
    assert reply.member_epoch == 2 and world.names(reply.assignment or ()) == {"t": [0, 1]}
    assert world.of("A").state is MemberState.UNREVOKED_PARTITIONS
    assert world.beat("B", 3).assignment is None

    # While it claims anything of it, or says nothing of what it owns, nothing moves.
    assert world.beat("A", 2).member_epoch == 2
    assert world.beat("A", 2, owned={"t": [0, 1, 3]}).member_epoch == 2
    assert world.beat("B", 3).assignment is None

    reply = world.beat("A", 2, owned={"t": [0, 1]})
    assert reply.member_epoch == 3 and reply.assignment is None
    assert world.of("A").state is MemberState.STABLE
    reply = world.beat("B", 3)
    assert world.names(reply.assignment or ()) == {"t": [2, 3]}
    assert world.consumer_group().state == "Stable"


def test_the_ids_of_topics_that_a_member_claims_are_not_compared_each_with_all(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may choose ids with one hash."""
    world.enter("A", "t")
    ids = [UUID(int=5 + (2**61 - 1) * number) for number in range(300)]
    compared, equal = 0, UUID.__eq__

    def counted(one: UUID, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(one, other)

    monkeypatch.setattr(UUID, "__eq__", counted)
    claimed = tuple(TopicPartitions(one, (0,)) for one in ids)
    reply = world.ask(
        ConsumerGroupHeartbeat("g", "A", 2, topic_partitions=claimed), ConsumerGroupHeartbeatResult
    )
    assert reply.error_code == ErrorCode.none
    assert compared < len(ids)


def test_a_member_may_say_at_once_that_it_does_not_own_what_it_is_to_revoke(world: ConsumerWorld) -> None:
    world.enter("A", "t")
    world.enter("B", "t")
    reply = world.beat("A", 2, owned={"t": [0]})
    assert reply.member_epoch == 3 and world.of("A").state is MemberState.STABLE


def test_a_newer_target_while_revoking_is_met_from_there(world: ConsumerWorld) -> None:
    world.enter("A", "t")
    world.enter("B", "t")
    world.beat("A", 2)
    assert world.of("A").pending_revocation == {world.topics.id_of("t"): {2: 2, 3: 2}}
    world.enter("C", "t")
    world.enter("D", "t")
    reply = world.beat("A", 2, owned={"t": [0, 1]})
    assert reply.member_epoch == 2
    assert world.of("A").state is MemberState.UNREVOKED_PARTITIONS, "one more to revoke"
    assert world.names(reply.assignment or ()) == {"t": [0]}
    assert world.beat("A", 2, owned={"t": [0]}).member_epoch == 5
    assert sorted(partition for _, partition in _settled(world, "B", "C", "D")) == [1, 2, 3]


def _settled(world: ConsumerWorld, *member_ids: str) -> set[tuple[str, int]]:
    owned: set[tuple[str, int]] = set()
    for member_id in member_ids:
        member = world.of(member_id)
        world.beat(member_id, member.member_epoch, owned={})
        for topic_id, partitions in world.of(member_id).assigned.items():
            owned |= {(world.topics.name_of(topic_id), partition) for partition in partitions}
    return owned


def test_a_lost_reply_is_made_up_for_with_the_epoch_before(world: ConsumerWorld) -> None:
    world.enter("A", "t")
    world.enter("B", "t")
    world.beat("A", 2)
    assert world.beat("A", 2, owned={"t": [0, 1]}).member_epoch == 3
    # That reply got lost: the member comes with 2 again, and is told all it missed.
    reply = world.beat("A", 2, owned={"t": [0, 1]})
    assert (reply.error_code, reply.member_epoch) == (ErrorCode.none, 3)
    assert world.names(reply.assignment or ()) == {"t": [0, 1]}
    # But not if it claims what is another's by now, and not without saying what it owns.
    world.beat("B", 3)
    assert world.beat("A", 2, owned={"t": [0, 1, 2]}).error_code is ErrorCode.fenced_member_epoch
    assert world.beat("A", 2).error_code is ErrorCode.fenced_member_epoch


@pytest.mark.parametrize("epoch", [0x7FFFFFFF, 4, 1])
def test_an_epoch_from_nowhere_is_fenced(world: ConsumerWorld, epoch: int) -> None:
    world.enter("A", "t")
    reply = world.beat("A", epoch, owned={})
    assert reply.error_code is ErrorCode.fenced_member_epoch
    assert reply.error_message and "must abandon all its partitions" in reply.error_message
    assert not world.written, "and nothing happens to the group"
    assert world.of("A").member_epoch == 2


def test_a_fenced_member_starts_again_under_its_id(world: ConsumerWorld) -> None:
    world.enter("A", "t")
    world.enter("B", "t")
    world.beat("A", 2)
    reply = world.enter("A", "t")
    assert reply.error_code is ErrorCode.none and reply.member_epoch == 3
    assert world.names(reply.assignment or ()) == {"t": [0, 1]}, "it let go of the rest by claiming nothing"
    assert world.consumer_group().group_epoch == 3, "its subscription is what it was"


def test_who_is_not_known_is_told_so(world: ConsumerWorld) -> None:
    assert world.beat("A", 2).error_code is ErrorCode.group_id_not_found
    assert world.beat("A", -1).error_code is ErrorCode.group_id_not_found
    world.enter("A", "t")
    assert world.beat("B", 2).error_code is ErrorCode.unknown_member_id
    assert world.beat("B", -1).error_code is ErrorCode.unknown_member_id
    assert world.beat("B", 2, instance="one").error_code is ErrorCode.unknown_member_id
    assert world.beat("B", -2, instance="one").error_code is ErrorCode.unknown_member_id


def test_the_partitions_of_a_leaver_go_to_the_others(world: ConsumerWorld) -> None:
    a, b = world.consumer("A"), world.consumer("B")
    world.settle_all(a, b)
    assert b.leave() is ErrorCode.none
    reply = a.step()
    assert reply.member_epoch == 4 and len(a.owned) == 4
    assert a.leave() is ErrorCode.none
    group = world.consumer_group()
    assert (group.state, group.members, group.target, group.group_epoch) == ("Empty", {}, {}, 5)


def test_a_member_that_is_not_heard_of_is_removed_with_its_session(world: ConsumerWorld) -> None:
    world.enter("A", "t")
    world.enter("B", "t")
    world.pass_time(CONSUMER_SESSION_MS - 1)
    world.beat("B", 3)
    assert set(world.consumer_group().members) == {"A", "B"}
    world.pass_time(1)
    assert set(world.consumer_group().members) == {"B"}
    assert world.beat("A", 2).error_code is ErrorCode.unknown_member_id
    assert world.names(world.beat("B", 3).assignment or ()) == {"t": [0, 1, 2, 3]}


def test_a_member_that_does_not_revoke_is_removed_after_its_rebalance_timeout(world: ConsumerWorld) -> None:
    world.enter("A", "t", rebalance_ms=20_000)
    world.enter("B", "t")
    world.beat("A", 2)
    for _ in range(3):
        world.pass_time(5_000)
        assert world.beat("A", 2).error_code is ErrorCode.none, "it runs, but it does not revoke"
        world.beat("B", world.of("B").member_epoch)
    world.pass_time(4_999)
    assert "A" in world.consumer_group().members
    world.pass_time(1)
    assert "A" not in world.consumer_group().members
    assert world.names(world.beat("B", world.of("B").member_epoch).assignment or ()) == {"t": [0, 1, 2, 3]}


def test_revoking_in_time_calls_the_rebalance_timeout_off(world: ConsumerWorld) -> None:
    world.enter("A", "t", rebalance_ms=5_000)
    world.enter("B", "t")
    world.beat("A", 2)
    world.pass_time(4_999)
    world.beat("A", 2, owned={"t": [0, 1]})
    world.pass_time(30_000)
    assert "A" in world.consumer_group().members


def test_a_changed_subscription_raises_the_epoch(world: ConsumerWorld) -> None:
    world.create("u", 2)
    world.enter("A", "t")
    reply = world.beat("A", 2, topics=["t", "u"])
    assert reply.member_epoch == 3
    assert world.names(reply.assignment or ()) == {"t": [0, 1, 2, 3], "u": [0, 1]}
    reply = world.beat("A", 3, topics=["u"])
    assert world.names(reply.assignment or ()) == {"u": [0, 1]} and reply.member_epoch == 3
    assert world.beat("A", 3, owned={"u": [0, 1]}).member_epoch == 4
    # Saying the same again changes nothing, whatever the order.
    assert world.beat("A", 4, topics=["u", "u"]).member_epoch == 4
    assert not world.written


def test_topics_that_come_and_go_raise_the_epoch(world: ConsumerWorld) -> None:
    a = world.consumer("A", "t", "later")
    assert a.owned == {("t", partition) for partition in range(4)}
    world.create("unrelated", 3)
    assert a.step().member_epoch == 2
    world.create("later", 1)
    assert a.step().member_epoch == 3 and ("later", 0) in a.owned
    world.grow("later", 2)
    assert a.step().member_epoch == 4 and ("later", 1) in a.owned
    world.delete("later")
    world.settle_all(a)
    assert a.epoch == 5 and a.owned == {("t", partition) for partition in range(4)}
    assert not world.consumer_group().is_owned(world.topics.id_of("t"), 9)


def test_a_topic_created_again_is_another(world: ConsumerWorld) -> None:
    a, b = world.consumer("A"), world.consumer("B")
    world.settle_all(a, b)
    old = world.topics.id_of("t")
    world.delete("t")
    world.create("t", 4)
    world.settle_all(a, b)
    assert a.owned | b.owned == {("t", partition) for partition in range(4)} and not a.owned & b.owned
    assert all(old not in member.assigned for member in world.consumer_group().members.values())


def test_the_assignor_that_most_members_want_is_taken(world: ConsumerWorld) -> None:
    world.create("u", 4)
    for member_id in ("A", "B"):
        world.enter(member_id, "t", "u", assignor="range")
    world.enter("C", "t", "u", assignor="uniform")
    assert world.describe_consumer().assignor_name == "range"
    assert world.target("A") == {"t": [0, 1], "u": [0, 1]} and world.target("C") == {"t": [3], "u": [3]}
    reply = world.beat("D", 0, topics=["t"], owned={}, rebalance_ms=1, assignor="mine")
    assert reply.error_code is ErrorCode.unsupported_assignor
    assert reply.error_message and "uniform, range" in reply.error_message


def test_a_full_group_takes_no_more_members_but_its_own_static_ones() -> None:
    world = ConsumerWorld(config=no_wait_config(group_consumer_max_size=2))
    world.create("t", 2)
    world.enter("A", "t")
    world.enter("B", "t", instance="one")
    assert world.enter("C", "t").error_code is ErrorCode.group_max_size_reached
    world.beat("B", -2, instance="one")
    assert world.enter("B2", "t", instance="one").error_code is ErrorCode.none
    assert world.enter("A", "t").error_code is ErrorCode.none


def test_malformed_requests_are_refused_before_a_group_begins(world: ConsumerWorld) -> None:
    good = {"topics": ["t"], "owned": {}, "rebalance_ms": 1}
    for member_id, epoch, fields in (
        ("", 0, good),
        (" ", 1, {}),
        ("", -1, {}),
        ("A", 0, {**good, "rebalance_ms": -1}),
        ("A", 0, {**good, "owned": None}),
        ("A", 0, {**good, "owned": {"t": [0]}}),
        ("A", 0, {**good, "topics": None}),
        ("A", 0, {**good, "instance": ""}),
        ("A", 0, {**good, "rack": ""}),
        ("A", 0, {**good, "group": ""}),
        ("A", -2, {}),
        ("A", -3, {}),
    ):
        reply = world.beat(member_id, epoch, **fields)  # type: ignore[arg-type]
        assert reply.error_code is ErrorCode.invalid_request, (member_id, epoch, fields)
        assert reply.error_message
    assert world.shard.groups() == [] and world.log == []
