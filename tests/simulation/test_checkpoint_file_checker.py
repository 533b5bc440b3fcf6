"""An append below an offset of a checkpoint file is found, and does not happen after a kill that came between
a truncation and the checkpoint."""

from __future__ import annotations

import pytest

from nilometer.client.admin.admin import Admin, NewTopic, delete_records
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.checkpoints import CheckpointFiles
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.disk import FileNode, FolderNode
from nilometer.simulation.faults import wait_until
from nilometer.simulation.loop import Pace
from nilometer.simulation.world import Host, World
from nilometer.storage.directories.log_manager import LogCheckpoints

SLOW_SYNCS = Pace(sync_ms=(30.0, 30.0))
"""A truncated log waits so long for its checkpoint that it can be killed meanwhile."""
LIMIT_S = 60.0


async def _produce(cluster: Cluster, host: Host, count: int, acks: str) -> None:
    async def main(runtime: Runtime) -> None:
        settings = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "acks": acks,
            "enable.idempotence": "false",
        }
        async with Producer(runtime, settings) as producer:
            for number in range(count):
                await producer.send_and_wait("t", b"%d" % number, partition=0)

    assert await host.start("produce", main).exited is None


def _recovery_point(node: BrokerNode) -> int:
    file = node.host.disk.find(f"{node.folders[0]}/recovery-point-offset-checkpoint")
    lines = file.data.decode().splitlines() if isinstance(file, FileNode) else []
    return next((int(line.split()[2]) for line in lines if line.startswith("t 0 ")), 0)


def _leader(cluster: Cluster) -> int | None:
    image = cluster.newest_image
    state = image.partition("t", 0) if image is not None else None
    return state.leader if state is not None else None


async def _killed_between_truncation_and_checkpoint(world: World) -> CheckpointFiles:
    cluster, clients = Cluster(world, pace=SLOW_SYNCS), world.host("clients")
    checker = CheckpointFiles(cluster)
    await cluster.set_up()
    node, others = cluster.nodes[1], [cluster.nodes[2].host.name, cluster.nodes[3].host.name]

    async def create(runtime: Runtime) -> None:
        async with Admin(runtime, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
            await admin.create_topic(
                NewTopic("t", assignments={0: (1, 2, 3)}, configs={"flush.messages": "1"})
            )

    assert await clients.start("create", create).exited is None
    await _produce(cluster, clients, 3, "all")
    world.network.separate([node.host.name], others)
    await _produce(cluster, clients, 5, "1")
    assert await wait_until(lambda: _recovery_point(node) == 8, LIMIT_S), "the leader has flushed them"
    node.expire_session()
    assert await wait_until(lambda: _leader(cluster) in (2, 3), LIMIT_S)
    world.network.heal_all()
    held = await wait_until(lambda: any(each.log.awaits_checkpoint for each in node.partitions), LIMIT_S)
    assert held, "its log was truncated to 3"
    node.crash()
    assert _recovery_point(node) == 8
    await _produce(cluster, clients, 5, "all")
    node.start()
    await cluster.until_serving([1])
    assert await wait_until(lambda: all(each.is_in_sync() for each in cluster.nodes.values()), LIMIT_S)
    return checker


def test_a_log_killed_between_its_truncation_and_the_checkpoint_is_appended_to_after_the_checkpoint() -> None:
    world = World(5)
    checker = world.run(_killed_between_truncation_and_checkpoint)
    assert world.failures == []
    assert checker.violations == []
    assert checker.checked > 10


def test_a_log_that_is_opened_below_its_checkpoint_and_appended_to_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LogCheckpoints, "lower", lambda self, directory, *, writes: None)
    violations = World(5).run(_killed_between_truncation_and_checkpoint).violations
    assert violations[0] == (
        "checkpoint: machine-1 appends at 3 to /data/1/t-0, although recovery-point-offset-checkpoint has 8"
    )


def test_lines_of_an_earlier_folder_and_of_incomplete_files_do_not_count() -> None:
    async def appends(world: World) -> CheckpointFiles:
        cluster = Cluster(world, brokers=1)
        checker, disk = CheckpointFiles(cluster), cluster.nodes[1].host.disk
        directory, folder = FolderNode(), FolderNode()
        disk.root.entries["data"] = directory
        directory.entries["t-0"] = folder
        folder.entries["partition.metadata"] = FileNode(b"topic_id: A")

        def append(checkpoint: bytes) -> int:
            directory.entries["recovery-point-offset-checkpoint"] = FileNode(checkpoint)
            before = len(checker.violations)
            disk.on_append("/data/t-0/00000000000000000000.log", (6).to_bytes(8, "big"))
            return len(checker.violations) - before

        assert append(b"0\n1\nt 0 7\n") == 1
        assert append(b"0\n1\nt 0 6\n") == 0
        assert append(b"0\n2\nt 0 7\n") == 0
        assert append(b"0\n1\nt 0 7") == 0
        assert append(b"0\n1\nt-0 0 7\n") == 0
        folder.entries["checkpoints-void.1"] = FileNode()
        assert append(b"0\n1\nt 0 7\n") == 0
        return checker

    assert World(1).run(appends).checked == 2


