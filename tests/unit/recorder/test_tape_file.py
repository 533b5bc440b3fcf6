"""The file of a recording: its slot and blocks, its bound, its torn end, a disk that fails."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import shutil
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from nilometer.cli.recorder import recorder
from nilometer.recorder import tape as kinds
from nilometer.recorder.folder import new_recording
from nilometer.recorder.tape import Header, NotARecording, Tape, TapeReader, varint
from nilometer.recorder.tape_file import MAGIC, PAGE, SLOT, SlotFile, read_recording

HEADER = Header(
    source="s",
    version="v",
    python="p",
    settings={"a": "b"},
    started_ms=1,
    started_monotonic_ms=1,
    open_files_max=2,
)
MEGABYTE = 1024 * 1024
FULL = OSError(errno.ENOSPC, "No space left on device")


def begun(path: Path, bytes_max: int = 64 * MEGABYTE) -> Tape:
    return Tape(SlotFile(str(path), HEADER, bytes_max))


def entries(path: Path) -> list[tuple[int, int, int]]:
    """The kind, the job and the number of each entry; each has one number as its field."""
    frames = read_recording(str(path))
    next(frames)
    reader, found = TapeReader(frames), list[tuple[int, int, int]]()
    while reader.head is not None and reader.head.kind != kinds.END:
        found.append((reader.head.kind, reader.head.job, reader.number()))
        reader.advance()
    return found


def test_entries_of_the_loop_and_of_jobs_are_read_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "one"
    tape = begun(path)
    tape.add_parts((bytes([kinds.SIZE]), varint(300)))
    tape.drain()
    tape.add_parts((bytes([kinds.JOB]), varint(7), varint(0), bytes([kinds.APPEND]), varint(1)))
    tape.add(bytes([kinds.SIZE]) + varint(2))
    tape.drain()
    tape.end("tested")
    assert entries(path) == [(kinds.SIZE, 0, 300), (kinds.APPEND, 7, 1), (kinds.SIZE, 0, 2)]


def test_a_recording_says_why_it_has_ended(tmp_path: Path) -> None:
    path, told = tmp_path / "one", list[str]()
    tape = begun(path)
    tape.on_end = told.append
    tape.add(bytes([kinds.SIZE]) + varint(1))
    tape.end("the broker has ended")
    tape.end("once more")
    assert told == ["the broker has ended"]
    reader = TapeReader(list(read_recording(str(path)))[1:].__iter__())
    assert reader.number() == 1
    reader.advance()
    assert reader.head is not None and reader.head.kind == kinds.END
    assert reader.content() == b"the broker has ended"
    assert path.stat().st_size < MEGABYTE


def read(path: Path) -> list[bytes]:
    """The contents of all entries, which are of the kind READ, and of the last one."""
    reader, found = TapeReader(itertools.islice(read_recording(str(path)), 1, None)), list[bytes]()
    while reader.head is not None:
        found.append(reader.content())
        reader.advance()
    return found


def add(tape: Tape, content: bytes) -> None:
    tape.write(bytes([kinds.READ]) + varint(len(content)), memoryview(content))


def test_entries_of_all_sizes_are_read_while_they_are_written_and_after_the_end(tmp_path: Path) -> None:
    random = Random(5)
    sizes = [
        0,
        1,
        SLOT - 100,
        SLOT,
        SLOT * 3 + 17,
        SLOT * 12,
        *(random.randrange(9000) for _ in range(2000)),
    ]
    path, tape, written = tmp_path / "one", begun(tmp_path / "one"), list[bytes]()
    for number, size in enumerate(sizes):
        written.append(random.randbytes(size))
        add(tape, written[-1])
        if number % 200 < 7:
            assert read(path) == written
    shutil.copy(path, tmp_path / "killed")
    assert read(tmp_path / "killed") == written
    tape.end("tested")
    assert read(path) == [*written, b"tested"]
    assert path.stat().st_size < sum(sizes) + 2 * SLOT + 2 * PAGE


def test_a_recording_ends_at_its_bound_with_whole_entries(tmp_path: Path) -> None:
    path, told = tmp_path / "one", list[str]()
    tape = begun(path, bytes_max=5 * MEGABYTE)
    tape.on_end = told.append
    for _ in range(30):
        add(tape, bytes(MEGABYTE // 4))
    assert told == [f"it has reached its bound of {5 * MEGABYTE} bytes"]
    assert path.stat().st_size <= 5 * MEGABYTE
    *contents, last = read(path)
    assert 16 <= len(contents) <= 19
    assert {len(each) for each in contents} == {MEGABYTE // 4}
    assert last.decode() == told[0]


def blocks_at(path: Path) -> int:
    (header,) = itertools.islice(read_recording(str(path)), 1)
    return PAGE + -(-len(header) // PAGE) * PAGE + SLOT


def read_to_damage(path: Path) -> tuple[list[bytes], str]:
    """The contents of all entries before the damage, and what is said of it."""
    found, pieces = list[bytes](), read_recording(str(path))
    next(pieces)
    with pytest.raises(NotARecording) as error:
        for piece in pieces:
            reader = TapeReader(iter([piece]))
            while reader.head is not None:
                found.append(reader.content())
                reader.advance()
    return found, str(error.value)


def of_six_blocks(path: Path, *, is_ended: bool = True) -> list[bytes]:
    """Write a recording with six blocks and a slot; return what is in it."""
    tape, written = begun(path), [bytes([n % 251]) * 3000 for n in range(6 * SLOT // 3003 + 5)]
    for content in written:
        add(tape, content)
    if is_ended:
        tape.end("tested")
    assert path.stat().st_size == blocks_at(path) + 6 * SLOT
    return written


@pytest.mark.parametrize("cut", [1, SLOT - 1, SLOT, SLOT + 5, 6 * SLOT])
def test_what_was_cut_from_a_recording_is_no_torn_end(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "one"
    written = of_six_blocks(path)
    size = path.stat().st_size - cut
    os.truncate(path, size)
    found, error = read_to_damage(path)
    assert found == written[: len(found)]
    blocks = (size - blocks_at(path)) // SLOT
    whole = blocks * (SLOT - 32)
    assert whole - 3003 < len(found) * 3003 <= whole
    assert error == f"{path} is damaged in block {blocks + 1}: what follows cannot be read"


@pytest.mark.parametrize("length", [PAGE * 2, PAGE * 2 + SLOT - 1])
def test_a_recording_that_was_cut_before_its_blocks_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "one"
    of_six_blocks(path)
    os.truncate(path, length)
    assert read_to_damage(path) == ([], f"{path} is damaged: it is cut short before its first block")


@pytest.mark.parametrize("hole", [b"damaged", bytes(2 * SLOT)])
def test_nothing_is_read_behind_a_damaged_block(tmp_path: Path, hole: bytes) -> None:
    path = tmp_path / "one"
    written = of_six_blocks(path)
    with path.open("r+b") as file:
        file.seek(blocks_at(path) + 2 * SLOT + 5000)
        file.write(hole)
    found, error = read_to_damage(path)
    assert found == written[: len(found)]
    assert 2 * SLOT // 3003 - 2 <= len(found) <= 2 * SLOT // 3003
    assert "is damaged in block 3: " in error


def test_a_damaged_slot_is_told(tmp_path: Path) -> None:
    path = tmp_path / "one"
    of_six_blocks(path)
    whole = path.read_bytes()
    for at, changed in (
        (0, bytes(32)),
        (0, (9).to_bytes(8, "little")),
        (16, b"\xff" * 8),
        (5000, b"damaged"),
    ):
        damaged = bytearray(whole)
        start = blocks_at(path) - SLOT + at
        damaged[start : start + len(changed)] = changed
        copy = tmp_path / "copy"
        copy.write_bytes(damaged)
        found, error = read_to_damage(copy)
        assert "is damaged in block 7" in error
        assert 6 * SLOT // 3003 - 2 <= len(found) <= 6 * SLOT // 3003


@pytest.mark.parametrize("part", [0, 17, SLOT - 1])
def test_a_file_that_was_copied_while_it_was_written_has_all_blocks_that_were_copied(
    tmp_path: Path, part: int
) -> None:
    """The copy has the slot of its beginning, and blocks that were written since, the last one in part."""
    path = tmp_path / "one"
    written = of_six_blocks(path, is_ended=False)
    whole = bytearray(path.read_bytes())
    first = blocks_at(path)
    earlier = whole[first + 2 * SLOT : first + 3 * SLOT]  # the slot had this block's beginning then
    copied = whole[: first - SLOT] + earlier + whole[first : first + 5 * SLOT + part]
    path.write_bytes(copied)
    found = read(path)
    assert found == written[: len(found)]
    assert 5 * SLOT // 3003 - 2 <= len(found) <= 5 * SLOT // 3003


def test_bytes_behind_the_last_block_are_told(tmp_path: Path) -> None:
    path = tmp_path / "one"
    of_six_blocks(path)
    with path.open("ab") as file:
        file.write(bytes(2 * SLOT))
    assert "is damaged in block 7" in read_to_damage(path)[1]


@pytest.mark.parametrize("part", [0, 17, SLOT - 1, SLOT])
def test_a_process_that_was_killed_while_it_wrote_a_block_has_left_all_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """The slot is as it was, and the block's place has a part of it."""
    write, path = os.pwrite, tmp_path / "one"
    written, tape = list[bytes](), begun(path)

    def killed(descriptor: int, data: memoryview, at: int) -> int:
        if at == blocks_at(path) + 3 * SLOT:
            if part:
                write(descriptor, bytes(data[:part]), at)
            shutil.copy(path, tmp_path / "killed")
        return write(descriptor, bytes(data), at)

    monkeypatch.setattr(os, "pwrite", killed)
    while not (tmp_path / "killed").exists():
        written.append(bytes([len(written) % 251]) * 3000)
        add(tape, written[-1])
    assert read(tmp_path / "killed") == written[:-1]
    tape.end("tested")


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    for content in (
        b"#!/bin/sh\n",
        MAGIC,
        MAGIC + b"\xff" * PAGE,
        MAGIC + bytes(8) + b"\x01\x01" + bytes(PAGE),
    ):
        path.write_bytes(content)
        with pytest.raises(NotARecording):
            list(read_recording(str(path)))


