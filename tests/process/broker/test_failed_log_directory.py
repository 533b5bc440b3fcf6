"""A log directory of several fails under a leader: others lead on, and it comes back with nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

from nilometer.broker.replicas import log_directories
from nilometer.client.admin.cluster_health import ClusterHealth, cluster_health
from nilometer.client.admin.health_check import HealthCheck
from nilometer.client.network.cluster_metadata import PartitionMetadata, TopicPartition
from nilometer.runtime import Runtime
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.nilometer_cluster import NilometerCluster
from support.brokers.small_disk import CannotMount, SmallDisk, small_disk
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.logs.segments import stored_batches

MIB = 1024 * 1024
LOST, KEPT = "on-the-small-disk", "on-the-other"
RECORD = b"." * 40_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        with small_disk(tmp_path / "small", 32 * MIB) as disk:
            yield disk
    except CannotMount as reason:
        pytest.skip(str(reason))


class Writer:
    """Keeps what was acknowledged, and gives up nothing."""

    def __init__(self, cluster: NilometerCluster) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self.acknowledged: dict[str, list[bytes]] = {LOST: [], KEPT: []}
        self._count = 0

    def write(self, topic: str, count: int) -> None:
        for _ in range(count):
            self._count += 1
            value = b"%06d" % self._count + RECORD
            self._producer.produce(topic, value, partition=0, on_delivery=self._delivered)
        assert self._producer.flush(20) == 0

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        assert error is None, error
        topic, value = message.topic(), message.value()
        assert topic is not None
        assert value is not None
        self.acknowledged[topic].append(value[:6])


def read(cluster: NilometerCluster, topic: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader"})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        values: list[bytes] = []
        while len(values) < count:
            messages = consumer.consume(count - len(values), 10)
            assert messages, f"{len(values)} of {count}"
            values += [(message.value() or b"")[:6] for message in messages]
        return values
    finally:
        consumer.close()


def health_of(cluster: NilometerCluster) -> ClusterHealth:
    async def check() -> ClusterHealth:
        async with HealthCheck(Runtime.system(), cluster.bootstrap.split(","), timeout_ms=20_000) as one:
            return cluster_health(await one.check())

    return asyncio.run(check())


def is_lossless(folder: Path) -> bool:
    return log_directories.read_lossless_broker_epoch(Runtime.system().disk, str(folder)) is not None


def test_leadership_moves_and_the_replica_comes_back_with_its_directory(
    tmp_path: Path, disk: SmallDisk
) -> None:
    roomy, small = tmp_path / "roomy", disk.path / "data"
    own = {1: {"log.dirs": f"{roomy},{small}"}}
    settings = {"auto.leader.rebalance.enable": "false"}

    with NilometerCluster(tmp_path / "cluster", 3, settings, own_overrides=own) as cluster:
        writer = Writer(cluster)

        def state(topic: str) -> PartitionMetadata:
            found = cluster.partition(topic)
            assert found is not None
            return found

        def is_offline() -> bool:
            found = state(LOST)
            return (
                found.leader_id in (2, 3)
                and sorted(found.in_sync_replicas) == [2, 3]
                and found.offline_replicas == (1,)
            )

        cluster.create_topic(KEPT, assignments={0: (1, 2, 3)})
        cluster.create_topic(LOST, assignments={0: (1, 2, 3)})
        assert (small / f"{LOST}-0").is_dir(), "new logs go where there are fewest"
        writer.write(LOST, 20)
        writer.write(KEPT, 20)
        assert state(LOST).leader_id == 1

        # The disk is full: another broker leads, and producers notice a delay at most.
        filler = disk.fill(leaving_bytes=MIB)
        writer.write(LOST, 60)
        eventually(is_offline, "leadership moved, and the replica is offline")
        health = health_of(cluster)
        (failed,) = health.failed_directories
        assert (failed.broker_id, failed.path) == (1, str(small))
        assert f"{small} failed" in failed.reason
        assert [(one.partition, one.broker_id) for one in health.stopped] == [(TopicPartition(LOST, 0), 1)]
        writer.write(LOST, 10)
        writer.write(KEPT, 10)
        assert (state(KEPT).leader_id, state(KEPT).offline_replicas) == (1, ())
        eventually(lambda: not is_lossless(roomy), "it does not vouch for what the disk holds")

        # It starts again, and where the directory was is a file.
        assert cluster.stop(1) == 0
        away = small.with_name("away")
        small.rename(away)
        small.write_bytes(b"")
        cluster.start(1)
        cluster.wait_full_isr(KEPT)
        assert not is_lossless(roomy)
        writer.write(LOST, 10)
        writer.write(KEPT, 10)
        assert is_offline(), state(LOST)
        assert not (roomy / f"{LOST}-0").exists(), "an empty log would pass for all there was"

        # The directory is back.
        cluster.kill(1)
        small.unlink()
        away.rename(small)
        filler.unlink()
        cluster.start(1)
        cluster.wait_full_isr(LOST)
        cluster.wait_full_isr(KEPT)
        assert state(LOST).offline_replicas == ()
        writer.write(LOST, 10)

        for topic, values in writer.acknowledged.items():
            assert read(cluster, topic, len(values)) == values
        assert "Traceback" not in cluster.output()
        leader = cluster.brokers[state(LOST).leader_id]
        cluster.stop(1)
        stored = [(one.base_offset, one.last_offset) for one in stored_batches(small, LOST, 0)]
        assert stored == [
            (one.base_offset, one.last_offset) for one in stored_batches(leader.log_dir_of(LOST, 0), LOST, 0)
        ]


def test_a_topic_that_was_created_again_while_its_directory_was_away(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    broker = NilometerBroker(tmp_path / "broker", {"log.dirs": f"{good},{bad}"})
    broker.start()
    side = Side("Nilometer", broker.bootstrap)
    side.create("other")
    side.create("again")
    assert (bad / "again-0").is_dir()
    assert broker.stop() == 0
    away = tmp_path / "away"
    bad.rename(away)
    bad.write_bytes(b"a file")

    side.hang_up()
    broker.start()
    assert "bad failed, taken offline" in broker.output
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["again"])["again"].result(10)
    side.create("again")
    assert (good / "again-0").is_dir()
    assert broker.stop() == 0

    side.hang_up()
    bad.unlink()
    away.rename(bad)
    broker.start()
    side.wait_leaders("again", 1)
    assert (good / "again-0").is_dir()
    assert not (bad / "again-0").exists()
    assert len(list(bad.glob("again-0.*-stray"))) == 1
    assert "is a stale copy of" in broker.output
    side.hang_up()
    assert broker.stop() == 0
    assert "Traceback" not in broker.output
