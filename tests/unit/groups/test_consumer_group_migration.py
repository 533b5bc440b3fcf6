"""Both protocols in one group, and groups that go over from one to the other while they have members."""

from __future__ import annotations

import pytest
from consumer_group_harness import ClassicConsumer, Consumer, ConsumerWorld, no_wait_config
from group_harness import REBALANCE_MS, SESSION_MS, protocols

from nilometer.groups.classic_group import ClassicGroup
from nilometer.groups.consumer import classic_members, departures
from nilometer.groups.requests import JoinGroupProtocol, JoinGroupResult, SyncGroupResult
from nilometer.groups.settings import ConsumerGroupMigrationPolicy
from nilometer.wire.errors import ErrorCode
from nilometer.wire.value_bytes import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)

COOPERATIVE = (
    JoinGroupProtocol(
        "cooperative-sticky", encode_subscription(Subscription(("t",), rack="r", generation=1))
    ),
)


def group_type(world: ConsumerWorld) -> str:
    (group,) = world.shard.groups()
    return group.listed().group_type


def classic_group(world: ConsumerWorld, *clients: str, **join: object) -> list[str]:
    """A stable classic group in which the partitions of t are dealt out by the leader; the members' ids."""
    tokens = [world.join(client=client, offers=COOPERATIVE, **join) for client in clients]  # type: ignore[arg-type]
    while not all(world.is_answered(token) for token in tokens):
        world.pass_time(3_000)
    replies = [world.joined(token) for token in tokens]
    ids = [reply.member_id for reply in replies]
    given = {
        member_id: encode_assignment(
            Assignment(tuple(("t", partition) for partition in range(4) if partition % len(ids) == index))
        )
        for index, member_id in enumerate(ids)
    }
    waiting = [world.sync(member_id, 1) for member_id in ids[1:]] + [world.sync(ids[0], 1, given)]
    assert all(world.synced(token).error_code is ErrorCode.none for token in waiting)
    return ids


# ── classic members in a consumer group ─────────────────────────────────────────────────────────────
def test_a_classic_member_reconciles_by_joining_again(world: ConsumerWorld) -> None:
    a = world.consumer("A")
    k = ClassicConsumer(world)
    assert k.rejoin() is ErrorCode.none
    assert (k.epoch, k.owned) == (3, set()), "in the newest epoch, but A has not let go"
    assert world.heartbeat(k.member_id, 3) is ErrorCode.none, "joining again would not help"
    a.step()
    assert world.heartbeat(k.member_id, 3) is ErrorCode.none
    a.step()
    assert world.heartbeat(k.member_id, 3) is ErrorCode.rebalance_in_progress, "now it would"
    assert k.rejoin() is ErrorCode.none
    assert k.epoch == 3 and len(k.owned) == 2 and not k.owned & a.owned
    assert world.heartbeat(k.member_id, 3) is ErrorCode.none

    b = world.consumer("B")
    assert world.heartbeat(k.member_id, 3) is ErrorCode.rebalance_in_progress
    kept = set(k.owned)
    k.rejoin()
    assert k.epoch == 3 and len(k.owned) == 1 and k.owned < kept, "first out"
    assert world.heartbeat(k.member_id, 3) is ErrorCode.rebalance_in_progress
    k.rejoin()
    assert k.epoch == 4
    world.settle_all(a, b, k)
    assert sorted(map(len, (a.owned, b.owned, k.owned))) == [1, 1, 2]
    told = {member.member_id: member.member_type for member in world.describe_consumer().members}
    assert told == {"A": 1, "B": 1, k.member_id: 0}


def test_a_classic_member_is_asked_to_come_with_an_id(world: ConsumerWorld) -> None:
    world.consumer("A")
    token = world.join(client="k", offers=COOPERATIVE, version=4)
    reply = world.joined(token)
    assert (reply.error_code, reply.member_id) == (ErrorCode.member_id_required, "k-1")
    assert set(world.consumer_group().members) == {"A"}
    reply = world.joined(world.join("k-1", client="k", offers=COOPERATIVE, version=4))
    assert (reply.error_code, reply.member_id, reply.leader) == (ErrorCode.none, "k-1", "")
    assert (reply.protocol_type, reply.protocol_name) == ("consumer", "cooperative-sticky")


