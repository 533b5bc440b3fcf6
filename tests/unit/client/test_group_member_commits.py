"""Commits of a member of a classic group on a virtual clock, and where it begins to read (SPEC C-2, C-5)."""

from __future__ import annotations

import asyncio

import pytest
from group_member_harness import ALL, Stage, play, poll_until, shares

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.group.committer import CommitFailed
from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.records import BatchBuilder


def test_commits_during_a_rebalance_are_refused_and_the_member_joins_again() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.consumer(enable_auto_commit=False) as consumer:
            await consumer.subscribe(["t"])
            await poll_until(lambda: shares(consumer) == [4], consumer)
            await consumer.commit({ALL[1]: 7, ALL[2]: OffsetAndMetadata(8, 0, "note")})
            assert stage.group.offsets == {("t", 1): (7, -1), ("t", 2): (8, 0)}
            found = await consumer.committed(ALL[:2])
            assert found == {ALL[0]: None, ALL[1]: OffsetAndMetadata(7)}
            stage.group.fault = lambda key, _: (
                ErrorCode.illegal_generation if key == ApiKey.OFFSET_COMMIT else None
            )
            with pytest.raises(CommitFailed, match="ILLEGAL_GENERATION"):
                await consumer.commit({ALL[1]: 9})
            stage.group.fault = lambda _key, _request: None
            await poll_until(lambda: stage.group.generation == 2 and shares(consumer) == [4], consumer)
            assert consumer.group_identity().member_id == "member-1"  # the id is kept, the generation is new
            await consumer.commit({ALL[1]: 9})
            assert stage.group.offsets["t", 1] == (9, -1)

    play(scenario)


def test_asynchronous_commits_arrive_in_order_and_tell_their_outcome() -> None:
    async def scenario(stage: Stage) -> None:
        outcomes: list[tuple[int, KafkaError | None]] = []
        async with stage.consumer(enable_auto_commit=False) as consumer:
            await consumer.subscribe(["t"])
            await poll_until(lambda: shares(consumer) == [4], consumer)
            for offset in range(1, 6):
                consumer.commit_async(
                    {ALL[0]: offset},
                    lambda offsets, error: outcomes.append((offsets[ALL[0]].offset, error)),
                )
        assert outcomes == [(offset, None) for offset in range(1, 6)]
        assert stage.group.offsets["t", 0] == (5, -1)

    play(scenario)


def refuse_commits(stage: Stage, code: ErrorCode) -> None:
    stage.group.fault = lambda key, _: code if key == ApiKey.OFFSET_COMMIT else None


async def expel(stage: Stage, consumer: Consumer) -> None:
    """Have its session end, another member commit 150 meanwhile, and have it come back."""
    refusal, identity = stage.group.fault, consumer.group_identity()
    stage.group.fault = lambda key, request: (
        ErrorCode.unknown_member_id if key == ApiKey.HEARTBEAT else refusal(key, request)
    )
    await poll_until(lambda: consumer.group_identity() != identity, consumer)
    stage.group.fault = refusal
    stage.group.offsets["t", 0] = (150, -1)
    await poll_until(lambda: shares(consumer) == [4] and stage.group.state == "Stable", consumer)


def test_an_asynchronous_commit_that_fails_is_not_repeated_behind_newer_ones() -> None:
    async def scenario(stage: Stage) -> None:
        errors: list[KafkaError | None] = []
        async with stage.consumer(enable_auto_commit=False) as consumer:
            await consumer.subscribe(["t"])
            await poll_until(lambda: shares(consumer) == [4], consumer)
            refuse_commits(stage, ErrorCode.coordinator_load_in_progress)
            consumer.commit_async({ALL[0]: 100}, lambda _offsets, error: errors.append(error))
            await expel(stage, consumer)
            stage.group.fault = lambda _key, _request: None
            await asyncio.sleep(70)  # longer than any time-out that a commit may have
            assert [error and error.code for error in errors] == [ErrorCode.coordinator_load_in_progress]
            assert stage.group.offsets["t", 0] == (150, -1)

    play(scenario)


def test_a_commit_asked_for_in_one_generation_is_never_made_in_another() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.consumer(enable_auto_commit=False) as consumer:
            await consumer.subscribe(["t"])
            await poll_until(lambda: shares(consumer) == [4], consumer)
            refuse_commits(stage, ErrorCode.coordinator_load_in_progress)
            committing = asyncio.create_task(consumer.commit({ALL[0]: 100}))
            await asyncio.sleep(0)  # it has begun
            await expel(stage, consumer)
            stage.group.fault = lambda _key, _request: None
            with pytest.raises(CommitFailed):
                await committing
            assert stage.group.offsets["t", 0] == (150, -1)

    play(scenario)


