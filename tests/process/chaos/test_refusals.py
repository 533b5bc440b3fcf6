"""What a cluster refuses from brokers, clients and its store: with a clear error, and nothing harmed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import confluent_kafka
import pytest

from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import FORMAT_VERSION
from nilometer.cluster.states import Topic
from nilometer.coordination.local.store import LocalStore
from nilometer.identifiers import BrokerId
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.broker_identity import Identity, prove
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.logs.segments import stored_batches
from support.ports import HOST, free_ports, is_free
from support.wire.wire_peer import WirePeer, make

T = TypeVar("T")
TOPIC = "kept"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    with NilometerCluster(tmp_path_factory.mktemp("refusals"), 2) as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


def start_and_fail(data_dir: Path, node_id: int, coordination: str) -> str:
    """What a broker says that has to end by itself."""
    command = [sys.executable, "-m", "nilometer.broker"]
    for override in (
        f"listeners=PLAINTEXT://{HOST}:{free_ports(1)[0]}",
        f"log.dirs={data_dir}",
        f"node.id={node_id}",
        f"nilometer.coordination={coordination}",
    ):
        command += ["--override", override]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def at_the_store(folder: Path, work: Callable[[LocalStore, ClusterImage], Awaitable[T]]) -> T:
    """``work`` done with the store in ``folder`` and what its entries say, as a tool would."""

    async def do() -> T:
        store = LocalStore(Runtime.system(), str(folder))
        await store.open()
        try:
            log = MetadataLog(store)
            await log.catch_up()
            return await work(store, log.image)
        finally:
            await store.close()

    return asyncio.run(do())


async def image_of(store: LocalStore, image: ClusterImage) -> ClusterImage:
    return image


def store_of(cluster: NilometerCluster) -> Path:
    return cluster.folder / "coordination"


def kept_files(broker: NilometerBroker) -> list[str]:
    """Partitions and their segments."""
    return sorted(str(path.relative_to(broker.data_dir)) for path in broker.data_dir.glob("*-*/*.log"))


def write_one(cluster: NilometerCluster, value: bytes) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0}
    )
    producer.produce(TOPIC, value)
    assert producer.flush(20) == 0


def wait_ended(broker: NilometerBroker) -> str:
    """Until the broker has ended by itself, as a failure; what it said."""
    eventually(lambda: not broker.alive(), f"broker {broker.node_id} ends", 20)
    assert broker.stop() == 1
    return broker.output


# ── brokers ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_broker_id_in_use(cluster: NilometerCluster, tmp_path: Path) -> None:
    said = start_and_fail(tmp_path / "data", 2, cluster.coordination)
    assert f"broker id 2 is in use by process {cluster.brokers[2].pid}" in said
    assert "give this broker another node.id" in said
    marker = json.loads((tmp_path / "data" / ".kafka_cleanshutdown").read_text())
    assert marker["brokerEpoch"] == -1  # it says nothing about the process that has its id
    cluster.wait_full_isr(TOPIC)


def test_a_data_folder_of_another_cluster(cluster: NilometerCluster, tmp_path: Path) -> None:
    with NilometerCluster(tmp_path, 1) as other:
        other.create_topic("elsewhere")
        stranger = other.brokers[1]
        assert stranger.stop() == 0
        before = kept_files(stranger)
        said = start_and_fail(stranger.data_dir, 3, cluster.coordination)
        assert "belongs to node 1, this is node 3" in said
        said = start_and_fail(stranger.data_dir, 1, cluster.coordination)
        assert f"{store_of(cluster)} belongs to cluster" in said
        assert kept_files(stranger) == before == ["elsewhere-0/00000000000000000000.log"]
    cluster.wait_full_isr(TOPIC)


# ── requests between brokers ────────────────────────────────────────────────────────────────────────


def test_a_forged_alter_partition(cluster: NilometerCluster) -> None:
    """Of an old leader, partition or broker epoch; of a follower; of a broker that there is not."""
    controller = cluster.controller()
    assert controller is not None
    other = 3 - controller
    cluster.create_topic("led-by-the-other", assignments={0: (other, controller)})
    cluster.create_topic("followed-by-the-other", assignments={0: (controller, other)})
    cluster.wait_full_isr("led-by-the-other")
    image = at_the_store(store_of(cluster), image_of)
    led, followed = image.topic("led-by-the-other"), image.topic("followed-by-the-other")
    epoch = image.broker_epoch(BrokerId(other))
    assert led is not None and followed is not None and epoch is not None
    state = led.partitions[0]

    def forge(
        broker: int = other,
        broker_epoch: int = epoch,
        leader_epoch: int = state.leader_epoch,
        partition_epoch: int = state.partition_epoch,
        topic: Topic = led,
    ) -> str:
        part = make(
            ApiKey.ALTER_PARTITION,
            3,
            "PartitionData",
            partition_index=0,
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            new_isr_with_epochs=(
                make(ApiKey.ALTER_PARTITION, 3, "BrokerState", broker_id=broker, broker_epoch=broker_epoch),
            ),
            leader_recovery_state=0,
        )
        asked = make(
            ApiKey.ALTER_PARTITION,
            3,
            "TopicData",
            topic_id=topic.uuid,
            partitions=(part,),
        )
        with WirePeer(cluster.brokers[controller].bootstrap) as peer:
            prove(peer, Identity.of_store(store_of(cluster)), broker, controller)
            told = peer.ask(
                ApiKey.ALTER_PARTITION, 3, broker_id=broker, broker_epoch=broker_epoch, topics=(asked,)
            )
        return ErrorCode(told.error_code or told.topics[0].partitions[0].error_code).name

    assert forge(broker_epoch=epoch - 1) == "stale_broker_epoch"
    assert forge(broker=9) == "broker_id_not_registered"
    assert forge(leader_epoch=state.leader_epoch - 1) == "fenced_leader_epoch"
    assert forge(partition_epoch=state.partition_epoch - 1) == "invalid_update_version"
    assert forge(topic=followed) == "invalid_request"
    after = at_the_store(store_of(cluster), image_of)
    assert (after.topic(led.name), after.topic(followed.name)) == (led, followed)


# ── the store ───────────────────────────────────────────────────────────────────────────────────────


def test_a_store_that_vanishes_and_one_created_again(tmp_path: Path) -> None:
    """Without the metadata every partition seems to belong to a deleted topic: none may be touched."""
    with NilometerCluster(tmp_path, 2) as cluster:
        cluster.create_topic(TOPIC)
        write_one(cluster, b"before")
        moved = tmp_path / "moved"
        os.rename(store_of(cluster), moved)
        for broker in cluster.brokers.values():
            said = wait_ended(broker)
            assert f"{store_of(cluster)} was deleted; restore it from a copy" in said
            assert "Traceback" not in said
        first = cluster.brokers[1]
        before = kept_files(first)
        said = start_and_fail(first.data_dir, 1, cluster.coordination)
        assert f"{store_of(cluster)} contains no coordination store" in said
        assert kept_files(first) == before == [f"{TOPIC}-0/00000000000000000000.log"]
        assert not Path(store_of(cluster)).exists()
        with NilometerBroker(tmp_path / "new", {"nilometer.coordination": cluster.coordination}, node_id=3):
            said = start_and_fail(first.data_dir, 1, cluster.coordination)
        assert f"{store_of(cluster)} belongs to cluster" in said
        assert kept_files(first) == before
        shutil.rmtree(store_of(cluster))
        os.rename(moved, store_of(cluster))
        cluster.start()
        cluster.wait_full_isr(TOPIC)
        write_one(cluster, b"after")
        assert [batch.base_offset for batch in stored_batches(first.data_dir, TOPIC, 0)] == [0, 1]


def test_a_metadata_entry_of_a_newer_version(tmp_path: Path) -> None:
    """A broker that cannot read what was decided serves no client, and does not start; its records stay."""
    newer = b'{"version":99,"whatever":"comes"}'

    async def append(store: LocalStore, image: ClusterImage) -> bool:
        return await store.append(image.number + 1, newer)

    with NilometerCluster(tmp_path, 1) as cluster:
        cluster.create_topic(TOPIC)
        write_one(cluster, b"before")
        while not at_the_store(store_of(cluster), append):
            pass  # the controller was faster
        broker = cluster.brokers[1]
        told = (
            f"format version 99, but this broker reads versions up to {FORMAT_VERSION}: upgrade this broker"
        )
        eventually(lambda: told in broker.output and is_free(broker.port), "broker 1 serves no client")
        assert broker.alive(), "it waits to be restarted with another version"
        assert broker.stop() == 1
        before = kept_files(broker)
        with pytest.raises(RuntimeError, match=told):
            broker.start()
        assert broker.stop() == 1
        assert kept_files(broker) == before == [f"{TOPIC}-0/00000000000000000000.log"]