def test_what_a_classic_member_cannot_do_in_a_consumer_group(world: ConsumerWorld) -> None:
    world.consumer("A")
    refused = {
        "no consumer": world.join(offers=COOPERATIVE, protocol_type="connect"),
        "no protocol": world.join(offers=()),
        "malformed": world.join(offers=(JoinGroupProtocol("range", b"\0"),)),
    }
    for why, token in refused.items():
        assert world.joined(token).error_code is ErrorCode.inconsistent_group_protocol, why
    token = world.join(offers=COOPERATIVE, session_ms=1)
    assert world.joined(token).error_code is ErrorCode.invalid_session_timeout
    token = world.join("ghost", instance="one", offers=COOPERATIVE)
    assert world.joined(token).error_code is ErrorCode.unknown_member_id
    assert set(world.consumer_group().members) == {"A"}

    k = ClassicConsumer(world)
    k.rejoin()
    token = world.join(offers=protocols("range"))
    assert world.joined(token).error_code is ErrorCode.inconsistent_group_protocol, "k does not speak it"
    assert world.heartbeat("A", 1) is ErrorCode.unknown_member_id, "A does not speak the classic protocol"
    assert world.heartbeat(k.member_id, 9) is ErrorCode.illegal_generation
    assert world.synced(world.sync(k.member_id, 9)).error_code is ErrorCode.illegal_generation
    token = world.sync(k.member_id, k.epoch, protocol_name="range")
    assert world.synced(token).error_code is ErrorCode.inconsistent_group_protocol
    assert world.leave("A", "none") == [ErrorCode.unknown_member_id] * 2


def test_a_disabled_migration_keeps_classic_members_out() -> None:
    policy = ConsumerGroupMigrationPolicy.DISABLED
    world = ConsumerWorld(config=no_wait_config(group_consumer_migration_policy=policy))
    world.create("t", 1)
    world.consumer("A")
    token = world.join(offers=COOPERATIVE)
    assert world.joined(token).error_code is ErrorCode.inconsistent_group_protocol


def test_a_new_target_between_join_and_sync_sends_the_member_back(world: ConsumerWorld) -> None:
    world.consumer("A")
    reply = world.joined(world.join(client="k", offers=COOPERATIVE))
    world.consumer("B")
    token = world.sync(reply.member_id, reply.generation_id)
    assert world.synced(token).error_code is ErrorCode.rebalance_in_progress


@pytest.mark.parametrize("misses", ["heartbeat", "join", "sync"])
def test_a_classic_member_that_does_not_do_its_part_is_removed(world: ConsumerWorld, misses: str) -> None:
    a = world.consumer("A")
    token = world.join(client="k", offers=COOPERATIVE, session_ms=SESSION_MS, rebalance_ms=REBALANCE_MS)
    k = world.joined(token)
    if misses != "sync":
        world.sync(k.member_id, k.generation_id)
    waits_ms = SESSION_MS if misses == "heartbeat" else REBALANCE_MS
    if misses == "join":
        world.consumer("B")
        assert world.heartbeat(k.member_id, k.generation_id) is ErrorCode.rebalance_in_progress
    passed = 0
    while passed + 5_000 < waits_ms:
        world.pass_time(5_000)
        passed += 5_000
        a.step()
        if misses != "heartbeat":
            assert world.heartbeat(k.member_id, k.generation_id) is not ErrorCode.unknown_member_id
    world.pass_time(waits_ms - passed - 1)
    assert k.member_id in world.consumer_group().members
    world.pass_time(1)
    assert all(not member.uses_classic_protocol for member in world.consumer_group().members.values())


