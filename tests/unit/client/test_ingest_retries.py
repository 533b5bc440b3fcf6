"""Files that cannot be read: when ingest tries again."""

from __future__ import annotations

import errno
import gzip
import os
from itertools import pairwise

import pytest

from nilometer.client.ingest.found_files import FoundFile
from nilometer.client.ingest.tracker import RETRY_MAX_MS, RETRY_MS
from support.ingest.ingest_scenario import Process, Topic
from support.ingest.model_files import LOG, ModelDisk, OpenFile

LINES = b"".join(b"%d %d\n" % (number, number**7) for number in range(500))


def ingest_of(path: str, content: bytes) -> tuple[ModelDisk, Process]:
    disk = ModelDisk()
    disk.append(disk.create(path), content)
    return disk, Process(disk, Topic(), None, named=False, follow=path == LOG)


def step(process: Process, after_ms: int = 0) -> None:
    """Look at the files, and read what is ready."""
    process.now_ms += after_ms
    process.look()
    process.take()
    try:
        process.read(pieces=10)
    except OSError as error:
        (number,) = process.tracker.runs
        process.tracker.on_unreadable(number, error, process.now_ms)


def sent(process: Process) -> list[int]:
    return [line for _, line, _ in process.topic.sent]


def test_a_file_that_the_disk_does_not_give_is_tried_again_after_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, process = ingest_of(LOG, LINES)
    process.look()
    process.take()
    attempts: list[int] = []

    def fail(_: FoundFile) -> OpenFile:
        attempts.append(process.now_ms)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(process.files, "open", fail)
        for _ in range(2_000):
            process.now_ms += 100
            process.read(pieces=10)
    pauses = [after - before for before, after in pairwise(attempts)]
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    assert process.errors == [f"{LOG}: {os.strerror(errno.EIO)}"] * len(attempts)
    step(process, after_ms=RETRY_MAX_MS)
    assert sent(process) == list(range(1, 501))


def test_a_damaged_compressed_file_is_tried_again_once_it_has_changed() -> None:
    packed = gzip.compress(LINES)
    disk, process = ingest_of(f"{LOG}.1.gz", packed[:500] + bytes(100) + packed[600:])
    for _ in range(10):
        step(process, after_ms=RETRY_MAX_MS)
    assert len(process.errors) == 1
    (inode,) = disk.names.values()
    inode.content[:] = packed
    disk.append(inode, b"")
    step(process, after_ms=RETRY_MS)
    assert len(process.errors) == 1
    assert sent(process) == list(range(1, 501))
