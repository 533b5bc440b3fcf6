"""The program that reuses a topic name: what it takes for lost, and what it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from nilometer.client.network.cluster_metadata import TopicMetadata
from nilometer.client.producer.delivery import RecordMetadata
from nilometer.runtime import Runtime
from nilometer.simulation.fault_kinds import Kind
from nilometer.simulation.plan import draw
from nilometer.simulation.run import run
from nilometer.simulation.workload import reused_names
from nilometer.simulation.workload.reused_names import Incarnation, NameReuser
from nilometer.simulation.world import World
from nilometer.wire.errors import ErrorCode, KafkaError

TOPIC, EARLIER = UUID(int=7), UUID(int=6)


def _judged(*seen: dict[tuple[int, int], str]) -> list[str]:
    """What is said of topic 3, to which two records were acknowledged, one of which may be deleted, when it
    is read again and again: the last of ``seen`` from then on."""
    readings = list(seen)

    class Reuser(NameReuser):
        async def _read(self, runtime: Runtime, topic: Incarnation) -> Mapping[tuple[int, int], str]:
            return readings.pop(0) if len(readings) > 1 else readings[0]

    async def main(world: World) -> None:
        topic = Incarnation(3, TOPIC, {(0, 4): "3-1", (0, 5): "3-2"}, {0: 5})
        await reuser._compare(runtime_of_nobody, topic)

    world = World(1)
    reuser = Reuser(world.host("clients"), "nowhere:1", flush_each=False)
    runtime_of_nobody: Any = None
    world.run(main)
    return reuser.troubles


def test_records_that_are_there_or_may_be_gone_are_all_right() -> None:
    assert _judged({(0, 4): "3-1", (0, 5): "3-2", (1, 0): "3-9"}) == []
    assert _judged({(0, 5): "3-2"}) == []


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        ({}, "has no record at 0/5: 3-2 was acknowledged"),
        ({(0, 4): "3-9", (0, 5): "3-2"}, "has 3-9 at 0/4: 3-1 was acknowledged"),
        ({(0, 5): "3-2", (1, 0): "2-8"}, "has 2-8 of an earlier one at 1/0"),
    ],
)
def test_what_is_lost_or_left_over_is_found(seen: dict[tuple[int, int], str], found: str) -> None:
    assert [found in trouble for trouble in _judged(seen)] == [True]


def test_a_leader_that_still_means_an_earlier_topic_is_asked_again() -> None:
    assert _judged({}, {}, {(0, 5): "3-2"}) == []
    assert len(_judged({}, {(0, 5): "3-9"})) == 1


@pytest.mark.parametrize(
    ("meant", "counted"), [([TOPIC, TOPIC], True), ([EARLIER], False), ([TOPIC, EARLIER], False)]
)
def test_what_a_producer_wrote_by_the_id_of_an_earlier_topic_does_not_count(
    meant: list[UUID], counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``meant`` is what its metadata says before and after one record. Brokers that hear of a deletion late
    lead and follow the deleted topic for a while yet, and acknowledge what is written to it."""
    ids = iter(meant)

    class Metadata:
        async def topic(self, name: str, timeout_ms: int) -> TopicMetadata:
            return TopicMetadata(name, next(ids), ())

    class OneRecord:
        client = Metadata()

        def __init__(self, *_: object) -> None: ...
        async def __aenter__(self) -> OneRecord:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def send(self, *_: object, partition: int) -> asyncio.Future[RecordMetadata]:
            told: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
            told.set_result(RecordMetadata("reused", partition, 5, 0))
            return told

    async def main(runtime: Runtime) -> None:
        try:
            await reuser._write(runtime, topic)
        except KafkaError as problem:
            assert problem.code is ErrorCode.inconsistent_topic_id

    monkeypatch.setattr(reused_names, "Producer", OneRecord)
    monkeypatch.setattr(reused_names, "RECORDS_MAX", 1)
    world, topic = World(1), Incarnation(3, TOPIC)
    host = world.host("clients")
    reuser = NameReuser(host, "nowhere:1", flush_each=False)

    async def story(_: World) -> None:
        assert await host.start("reuser", main).exited is None

    world.run(story)
    assert list(topic.acknowledged.values()) == (["3-1"] if counted else [])


def test_a_drawn_seed_reuses_a_name_and_kills_all_brokers() -> None:
    plan = next(plan for seed in range(100) if (plan := draw(seed, 0.5, [Kind.CRASH_ALL])).reuses_names)
    verdict = run(plan)
    assert verdict.findings == [], f"nilometer simulate --seed {plan.seed} --minutes 0.5 --faults crash-all"
    assert verdict.workloads["topics of a reused name"] > 0
    assert verdict.faults[Kind.CRASH_ALL] > 0
