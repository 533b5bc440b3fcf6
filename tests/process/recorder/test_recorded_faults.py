"""Recordings of clusters under faults are replayed to their ends: what happened to a broker, it was told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

import nilometer
from nilometer.kafka import Kafka
from nilometer.simulation.recorded_cluster import RecordedBroker, RecordedCluster, RecordingFile
from nilometer.simulation.recorded_produces import Produce
from nilometer.simulation.recording import EVENTS_READ_MAX, Header, RecordingWriter
from nilometer.testing import Cluster
from nilometer.wire.errors import KafkaError
from support.chaos.administration import Mover
from support.chaos.run import TOPIC, ChaosRun, seed_from_environment

SEED = seed_from_environment(1)
ROUNDS = 8
RECORDER = {"nilometer.recorder": "on", "nilometer.recorder.max.bytes": str(1 << 32)}
TIER = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "300",
    "nilometer.tier.grace.ms": "2000",
    "log.retention.check.interval.ms": "300",
    "log.cleaner.backoff.ms": "500",
}
TIERED = {"remote.storage.enable": "true", "segment.ms": "1500", "local.retention.bytes": "1"}
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}


def replay_all(paths: list[Path]) -> None:
    for path in paths:
        with closing(RecordedBroker(RecordingFile(path))) as broker:
            assert not broker.play(lambda: False), path
    lines = list[str]()
    writer = RecordingWriter(lines.append, Header(title="all"), events_max=EVENTS_READ_MAX)
    files = [RecordingFile(path) for path in paths]
    with closing(RecordedCluster(files, writer=writer, produces_to=[("topic", 0), (TOPIC, 0)])) as cluster:
        produces = list[Produce]()
        assert cluster.play(lambda moment: bool(produces.extend(moment.produces))) is None
        assert cluster.doubts == []
        assert any(produce.offsets for produce in produces)
        cluster.end()


def work(servers: str, do: Callable[[Kafka], Awaitable[None]]) -> None:
    async def main() -> None:
        async with nilometer.connect(servers) as kafka:
            await do(kafka)

    asyncio.run(main())


async def write_in_transactions(kafka: Kafka) -> None:
    """A transaction that commits, and one that aborts, on a compacted topic."""
    topics = await kafka.admin.topics()
    if "compacted" not in topics:
        await kafka.admin.create_topic("compacted", partitions=2, configs=COMPACTED)
    for number in range(10):
        async with kafka.transaction("writer") as transaction:
            for key in range(5):
                await transaction.send("compacted", f"value {number}", key=f"key {key}")
    with pytest.raises(ZeroDivisionError):
        async with kafka.transaction("writer") as transaction:
            await transaction.send("compacted", "no", key="key 0")
            raise ZeroDivisionError
    async for _ in kafka.consume("compacted", group="readers", until_end=True):
        pass


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("store", ["local", "quorum"])
def test_brokers_that_are_killed_and_paused_are_replayed(store: str, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    tier = tmp_path / "tier"
    tier.mkdir()
    overrides = {**RECORDER, **TIER, "nilometer.tier.uri": tier.as_uri()}
    run = ChaosRun(
        f"recorded-{store}", tmp_path, SEED, quorum=store == "quorum", overrides=overrides, configs=TIERED
    )
    with run:
        run.administer(
            Mover(run.cluster.bootstrap, TOPIC, run.partitions, tuple(run.cluster.brokers), chance)
        )
        for number in range(ROUNDS):
            work(run.cluster.bootstrap, write_in_transactions)
            broker = chance.choice(sorted(run.cluster.brokers))
            match number % 4:
                case 0:
                    run.kill(broker)
                case 1:
                    run.pause(broker)
                    run.wait_replaced(broker)
                case 2:
                    run.stop(broker)
                case _:
                    run.kill(*run.cluster.brokers)
            run.pass_time(1.0)
            run.heal()
    assert list(tier.rglob("*.log")), "segments were copied"
    recordings = sorted(tmp_path.glob("*-recordings/*.recording"))
    assert len(recordings) >= 3 + ROUNDS - 1
    replay_all(recordings)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_brokers_with_faulty_disks_clocks_and_links_are_replayed(tmp_path: Path) -> None:
    settings = {**RECORDER, "nilometer.recorder.dir": str(tmp_path), "replica.lag.time.max.ms": "1500"}

    async def send(kafka: Kafka) -> None:
        for number in range(50):
            await kafka.send("topic", f"{number}")

    with Cluster(brokers=3, settings=settings, faults=True) as cluster:
        cluster.create_topic("topic", partitions=3)
        faults = cluster.faults
        for begin in (
            lambda: faults.clock(1, 3_600_000),
            lambda: faults.clock(2, -3_600_000),
            lambda: faults.stall(3, 50),
            lambda: faults.isolate(1),
            lambda: faults.disk_full(2),
            lambda: faults.disk_error(3),
            lambda: faults.store(1),
        ):
            with begin():
                try:
                    work(cluster.bootstrap_servers, send)
                except KafkaError as error:
                    print(f"while there is a fault: {error}")
            for broker in cluster.broker_ids:
                if "offline" in cluster.log(broker) or broker not in cluster.running:
                    cluster.restart(broker)
        for broker in cluster.broker_ids:
            cluster.restart(broker)
        work(cluster.bootstrap_servers, send)
        for broker in cluster.broker_ids:
            cluster.stop(broker)
    recordings = sorted(tmp_path.glob("*.recording"))
    assert len(recordings) >= 6
    replay_all(recordings)
