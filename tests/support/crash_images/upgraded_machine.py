"""The first start of this version on the data folder of the earlier one, recorded; the judge of its images.

All that the folder had is synced, so each image must have it, whatever of the upgrade was not.
"""

from __future__ import annotations

import asyncio
import tarfile
from functools import partial

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.disk import FileNode, FolderNode
from nilometer.simulation.run import LogCapture
from nilometer.simulation.workload.transactions import make_client
from nilometer.simulation.workload.transformers import fetch_committed
from nilometer.simulation.world import World
from support.crash_images.machine import ROOT, SERVERS, Machine, Store, frequent_snapshots, settings_for
from support.crash_images.machine_judge import judge_by, read_all
from support.crash_images.recording import Recording
from support.upgrade.earlier_package import DATA_FOLDER
from support.upgrade.filled_folder import COMMITTED, COMPACTED, GROUP, PLAIN, TRANSACTIONAL

LOGS = [TopicPartition(PLAIN, 0), TopicPartition(PLAIN, 1), TopicPartition(COMPACTED, 0)]
SETTINGS = {
    name: settings_for(Store.LOCAL)[name]
    for name in (
        "listeners",
        "node.id",
        "offsets.topic.num.partitions",
        "transaction.state.log.num.partitions",
    )
} | {"log.dirs": f"{ROOT}/1"}
Found = dict[str, dict[int, str]]


def earlier_folder() -> FolderNode:
    """Return the folder in which the log directory of the earlier version is."""
    root, files = FolderNode(), dict[str, FileNode]()
    with tarfile.open(DATA_FOLDER) as archive:
        for member in archive:
            *above, name = ["1", *(each for each in member.name.split("/") if each != ".")]
            folder = root
            for each in above:
                inner = folder.entries[each]
                assert isinstance(inner, FolderNode)
                folder = inner
            node: FileNode | FolderNode = FolderNode()
            if member.islnk():
                node = files[member.linkname]
                node.links += 1
            elif member.isfile():
                content = archive.extractfile(member)
                assert content is not None
                node = files[member.name] = FileNode(content.read())
                node.links = 1
            node.private = not member.mode & 0o077
            folder.entries[name] = node
    return root


def record_upgrade(seed: int) -> tuple[Recording, Found]:
    """Return the recording of two starts, and the records that there were before."""
    world = World(seed)

    async def main(world: World) -> tuple[Recording, Found]:
        machine = Machine(world, SETTINGS, earlier_folder())
        machine.record()
        found: Found = {}

        async def use(runtime: Runtime) -> None:
            found.update(await _read(runtime))
            async with Producer(runtime, SERVERS) as producer:
                await producer.send_and_wait(PLAIN, b"later", partition=0)

        await machine.start()
        error = await machine.run_client(use)
        assert error is None, error
        await asyncio.sleep(world.chance.uniform(0.0, 10.0))
        await machine.stop()
        await machine.start()
        await machine.stop()
        assert machine.recording is not None
        return machine.recording, found

    with frequent_snapshots(), LogCapture(world) as log:
        recorded = world.run(main)
    assert world.failures == log.unexpected == [], (world.failures, log.unexpected)
    return recorded


async def _read(runtime: Runtime) -> Found:
    found = {str(each): await read_all(runtime, each) for each in LOGS}
    committed = TopicPartition(TRANSACTIONAL, 0)
    found[TRANSACTIONAL] = await read_all(runtime, committed, "read_committed")
    return found


def judge_upgrade(image: FolderNode, before: Found) -> list[str]:
    return judge_by(image, SETTINGS, partial(_look, before))


async def _look(before: Found, runtime: Runtime) -> list[str]:
    found = await _read(runtime)
    findings = [
        f"{name} lacks {sorted(lost)}"
        for name, records in before.items()
        if (lost := records.keys() - found[name].keys())
        or any(found[name][offset] != value for offset, value in records.items())
    ]
    async with make_client(runtime, SERVERS["bootstrap.servers"], "judge") as client:
        committed = await fetch_committed(client, LOGS[:2], GROUP)
    if {each.partition: offset for each, offset in committed.items()} != COMMITTED:
        findings.append(f"group {GROUP} has {committed}, not {COMMITTED}")
    return findings
