"""Errors that a member of a classic group meets: of its coordinator, of callbacks (SPEC C-2, C-5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from group_member_harness import ALL, Diary, Stage, play, poll_until, shares

from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError

RETRIABLE_JOIN_ERRORS = (
    ErrorCode.rebalance_in_progress,
    ErrorCode.unknown_member_id,
    ErrorCode.illegal_generation,
)
TRY_AGAIN = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
)


@pytest.mark.parametrize(
    ("key", "code"),
    [
        *(
            (key, code)
            for key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
            for code in RETRIABLE_JOIN_ERRORS + TRY_AGAIN
        ),
        *((ApiKey.HEARTBEAT, code) for code in RETRIABLE_JOIN_ERRORS + TRY_AGAIN),
        *((ApiKey.OFFSET_FETCH, code) for code in (*TRY_AGAIN, ErrorCode.unstable_offset_commit)),
        *((ApiKey.FIND_COORDINATOR, code) for code in TRY_AGAIN),
    ],
)
def test_members_get_over_every_passing_error(key: ApiKey, code: ErrorCode) -> None:
    async def scenario(stage: Stage) -> None:
        left = [3]

        def fault(asked: int, _request: Any) -> ErrorCode | None:
            if asked == key and left[0] > 0:
                left[0] -= 1
                return code
            return None

        stage.group.fault = fault
        stage.fill("t", 0, 3)
        async with stage.consumer() as consumer:
            await consumer.subscribe(["t"])
            got: list[ConsumerRecord] = []
            while left[0] or not got or stage.group.state != "Stable" or shares(consumer) != [4]:
                got += await consumer.poll(timeout_ms=500)
                assert stage.now_s() < 300
            assert {one.offset for one in got} == {0, 1, 2}

    play(scenario)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.group_authorization_failed,
        ErrorCode.inconsistent_group_protocol,
        ErrorCode.invalid_session_timeout,
        ErrorCode.group_max_size_reached,
    ],
)
def test_what_will_not_pass_is_raised(code: ErrorCode) -> None:
    async def scenario(stage: Stage) -> None:
        stage.group.fault = lambda key, _: code if key == ApiKey.JOIN_GROUP else None
        async with stage.consumer() as consumer:
            await consumer.subscribe(["t"])
            with pytest.raises(KafkaError, match=code.name.upper()):
                await consumer.poll(timeout_ms=30_000)

    play(scenario)


def test_the_group_goes_on_when_its_coordinator_moves() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.consumer() as consumer:
            await consumer.subscribe(["t"])
            await poll_until(lambda: shares(consumer) == [4], consumer)
            stage.group.coordinator = 2
            await poll_until(lambda: stage.cluster.brokers[1].count(ApiKey.HEARTBEAT) > 0, consumer)
            await consumer.commit({ALL[0]: 1})
            assert stage.group.generation == 1
            assert shares(consumer) == [4]

    play(scenario)


def test_callbacks_may_commit_and_seek_but_not_poll() -> None:
    async def scenario(stage: Stage) -> None:
        stage.fill("t", 0, 9)
        diary = Diary()
        async with stage.consumer(enable_auto_commit=False) as consumer:

            async def then(what: str, partitions: Sequence[TopicPartition]) -> None:
                if what == "assigned" and partitions:
                    consumer.seek(ALL[0], 6)
                    with pytest.raises(KafkaError, match="not poll"):
                        await consumer.poll()
                if what == "revoked":
                    await consumer.commit()

            diary.then = then
            await consumer.subscribe(["t"], diary)
            assert [one.offset for one in await consumer.poll(timeout_ms=30_000)] == [6, 7, 8]
        assert [what for what, _ in diary.entries] == ["assigned", "revoked"]
        assert stage.group.offsets["t", 0] == (9, 0)

    play(scenario)


def test_what_a_callback_raises_comes_out_of_the_poll_and_the_group_goes_on() -> None:
    async def scenario(stage: Stage) -> None:
        diary = Diary()

        async def then(what: str, partitions: Sequence[TopicPartition]) -> None:
            raise RuntimeError(f"no {what}")

        async with stage.consumer() as consumer:
            diary.then = then
            await consumer.subscribe(["t"], diary)
            with pytest.raises(RuntimeError, match="no assigned"):
                await consumer.poll(timeout_ms=30_000)
            diary.then = None
            assert shares(consumer) == [4]
            await poll_until(lambda: stage.group.state == "Stable", consumer)

    play(scenario)