def test_asynchronous_commits_are_made_before_the_member_leaves() -> None:
    async def scenario(stage: Stage) -> None:
        errors: list[KafkaError | None] = []
        async with stage.consumer(enable_auto_commit=False) as consumer:
            await consumer.subscribe(["t"])
            await poll_until(lambda: shares(consumer) == [4], consumer)
            consumer.commit_async({ALL[0]: 7}, lambda _offsets, error: errors.append(error))
            await consumer.unsubscribe()
            assert errors == [None]
        assert stage.group.offsets["t", 0] == (7, -1)

    play(scenario)


def test_positions_are_committed_now_and_then_and_before_they_go() -> None:
    async def scenario(stage: Stage) -> None:
        stage.fill("t", 2, 4)
        async with stage.consumer("a") as a, stage.consumer("b") as b:
            await a.subscribe(["t"])
            records = await poll_until(lambda: stage.group.offsets.get(("t", 2)) == (4, 0), a)
            assert len(records) == 4
            assert 5 <= stage.now_s() < 7  # auto.commit.interval.ms, inside a row of short polls
            stage.fill("t", 2, 3)
            await b.subscribe(["t"])
            records = await poll_until(lambda: shares(a, b) == [2, 2], a, b)
            records += await poll_until(lambda: len(records) >= 3, a, b) if len(records) < 3 else []
            assert [record.offset for record in records] == [4, 5, 6]

    play(scenario)


def test_the_next_member_goes_on_where_the_last_one_committed() -> None:
    async def scenario(stage: Stage) -> None:
        stage.fill("t", 1, 10)
        async with stage.consumer(enable_auto_commit=False, max_poll_records=4) as consumer:
            await consumer.subscribe(["t"])
            assert [one.offset for one in await consumer.poll(timeout_ms=30_000)] == [0, 1, 2, 3]
            await consumer.commit()
            assert [one.offset for one in await consumer.poll(timeout_ms=30_000)] == [4, 5, 6, 7]
        async with stage.consumer() as consumer:
            await consumer.subscribe(["t"])
            assert [one.offset for one in await consumer.poll(timeout_ms=30_000)] == [4, 5, 6, 7, 8, 9]

    play(scenario)


def test_edge_11_a_committed_position_is_validated_against_the_log() -> None:
    """The log was cut below the committed offset while no member read: what was written instead is read."""

    async def scenario(stage: Stage) -> None:
        stage.fill("t", 0, 5)
        stage.fill("t", 0, 5)
        async with stage.consumer() as consumer:
            await consumer.subscribe(["t"])
            assert len(await consumer.poll(timeout_ms=30_000)) == 10
        assert stage.group.offsets["t", 0] == (10, 0)
        stage.cluster.logs["t", 0].truncate(5)
        stage.cluster.move_leader("t", 0, 2)
        stage.fill("t", 0, 9)
        async with stage.consumer() as consumer:
            await consumer.subscribe(["t"])
            assert [one.offset for one in await consumer.poll(timeout_ms=30_000)] == list(range(5, 14))

    play(scenario)


def test_no_committed_offset_and_no_reset_is_an_error() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.consumer(auto_offset_reset="none") as consumer:
            await consumer.subscribe(["t"])
            with pytest.raises(KafkaError, match=r"no position for t-\d, and auto\.offset\.reset is none"):
                await consumer.poll(timeout_ms=30_000)

    play(scenario)


def test_by_duration_begins_so_long_before_now() -> None:
    async def scenario(stage: Stage) -> None:
        log = stage.cluster.logs["t", 0]
        now_ms = stage.runtime.clock.wall_ms()
        for age_s in (7_200, 3_500, 10):
            builder = BatchBuilder()
            builder.append(now_ms - age_s * 1000, None, b"%d" % age_s, ())
            assert log.append(builder.build())[0] == ErrorCode.none
        async with stage.consumer(auto_offset_reset="by_duration:PT1H") as consumer:
            await consumer.subscribe(["t"])
            assert [one.offset for one in await consumer.poll(timeout_ms=30_000)] == [1, 2]
            assert await consumer.position(ALL[1]) == 0  # nothing is that young there: the end

    play(scenario)
