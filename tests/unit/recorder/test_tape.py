"""The entries of a tape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import Buffer

from nilometer.recorder import tape as kinds
from nilometer.recorder.tape import (
    Header,
    MemoryFile,
    NotARecording,
    RecordingEnded,
    Tape,
    TapeReader,
    packed,
    signed,
    unsigned,
    varint,
)

HEADER = Header(
    source="s",
    version="v",
    python="p",
    settings={"a": "b"},
    started_ms=1,
    started_monotonic_ms=1,
    open_files_max=2,
)


@given(st.integers(0, 2**70))
def test_a_number_is_read_as_it_was_written(number: int) -> None:
    assert TapeReader(iter([bytes([kinds.SIZE]) + varint(number)])).number() == number


@given(st.integers(-(2**64), 2**64))
def test_a_signed_number_is_read_as_it_was_written(number: int) -> None:
    assert signed(number) >= 0
    assert unsigned(signed(number)) == number


def test_a_value_is_read_as_it_was_packed() -> None:
    value = ["read_file", ["/a"], False, ["OSError", 2, "No such file", "/a", None]]
    assert TapeReader(iter([bytes([kinds.ASK]) + packed(value)])).packed() == value


def test_what_was_added_behind_a_refused_frame_is_not_recorded() -> None:
    class Refusing(MemoryFile):
        def write(self, entries: bytes, data: Buffer = b"") -> None:
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


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (kinds.ASK, 5),
        (kinds.ASK, ["read_file", 3, True, None]),
        (kinds.WAIT, 7),
        (kinds.DONE, [True]),
        (kinds.MADE, {}),
        (kinds.LOST, 5),
        (kinds.FAILED, None),
    ],
)
def test_a_value_of_another_shape_is_damage(kind: int, value: object) -> None:
    numbers = bytes(kinds.FIELDS[kind].count("n"))
    reader = TapeReader(iter([bytes([kind]) + numbers + packed(value)]))
    for _ in numbers:
        reader.number()
    with pytest.raises(NotARecording, match=f"entry 1 is no {kinds.NAMES[kind]}: "):
        reader.packed()


def test_a_value_that_is_nested_without_end_is_damage() -> None:
    nested = b"\x91" * 200_000 + b"\xc0"
    content = b"\x94\xa1x" + nested + b"\xc3\xc0"
    with pytest.raises(NotARecording, match="entry 1 is no ask: "):
        TapeReader(iter([bytes([kinds.ASK]) + varint(len(content)) + content])).packed()
