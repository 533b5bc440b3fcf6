"""The tape of a recording: entries, frames, its bound, its torn end."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.recorder import tape as kinds
from nilometer.recorder.tape import (
    MAGIC,
    Header,
    MappedFile,
    MemoryFile,
    NotARecording,
    RecordingEnded,
    Tape,
    TapeReader,
    packed,
    read_frames,
    signed,
    unsigned,
    varint,
)

HEADER = Header(source="s", version="v", python="p", settings={"a": "b"}, started_ms=1, open_files_max=2)
MEGABYTE = 1024 * 1024


def begun(path: Path, bytes_max: int = 64 * MEGABYTE) -> Tape:
    return Tape(MappedFile(str(path), HEADER, bytes_max))


def entries(path: Path) -> list[tuple[int, int, int]]:
    """The kind, the job and the number of each entry; each has one number as its field."""
    frames = read_frames(str(path))
    next(frames)
    reader, found = TapeReader(frames), list[tuple[int, int, int]]()
    while reader.head is not None and reader.head.kind != kinds.END:
        found.append((reader.head.kind, reader.head.job, reader.number()))
        reader.advance()
    return found


@given(st.integers(0, 2**70))
def test_a_number_is_read_as_it_was_written(number: int) -> None:
    assert TapeReader(iter([bytes([kinds.SIZE]) + varint(number)])).number() == number


@given(st.integers(-(2**64), 2**64))
def test_a_signed_number_is_read_as_it_was_written(number: int) -> None:
    assert signed(number) >= 0
    assert unsigned(signed(number)) == number


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
    reader = TapeReader(list(read_frames(str(path)))[1:].__iter__())
    assert reader.number() == 1
    reader.advance()
    assert reader.head is not None and reader.head.kind == kinds.END
    assert reader.content() == b"the broker has ended"
    assert path.stat().st_size < MEGABYTE  # what was reserved is given back


def test_a_recording_ends_at_its_bound_with_whole_entries(tmp_path: Path) -> None:
    path, told = tmp_path / "one", list[str]()
    tape = begun(path, bytes_max=5 * MEGABYTE)
    tape.on_end = told.append
    for _ in range(30):
        tape.add_parts((bytes([kinds.READ]), varint(MEGABYTE // 4), bytes(MEGABYTE // 4)))
        tape.drain()
    assert told == [f"it has reached its bound of {5 * MEGABYTE} bytes"]
    assert path.stat().st_size < 5 * MEGABYTE + 1024
    frames = list(read_frames(str(path)))
    assert 17 <= len(frames) - 2 <= 19  # beside the header and the last one
    assert all(len(frame) > MEGABYTE // 4 for frame in frames[1:-1])


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_torn_recording_is_read_to_its_tear(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "one"
    tape = begun(path)
    for number in range(5):
        tape.add_parts((bytes([kinds.READ]), varint(number), bytes(20)))
        tape.drain()
    whole = [frame for frame in read_frames(str(path)) if frame]
    size = path.read_bytes().rindex(whole[-1]) + len(whole[-1])
    with path.open("r+b") as file:
        file.truncate(size - cut)
    assert list(read_frames(str(path))) == whole[:-1]


def test_a_damaged_frame_ends_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "one"
    tape = begun(path)
    for number in range(3):
        tape.add_parts((bytes([kinds.READ]), varint(20), bytes([number]) * 20))
        tape.drain()
    tape.end("tested")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\x01" * 20, b"\x01" * 19 + b"\x02"))
    assert len(list(read_frames(str(path)))) == 2  # the header and the first


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(b"#!/bin/sh\n")
    with pytest.raises(NotARecording, match="no recording"):
        list(read_frames(str(path)))


def test_a_value_is_read_as_it_was_packed() -> None:
    value = ["read_file", ["/a"], False, ["OSError", 2, "No such file", "/a", None]]
    assert TapeReader(iter([bytes([kinds.ASK]) + packed(value)])).packed() == value


def test_a_full_disk_at_the_start_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        MappedFile(str(tmp_path / "one"), HEADER, 64 * MEGABYTE)
    assert list(tmp_path.iterdir()) == []


def test_a_recording_says_that_its_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reserve = tmp_path / "one", os.posix_fallocate

    def full(descriptor: int, offset: int, length: int) -> None:
        if offset > 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", full)
    tape = begun(path)
    for _ in range(5):
        tape.add_parts((bytes([kinds.READ]), varint(MEGABYTE), bytes(MEGABYTE)))
        tape.drain()
    assert tape.ended == "its file cannot be written: No space left on device"
    reader = TapeReader(iter(list(read_frames(str(path)))[1:]))
    while reader.head is not None and reader.head.kind != kinds.END:
        reader.skip()
    assert reader.content() == b"its file cannot be written: No space left on device"


def test_what_was_added_behind_a_refused_frame_is_not_recorded(tmp_path: Path) -> None:
    class Refusing(MemoryFile):
        def write(self, payload: bytes) -> None:
            tape.add(bytes([kinds.SIZE]) + varint(9))  # as a job's thread does meanwhile
            raise RecordingEnded("full")

    file = Refusing(HEADER)
    tape = Tape(file)
    tape.add(bytes([kinds.SIZE]) + varint(1))
    tape.drain()
    assert [frame[0] for frame in file.frames[1:]] == [kinds.END]


def test_nothing_is_kept_after_the_end() -> None:
    tape = Tape(MemoryFile(HEADER))
    tape.end("tested")
    tape.add(bytes(1000))
    tape.drain()
    assert not tape._entries


@pytest.mark.parametrize(
    "frame",
    [
        bytes([119]),
        bytes([kinds.SIZE]),
        bytes([kinds.SIZE]) + b"\xff" * 100_000,
        bytes([kinds.READ]) + varint(10) + b"12",
    ],
)
def test_a_damaged_entry_is_told_as_one(frame: bytes) -> None:
    with pytest.raises(NotARecording, match="damaged: entry 1"):
        TapeReader(iter([frame])).skip()


def test_a_frame_that_says_it_is_longer_than_the_file_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_bytes(MAGIC + struct.pack(">II", 2**32 - 1, 0) + b"12345")
    assert list(read_frames(str(path))) == []
