"""Members of a classic group on a virtual clock: rebalances, liveness, subscriptions (SPEC C-2, C-5)."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from group_member_harness import ALL, Diary, Stage, play, poll_until, shares

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.group.committer import CommitFailed
from nilometer.config import ConfigError
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import KafkaError
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
                await other.close(leave_group=True)
        assert len(stage.group.left) == 1, "of three closed ones, that which leaves for good"

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
