"""Members of a classic group on a virtual clock: rebalances, callbacks, liveness, commits (SPEC C-2, C-5)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest
from group_stage import ALL, Diary, Stage, play, poll_until, shares

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetched_records import ConsumerRecord
from nilometer.client.group.committer import CommitFailed
from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.config import ConfigError
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.records import BatchBuilder
from support.scripted.log_cluster import LogCluster


def test_one_member_gets_everything_reads_it_and_leaves_with_what_it_read_committed() -> None:
    async def scenario(stage: Stage) -> None:
        stage.fill("t", 0, 5)
        stage.fill("t", 3, 2)
        diary = Diary()
        async with stage.consumer() as consumer:
            await consumer.subscribe(["t"], diary)
            records: list[ConsumerRecord] = []
            records += await poll_until(lambda: len(records) >= 7 or shares(consumer) == [4], consumer)
            while len(records) < 7:
                records += await consumer.poll(timeout_ms=1_000)
            assert sorted(consumer.assignment()) == ALL
            assert consumer.group_identity().generation == 1
        assert diary.entries == [("assigned", [0, 1, 2, 3]), ("revoked", [0, 1, 2, 3])]
        assert stage.group.left == [("member-1", "the consumer is being closed")]
        assert stage.group.offsets == {
            ("t", 0): (5, 0),
            ("t", 1): (0, -1),
            ("t", 2): (0, -1),
            ("t", 3): (2, 0),
        }

    play(scenario)


def test_cooperative_members_keep_what_they_keep_and_get_the_rest_one_round_later() -> None:
    async def scenario(stage: Stage) -> None:
        first, second = Diary(), Diary()
        async with stage.consumer("a") as a, stage.consumer("b") as b:
            await a.subscribe(["t"], first)
            await poll_until(lambda: shares(a) == [4], a)
            await b.subscribe(["t"], second)
            await poll_until(lambda: shares(a, b) == [2, 2], a, b)
            assert sorted(a.assignment() + b.assignment()) == ALL
            assert first.entries == [
                ("assigned", [0, 1, 2, 3]),
                ("revoked", [2, 3]),
                ("assigned", []),
                ("assigned", []),
            ]
            assert second.entries == [("assigned", []), ("assigned", [2, 3])]
            assert [reason for _, reason in stage.group.joins].count(
                "partitions were assigned to other members; they get them in the next rebalance"
            ) == 1

    play(scenario)


def test_eager_members_give_everything_up_first() -> None:
    async def scenario(stage: Stage) -> None:
        diary = Diary()
        settings = {"partition_assignment_strategy": "range,roundrobin"}
        async with stage.consumer("a", **settings) as a, stage.consumer("b", **settings) as b:
            await a.subscribe(["t"], diary)
            await poll_until(lambda: shares(a) == [4], a)
            await b.subscribe(["t"])
            await poll_until(lambda: shares(a, b) == [2, 2], a, b)
            assert diary.entries == [
                ("assigned", [0, 1, 2, 3]),
                ("revoked", [0, 1, 2, 3]),
                ("assigned", [0, 1]),
            ]

    play(scenario)


def test_c5_a_member_that_stops_polling_leaves_and_is_told_that_it_lost_its_partitions() -> None:
    async def scenario(stage: Stage) -> None:
        diary = Diary()
        async with stage.consumer(max_poll_interval_ms=30_000) as consumer:
            await consumer.subscribe(["t"], diary)
            await poll_until(lambda: shares(consumer) == [4], consumer)
            consumer.pause(*ALL)  # nothing to fetch: the world's clock can leap
            await asyncio.sleep(29.0)
            assert stage.group.left == []
            await consumer.poll(timeout_ms=0)
            before = stage.now_s()
            while not stage.group.left:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            assert 29.9 < stage.now_s() - before < 30.5
            assert "max.poll.interval.ms" in stage.group.left[0][1]
            with pytest.raises(CommitFailed):
                await consumer.commit({ALL[0]: 1})
            await poll_until(lambda: stage.group.generation == 2 and shares(consumer) == [4], consumer)
            assert diary.entries[1:] == [("lost", [0, 1, 2, 3]), ("assigned", [0, 1, 2, 3])]

    play(scenario)


def test_c5_a_long_poll_is_no_late_poll_and_heartbeats_go_on_between_polls() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.consumer(max_poll_interval_ms=60_000, session_timeout_ms=10_000) as consumer:
            await consumer.subscribe(["t"])
            await poll_until(lambda: shares(consumer) == [4], consumer)
            consumer.pause(*ALL)
            assert await consumer.poll(timeout_ms=200_000) == []
            await asyncio.sleep(50)
            assert stage.group.left == []
            assert stage.group.expired == []
            assert stage.group.generation == 1
            beats = sum(broker.count(ApiKey.HEARTBEAT) for broker in stage.cluster.brokers)
            assert 80 <= beats <= 90  # one every three seconds for 250

    play(scenario)


def test_a_member_whose_session_was_ended_joins_again_and_commits_nothing_as_the_old_one() -> None:
    async def scenario(stage: Stage) -> None:
        diary = Diary()
        stage.fill("t", 0, 3)
        async with stage.consumer() as consumer:
            await consumer.subscribe(["t"], diary)
            await poll_until(lambda: shares(consumer) == [4], consumer)
            stage.group.remove("member-1")
            await poll_until(lambda: stage.group.generation == 2 and shares(consumer) == [4], consumer)
            assert diary.entries[1] == ("lost", [0, 1, 2, 3])
            assert consumer.group_identity().member_id == "member-2"
            assert stage.group.offsets == {}

    play(scenario)


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


def test_a_static_member_keeps_its_place_and_a_second_one_fences_the_first() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.consumer(group_instance_id="i") as consumer:
            await consumer.subscribe(["t"])
            await poll_until(lambda: shares(consumer) == [4], consumer)
        assert stage.group.left == []
        async with stage.consumer(group_instance_id="i") as one:
            await one.subscribe(["t"])
            await poll_until(lambda: shares(one) == [4], one)
            async with stage.consumer(group_instance_id="i") as other:
                await other.subscribe(["t"])
                await poll_until(lambda: shares(other) == [4], other)
                with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
                    await poll_until(lambda: False, one)

    play(scenario)


def test_a_pattern_takes_in_topics_as_they_appear() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.consumer(metadata_max_age_ms=1_000) as consumer:
            await consumer.subscribe(re.compile("t.*"))
            await poll_until(lambda: shares(consumer) == [4], consumer)
            more = LogCluster(2, topics={"tea": 3})
            stage.cluster.logs |= more.logs
            stage.cluster.topic_ids["tea"] = stage.cluster.topic_ids["t"].__class__(int=77)
            stage.cluster.publish()
            await poll_until(lambda: shares(consumer) == [7], consumer)
            await consumer.subscribe(re.compile("tea"))
            await poll_until(lambda: shares(consumer) == [3], consumer)

    play(scenario)


def test_the_leader_has_the_group_assign_again_when_a_topic_grows() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.consumer(metadata_max_age_ms=1_000) as consumer:
            await consumer.subscribe(["u"])
            await poll_until(lambda: shares(consumer) == [2], consumer)
            stage.cluster.logs["u", 2] = LogCluster(1, topics={"u": 1}).logs["u", 0]
            stage.cluster.publish()
            await poll_until(lambda: shares(consumer) == [3], consumer)
            assert stage.group.joins[-1][1] == "partition counts of the group's topics changed"

    play(scenario)


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


def test_subscribing_to_other_topics_and_to_none() -> None:
    async def scenario(stage: Stage) -> None:
        diary = Diary()
        async with stage.consumer() as consumer:
            await consumer.subscribe(["t"], diary)
            await poll_until(lambda: shares(consumer) == [4], consumer)
            await consumer.subscribe(["u"], diary)
            await poll_until(lambda: shares(consumer) == [2], consumer)
            assert diary.entries == [
                ("assigned", [0, 1, 2, 3]),
                ("revoked", [0, 1, 2, 3]),
                ("assigned", [0, 1]),
            ]
            with pytest.raises(KafkaError, match=r"unsubscribe\(\) first"):
                consumer.assign([ALL[0]])
            await consumer.unsubscribe()
            assert stage.group.left == [("member-1", "the consumer unsubscribed")]
            assert consumer.assignment() == []
            consumer.assign([ALL[0]])
            await consumer.commit({ALL[0]: 3})  # without being a member: the group is empty
            assert stage.group.offsets["t", 0] == (3, -1)
            with pytest.raises(KafkaError, match=r"unsubscribe\(\) first"):
                await consumer.subscribe(["t"])

    play(scenario)


def test_short_polls_get_there_too() -> None:
    async def scenario(stage: Stage) -> None:
        stage.fill("t", 0, 3)
        async with stage.consumer() as consumer:
            await consumer.subscribe(["t"])
            got: list[ConsumerRecord] = []
            while len(got) < 3:
                got += await consumer.poll(timeout_ms=0)
                await asyncio.sleep(0.01)
                assert stage.now_s() < 60

    play(scenario)


def test_one_after_the_other_by_iteration() -> None:
    async def scenario(stage: Stage) -> None:
        stage.fill("t", 0, 6)
        seen: list[int] = []
        async with stage.consumer() as consumer:
            await consumer.subscribe(["t"])
            async for record in consumer:
                seen.append(record.offset)
                if record.offset == 4:
                    break
        assert seen == [0, 1, 2, 3, 4]
        assert stage.group.offsets["t", 0] == (5, 0)

    play(scenario)


def test_settings_that_contradict_each_other_are_refused_by_name() -> None:
    def refused(**keys: Any) -> str:
        given = {key.replace("_", "."): value for key, value in keys.items()}
        with pytest.raises(ConfigError) as error:
            Consumer(Runtime.system(), {"bootstrap.servers": "a:1", **given})
        return error.value.key

    assert refused(enable_auto_commit=True) == "enable.auto.commit"
    assert refused(group_id="g", heartbeat_interval_ms=9, session_timeout_ms=9) == "heartbeat.interval.ms"
    assert refused(group_id="g", group_protocol="consumer", session_timeout_ms=9) == "session.timeout.ms"
    assert refused(group_id="g", group_remote_assignor="range") == "group.remote.assignor"
    assert refused(partition_assignment_strategy="best") == "partition.assignment.strategy"
    assert refused(auto_offset_reset="by_duration:1h") == "auto.offset.reset"
    assert refused(auto_offset_reset="soon") == "auto.offset.reset"