def test_a_log_of_a_broker_that_starts_may_begin_within_its_first_batch() -> None:
    async def appends(world: World) -> None:
        cluster = Cluster(world, brokers=1)
        checker, disk = CheckpointFiles(cluster), cluster.nodes[1].host.disk
        directory, folder = FolderNode(), FolderNode()
        data = disk.root.entries["data"] = FolderNode()
        data.entries["1"] = directory
        directory.entries["t-0"] = folder
        directory.entries["replication-offset-checkpoint"] = FileNode(b"0\n1\nt 0 10\n")

        def violations(last_delta: int) -> int:
            before = len(checker.violations)
            batch = (2).to_bytes(8, "big") + bytes(15) + last_delta.to_bytes(4, "big")
            disk.on_append("/data/1/t-0/00000000000000000002.log", batch)
            return sum(each.startswith("checkpoint") for each in checker.violations[before:])

        assert violations(9) == 0
        assert violations(3) == 1

    World(1).run(appends)


def test_an_append_beside_a_topic_id_that_is_not_durable_is_found() -> None:
    async def appends(world: World) -> None:
        cluster = Cluster(world, brokers=1)
        checker, disk = CheckpointFiles(cluster), cluster.nodes[1].host.disk
        directory, folder = FolderNode(), FolderNode()
        disk.root.entries["data"] = directory
        directory.entries["t-0"] = folder

        def violations() -> int:
            before = len(checker.violations)
            disk.on_append("/data/t-0/00000000000000000000.log", bytes(8))
            return len(checker.violations) - before

        assert violations() == 1, "there is none"
        file = FileNode()
        folder.change({"partition.metadata": file})
        file.append(b"topic_id: A")
        assert violations() == 1, "neither name nor content is synced"
        folder.sync()
        assert violations() == 1, "only its name is"
        file.sync()
        assert violations() == 0
        assert "topic id: machine-1 appends at 0 to /data/t-0" in checker.violations[0]

    World(1).run(appends)


def test_the_content_before_an_unsynced_replacement_counts_too() -> None:
    folder, before, after = FolderNode(), FileNode(), FileNode()
    folder.change({"name": before})
    assert folder.durable("name") is None
    folder.sync()
    folder.change({"name": None})
    folder.change({"name": after})
    assert folder.durable("name") is before
    assert folder.entries["name"] is after
    assert folder.durable("other") is None


async def _appends_below_a_checkpoint(world: World) -> list[int]:
    cluster, clients = Cluster(world), world.host("clients")
    checker = CheckpointFiles(cluster)
    await cluster.set_up()
    node = cluster.nodes[1]

    async def create(runtime: Runtime) -> None:
        async with Admin(runtime, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
            await admin.create_topic(NewTopic("t", assignments={0: (1,)}, configs={"flush.messages": "1"}))

    async def delete(runtime: Runtime) -> None:
        async with Admin(runtime, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
            deleted = await delete_records(admin.client, {TopicPartition("t", 0): 8}, timeout_ms=10_000)
        assert deleted == {TopicPartition("t", 0): 8}

    assert await clients.start("create", create).exited is None
    await _produce(cluster, clients, 8, "all")
    assert await wait_until(lambda: _recovery_point(node) == 8, LIMIT_S), "the leader has flushed them"
    found: list[int] = []
    for act in (None, delete):
        if act is not None:
            assert await clients.start("delete", act).exited is None
        before = len(checker.violations)
        assert node.host.disk.on_append is not None
        node.host.disk.on_append(f"{node.folders[0]}/t-0/{0:020d}.log", (3).to_bytes(8, "big"))
        found.append(len(checker.violations) - before)
    return found


def test_an_offset_at_the_start_of_a_log_says_nothing_of_its_records() -> None:
    """The log starts within a batch: a replica that begins there gets the whole batch."""
    world = World(7)
    below, at_the_start = world.run(_appends_below_a_checkpoint)
    assert world.failures == []
    assert below > 0
    assert at_the_start == 0
