"""Offsets committed in transactions: pending until the marker, across coordinators (SPEC P-5)."""

from __future__ import annotations

from typing import ClassVar

import pytest
from group_harness import GroupWorld

from nilometer.coordinators import Producer
from nilometer.groups import offsets
from nilometer.groups.offsets import FREED_AT_ONCE, TOMBSTONES_PER_CALL_MAX, PendingOffsets
from nilometer.groups.records import OffsetCommitKey, OffsetCommitValue
from nilometer.groups.requests import (
    DeleteGroups,
    DeleteGroupsResult,
    OffsetDelete,
    OffsetDeleteResult,
    OffsetDeleteTopic,
    OffsetFetch,
    OffsetFetchResult,
    OffsetFetchTopic,
)
from nilometer.groups.settings import GroupConfig
from nilometer.wire.errors import ErrorCode

ONE, TWO = Producer(11, 0), Producer(22, 3)
HOUR_MS = 3_600_000


def stable(world: GroupWorld, *, everything: bool = False) -> list[int | ErrorCode]:
    """Of partition 0: what a reader is told that waits until offsets are stable."""
    topics = None if everything else (OffsetFetchTopic("t", (0,)),)
    reply = world.ask(OffsetFetch("g", topics, require_stable=True), OffsetFetchResult)
    return [
        partition.error_code or partition.committed_offset
        for topic in reply.topics
        for partition in topic.partitions
    ]


def offset(world: GroupWorld) -> int | None:
    return world.committed().get(("t", 0))


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("moves", [False, True], ids=["same coordinator", "next coordinator"])
def test_p_5_an_offset_counts_once_its_transaction_is_committed(committed: bool, moves: bool) -> None:
    world = GroupWorld()
    world.commit(3)
    assert world.commit(7, producer=ONE) is ErrorCode.none
    if moves:
        world.fail_over()
    assert (offset(world), stable(world)) == (3, [ErrorCode.unstable_offset_commit])
    assert stable(world, everything=True) == [ErrorCode.unstable_offset_commit]
    world.end_transaction(ONE.producer_id, committed=committed)
    if moves:
        world.fail_over()
    assert (offset(world), stable(world)) == ((7, [7]) if committed else (3, [3]))


def test_records_of_a_transaction_are_written_in_it_and_others_are_not() -> None:
    world = GroupWorld()
    world.commit(7, producer=ONE)
    world.commit(8)
    assert world.log_of_transactions == {0: ONE}


def test_transactions_of_several_producers_do_not_disturb_one_another() -> None:
    world = GroupWorld()
    world.commit(7, producer=ONE)
    world.commit(8, producer=TWO)
    world.end_transaction(TWO.producer_id, committed=True)
    assert (offset(world), stable(world)) == (8, [ErrorCode.unstable_offset_commit])
    world.end_transaction(ONE.producer_id, committed=False)
    assert stable(world) == [8]
    world.end_transaction(99, committed=True)
    assert stable(world) == [8]


@pytest.mark.parametrize("moves", [False, True])
def test_a_later_ordinary_commit_counts_whatever_becomes_of_the_transaction(moves: bool) -> None:
    world = GroupWorld()
    world.commit(7, producer=ONE)
    world.commit(9)
    if moves:
        world.fail_over()
    assert stable(world) == [ErrorCode.unstable_offset_commit]
    world.end_transaction(ONE.producer_id, committed=True)
    assert stable(world) == [9]


@pytest.mark.parametrize("moves", [False, True])
def test_a_deletion_takes_the_pending_offset_with_it(moves: bool) -> None:
    world = GroupWorld()
    world.commit(7, producer=ONE)
    request = OffsetDelete("g", (OffsetDeleteTopic("t", (0,)),))
    assert world.ask(request, OffsetDeleteResult).error_code is ErrorCode.none
    assert len(world.written) == 1, "its tombstone"
    if moves:
        world.fail_over()
    assert stable(world) == [-1]
    world.end_transaction(ONE.producer_id, committed=True)
    assert stable(world) == [-1]


def test_a_deleted_group_is_not_brought_back_by_a_marker() -> None:
    world = GroupWorld()
    world.commit(7, producer=ONE)
    reply = world.ask(DeleteGroups(("g",)), DeleteGroupsResult)
    assert reply.results[0].error_code is ErrorCode.none
    world.end_transaction(ONE.producer_id, committed=True)
    world.fail_over()
    assert world.shard.groups() == []


def value(offset: int) -> OffsetCommitValue:
    return OffsetCommitValue(offset, "", 0)


