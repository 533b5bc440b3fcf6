"""A written file of the archive is there after a power cut, with the folders above it, or not at all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

from nilometer.runtime.object_store import FileObjectStore
from support.crash_images.images import Replay, content_of
from support.crash_images.recording import RecordingDisk

NAME = "cluster/topic/0/segment.log"


async def parts() -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"


def test_a_written_file_is_whole_or_not_there_and_stays_there(tmp_path: Path) -> None:
    disk, chance = RecordingDisk(tmp_path), random.Random(1)
    disk.make_directories(f"{tmp_path}/archive")
    store = FileObjectStore(disk, f"{tmp_path}/archive", "writer")
    asyncio.run(store.upload(NAME, parts()))
    replay, found = Replay(disk.recording), list[bytes | None]()
    for cut in range(1, len(disk.recording.operations) + 1):
        replay.run(cut)
        found = [dict(content_of(replay.draw(chance))).get(f"archive/{NAME}") for _ in range(30)]
        assert set(found) <= {None, b"onetwo"}
    assert set(found) == {b"onetwo"}
