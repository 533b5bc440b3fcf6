"""Frames come out whole however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.wire.frames import FrameSplitter, FrameTooLarge


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


@given(st.lists(st.binary(max_size=30), max_size=8), st.lists(st.integers(0, 40), max_size=40))
def test_any_cutting_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    stream = framed(*bodies) + b"\x00\x00\x00\x09rest"
    splitter = FrameSplitter()
    frames: list[bytes] = []
    position = 0
    for cut in cuts:
        frames += splitter.feed(stream[position : position + cut])
        position = min(position + cut, len(stream))
    frames += splitter.feed(stream[position:])
    assert frames == bodies
    assert splitter.buffered == 8


def test_byte_by_byte() -> None:
    splitter = FrameSplitter()
    out = [splitter.feed(bytes([byte])) for byte in framed(b"abc", b"", b"d")]
    assert [frame for frames in out for frame in frames] == [b"abc", b"", b"d"]
    assert splitter.buffered == 0


@pytest.mark.parametrize("length", [-1, -(2**31), 101, 2**31 - 1])
def test_impossible_lengths_are_refused_at_once(length: int) -> None:
    splitter = FrameSplitter(limit=100)
    assert splitter.feed(framed(b"x" * 100)) == [b"x" * 100]
    with pytest.raises(FrameTooLarge) as refusal:
        splitter.feed(length.to_bytes(4, "big", signed=True))
    assert (refusal.value.length, refusal.value.limit) == (length, 100)


def test_a_large_frame_in_many_parts_is_not_looked_at_again_and_again() -> None:
    splitter = FrameSplitter()
    body = bytes(1_000_000)
    stream = framed(body, b"next")
    frames: list[bytes] = []
    for start in range(0, len(stream), 1000):
        frames += splitter.feed(stream[start : start + 1000])
    assert frames == [body, b"next"]
