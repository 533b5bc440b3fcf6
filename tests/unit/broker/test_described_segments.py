"""DescribeReplicas with segments: what they are, how many are described, and that it waits for no disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath
from typing import TypeVar

import pytest

from nilometer.broker.api import replicas
from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.admin.replica_survey import ReplicaSurvey, Survey
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.world import Host, World
from nilometer.wire import own_apis as wire

T = TypeVar("T")
RECORDS = 6


async def on(host: Host, main: Callable[[Runtime], Awaitable[T]]) -> T:
    found: list[T] = []

    async def run(runtime: Runtime) -> None:
        found.append(await main(runtime))

    assert await host.start("client", run).exited is None
    return found[0]


async def fill(runtime: Runtime, bootstrap: str) -> None:
    async with Admin(runtime, {"bootstrap.servers": bootstrap}) as admin:
        settings = {"segment.bytes": "1048576"}
        await admin.create_topic(NewTopic("rolled", assignments={0: (1,)}, configs=settings))
        await admin.create_topic(NewTopic("many", assignments=dict.fromkeys(range(5), (1,))))
    async with Producer(runtime, {"bootstrap.servers": bootstrap}) as producer:
        for _ in range(RECORDS):
            await producer.send_and_wait("rolled", bytes(600_000), partition=0)


async def look(cluster: Cluster, host: Host, topic: str, *, segments: bool = True) -> Survey:
    async def main(runtime: Runtime) -> Survey:
        async with ReplicaSurvey(runtime, cluster.bootstrap_servers.split(",")) as survey:
            return await survey.look([topic], segments=segments)

    return await on(host, main)


async def prepared(world: World) -> tuple[Cluster, Host]:
    cluster, host = Cluster(world, brokers=1, one_machine=True), world.host("clients")
    await cluster.set_up()
    await on(host, lambda runtime: fill(runtime, cluster.bootstrap_servers))
    return cluster, host


def states(survey: Survey) -> list[wire.SegmentsState | None]:
    return [None if row.state is None else row.state.segments for row in survey.rows]


def test_segments_are_described_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: World) -> None:
        cluster, host = await prepared(world)
        assert states(await look(cluster, host, "rolled", segments=False)) == [None]
        (found,) = states(await look(cluster, host, "rolled"))
        broker = cluster.nodes[1].broker
        assert found is not None and broker is not None
        log = broker.parts.replication.replicas.partition("rolled", 0).log
        assert found.count == len(log.segments) == RECORDS
        assert [(one.base_offset, one.size_bytes) for one in found.newest] == [
            (one.base_offset, one.size) for one in log.segments
        ]
        times = [one.modified_ms for one in found.newest]
        assert times == sorted(times) and times[0] > 0
        assert [one.largest_timestamp for one in found.newest] == [one.max_timestamp for one in log.segments]
        assert {PurePosixPath(one.log_path).suffix for one in log.segments} == {".log"}

        monkeypatch.setattr(wire, "SEGMENTS_MAX", 4)
        (few,) = states(await look(cluster, host, "rolled"))
        assert few is not None
        assert (few.count, few.newest) == (RECORDS, found.newest[-4:])

    World(1).run(main, limit_s=1_000)


def test_a_response_describes_those_of_a_few_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "SEGMENT_REPLICAS_MAX", 2)

    async def main(world: World) -> None:
        cluster, host = await prepared(world)
        found = states(await look(cluster, host, "many"))
        assert [one is not None for one in found] == [True, True, False, False, False]

    World(1).run(main, limit_s=1_000)


@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "hung"])
def test_times_of_files_are_left_out_if_they_would_have_to_wait(
    monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    async def main(world: World) -> None:
        cluster, host = await prepared(world)
        broker = cluster.nodes[1].broker
        assert broker is not None
        disk = broker.parts.given.runtime.disk
        begun: list[object] = []

        async def hang(work: object) -> object:
            begun.append(work)
            return await asyncio.Event().wait()

        monkeypatch.setattr(type(disk), "offload", lambda _self, work: hang(work))
        if is_busy:
            disk.offloaded += replicas.OFFLOADED_MAX  # type: ignore[misc]
        (found,) = states(await look(cluster, host, "rolled"))
        assert found is not None and found.count == RECORDS
        assert {one.modified_ms for one in found.newest} == {replicas.NOT_KNOWN}
        assert bool(begun) is not is_busy

    World(1).run(main, limit_s=1_000)
