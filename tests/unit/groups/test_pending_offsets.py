"""Offsets committed in transactions: pending until the marker, across coordinators (SPEC P-5)."""

from __future__ import annotations

import pytest
from group_harness import GroupWorld

from nilometer.coordinators import Producer
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
