"""What cannot be recorded ends the recording with its reason, and changes nothing for the broker."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from pathlib import Path

import pytest
from typing_extensions import Buffer

from nilometer.recorder import tape as kinds
from nilometer.recorder.recording import record
from nilometer.recorder.replaying import Replay
from nilometer.recorder.tape import Header, MemoryFile, RecordingEnded, Tape, TapeReader, packed
from nilometer.recorder.tape_file import SlotFile, read_recording
from nilometer.runtime import Runtime

HEADER = Header(
    source="", version="", python="", settings={}, started_ms=0, started_monotonic_ms=0, open_files_max=0
)


@pytest.mark.parametrize("is_of_a_job", [False, True])
def test_a_recording_ends_before_a_result_that_cannot_be_written(is_of_a_job: bool, tmp_path: Path) -> None:
    with open(os.path.join(os.fsencode(tmp_path), b"\xff"), "wb"):
        pass
    after = list[list[str]]()

    async def look(runtime: Runtime) -> None:
        disk = runtime.disk
        assert disk.exists(str(tmp_path))
        list_directory = disk.list_directory
        if is_of_a_job:
            after.append(await disk.offload(lambda: list_directory(str(tmp_path))))
        else:
            after.append(list_directory(str(tmp_path)))
        await asyncio.sleep(0)

    file = MemoryFile(HEADER)
    tape = Tape(file)
    asyncio.run(record(lambda runtime, _: look(runtime), Runtime.system(), tape, ()))
    assert after == [["\udcff"]], "the broker has it, and went on"
    assert tape.ended is not None and tape.ended.startswith(
        "something cannot be recorded: UnicodeEncodeError"
    )
    with closing(Replay(iter(file.frames[1:]), ())) as replay:
        assert not replay.run(look, 0)
        assert replay.ended == tape.ended
    assert len(after) == 1, "replay ends before it"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no more"),
        ValueError("mmap closed"),
        OSError(5, "Input/output error"),
        RecordingEnded("full"),
    ],
)
@pytest.mark.parametrize("is_closable", [True, False])
def test_a_tape_that_cannot_be_written_ends_and_never_the_broker(error: Exception, is_closable: bool) -> None:
    class Failing(MemoryFile):
        is_broken = False

        def write(self, entries: bytes, data: Buffer = b"") -> None:
            if self.is_broken:
                raise error
            super().write(entries, data)

        def finish(self, entry: bytes) -> None:
            if not is_closable:
                raise error
            super().finish(entry)

        def close(self) -> None:
            if not is_closable:
                raise error

    async def work(runtime: Runtime) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        runtime.disk.exists("/")
        await asyncio.sleep(0.01)
        file.is_broken = True
        await asyncio.sleep(0.01)
        return 7

    async def main() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        return await record(lambda runtime, _: work(runtime), Runtime.system(), tape, ())

    errors, file = list[object](), Failing(HEADER)
    tape = Tape(file)
    assert asyncio.run(main()) == 7
    assert errors == []
    assert tape.ended is not None and str(error) in tape.ended
    if is_closable:
        with closing(Replay(iter(file.frames[1:]), ())) as replay:
            assert not replay.run(work, 0)
            assert replay.ended == tape.ended


def test_a_file_whose_map_is_closed_keeps_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "one"
    file = SlotFile(str(path), HEADER, 1 << 20)
    tape = Tape(file)
    tape.write(bytes([kinds.ASK]) + packed(["first", ["a"], True, None]))
    file.close()
    tape.write(bytes([kinds.ASK]) + packed(["second", ["a"], True, None]))
    assert tape.ended is not None and tape.ended.startswith("it cannot be written: ValueError: ")
    _, *written = read_recording(str(path))
    reader = TapeReader(iter(written))
    assert reader.packed() == ["first", ["a"], True, None]
    reader.advance()
    assert reader.head is None


def test_nothing_is_read_behind_an_end() -> None:
    end = bytes([kinds.END]) + bytes([3]) + b"why"
    reader = TapeReader(iter([end + bytes([kinds.ASK]) + packed(None)]))
    assert reader.content() == b"why"
    reader.advance()
    assert reader.head is None
