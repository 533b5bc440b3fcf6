"""Lines and marks of ingest, and compressed content, whatever pieces the bytes come in."""

from __future__ import annotations

import gzip
from gzip import BadGzipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ingest_sources import reading

from nilometer.client.ingest.line_splitter import LinePart, LineSplitter, LineTooLong, whole_lines
from nilometer.client.ingest.source import ContentMark, Fingerprint
from nilometer.client.ingest.source_run import GzipReader, read_up_to

contents = st.lists(
    st.sampled_from(
        [b"\n", b"a", b"bc\n", b"\r\n", b"\r", b"x" * 300, b"\x00\xff\n", b"\0" * 40, b"\xef\xbb\xbf"]
    )
).map(b"".join)


def lines_of(content: bytes) -> list[bytes]:
    """Return the lines as ingest sends them, and the rest after the last one."""
    lines = [line.lstrip(b"\0") for line in content.split(b"\n")]
    lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
    return [*(line.removesuffix(b"\r") for line in lines[:-1]), lines[-1]]


def pieces(content: bytes, sizes: list[int]) -> list[bytes]:
    cut: list[bytes] = []
    position = 0
    while position < len(content):
        size = sizes[len(cut) % len(sizes)]
        cut.append(content[position : position + size])
        position += size
    return cut


@given(contents, st.lists(st.integers(1, 400), min_size=1, max_size=5))
def test_lines_do_not_depend_on_how_the_bytes_come(content: bytes, sizes: list[int]) -> None:
    splitter = LineSplitter()
    lines = [line for piece in pieces(content, sizes) for line in splitter.feed(piece)]
    assert splitter.rest_bytes == len(content) - content.rfind(b"\n") - 1
    last = splitter.finish()
    *expected, rest = lines_of(content)
    assert lines == expected
    assert last == (rest or None)
    assert splitter.finish() is None
    assert splitter.hole_bytes == sum(len(line) - len(line.lstrip(b"\0")) for line in content.split(b"\n"))


def test_what_has_no_newline_for_ever_is_refused() -> None:
    splitter = LineSplitter(10)
    assert whole_lines(splitter.feed(b"12345")) == []
    with pytest.raises(LineTooLong):
        whole_lines(splitter.feed(b"678901"))


@given(contents, st.lists(st.integers(1, 400), min_size=1, max_size=5), st.integers(3, 310))
def test_a_line_above_the_limit_comes_in_parts(content: bytes, sizes: list[int], limit: int) -> None:
    splitter = LineSplitter(limit)
    given_out: list[bytes] = []
    for piece in pieces(content, sizes):
        for line in splitter.feed(piece):
            whole = line if isinstance(line, bytes) else line.data
            given_out.append(whole if isinstance(line, LinePart) and not line.is_last else whole + b"\n")
    last = splitter.finish()
    if last is not None:
        given_out.append(last if isinstance(last, bytes) else last.data)
    assert b"".join(given_out) == b"\n".join(lines_of(content))


@given(contents, st.lists(st.integers(1, 700), min_size=1, max_size=5), st.data())
def test_mark_is_the_fingerprint_of_all_complete_lines(
    content: bytes, sizes: list[int], data: st.DataObject
) -> None:
    ends = [0] + [index + 1 for index, byte in enumerate(content) if byte == 10]
    begin = data.draw(st.sampled_from(ends))
    mark = ContentMark(reading(content), begin)
    for piece in pieces(content[begin:], sizes):
        mark.feed(piece)
    assert mark.fingerprint() == Fingerprint.of(reading(content), max(ends))
    assert mark.position == len(content)
    mark.finish()
    assert mark.fingerprint() == Fingerprint.of(reading(content), len(content))


@given(
    contents, st.lists(contents, max_size=2), st.lists(st.integers(1, 90), min_size=1, max_size=5), st.data()
)
def test_compressed_content_is_read_as_far_as_it_is_there(
    first: bytes, others: list[bytes], sizes: list[int], data: st.DataObject
) -> None:
    packed = b"".join(gzip.compress(part) for part in [first, *others]) + b"\0" * data.draw(st.integers(0, 3))
    content = b"".join([first, *others])
    file = GrowingFile()
    reader = GzipReader(file)
    got = bytearray()
    for piece in pieces(packed, sizes):
        file.content += piece
        while part := reader.read(sizes[0]):
            got += part
        assert content.startswith(got)
    assert got == content
    assert reader.is_complete
    offset = data.draw(st.integers(0, len(content)))
    reader.seek(offset)
    assert read_up_to(file, offset, len(content), compressed=True) == content[offset:]
    with pytest.raises(EOFError):
        reader.seek(len(content) + 1)


def test_what_is_no_compressed_file_is_refused() -> None:
    file = GrowingFile()
    file.content = b"plain text\n"
    with pytest.raises(BadGzipFile):
        GzipReader(file).read()


class GrowingFile:
    identity = (1, 1)

    def __init__(self) -> None:
        self.content = b""

    def stamp(self) -> tuple[int, int]:
        return len(self.content), 0

    def read_at(self, position: int, length: int) -> bytes:
        return self.content[position : position + length]

    def again(self) -> GrowingFile:
        return self

    def close(self) -> None:
        pass


def test_lines_that_are_values_keep_every_byte() -> None:
    values = b"\xef\xbb\xbfmark\r\n\0\0hole\n\0\n\r\nrest\r"
    splitter = LineSplitter(is_exact=True)
    assert splitter.feed(values) == [b"\xef\xbb\xbfmark\r", b"\0\0hole", b"\0", b"\r"]
    assert splitter.finish() == b"rest\r"
    endless = LineSplitter(limit=4, is_exact=True)
    assert endless.feed(b"\0" * 5) == [LinePart(b"\0" * 5, is_last=False)], "not a hole of any size"
    assert endless.feed(b"\r") == [LinePart(b"\r", is_last=False)]
    assert (endless.hole_bytes, splitter.hole_bytes) == (0, 0)
