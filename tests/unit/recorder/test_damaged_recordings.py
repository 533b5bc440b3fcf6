"""What `nilometer recorder` makes of recordings that are damaged: never a whole one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nilometer.cli.recorder import recorder
from nilometer.recorder import tape as kinds
from nilometer.recorder.folder import digest_of_sources
from nilometer.recorder.replaying import Replay
from nilometer.recorder.tape import Header, NotARecording, Tape, varint
from nilometer.recorder.tape_file import SLOT, SlotFile
from nilometer.runtime import Runtime

HEADER = Header(
    source=digest_of_sources(),
    version="v",
    python="p",
    settings={"node.id": "1", "log.dirs": "/data", "listeners": "PLAINTEXT://:1"},
    started_ms=1,
    started_monotonic_ms=1,
    open_files_max=2,
)
TIME = bytes([kinds.TIME]) + varint(0) + varint(0)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(recorder, [str(one) for one in arguments])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A recording of four blocks, of which the third one is damaged."""
    path = tmp_path / "one.recording"
    tape = Tape(SlotFile(str(path), HEADER, 1 << 30))
    for _ in range(4 * SLOT // 1003 + 5):
        tape.write(bytes([kinds.READ]) + varint(1000) + bytes(1000))
    tape.end("the broker has ended")
    damaged = bytearray(path.read_bytes())
    damaged[-SLOT * 3 // 2] ^= 1
    path.write_bytes(damaged)
    return path


def test_what_is_before_the_damage_is_shown(path: Path) -> None:
    shown = run("info", path, "--json")
    assert shown.exit_code == 1
    (row,) = json.loads(shown.stdout)
    assert row["end"] == f"{path} is damaged in block 3: what follows cannot be read"
    assert row["is_damaged"] is True
    assert 2 * SLOT // 1003 - 2 <= row["entries"]["read"] <= 2 * SLOT // 1003


def test_a_damaged_recording_is_neither_replayed_nor_saved(path: Path, tmp_path: Path) -> None:
    night, out = tmp_path / "night", tmp_path / "out.zip"
    for command in (("replay", path, "--record", night), ("save", path, "--output", out)):
        refused = run(*command)
        assert refused.exit_code == 1
        assert "is damaged in block 3" in refused.stderr
        assert refused.stdout == ""
    assert not night.exists()
    assert not out.exists()


def test_damage_that_a_broker_takes_for_an_error_of_its_call_ends_the_replay() -> None:
    def pieces() -> Iterator[bytes]:
        yield TIME + bytes([kinds.WALL]) + varint(0) + varint(0)
        raise NotARecording("damaged here")

    async def serve(runtime: Runtime) -> None:
        try:
            runtime.clock.wall_ms()
        except Exception as error:
            print(f"the broker goes on: {error}")

    with closing(Replay(pieces(), ["/data"])) as replay, pytest.raises(NotARecording, match="damaged here"):
        replay.run(serve, 10)
