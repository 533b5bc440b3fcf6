"""Offsets of a consumer group: committed and fetched by members in their epoch (KIP-848, KIP-1251)."""

from __future__ import annotations

from consumer_group_harness import ClassicConsumer, ConsumerWorld

from nilometer.groups.requests import (
    OffsetCommit,
    OffsetCommitPartition,
    OffsetCommitResult,
    OffsetCommitTopic,
    OffsetDelete,
    OffsetDeleteResult,
    OffsetDeleteTopic,
    OffsetFetch,
    OffsetFetchResult,
)
from nilometer.wire.errors import ErrorCode


def commit(world: ConsumerWorld, member_id: str, epoch: int, *partitions: int) -> ErrorCode:
    """With the topic's id, as a shard is asked once names have been looked up."""
    topic = OffsetCommitTopic(
        "t",
        tuple(OffsetCommitPartition(partition, 7) for partition in partitions),
        world.topics.id_of("t"),
    )
    reply = world.ask(OffsetCommit("g", (topic,), epoch, member_id), OffsetCommitResult)
    (code,) = {each.error_code for each in reply.topics[0].partitions}
    return code


def fetch(world: ConsumerWorld, member_id: str | None, epoch: int) -> ErrorCode:
    return world.ask(OffsetFetch("g", None, member_id, epoch), OffsetFetchResult).error_code


def test_a_member_commits_and_fetches_in_its_epoch(world: ConsumerWorld) -> None:
    world.enter("A", "t")
    assert commit(world, "A", 2, 0, 1) is ErrorCode.none
    assert world.committed() == {("t", 0): 7, ("t", 1): 7}
    assert fetch(world, "A", 2) is ErrorCode.none
    assert fetch(world, None, -1) is ErrorCode.none, "an administrator"
    for wrong in (0, 1, 3):
        assert fetch(world, "A", wrong) is ErrorCode.stale_member_epoch
    assert commit(world, "A", 3, 0) is ErrorCode.stale_member_epoch
    assert commit(world, "B", 2, 0) is ErrorCode.unknown_member_id
    assert fetch(world, "B", 2) is ErrorCode.unknown_member_id
    assert commit(world, "", -1, 0) is ErrorCode.unknown_member_id, "another member owns it"


def test_a_client_that_is_not_a_member_may_commit_to_an_empty_group(world: ConsumerWorld) -> None:
    world.enter("A", "t")
    world.beat("A", -1)
    assert commit(world, "", -1, 0) is ErrorCode.none
    assert commit(world, "A", 2, 0) is ErrorCode.unknown_member_id


def test_a_commit_on_its_way_while_the_epoch_rose_is_taken_for_what_was_kept(world: ConsumerWorld) -> None:
    world.enter("A", "t")
    world.enter("B", "t")
    world.beat("A", 2)
    assert commit(world, "A", 2, 0, 2) is ErrorCode.none, "what it is to revoke is still its own"
    world.beat("A", 2, owned={"t": [0, 1]})
    assert commit(world, "A", 2, 0, 1) is ErrorCode.none
    assert commit(world, "A", 2, 0, 2) is ErrorCode.stale_member_epoch, "2 may be read on by another"
    world.beat("B", 3)
    world.beat("B", -1)
    world.beat("A", 3)
    assert world.of("A").assigned[world.topics.id_of("t")] == {0: 2, 1: 2, 2: 4, 3: 4}
    assert commit(world, "A", 3, 0) is ErrorCode.none
    assert commit(world, "A", 3, 2) is ErrorCode.stale_member_epoch, "2 was another's in between"


def test_a_version_without_member_epochs_is_for_classic_members(world: ConsumerWorld) -> None:
    world.enter("A", "t")
    verdict = world.commit(1, member_id="A", generation=1, knows_member_epochs=False)
    assert verdict is ErrorCode.unsupported_version
    classic = ClassicConsumer(world)
    classic.rejoin()
    generation = classic.epoch
    assert (
        world.commit(1, member_id=classic.member_id, generation=generation, knows_member_epochs=False)
        is ErrorCode.none
    )
    for wrong in (generation + 1, generation - 2):
        assert world.commit(1, member_id=classic.member_id, generation=wrong) is ErrorCode.illegal_generation


def test_offsets_of_subscribed_topics_are_not_deleted(world: ConsumerWorld) -> None:
    world.create("u", 1)
    world.enter("A", "t")
    assert commit(world, "A", 2, 0) is ErrorCode.none
    request = OffsetDelete("g", (OffsetDeleteTopic("t", (0,)), OffsetDeleteTopic("u", (0,))))
    reply = world.ask(request, OffsetDeleteResult)
    assert [each.partitions[0].error_code for each in reply.topics] == [
        ErrorCode.group_subscribed_to_topic,
        ErrorCode.none,
    ]