def test_classic_members_leave_one_by_one_or_by_instance(world: ConsumerWorld) -> None:
    a = world.consumer("A")
    k, s = ClassicConsumer(world), ClassicConsumer(world, instance="one")
    k.rejoin()
    s.rejoin()
    world.settle_all(a, k, s)
    assert world.leave(("wrong", "one")) == [ErrorCode.fenced_instance_id]
    assert world.leave(k.member_id, k.member_id, ("", "one"), ("", "two")) == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.none,
        ErrorCode.unknown_member_id,
    ]
    world.settle_all(a)
    assert len(a.owned) == 4 and group_type(world) == "consumer"


def test_eager_members_give_everything_up_when_they_join(world: ConsumerWorld) -> None:
    """Version 0 of a subscription names nothing owned: the member has let go of all of it."""
    eager = (JoinGroupProtocol("range", encode_subscription(Subscription(("t",), version=0))),)
    a = world.consumer("A")
    reply = world.joined(world.join(client="k", offers=eager))
    world.settle_all(a)
    reply = world.joined(world.join(reply.member_id, client="k", offers=eager))
    synced = world.synced(world.sync(reply.member_id, reply.generation_id))
    assert len(decode_assignment(synced.assignment).partitions) == 2
    assert decode_assignment(synced.assignment).version == 0, "in the version it reads"
    b = world.consumer("B")
    reply = world.joined(world.join(reply.member_id, client="k", offers=eager))
    assert reply.generation_id == 4, "nothing to wait for"
    world.settle_all(a, b)


# ── up ──────────────────────────────────────────────────────────────────────────────────────────────
def test_a_classic_group_goes_up_with_its_assignments(world: ConsumerWorld) -> None:
    ids = classic_group(world, "k", "l")
    a = Consumer(world, "A")
    assert a.enter().member_epoch == 2
    group = world.consumer_group()
    assert group_type(world) == "consumer"
    for index, member_id in enumerate(ids):
        member = world.of(member_id)
        assert member.uses_classic_protocol and member.member_epoch == 1 and member.rack_id == "r"
        assert set(member.assigned[world.topics.id_of("t")]) == {index, index + 2}
        assert member.client_host == f"/{'kl'[index]}.host"
        assert world.heartbeat(member_id, 1) is ErrorCode.rebalance_in_progress
    classics = [
        ClassicConsumer(world, member_id, client=client, epoch=1, owned={("t", index), ("t", index + 2)})
        for index, (member_id, client) in enumerate(zip(ids, "kl", strict=True))
    ]
    world.settle_all(a, *classics)
    assert sorted(map(len, (a.owned, *(each.owned for each in classics)))) == [1, 1, 2]
    before = group.hard_state()
    world.fail_over()
    assert world.consumer_group().hard_state() == before


def test_members_that_wait_in_a_classic_rebalance_are_sent_into_the_new_one(world: ConsumerWorld) -> None:
    ids = classic_group(world, "k", "l")
    rejoining = world.join(ids[0], client="k", offers=COOPERATIVE, reason="again")
    changed = (JoinGroupProtocol("cooperative-sticky", encode_subscription(Subscription(("t", "u")))),)
    if world.is_answered(rejoining):
        rejoining = world.join(ids[0], client="k", offers=changed)
    assert not world.is_answered(rejoining)
    world.enter("A", "t")
    reply = world.answer(rejoining, JoinGroupResult)
    assert reply.error_code is ErrorCode.coordinator_load_in_progress, "every client joins again after that"
    assert set(world.consumer_group().members) == {"A", *ids}

    other = ConsumerWorld()
    other.create("t", 4)
    tokens = [other.join(client=client, offers=COOPERATIVE) for client in "kl"]
    while not all(other.is_answered(token) for token in tokens):
        other.pass_time(3_000)
    follower = other.sync(other.joined(tokens[1]).member_id, 1)
    other.enter("A", "t")
    assert other.answer(follower, SyncGroupResult).error_code is ErrorCode.rebalance_in_progress


