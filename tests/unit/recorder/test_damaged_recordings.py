"""What `nilometer recorder` makes of recordings that are damaged: never a whole one."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from nilometer.cli.recorder import recorder
from nilometer.recorder import collection
from nilometer.recorder import tape as kinds
from nilometer.recorder.folder import digest_of_sources
from nilometer.recorder.replaying import Diverged, Replay
from nilometer.recorder.tape import HEADER_MAX, Header, NotARecording, Tape, packed, varint
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


def collected(
    path: Path, *frames: bytes, header: Header = HEADER, compression: int = zipfile.ZIP_DEFLATED
) -> Path:
    """Write a file of one recording as another program may."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        parts = (msgspec.msgpack.encode(header), *frames)
        archive.writestr("one.recording", b"".join(len(part).to_bytes(4, "big") + part for part in parts))
        archive.comment = collection.COMMENT
    return path


def test_an_event_of_what_is_not_there_ends_the_replay() -> None:
    done = bytes([kinds.DONE]) + bytes(2) + varint(9) + packed([True, None])

    async def serve(_: Runtime) -> None: ...

    with (
        closing(Replay(iter([TIME + done + TIME]), ["/data"])) as replay,
        pytest.raises(Diverged, match="done does not fit what the broker did before"),
    ):
        replay.run(serve, 10)


def test_frames_are_bounded_whatever_a_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = collected(tmp_path / "one.zip", bytes([kinds.READ]) + varint(90_000) + bytes(90_000))
    assert run("info", path).exit_code == 0
    monkeypatch.setattr(collection, "FRAME_BYTES_MAX", 90_000)
    shown = run("info", path)
    assert (shown.exit_code, "has a frame of 90,004 bytes" in shown.stderr) == (1, True)
    large = msgspec.structs.replace(HEADER, version="v" * HEADER_MAX)
    assert "has a frame of" in run("info", collected(tmp_path / "two.zip", header=large)).stderr
    monkeypatch.setattr(collection, "MEMBERS_MAX", 0)
    assert "has 1 recordings: 0 can be read" in run("info", path).stderr


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_that_are_compressed_otherwise_are_not_read(tmp_path: Path, compression: int) -> None:
    shown = run("info", collected(tmp_path / "one.zip", TIME, compression=compression))
    assert shown.exit_code == 2
    assert "one.recording is encrypted, or not compressed as a saved one" in shown.stderr


def test_a_time_that_no_calendar_has_is_shown_as_it_is(tmp_path: Path) -> None:
    path = collected(tmp_path / "one.zip", header=msgspec.structs.replace(HEADER, started_ms=1 << 62))
    assert f"{1 << 62} ms after 1970" in run("info", path).stdout


def test_a_recording_of_nothing_is_told(tmp_path: Path) -> None:
    replayed = run("replay", collected(tmp_path / "one.zip"))
    assert (replayed.exit_code, replayed.stdout) == (
        0,
        "Broker 1: 1970-01-01 00:00:00.001: nothing is recorded.\n",
    )