class CountedKey(OffsetCommitKey, frozen=True):
    """A key that counts how often one is looked for in a table."""

    looked_for: ClassVar[int] = 0

    def __hash__(self) -> int:
        CountedKey.looked_for += 1
        return hash((self.topic, self.partition))


@pytest.fixture
def pending_of_many() -> tuple[PendingOffsets, list[CountedKey]]:
    """Ten offsets that are pending in the transactions of 300 producers each."""
    pending, keys = PendingOffsets(), [CountedKey("g", "t", partition) for partition in range(10)]
    for producer_id in range(300):
        for key in keys:
            pending.add(producer_id, key, value(producer_id))
    CountedKey.looked_for = 0
    return pending, keys


Many = tuple[PendingOffsets, list[CountedKey]]


def test_what_is_removed_is_not_looked_for_in_each_transaction(pending_of_many: Many) -> None:
    pending, keys = pending_of_many
    pending.on_plain_record(keys[0], value(1))
    pending.on_plain_record(keys[1], None)
    steps = list(pending.take("g"))
    assert CountedKey.looked_for < 3 * len(keys)
    assert {key for key in steps if key is not None} == set(keys) - {keys[1]}
    assert len(steps) == 9 + 9 * 300 // FREED_AT_ONCE, "what is freed is counted"
    assert not pending.of_group("g")
    assert [pending.end(producer_id) for producer_id in range(300)] == [[]] * 300


def test_transactions_end_as_before_whatever_was_removed_of_others(pending_of_many: Many) -> None:
    pending, keys = pending_of_many
    pending.on_plain_record(keys[0], value(1))
    pending.on_plain_record(keys[1], None)
    pending.add(7, keys[0], value(70))
    pending.add(8, keys[1], value(80))
    of_7 = {key.partition: ended.offset for key, ended in pending.end(7)}
    of_8 = {key.partition: ended.offset for key, ended in pending.end(8)}
    assert of_7 == {0: 70} | dict.fromkeys(range(2, 10), 7)
    assert of_8 == {1: 80} | dict.fromkeys(range(2, 10), 8)
    assert not pending.is_pending(keys[1])


def test_a_group_with_offsets_in_many_transactions_is_deleted_in_several_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offsets, "FREED_AT_ONCE", 1)
    world, producers = GroupWorld(), 3 * TOMBSTONES_PER_CALL_MAX
    for producer_id in range(producers):
        world.commit(7, producer=Producer(producer_id, 0))
    token = world.send(DeleteGroups(("g",)))
    calls = 0
    while token not in world.replies:
        calls += 1
        world.end_transaction(calls, committed=True)
        assert (world.committed(), world.shard.groups()) == ({}, [])
        assert world.commit(8, producer=ONE) is ErrorCode.coordinator_load_in_progress
        world.now_ms += 1
        world.on_time()
    assert calls == 3
    assert world.commit(8, producer=ONE) is ErrorCode.none
    world.end_transaction(ONE.producer_id, committed=True)
    assert world.committed() == {("t", 0): 8}
    world.fail_over()
    assert world.committed() == {("t", 0): 8}


def test_neither_a_pending_offset_nor_its_group_expires() -> None:
    world = GroupWorld(GroupConfig(offsets_retention_ms=HOUR_MS, offsets_retention_check_interval_ms=60_000))
    world.commit(3)
    world.commit(7, producer=ONE)
    world.pass_time(3 * HOUR_MS)
    assert stable(world) == [ErrorCode.unstable_offset_commit]
    world.end_transaction(ONE.producer_id, committed=False)
    world.pass_time(HOUR_MS)
    assert world.committed() == {}


# ── who may ───────────────────────────────────────────────────────────────────────────────────────
def test_a_transaction_that_names_no_member_may_commit_to_a_group_with_members() -> None:
    world = GroupWorld()
    member_id = _join(world)
    assert world.commit(7, producer=ONE) is ErrorCode.none
    assert world.commit(7) is ErrorCode.unknown_member_id
    assert world.commit(7, member_id=member_id, generation=1, producer=ONE) is ErrorCode.none
    assert world.commit(7, member_id=member_id, generation=9, producer=ONE) is ErrorCode.illegal_generation
    assert world.commit(7, member_id="other", generation=1, producer=ONE) is ErrorCode.unknown_member_id


def test_a_generation_of_a_group_that_is_not_there_is_illegal() -> None:
    world = GroupWorld()
    old = world.commit(7, generation=1, member_id="a", producer=ONE, knows_member_epochs=False)
    assert old is ErrorCode.illegal_generation
    assert world.commit(7, generation=1, member_id="a", producer=ONE) is ErrorCode.group_id_not_found


def _join(world: GroupWorld) -> str:
    token = world.join()
    world.pass_time(10_000)
    return world.joined(token).member_id