def test_an_empty_classic_group_is_replaced(world: ConsumerWorld) -> None:
    (member_id,) = classic_group(world, "k")
    world.leave(member_id)
    assert world.state() == "Empty"
    assert world.enter("A", "t").member_epoch == 2
    assert group_type(world) == "consumer"
    world.fail_over()
    assert set(world.consumer_group().members) == {"A"}


def test_offsets_committed_from_outside_stay_with_the_group(world: ConsumerWorld) -> None:
    assert world.commit(5) is ErrorCode.none
    assert group_type(world) == "classic"
    world.enter("A", "t")
    assert group_type(world) == "consumer" and world.committed() == {("t", 0): 5}
    world.fail_over()
    assert group_type(world) == "consumer" and world.committed() == {("t", 0): 5}


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_a_group_that_may_not_go_up_stays_classic(policy: str) -> None:
    config = no_wait_config(group_consumer_migration_policy=ConsumerGroupMigrationPolicy(policy))
    world = ConsumerWorld(config=config)
    world.create("t", 4)
    ids = classic_group(world, "k")
    reply = world.enter("A", "t")
    assert reply.error_code is ErrorCode.group_id_not_found
    assert not world.written and world.heartbeat(ids[0], 1) is ErrorCode.none


def test_a_group_whose_members_are_no_consumers_stays_classic(world: ConsumerWorld) -> None:
    offers = (JoinGroupProtocol("default", b"anything"),)
    (member_id,) = world.stable("worker", offers=offers, protocol_type="connect")
    assert world.enter("A", "t").error_code is ErrorCode.group_id_not_found
    assert world.heartbeat(member_id, 1) is ErrorCode.none


def test_a_group_whose_subscriptions_cannot_be_read_stays_classic(world: ConsumerWorld) -> None:
    offers = (JoinGroupProtocol("own", b"\x7f"),)
    (member_id,) = world.stable("odd", offers=offers)
    reply = world.enter("A", "t")
    assert reply.error_code is ErrorCode.group_id_not_found
    assert reply.error_message and "malformed" in reply.error_message
    assert world.heartbeat(member_id, 1) is ErrorCode.none


@pytest.mark.parametrize(
    ("most", "offers"),
    [
        ("UPGRADE_ELEMENTS_MAX", COOPERATIVE),
        ("UPGRADE_BYTES_MAX", (*COOPERATIVE, JoinGroupProtocol("other", bytes(3_000)))),
    ],
)
def test_a_group_whose_members_have_sent_too_much_stays_classic(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch, most: str, offers: tuple[JoinGroupProtocol, ...]
) -> None:
    """What a request of a hundred bytes may have read and written again."""
    monkeypatch.setattr(departures, most, 3 if most == "UPGRADE_ELEMENTS_MAX" else 4_000)
    world.create("u", 1)
    tokens = [world.join(client=client, offers=offers) for client in "kl"]
    while not all(world.is_answered(token) for token in tokens):
        world.pass_time(3_000)
    first, second = [world.joined(token).member_id for token in tokens]
    given = encode_assignment(Assignment((("t", 0), ("t", 1))))
    waiting = [world.sync(second, 1), world.sync(first, 1, {first: given})]
    assert all(world.synced(token).error_code is ErrorCode.none for token in waiting)
    reply = world.enter("A", "t")
    assert reply.error_code is ErrorCode.group_id_not_found and not world.written
    assert world.heartbeat(first, 1) is ErrorCode.none
    monkeypatch.setattr(departures, most, 6 if most == "UPGRADE_ELEMENTS_MAX" else 40_000)
    assert world.enter("A", "t").error_code is ErrorCode.none


