"""What ``nilometer storage format`` has reported is there after a power cut; one that was cut is repeated."""

from __future__ import annotations

import dataclasses
import random
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner

from nilometer.cli.storage import storage
from nilometer.identifiers import BrokerId
from nilometer.raft.quorum_state import FOLDER, identify
from nilometer.raft.recovery import LOG_CONFIG, recover
from nilometer.runtime import Runtime
from nilometer.simulation.disk import FolderNode
from support.crash_images.images import Replay, mounted
from support.crash_images.recording import RecordingDisk
from support.logs.memory_disk import MemoryDisk

CLUSTER, REPEATED = "5L6g3nShT-eMCtK--X86sw", "if a format was interrupted, remove"
NODE = BrokerId(1)


def test_formatted_directories_stay_formatted_and_an_interrupted_format_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "server.properties"
    data = tmp_path / "disk"
    data.mkdir()
    settings.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
        "listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n"
        "controller.quorum.bootstrap.servers=localhost:9093\n"
        f"log.dirs={data}/new/a,{data}/other/b\n"
    )
    system = Runtime.system()

    def format_on(disk: RecordingDisk | MemoryDisk) -> str:
        """Return what the command prints if it fails, or nothing."""
        runtime = dataclasses.replace(system, disk=disk)
        monkeypatch.setattr(Runtime, "system", classmethod(lambda _: runtime))
        arguments = ["format", "-c", str(settings), "-t", CLUSTER, "--standalone", "--ignore-formatted"]
        result = CliRunner().invoke(storage, arguments)
        return "" if result.exit_code == 0 else result.output or repr(result.exception)

    def mount(image: FolderNode) -> MemoryDisk:
        memory = MemoryDisk()
        memory.root = mounted(image, str(data))
        return memory

    disk, chance = RecordingDisk(data), random.Random(1)
    assert format_on(disk) == ""
    replay = Replay(disk.recording)
    for cut in range(1, len(disk.recording.operations) + 1):
        replay.run(cut)
        for _ in range(3):
            failure = format_on(mount(replay.draw(chance)))
            assert not failure or REPEATED in failure
    own = identify(disk, f"{data}/new/a", NODE, CLUSTER, uuid.UUID(int=7))
    for _ in range(30):
        memory = mount(replay.draw(chance))
        assert identify(memory, f"{data}/new/a", NODE, CLUSTER, uuid.UUID(int=8)) == own
        assert own in recover(memory, f"{data}/new/a/{FOLDER}", LOG_CONFIG, 0).voters.latest
        assert memory.exists(f"{data}/other/b/meta.properties")
