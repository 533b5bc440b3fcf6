"""Members of a consumer group (KIP-848) on a virtual clock: targets, callbacks, liveness (SPEC C-2, C-5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from group_member_harness import ALL, Diary, Stage, play, poll_until, shares

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.group.committer import CommitFailed
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from support.scripted.scripted_consumer_group import ScriptedConsumerGroup

Scenario = Callable[[Stage, ScriptedConsumerGroup], Awaitable[None]]


def play_next(scenario: Scenario) -> None:
    async def play_it(stage: Stage) -> None:
        await scenario(stage, stage.next_generation())

    play(play_it)


def member(stage: Stage, name: str = "c", **keys: Any) -> Consumer:
    return stage.consumer(name, group_protocol="consumer", **keys)


def test_one_member_gets_everything_reads_it_and_leaves_with_what_it_read_committed() -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        stage.fill("t", 0, 5)
        diary = Diary()
        async with member(stage) as consumer:
            await consumer.subscribe(["t"], diary)
            records: list[ConsumerRecord] = []
            while len(records) < 5:
                records += await consumer.poll(timeout_ms=1_000)
            assert sorted(consumer.assignment()) == ALL
            assert consumer.group_identity().generation == 2
            name = consumer.group_identity().member_id
        assert diary.entries == [("assigned", [0, 1, 2, 3]), ("revoked", [0, 1, 2, 3])]
        assert group.left == [(name, "-1")]
        assert group.offsets["t", 0] == (5, 0)
        first, second, *_ = group.heard
        assert (first.epoch, first.topics, first.owned) == (0, ("t",), [])
        assert (second.epoch, second.topics, second.owned) == (2, None, [0, 1, 2, 3]), "only what is new"

    play_next(scenario)


def test_a_partition_is_given_up_and_its_position_committed_before_another_has_it() -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        stage.fill("t", 2, 4)
        first, second = Diary(), Diary()
        async with member(stage, "a") as a, member(stage, "b") as b:
            await a.subscribe(["t"], first)
            records: list[ConsumerRecord] = []
            while len(records) < 4:
                records += await a.poll(timeout_ms=1_000)
            await b.subscribe(["t"], second)
            await poll_until(lambda: shares(a, b) == [2, 2], a, b)
            assert sorted(a.assignment() + b.assignment()) == ALL
            assert first.entries == [("assigned", [0, 1, 2, 3]), ("revoked", [2, 3])]
            assert second.entries == [("assigned", []), ("assigned", [2, 3])]
            assert group.offsets["t", 2] == (4, 0)
            stage.fill("t", 2, 2)
            records = await poll_until(lambda: group.offsets["t", 2] == (6, 0), a, b)
            assert [one.offset for one in records] == [4, 5]

    play_next(scenario)


def test_c5_a_member_that_stops_polling_leaves_and_is_told_that_it_lost_its_partitions() -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        diary = Diary()
        async with member(stage, max_poll_interval_ms=30_000) as consumer:
            await consumer.subscribe(["t"], diary)
            await poll_until(lambda: shares(consumer) == [4], consumer)
            consumer.pause(*ALL)
            before = stage.now_s()
            while not group.left:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            assert 29.8 < stage.now_s() - before < 30.5
            with pytest.raises(CommitFailed):
                await consumer.commit({ALL[0]: 1})
            await poll_until(lambda: len(group.consumers) == 1 and shares(consumer) == [4], consumer)
            assert diary.entries[1:] == [("lost", [0, 1, 2, 3]), ("assigned", [0, 1, 2, 3])]

    play_next(scenario)


def test_c5_a_long_poll_is_no_late_poll_and_heartbeats_come_as_the_coordinator_wants_them() -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        async with member(stage, max_poll_interval_ms=60_000) as consumer:
            await consumer.subscribe(["t"])
            await poll_until(lambda: shares(consumer) == [4], consumer)
            consumer.pause(*ALL)
            heard = len(group.heard)
            assert await consumer.poll(timeout_ms=200_000) == []
            assert group.left == group.expired == []
            assert 38 <= len(group.heard) - heard <= 42, "one every five seconds"

    play_next(scenario)


@pytest.mark.parametrize("removed", [True, False])
def test_a_member_that_is_fenced_has_lost_its_partitions_and_starts_again(removed: bool) -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        diary = Diary()
        stage.fill("t", 0, 3)
        async with member(stage) as consumer:
            await consumer.subscribe(["t"], diary)
            await poll_until(lambda: shares(consumer) == [4], consumer)
            name = consumer.group_identity().member_id
            if removed:
                group.remove(name)
            else:
                group.consumers[name].epoch = 9
            rejoined = len(group.heard)
            await poll_until(
                lambda: any(one.epoch == 0 for one in group.heard[rejoined:]) and shares(consumer) == [4],
                consumer,
            )
            assert diary.entries == [
                ("assigned", [0, 1, 2, 3]),
                ("lost", [0, 1, 2, 3]),
                ("assigned", [0, 1, 2, 3]),
            ]
            assert consumer.group_identity().member_id == name, "a member keeps the id it gave itself"
            assert group.offsets == {}, "what is lost is not committed"

    play_next(scenario)


def test_a_static_member_goes_away_and_finds_its_partitions_as_they_were() -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        async with member(stage, "b") as other:
            async with member(stage, "a", group_instance_id="i") as consumer:
                await consumer.subscribe(["t"])
                await poll_until(lambda: shares(consumer) == [4], consumer)
                await other.subscribe(["t"])
                await poll_until(lambda: shares(consumer, other) == [2, 2], consumer, other)
                mine, epoch = sorted(consumer.assignment()), group.epoch
            assert [how for _, how in group.left] == ["-2"]
            async with member(stage, "a", group_instance_id="i") as again:
                await again.subscribe(["t"])
                await poll_until(lambda: shares(again, other) == [2, 2], again, other)
                assert sorted(again.assignment()) == mine
                assert group.epoch == epoch, "no other member noticed"
                async with member(stage, "x", group_instance_id="i") as intruder:
                    await intruder.subscribe(["t"])
                    with pytest.raises(KafkaError, match="UNRELEASED_INSTANCE_ID"):
                        await intruder.poll(timeout_ms=30_000)
                await again.close(leave_group=True)
            assert [how for _, how in group.left] == ["-2", "-1"]

    play_next(scenario)


def test_subscribing_to_other_topics_and_to_none() -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        diary = Diary()
        async with member(stage) as consumer:
            await consumer.subscribe(["t"], diary)
            await poll_until(lambda: shares(consumer) == [4], consumer)
            await consumer.subscribe(["u"], diary)
            await poll_until(lambda: shares(consumer) == [2], consumer)
            assert diary.entries == [
                ("assigned", [0, 1, 2, 3]),
                ("revoked", [0, 1, 2, 3]),
                ("assigned", [0, 1]),
            ]
            await consumer.unsubscribe()
            assert [how for _, how in group.left] == ["-1"]
            assert group.consumers == {} and consumer.assignment() == []

    play_next(scenario)


def test_the_group_goes_on_when_its_coordinator_moves() -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        async with member(stage, enable_auto_commit=False) as consumer:
            await consumer.subscribe(["t"])
            await poll_until(lambda: shares(consumer) == [4], consumer)
            epoch, heard = group.epoch, len(group.heard)
            group.coordinator = 2
            moved = stage.cluster.brokers[1]
            await poll_until(lambda: moved.count(ApiKey.CONSUMER_GROUP_HEARTBEAT) > 0, consumer)
            await consumer.commit({ALL[0]: 1})
            assert (group.epoch, shares(consumer)) == (epoch, [4])
            told = [one for one in group.heard[heard:] if one.topics is not None]
            assert [(one.topics, one.owned) for one in told] == [(("t",), [0, 1, 2, 3])] * len(told)
            assert told, "who does not know what arrived says all again"

    play_next(scenario)


def test_a_commit_in_an_epoch_that_has_passed_is_made_again_in_the_new_one() -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        async with member(stage, enable_auto_commit=False) as consumer:
            await consumer.subscribe(["t"])
            await poll_until(lambda: shares(consumer) == [4], consumer)
            left = [2]

            def fault(key: int, _request: Any) -> ErrorCode | None:
                if key == ApiKey.OFFSET_COMMIT and left[0]:
                    left[0] -= 1
                    return ErrorCode.stale_member_epoch
                return None

            group.fault = fault
            await consumer.commit({ALL[1]: 7})
            assert (left, group.offsets["t", 1]) == ([0], (7, -1))

    play_next(scenario)


def test_a_commit_fails_if_no_newer_epoch_becomes_known_in_time() -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        async with member(stage, enable_auto_commit=False, default_api_timeout_ms=1_000) as consumer:
            await consumer.subscribe(["t"])
            await poll_until(lambda: shares(consumer) == [4], consumer)
            group.fault = lambda key, _: ErrorCode.stale_member_epoch if key == ApiKey.OFFSET_COMMIT else None
            with pytest.raises(CommitFailed, match="STALE_MEMBER_EPOCH"):
                await consumer.commit({ALL[1]: 7})
            assert group.offsets == {}

    play_next(scenario)


def test_a_commit_that_waited_for_another_one_fails_like_that_if_no_newer_epoch_becomes_known() -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        async with member(stage, enable_auto_commit=False, default_api_timeout_ms=1_000) as consumer:
            await consumer.subscribe(["t"])
            await poll_until(lambda: shares(consumer) == [4], consumer)
            group.fault = lambda key, _: ErrorCode.stale_member_epoch if key == ApiKey.OFFSET_COMMIT else None

            async def later() -> None:
                await asyncio.sleep(0.4)
                await consumer.commit({ALL[0]: 7})

            found = await asyncio.gather(consumer.commit({ALL[1]: 7}), later(), return_exceptions=True)
            assert [type(one) for one in found] == [CommitFailed, CommitFailed]
            assert group.offsets == {}

    play_next(scenario)


def test_a_commit_is_not_made_in_a_new_epoch_once_partitions_have_changed_hands() -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        async with member(stage, "a", enable_auto_commit=False) as a, member(stage, "b") as b:
            await a.subscribe(["t"])
            await poll_until(lambda: shares(a) == [4], a)
            group.fault = lambda key, _: ErrorCode.stale_member_epoch if key == ApiKey.OFFSET_COMMIT else None
            committing = asyncio.create_task(a.commit(dict.fromkeys(ALL, 7)))
            await asyncio.sleep(0)  # it has begun
            await b.subscribe(["t"])
            await poll_until(lambda: shares(a, b) == [2, 2], a, b)
            group.fault = lambda _key, _request: None
            with pytest.raises(CommitFailed):
                await committing
            assert group.offsets == {}

    play_next(scenario)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_member_epoch,
    ],
)
@pytest.mark.parametrize("after", [0, 2])
def test_members_get_over_every_passing_error(code: ErrorCode, after: int) -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        beats: list[ErrorCode | None] = [None] * after + [code] * 3

        def fault(key: int, _request: Any) -> ErrorCode | None:
            return beats.pop(0) if key == ApiKey.CONSUMER_GROUP_HEARTBEAT and beats else None

        group.fault = fault
        stage.fill("t", 0, 3)
        async with member(stage) as consumer:
            await consumer.subscribe(["t"])
            got: list[ConsumerRecord] = []
            while beats or not got or shares(consumer) != [4]:
                got += await consumer.poll(timeout_ms=500)
                assert stage.now_s() < 300
            assert {one.offset for one in got} == {0, 1, 2}

    play_next(scenario)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.group_authorization_failed,
        ErrorCode.unsupported_assignor,
        ErrorCode.group_max_size_reached,
        ErrorCode.invalid_request,
    ],
)
def test_what_will_not_pass_is_raised_and_the_next_poll_tries_again(code: ErrorCode) -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        group.fault = lambda key, _: code if key == ApiKey.CONSUMER_GROUP_HEARTBEAT else None
        async with member(stage) as consumer:
            await consumer.subscribe(["t"])
            with pytest.raises(KafkaError, match=code.name.upper()):
                await consumer.poll(timeout_ms=30_000)
            group.fault = lambda _key, _request: None
            await poll_until(lambda: shares(consumer) == [4], consumer)

    play_next(scenario)


def test_what_a_callback_raises_comes_out_of_the_poll_and_the_group_goes_on() -> None:
    async def scenario(stage: Stage, group: ScriptedConsumerGroup) -> None:
        diary = Diary()

        async def then(what: str, partitions: Sequence[TopicPartition]) -> None:
            raise RuntimeError(f"no {what}")

        async with member(stage) as consumer:
            diary.then = then
            await consumer.subscribe(["t"], diary)
            with pytest.raises(RuntimeError, match="no assigned"):
                await consumer.poll(timeout_ms=30_000)
            diary.then = None
            assert shares(consumer) == [4]
            heard = len(group.heard)
            await poll_until(lambda: len(group.heard) > heard + 1, consumer)
            assert group.heard[-1].epoch > 0

    play_next(scenario)