def test_a_classic_member_with_too_many_topics_and_partitions_may_not_join(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classic_members, "SUBSCRIPTION_ELEMENTS_MAX", 3)
    world.consumer("A")
    k = ClassicConsumer(world, topics=("t", "u", "v", "w"))
    assert k.rejoin() is ErrorCode.inconsistent_group_protocol
    k.topics = ("t", "u", "v")
    assert k.rejoin() is ErrorCode.none


def test_what_a_classic_member_has_sent_is_counted_and_must_fit_in_a_record(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member for which memory is short may not join: it would stay as long as its session."""
    monkeypatch.setattr(classic_members, "RECORD_BYTES_MAX", 5_000)
    world.consumer("A")
    before = world.consumer_group().metadata_bytes()
    for extra, expected in ((5_000, ErrorCode.unknown_server_error), (4_000, ErrorCode.none)):
        subscription = encode_subscription(Subscription(("t",), user_data=bytes(extra)))
        token = world.join(client="k", offers=(JoinGroupProtocol("range", subscription),))
        assert world.joined(token).error_code is expected
    assert world.consumer_group().metadata_bytes() > before + 4_000


def test_whether_a_classic_member_has_a_protocol_in_common_is_counted(world: ConsumerWorld) -> None:
    """Thirty members with 9,900 protocols each: each further one took a turn of 66 ms."""
    world.consumer("A")

    def join(*names: str, member_id: str = "") -> tuple[str, ErrorCode]:
        joined = world.joined(world.join(member_id, client="k", offers=protocols(*names)))
        return joined.member_id, joined.error_code

    first, _ = join("a", "b")
    second, error = join("c", "b", "b")
    assert error is ErrorCode.none
    assert join("a", "c")[1] is ErrorCode.inconsistent_group_protocol, "no two members have both"
    assert join("c", "b", member_id=first)[1] is ErrorCode.none
    assert join("a")[1] is ErrorCode.inconsistent_group_protocol
    assert world.leave(second) == [ErrorCode.none]
    assert join("a")[1] is ErrorCode.inconsistent_group_protocol
    assert join("b")[1] is ErrorCode.none, "all that are left have it"


def test_a_group_that_would_be_too_large_a_record_does_not_go_down(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = world.consumer("A")
    k = ClassicConsumer(world)
    k.rejoin()
    world.settle_all(a, k)
    monkeypatch.setattr(departures, "RECORD_BYTES_MAX", 20)
    a.leave()
    assert group_type(world) == "consumer"


def test_a_group_with_too_many_members_stays_classic() -> None:
    world = ConsumerWorld(config=no_wait_config(group_consumer_max_size=1))
    world.create("t", 4)
    classic_group(world, "k", "l")
    assert world.enter("A", "t").error_code is ErrorCode.group_id_not_found
    other = ConsumerWorld(config=no_wait_config(group_consumer_max_size=1))
    other.create("t", 4)
    classic_group(other, "k")
    assert other.enter("A", "t").error_code is ErrorCode.group_max_size_reached
    assert group_type(other) == "classic"


# ── down ────────────────────────────────────────────────────────────────────────────────────────────
def test_a_group_goes_down_when_the_last_member_of_the_consumer_protocol_leaves(world: ConsumerWorld) -> None:
    a = world.consumer("A")
    k, s = ClassicConsumer(world), ClassicConsumer(world, client="s", instance="one")
    k.rejoin()
    s.rejoin()
    world.settle_all(a, k, s)
    epoch = world.consumer_group().group_epoch
    a.leave()
    (group,) = world.shard.groups()
    assert isinstance(group, ClassicGroup) and group.state.value == "PreparingRebalance"
    assert group.generation == epoch and set(group.members) == {k.member_id, s.member_id}
    assert group.static_members == {"one": s.member_id}
    assert group.last_rebalance and group.last_rebalance.member_id == "A"
    assert world.heartbeat(k.member_id, epoch) is ErrorCode.rebalance_in_progress

    tokens = [
        world.join(k.member_id, client="k", offers=k.offers()),
        world.join(s.member_id, client="s", instance="one", offers=s.offers()),
    ]
    replies = [world.joined(token) for token in tokens]
    assert [reply.generation_id for reply in replies] == [epoch + 1] * 2
    assert {reply.leader for reply in replies} <= {k.member_id, s.member_id}
    assert world.describe_consumer().error_code is ErrorCode.group_id_not_found
    world.pass_time(SESSION_MS - 1)
    assert set(group.members) == {k.member_id, s.member_id}, "no timer of the consumer group is left"


def test_what_a_coordinator_finds_after_a_downgrade(world: ConsumerWorld) -> None:
    a = world.consumer("A")
    k = ClassicConsumer(world)
    k.rejoin()
    world.settle_all(a, k)
    owned = set(k.owned)
    a.leave()
    world.fail_over()
    (group,) = world.shard.groups()
    assert isinstance(group, ClassicGroup)
    assert group.state.value == "Stable"
    assert set(decode_assignment(group.members[k.member_id].assignment).partitions) == owned
    again = world.enter("A", "t")
    assert again.error_code is ErrorCode.none and group_type(world) == "consumer"


def test_the_session_of_the_last_member_of_the_consumer_protocol_ends(world: ConsumerWorld) -> None:
    a = world.consumer("A")
    k = ClassicConsumer(world)
    k.rejoin()
    world.settle_all(a, k)
    for _ in range(8):
        world.pass_time(SESSION_MS // 2)
        world.heartbeat(k.member_id, k.epoch)
    world.pass_time(SESSION_MS // 2)
    assert group_type(world) == "classic"


def test_a_static_member_goes_down_by_coming_back_with_the_classic_protocol(world: ConsumerWorld) -> None:
    a = Consumer(world, "A", instance="one")
    a.enter()
    k = ClassicConsumer(world)
    k.rejoin()
    world.settle_all(a, k)
    world.beat("A", -2, instance="one")
    back = ClassicConsumer(world, client="a", instance="one")
    epoch = world.consumer_group().group_epoch
    token = world.join(client="a", instance="one", offers=back.offers())
    reply = world.joined(token)
    assert (reply.error_code, reply.generation_id) == (ErrorCode.none, epoch)
    (group,) = world.shard.groups()
    assert isinstance(group, ClassicGroup) and group.state.value == "Stable", "no member has to rebalance"
    synced = world.synced(world.sync(reply.member_id, epoch, instance="one"))
    assert set(decode_assignment(synced.assignment).partitions) == a.owned
    assert world.heartbeat(k.member_id, epoch) is ErrorCode.none


def test_a_static_classic_member_goes_up_by_coming_back_with_the_consumer_protocol(
    world: ConsumerWorld,
) -> None:
    (member_id,) = classic_group(world, "k", instance="one")
    a = Consumer(world, "A", instance="one")
    reply = a.enter()
    assert reply.error_code is ErrorCode.none and len(a.owned) == 4
    assert set(world.consumer_group().members) == {"A"}
    assert world.heartbeat(member_id, 1, instance="one") is ErrorCode.fenced_instance_id


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_a_group_that_may_not_go_down_stays_a_consumer_group(policy: str) -> None:
    world = ConsumerWorld()
    world.create("t", 4)
    a = world.consumer("A")
    k = ClassicConsumer(world)
    k.rejoin()
    world.settle_all(a, k)
    world.config = no_wait_config(group_consumer_migration_policy=ConsumerGroupMigrationPolicy(policy))
    world.fail_over()
    a.leave()
    assert group_type(world) == "consumer"
    assert world.heartbeat(k.member_id, k.epoch) is ErrorCode.rebalance_in_progress


def test_an_empty_consumer_group_is_replaced(world: ConsumerWorld) -> None:
    a = world.consumer("A")
    a.leave()
    ids = classic_group(world, "k")
    assert group_type(world) == "classic"
    world.fail_over()
    assert group_type(world) == "classic" and world.heartbeat(ids[0], 1) is ErrorCode.none
