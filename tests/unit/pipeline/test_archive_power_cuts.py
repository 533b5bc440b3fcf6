"""A written file of the archive is there after a power cut, with the folders above it, or not at all."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from nilometer.pipeline.archive.archive_target import LocalTarget
from support.crash_images.images import Replay, content_of
from support.crash_images.recording import RecordingDisk

PATH = "topic/0/segment"


def test_a_written_file_is_whole_or_not_there_and_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, chance = RecordingDisk(tmp_path), random.Random(1)
    target = LocalTarget("archive", f"{tmp_path}/archive")
    monkeypatch.setattr(target, "_disk", disk)
    target.require()
    target.write(PATH, [b"one", b"two"])
    replay, found = Replay(disk.recording), list[bytes | None]()
    for cut in range(1, len(disk.recording.operations) + 1):
        replay.run(cut)
        found = [dict(content_of(replay.draw(chance))).get(f"archive/{PATH}") for _ in range(30)]
        assert set(found) <= {None, b"onetwo"}
    assert set(found) == {b"onetwo"}
