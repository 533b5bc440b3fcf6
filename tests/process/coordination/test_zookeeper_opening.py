"""What a store in ZooKeeper is made in, and what it refuses to be made in."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from nilometer.coordination.factory import make_store, open_reader
from nilometer.coordination.store import StoreRefused
from nilometer.runtime import Runtime
from support.coordination.zookeeper_server import ZooKeeperEnsemble, running_ensemble
from support.ports import HOST, free_ports

_numbers = itertools.count()
KAFKA_NODES = ("admin/delete_topics", "brokers/ids", "brokers/topics", "config/topics", "controller_epoch")


@pytest.fixture(scope="module")
def client(zookeeper_server: ZooKeeperEnsemble) -> Iterator[Any]:
    client: Any = KazooClient(zookeeper_server.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def opened(setting: str) -> str:
    """The cluster id of the store that was found or made."""

    async def open_and_close() -> str:
        store = make_store(setting, Runtime.system(), local_folder="", session_timeout_ms=6000)
        await store.open()
        try:
            return store.cluster_id
        finally:
            await store.close()

    return asyncio.run(open_and_close())


def tree(client: Any, path: str) -> list[str]:
    return sorted(
        name
        for child in client.get_children(path)
        for name in [f"{path}/{child}", *tree(client, f"{path}/{child}")]
    )


def test_a_foreign_tree_is_refused_by_name_and_left_as_it_is(
    client: Any, zookeeper_server: ZooKeeperEnsemble
) -> None:
    for path in KAFKA_NODES:
        client.ensure_path(f"/kafka/{path}")
    client.create("/kafka/controller", b'{"version":2,"brokerid":1,"timestamp":"1"}')
    before = tree(client, "/kafka")
    with pytest.raises(StoreRefused, match=r"tree at .*/kafka is Apache Kafka's: it contains admin, brokers"):
        opened(f"zookeeper://{zookeeper_server.hosts}/kafka")
    client.ensure_path("/other/master")
    with pytest.raises(
        StoreRefused, match=r"is another application's: it contains master.*a chroot of its own"
    ):
        opened(f"zookeeper://{zookeeper_server.hosts}/other")
    assert tree(client, "/kafka") == before
    assert tree(client, "/other") == ["/other/master"]


def test_a_store_beside_those_of_others() -> None:
    """The top of an ensemble belongs to no cluster while it is empty, but for ZooKeeper's own node."""
    with running_ensemble(1) as ensemble:
        inner = opened(f"zookeeper://{ensemble.hosts}/one")
        with pytest.raises(StoreRefused, match="it contains one, and no coordination store"):
            opened(f"zookeeper://{ensemble.hosts}")
        assert opened(f"zookeeper://{ensemble.hosts}/one") == inner
    with running_ensemble(1) as ensemble:
        top = opened(f"zookeeper://{ensemble.hosts}")
        assert opened(f"zookeeper://{ensemble.hosts}/one") != top
        assert opened(f"zookeeper://{ensemble.hosts}/") == top


def test_a_chroot_of_several_levels_is_made(client: Any, zookeeper_server: ZooKeeperEnsemble) -> None:
    setting = f"zookeeper://{zookeeper_server.hosts}/several/levels/deep"
    with pytest.raises(StoreRefused, match="contains no coordination store"):
        asyncio.run(open_reader(setting, Runtime.system()))
    assert client.exists("/several") is None, "who reads makes nothing"
    assert opened(setting) == opened(setting)
    assert "store" in client.get_children("/several/levels/deep")


def test_brokers_that_start_together_make_one_store(zookeeper_server: ZooKeeperEnsemble) -> None:
    async def open_all() -> set[str]:
        setting = f"zookeeper://{zookeeper_server.hosts}/together/{next(_numbers)}"
        stores = [
            make_store(setting, Runtime.system(), local_folder="", session_timeout_ms=6000) for _ in range(4)
        ]
        await asyncio.gather(*(store.open() for store in stores))
        try:
            return {store.cluster_id for store in stores}
        finally:
            for store in stores:
                await store.close()

    assert len(asyncio.run(open_all())) == 1


def test_a_store_of_an_earlier_version_gets_what_it_lacks(
    client: Any, zookeeper_server: ZooKeeperEnsemble
) -> None:
    setting = f"zookeeper://{zookeeper_server.hosts}/earlier"
    first = opened(setting)
    client.delete("/earlier/brokers/incarnations")
    assert opened(setting) == first
    assert client.exists("/earlier/brokers/incarnations") is not None


def broker_that_must_end(folder: Path, coordination: str) -> str:
    """What a broker process says when it cannot start."""
    command = [sys.executable, "-m", "nilometer.broker"]
    for override in (
        f"listeners=PLAINTEXT://{HOST}:{free_ports(1)[0]}",
        f"log.dirs={folder}",
        "node.id=1",
        f"nilometer.coordination={coordination}",
    ):
        command += ["--override", override]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_broker_that_fails_while_it_starts_ends(
    client: Any, zookeeper_server: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    """After it has a session already, and while it waits for a controller."""
    setting = f"zookeeper://{zookeeper_server.hosts}/unreadable"
    opened(setting)
    client.create("/unreadable/controller", b"1")
    said = broker_that_must_end(tmp_path, setting)
    assert "nilometer broker: this broker can no longer take part in its cluster: /controller" in said