def test_a_full_disk_at_the_start_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise FULL

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        SlotFile(str(tmp_path / "one"), HEADER, 64 * MEGABYTE)
    monkeypatch.undo()
    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(OSError, match="No space left"):
        SlotFile(str(tmp_path / "one"), HEADER, 64 * MEGABYTE)
    assert list(tmp_path.iterdir()) == []


def test_a_recording_says_that_its_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, path = os.pwrite, tmp_path / "one"
    fits = 3 * SLOT + 100

    def nearly_full(descriptor: int, data: memoryview, at: int) -> int:
        room = blocks_at(path) + fits - at
        part = bytes(data[:room]) if room > 0 else b""
        del data  # the error's traceback would keep it
        if not part:
            raise FULL
        return write(descriptor, part, at)

    monkeypatch.setattr(os, "pwrite", nearly_full)
    tape, written = begun(path), list[bytes]()
    while tape.ended is None:
        written.append(bytes([len(written)]) * (SLOT // 3))
        add(tape, written[-1])
    assert tape.ended == "its file cannot be written: No space left on device"
    *found, last = read(path)
    assert last == tape.ended.encode()
    assert found == written[:-1]
    assert len(found) > 8


def test_a_pipe_with_the_name_of_a_recording_is_left_out_of_the_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "20200101T000000.000-broker-1.recording")
    assert new_recording(str(tmp_path), 1, 0, bytes_max=1).number == 1


def test_a_pipe_is_no_recording(tmp_path: Path) -> None:
    pipe = tmp_path / "one.recording"
    os.mkfifo(pipe)
    found = CliRunner().invoke(recorder, ["info", str(tmp_path)])
    assert f"{pipe} is no file: left out" in found.output
    found = CliRunner().invoke(recorder, ["info", str(pipe)])
    assert f"{pipe} is no file" in found.output
    assert found.exit_code == 2
