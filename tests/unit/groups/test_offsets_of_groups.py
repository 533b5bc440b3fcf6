"""Offsets: who may commit, what is remembered of it, and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from group_harness import SESSION_MS, GroupWorld, protocols

from nilometer.cluster.entries import Entry
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ControllerElected, TopicCreated, TopicDeleted
from nilometer.coordinators import Producer, Token
from nilometer.groups import offsets
from nilometer.groups.classic_group import SUBSCRIBED_TOPICS_MAX, ClassicGroup
from nilometer.groups.offsets import OFFSETS_PER_CALL_MAX, TOMBSTONES_PER_CALL_MAX
from nilometer.groups.records import GroupMetadataKey, OffsetCommitKey, OffsetCommitValue
from nilometer.groups.requests import (
    ConsumerGroupHeartbeat,
    DeleteGroups,
    DeleteGroupsResult,
    JoinGroupProtocol,
    OffsetCommit,
    OffsetCommitPartition,
    OffsetCommitResult,
    OffsetCommitTopic,
    OffsetDelete,
    OffsetDeleteResult,
    OffsetDeleteTopic,
    OffsetFetch,
    OffsetFetchPartitionResult,
    OffsetFetchResult,
    OffsetFetchTopic,
)
from nilometer.groups.settings import GroupConfig
from nilometer.identifiers import BrokerId, ControllerEpoch, EntryNumber, Incarnation, topic_id_of
from nilometer.wire.errors import ErrorCode
from support.calls import counted_calls

HOUR_MS = 3_600_000
RETENTION = GroupConfig(offsets_retention_ms=HOUR_MS, offsets_retention_check_interval_ms=60_000)
OLD, NEW = UUID(int=1), UUID(int=2)


def commit_of(topic_id: UUID | None, *partitions: int, offset: int = 7) -> OffsetCommit:
    committed = tuple(OffsetCommitPartition(partition, offset) for partition in partitions)
    return OffsetCommit("g", (OffsetCommitTopic("t", committed, topic_id),))


def tombstoned(world: GroupWorld) -> list[object]:
    return [record.key for record in world.written if record.value is None]


# ── commit and fetch ──────────────────────────────────────────────────────────────────────────────
def test_what_is_committed_is_fetched_with_all_it_came_with() -> None:
    world = GroupWorld()
    partition = OffsetCommitPartition(3, 42, committed_leader_epoch=5, committed_metadata="who, when")
    request = OffsetCommit("g", (OffsetCommitTopic("t", (partition,), OLD),))
    reply = world.ask(request, OffsetCommitResult)
    assert (reply.topics[0].name, reply.topics[0].topic_id) == ("t", OLD)
    [record] = world.written
    assert record.key == OffsetCommitKey("g", "t", 3)
    assert record.value == OffsetCommitValue(42, "who, when", world.wall_ms, 5, -1, OLD)
    world.fail_over()
    fetched = world.ask(OffsetFetch("g"), OffsetFetchResult)
    [topic] = fetched.topics
    assert topic.partitions == (OffsetFetchPartitionResult(3, 42, 5, "who, when"),)
    assert topic.topic_id == OLD


def test_what_was_never_committed_is_minus_one_and_no_error() -> None:
    world = GroupWorld()
    world.commit(5)
    wanted = (OffsetFetchTopic("t", (0, 1)), OffsetFetchTopic("u", (0,)))
    for group, first in (("g", 5), ("none", -1)):
        reply = world.ask(OffsetFetch(group, wanted), OffsetFetchResult)
        assert reply.error_code is ErrorCode.none
        offsets = [[partition.committed_offset for partition in topic.partitions] for topic in reply.topics]
        assert offsets == [[first, -1], [-1]]
        assert reply.topics[1].partitions[0].metadata == ""
    assert world.ask(OffsetFetch("none"), OffsetFetchResult).topics == ()


def test_offsets_of_an_earlier_topic_of_the_name_are_not_those_of_this_one() -> None:
    world = GroupWorld()
    world.send(commit_of(OLD, 0))
    world.send(commit_of(None, 1))

    def fetched(topic_id: UUID | None) -> list[int]:
        request = OffsetFetch("g", (OffsetFetchTopic("t", (0, 1), topic_id),))
        [topic] = world.ask(request, OffsetFetchResult).topics
        return [partition.committed_offset for partition in topic.partitions]

    assert fetched(OLD) == [7, 7]
    assert fetched(NEW) == [-1, 7]
    assert fetched(None) == [7, 7]


@pytest.mark.parametrize(
    ("metadata", "fits"), [("x" * 10, True), ("x" * 11, False), ("🐊" * 5, True), ("🐊" * 6, False)]
)
def test_metadata_may_be_so_long_and_no_longer(metadata: str, fits: bool) -> None:
    """Counted in UTF-16 units, and each partition for itself."""
    world = GroupWorld(GroupConfig(offset_metadata_max_bytes=10))
    partitions = (OffsetCommitPartition(0, 1, -1, metadata), OffsetCommitPartition(1, 2, -1, None))
    reply = world.ask(OffsetCommit("g", (OffsetCommitTopic("t", partitions),)), OffsetCommitResult)
    assert [each.error_code for each in reply.topics[0].partitions] == [
        ErrorCode.none if fits else ErrorCode.offset_metadata_too_large,
        ErrorCode.none,
    ]
    assert world.committed() == ({("t", 0): 1, ("t", 1): 2} if fits else {("t", 1): 2})


# ── fencing ───────────────────────────────────────────────────────────────────────────────────────
def test_a_commit_is_fenced_by_member_generation_and_phase() -> None:
    world = GroupWorld()
    assert world.commit(1, member_id="x", generation=1) is ErrorCode.group_id_not_found
    assert world.commit(1, generation=1, knows_member_epochs=False) is ErrorCode.illegal_generation
    assert world.committed() == {}
    world.stable("a", "b")
    assert world.commit(2) is ErrorCode.unknown_member_id, "from outside, while there are members"
    assert world.commit(2, member_id="who-9", generation=1) is ErrorCode.unknown_member_id
    assert world.commit(2, member_id="a-1", generation=0) is ErrorCode.illegal_generation
    assert world.commit(2, member_id="a-1") is ErrorCode.illegal_generation
    assert world.commit(2, member_id="a-1", generation=1, instance="i") is ErrorCode.unknown_member_id
    assert world.commit(2, member_id="b-2", generation=1) is ErrorCode.none
    world.join("a-1")
    assert world.commit(3, member_id="b-2", generation=1) is ErrorCode.none, "before it joins again"
    world.join("b-2")
    assert world.commit(4, member_id="b-2", generation=1) is ErrorCode.illegal_generation
    assert world.commit(4, member_id="b-2", generation=2) is ErrorCode.rebalance_in_progress
    world.leave("a-1", "b-2")
    assert world.commit(5, member_id="b-2", generation=2) is ErrorCode.unknown_member_id
    assert world.committed() == {("t", 0): 3}
    assert world.commit(6) is ErrorCode.none, "an operator moves an empty group"
    assert world.committed() == {("t", 0): 6}


def test_committing_counts_as_a_heartbeat() -> None:
    world = GroupWorld()
    world.stable("a")
    for offset in range(3 * SESSION_MS // 1000):
        world.pass_time(1_000)
        assert world.commit(offset, member_id="a-1", generation=1) is ErrorCode.none
    assert world.state() == "Stable"
    world.pass_time(SESSION_MS)
    assert world.state() == "Empty"


# ── delete ────────────────────────────────────────────────────────────────────────────────────────
def deleted(world: GroupWorld, topic: str, *partitions: int, group: str = "g") -> list[ErrorCode] | ErrorCode:
    request = OffsetDelete(group, (OffsetDeleteTopic(topic, partitions),))
    reply = world.ask(request, OffsetDeleteResult)
    if reply.error_code is not ErrorCode.none:
        return reply.error_code
    return [partition.error_code for partition in reply.topics[0].partitions]


def test_offsets_are_deleted_unless_the_topic_is_being_read() -> None:
    world = GroupWorld()
    world.stable("a")
    for topic in ("t", "u"):
        world.commit(1, topic=topic, member_id="a-1", generation=1)
    assert deleted(world, "t", 0, 1) == [ErrorCode.group_subscribed_to_topic] * 2
    assert deleted(world, "u", 0, 1) == [ErrorCode.none] * 2
    assert tombstoned(world) == [OffsetCommitKey("g", "u", 0)], "nothing is written for what is not there"
    assert world.committed() == {("t", 0): 1}
    world.leave("a-1")
    assert deleted(world, "t", 0) == [ErrorCode.none]
    world.fail_over()
    assert world.committed() == {}
    assert deleted(world, "t", 0, group="none") is ErrorCode.group_id_not_found


NAMES = tuple(f"t{number}" for number in range(SUBSCRIBED_TOPICS_MAX))


@pytest.mark.parametrize(
    ("subscriptions", "expected"),
    [
        ([NAMES], ErrorCode.none),
        ([NAMES[: len(NAMES) // 2 + 1]] * 5, ErrorCode.none),
        ([(*NAMES, "another")], ErrorCode.group_subscribed_to_topic),
        ([NAMES[:-1], ("v", "w"), NAMES[:-1]], ErrorCode.group_subscribed_to_topic),
    ],
    ids=["as many as are read", "the same ones again", "one too many", "of two members"],
)
def test_each_topic_counts_as_one_of_too_many_that_members_subscribe_to(
    subscriptions: list[tuple[str, ...]], expected: ErrorCode
) -> None:
    """A request of 10 MB may have two million names: to read them held the event loop for a second."""
    world = GroupWorld(config=RETENTION)
    tokens = [world.join(offers=protocols("range", topics=topics)) for topics in subscriptions]
    while not all(world.is_answered(token) for token in tokens):
        world.pass_time(3_000)
    world.settle([world.joined(token).member_id for token in tokens], 1)
    first = world.joined(tokens[0])
    world.commit(1, topic="t0", member_id=first.member_id, generation=1)
    world.commit(1, topic="u", member_id=first.member_id, generation=1)
    assert deleted(world, "t0", 0) == [ErrorCode.group_subscribed_to_topic]
    assert deleted(world, "u", 0) == [expected]


def test_the_topics_of_members_are_read_for_one_group_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that have offsets; a rebalance reads none."""
    read: list[str] = []
    subscription = ClassicGroup.subscription

    def noted(group: ClassicGroup) -> Callable[[str], bool]:
        read.append(group.group_id)
        return subscription(group)

    monkeypatch.setattr(ClassicGroup, "subscription", noted)
    world = GroupWorld(config=RETENTION)
    for group in ("none", "g", "h"):
        offers = protocols("range", topics=NAMES)
        joining = world.join(group=group, offers=offers, session_ms=HOUR_MS // 2)
        world.pass_time(3_000)
        member_id = world.joined(joining).member_id
        assert world.synced(world.sync(member_id, 1, group=group)).error_code is ErrorCode.none
        if group != "none":
            world.commit(1, topic="u", member_id=member_id, generation=1, group=group)
    assert read == []
    world.now_ms = RETENTION.offsets_retention_check_interval_ms
    world.on_time()
    assert read == ["h"]
    world.pass_time(1)
    assert read == ["h", "g"]


def test_offsets_of_a_living_group_of_unknown_kind_are_not_deleted() -> None:
    world = GroupWorld()
    world.stable("a", protocol_type="connect")
    assert deleted(world, "t", 0) is ErrorCode.non_empty_group


def test_a_group_is_deleted_with_its_offsets_once_it_is_empty() -> None:
    world = GroupWorld()
    world.stable("a")
    world.commit(1, member_id="a-1", generation=1)

    def delete() -> list[ErrorCode]:
        reply = world.ask(DeleteGroups(("g", "none")), DeleteGroupsResult)
        return [result.error_code for result in reply.results]

    assert delete() == [ErrorCode.non_empty_group, ErrorCode.group_id_not_found]
    world.leave("a-1")
    assert delete() == [ErrorCode.none, ErrorCode.group_id_not_found]
    assert tombstoned(world) == [OffsetCommitKey("g", "t", 0), GroupMetadataKey("g")]
    world.fail_over()
    assert (world.committed(), world.state()) == ({}, "Dead")


def test_the_tombstones_of_thousands_of_offsets_are_written_in_several_calls() -> None:
    """Meanwhile the group is gone: a new one with its id gets offsets after the last tombstone only."""
    world, count = GroupWorld(), 3 * TOMBSTONES_PER_CALL_MAX + 500
    world.ask(commit_of(None, *range(count)), OffsetCommitResult)
    world.commit(1, group="other")
    token = world.send(DeleteGroups(("g",)))
    tombstones = world.written
    assert len(tombstones) == TOMBSTONES_PER_CALL_MAX + 1, "those of offsets, and the group's"
    calls = 0
    while token not in world.replies:
        calls += 1
        assert (world.committed(), world.state()) == ({}, "Dead")
        assert world.commit(2) is ErrorCode.coordinator_load_in_progress
        assert world.commit(2, producer=Producer(1, 0)) is ErrorCode.coordinator_load_in_progress
        world.now_ms += 1
        world.on_time()
        assert 0 < len(world.written) <= TOMBSTONES_PER_CALL_MAX
        tombstones += world.written
    assert calls == 3
    reply = world.replies[token]
    assert isinstance(reply, DeleteGroupsResult)
    assert reply.results[0].error_code is ErrorCode.none
    keys = {record.key for record in tombstones if isinstance(record.key, OffsetCommitKey)}
    assert {key.partition for key in keys} == set(range(count))
    assert world.commit(3) is ErrorCode.none
    assert world.shard.offsets_count == 2
    world.fail_over()
    assert world.committed() == {("t", 0): 3}
    assert world.shard.offsets_count == 2


def test_all_of_thousands_of_offsets_are_a_reply_that_is_made_later() -> None:
    """It has the offsets as they were then."""
    world, count = GroupWorld(), 5_000
    world.ask(commit_of(None, *range(count)), OffsetCommitResult)
    with counted_calls() as calls:
        effects = world.shard.handle(
            Token(-1), OffsetFetch("g", require_stable=True), world.now_ms, world.wall_ms
        )
    assert calls[0] < count // 10
    world.ask(commit_of(None, 0, offset=8), OffsetCommitResult)
    ((_, reply),) = effects.results
    assert isinstance(reply, OffsetFetchResult)
    (topic,) = reply.topics
    offsets = [OffsetFetchPartitionResult(partition, 7) for partition in range(count)]
    assert list(topic.partitions) == offsets


# ── expiry ────────────────────────────────────────────────────────────────────────────────────────
def test_offsets_from_outside_end_their_time_after_each_commit_and_the_group_with_the_last() -> None:
    world = GroupWorld(RETENTION)
    world.commit(1, partition=0)
    world.pass_time(HOUR_MS // 2)
    world.commit(2, partition=1)
    world.pass_time(HOUR_MS // 2 - 1)
    assert world.committed() == {("t", 0): 1, ("t", 1): 2}
    world.pass_time(60_000)
    assert world.committed() == {("t", 1): 2}
    assert world.state() == "Empty"
    world.pass_time(HOUR_MS // 2)
    assert world.state() == "Dead"
    assert world.shard.offsets_count == 0


def test_offsets_of_a_group_end_their_time_after_its_last_member_went() -> None:
    world = GroupWorld(RETENTION)
    world.stable("a", session_ms=1_800_000)
    world.commit(1, member_id="a-1", generation=1)
    for _ in range(5):
        world.pass_time(HOUR_MS // 3)
        world.heartbeat("a-1", 1)
    assert world.committed() == {("t", 0): 1}, "it is subscribed"
    world.leave("a-1")
    world.pass_time(HOUR_MS - 60_000)
    world.fail_over()
    assert world.committed() == {("t", 0): 1}, "the age counts from the leaving, also after a failover"
    world.pass_time(120_000)
    assert (world.committed(), world.state()) == ({}, "Dead")


def test_offsets_of_topics_that_a_stable_group_reads_no_more_end() -> None:
    world = GroupWorld(RETENTION)
    world.stable("a", session_ms=1_800_000, offers=protocols("range", topics=("t", "u")))
    for topic in ("t", "u"):
        world.commit(1, topic=topic, member_id="a-1", generation=1)
    world.join("a-1", offers=protocols("range", topics=("t",)), session_ms=1_800_000)
    world.sync("a-1", 2, {"a-1": b"x"})
    for _ in range(4):
        world.pass_time(HOUR_MS // 3)
        world.heartbeat("a-1", 2)
    assert world.committed() == {("t", 0): 1}
    assert world.state() == "Stable"


@pytest.mark.parametrize("metadata", [b"", b"\x00\x00\xff"])
def test_no_offset_of_a_living_group_ends_if_its_topics_are_not_known(metadata: bytes) -> None:
    world = GroupWorld(RETENTION)
    world.stable("a", session_ms=1_800_000, offers=(JoinGroupProtocol("range", metadata),))
    world.commit(1, member_id="a-1", generation=1)
    for _ in range(6):
        world.pass_time(HOUR_MS // 3)
        world.heartbeat("a-1", 1)
    assert world.committed() == {("t", 0): 1}


def test_a_commit_may_bring_a_time_of_its_own() -> None:
    world = GroupWorld(RETENTION)
    world.commit(1, partition=0, retention_ms=60_000)
    world.commit(2, partition=1, retention_ms=3 * HOUR_MS)
    world.pass_time(120_000)
    assert world.committed() == {("t", 1): 2}
    world.fail_over()
    world.pass_time(2 * HOUR_MS)
    assert world.committed() == {("t", 1): 2}
    world.pass_time(HOUR_MS)
    assert world.committed() == {}


def test_an_empty_group_without_offsets_goes_unless_a_member_is_joining() -> None:
    world = GroupWorld(GroupConfig(offsets_retention_check_interval_ms=5_000))
    world.join(version=4)
    world.pass_time(5_000)
    assert world.state() == "Empty"
    world.pass_time(10_000)
    assert world.state() == "Dead"


def test_many_groups_that_nothing_is_left_in_go_before_the_next_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All but those with a member or an offset, and not before there are more than twice as many."""
    monkeypatch.setattr(offsets, "GROUPS_BEFORE_CHECK", 10)
    world = GroupWorld(RETENTION)
    world.send(OffsetCommit("committed", (OffsetCommitTopic("t", (OffsetCommitPartition(0, 7),)),)))
    world.join(group="joined")
    for number in range(50):
        group = f"g{number}"
        world.send(
            ConsumerGroupHeartbeat(
                group, "m", 0, rebalance_timeout_ms=1, subscribed_topic_names=("t",), topic_partitions=()
            )
        )
        world.send(ConsumerGroupHeartbeat(group, "m", -1))
        world.pass_time(1)
        assert len(world.shard.groups()) <= 14
    assert {"committed", "joined", "g49"} <= {group.group_id for group in world.shard.groups()}
    world.fail_over()
    assert len(world.shard.groups()) <= 14


def test_expiry_comes_in_batches_of_bounded_size() -> None:
    world = GroupWorld(RETENTION)
    count = 2 * TOMBSTONES_PER_CALL_MAX + 5
    world.send(commit_of(None, *range(count)))
    sizes: list[int] = []
    end_ms = HOUR_MS + 120_000
    while (deadline_ms := world.shard.next_deadline_ms()) is not None and deadline_ms <= end_ms:
        world.now_ms = deadline_ms
        world._take(world.shard.on_time(world.now_ms, world.wall_ms))
        sizes += [len(world.written)] if world.written else []
    assert sizes == [TOMBSTONES_PER_CALL_MAX, TOMBSTONES_PER_CALL_MAX, 6]
    assert world.state() == "Dead"


def test_expiry_looks_at_a_bounded_number_of_offsets_in_one_call() -> None:
    """Of the groups that committed last first: the one whose offset ends is looked at in the second call."""
    world = GroupWorld(RETENTION)
    kept = tuple(OffsetCommitPartition(number, 7) for number in range(1 + OFFSETS_PER_CALL_MAX // 2))
    ends = OffsetCommitTopic("t", kept[:1])
    world.send(OffsetCommit("ends", (ends,), retention_time_ms=1))
    for group in ("g", "h"):
        world.send(OffsetCommit(group, (OffsetCommitTopic("t", kept),)))
    calls: list[tuple[int, int]] = []
    for _ in range(3):
        deadline_ms = world.shard.next_deadline_ms()
        assert deadline_ms is not None
        world.now_ms = deadline_ms
        world._take(world.shard.on_time(world.now_ms, world.wall_ms))
        calls.append((deadline_ms, len(tombstoned(world))))
    assert calls == [(60_000, 0), (60_001, 2), (120_001, 0)]  # the offset, and its group


# ── topics that are deleted ───────────────────────────────────────────────────────────────────────
def image_with(*changes: TopicCreated | TopicDeleted) -> ClusterImage:
    image = ClusterImage()
    take = ControllerElected(
        controller_id=BrokerId(1), incarnation=Incarnation("i"), controller_epoch=ControllerEpoch(1)
    )
    for number, records in enumerate(((take,), changes)):
        entry = Entry(
            controller_id=take.controller_id,
            controller_incarnation=take.incarnation,
            controller_epoch=take.controller_epoch,
            records=records,
        )
        assert image.apply_entry(EntryNumber(number), entry).accepted
    return image


def test_offsets_go_with_their_topic() -> None:
    created = TopicCreated(name="t", topic_id=topic_id_of(OLD))
    world = GroupWorld(image=image_with(created))
    world.send(commit_of(OLD, 0, 1))
    world.commit(3, topic="u")
    world.see_image(image_with(created, TopicCreated(name="v", topic_id=topic_id_of(NEW))))
    world.on_time()
    assert world.written == []
    world.see_image(image_with())
    world.on_time()
    assert tombstoned(world) == [OffsetCommitKey("g", "t", 0), OffsetCommitKey("g", "t", 1)]
    assert world.committed() == {("u", 0): 3}, "of a topic that was never there nothing is known"


def test_topics_are_looked_for_in_a_call_of_their_partition_alone() -> None:
    """There are fifty partitions, and each may have offsets of thousands of topics."""
    world = GroupWorld(image=image_with(TopicCreated(name="t", topic_id=topic_id_of(OLD))))
    world.send(commit_of(OLD, 0, 1))
    effects = world.shard.on_image(image_with(), world.now_ms, world.wall_ms)
    assert not effects.records
    assert world.shard.next_deadline_ms() == world.now_ms
    world.on_time()
    assert tombstoned(world) == [OffsetCommitKey("g", "t", 0), OffsetCommitKey("g", "t", 1)]


def test_offsets_of_a_topic_created_again_stay() -> None:
    world = GroupWorld(image=image_with(TopicCreated(name="t", topic_id=topic_id_of(OLD))))
    world.send(commit_of(OLD, 0, 1))
    world.send(commit_of(NEW, 1, offset=9))
    world.see_image(image_with(TopicCreated(name="t", topic_id=topic_id_of(NEW))))
    world.on_time()
    assert tombstoned(world) == [OffsetCommitKey("g", "t", 0)]
    assert world.committed() == {("t", 1): 9}


def test_an_offset_of_the_new_topic_stays_that_is_committed_before_the_old_ones_are_removed() -> None:
    """It names no topic id, as older clients do."""
    world = GroupWorld(image=image_with(TopicCreated(name="t", topic_id=topic_id_of(OLD))))
    world.send(commit_of(OLD, 0, 1))
    world.shard.on_image(
        image_with(TopicCreated(name="t", topic_id=topic_id_of(NEW))), world.now_ms, world.wall_ms
    )
    world.commit(3, topic="t")
    world.on_time()
    assert world.committed() == {("t", 0): 3}


def test_a_topic_deleted_while_another_coordinator_takes_over_is_noticed_from_its_image_on() -> None:
    world = GroupWorld(image=image_with(TopicCreated(name="t", topic_id=topic_id_of(OLD))))
    count = TOMBSTONES_PER_CALL_MAX + 1
    world.send(commit_of(OLD, *range(count)))
    world.fail_over()
    world.see_image(image_with())
    world.on_time()
    assert len(world.written) == TOMBSTONES_PER_CALL_MAX
    world.pass_time(0)
    assert world.committed() == {}
