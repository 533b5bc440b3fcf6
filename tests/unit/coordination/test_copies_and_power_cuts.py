"""A copy of a store that is complete is there after a power cut; one that is not is never used as a store."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from pathlib import Path

from nilometer.coordination.copying import Contents
from nilometer.coordination.local.copying import LocalSource, LocalTarget
from nilometer.coordination.store import Entry, Snapshot, StoredSecret, StoreRefused
from nilometer.runtime import Runtime
from nilometer.simulation.disk import FolderNode
from support.crash_images.images import Replay, mounted
from support.crash_images.recording import RecordingDisk
from support.logs.memory_disk import MemoryDisk

CONTENTS = Contents(
    cluster_id="5L6g3nShT-eMCtK--X86sw",
    snapshot=Snapshot(4, b"snapshot"),
    entries=(Entry(4, b"entry 4"), Entry(5, b"entry 5")),
    secret=StoredSecret(1, b"secret"),
)


def test_a_copied_store_is_whole_or_no_store_and_stays_there(tmp_path: Path) -> None:
    runtime = Runtime.system()
    disk, chance = RecordingDisk(tmp_path), random.Random(1)
    path = f"{tmp_path}/new/store"

    async def copy() -> None:
        target = LocalTarget(dataclasses.replace(runtime, disk=disk), path)
        await target.open("zookeeper://host:2181", CONTENTS.cluster_id)
        await target.write(CONTENTS, {1: 70})
        await target.publish()
        await target.close()

    async def read(image: FolderNode) -> Contents | None:
        memory = MemoryDisk()
        memory.root = mounted(image, str(tmp_path))
        source = LocalSource(dataclasses.replace(runtime, disk=memory), path)
        try:
            await source.open()
        except StoreRefused:
            return None
        return await source.contents()

    asyncio.run(copy())
    replay = Replay(disk.recording)
    found: list[Contents | None] = []
    for cut in range(1, len(disk.recording.operations) + 1):
        replay.run(cut)
        found = [asyncio.run(read(replay.draw(chance))) for _ in range(5)]
        assert all(each in (None, CONTENTS) for each in found)
    assert all(each == CONTENTS for each in found)
