"""The pure parts of ingest: lines, marks, which file is which, the state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.client.ingest import line_splitter
from nilometer.client.ingest.line_splitter import LineSplitter, LineTooLong
from nilometer.client.ingest.matching import FoundFile, is_rotation_name, match
from nilometer.client.ingest.source import ContentMark, Fingerprint, Source
from nilometer.client.ingest.state_file import BadState, IngestState, decode_state, encode_state

contents = st.lists(st.sampled_from([b"\n", b"a", b"bc\n", b"\r\n", b"x" * 300, b"\x00\xff\n"])).map(b"".join)


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
    expected = content.split(b"\n")
    rest = expected.pop()
    assert lines == expected
    assert last == (rest or None)
    assert splitter.finish() is None


def test_what_has_no_newline_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_splitter, "LINE_BYTES_MAX", 10)
    splitter = LineSplitter()
    splitter.feed(b"12345")
    with pytest.raises(LineTooLong):
        splitter.feed(b"678901")


def reading(content: bytes):
    return lambda begin, end: content[begin:end]


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


class Folder:
    """Contents by path; an inode stays with its content when it is moved."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[int, bytes]] = {}

    def write(self, path: str, inode: int, content: bytes) -> None:
        self.files[path] = (inode, content)

    def found(self) -> list[FoundFile]:
        return [FoundFile(path, 1, inode, len(data)) for path, (inode, data) in sorted(self.files.items())]

    def begins_with(self, file: FoundFile, source: Source) -> bool:
        return source.fingerprint.matches(reading(self.files[file.path][1]))

    def match(self, *sources: Source):
        return match(sources, self.found(), self.begins_with)


def source_of(path: str, inode: int, read: bytes, number: int = 0, *, finished: bool = False) -> Source:
    fingerprint = Fingerprint.of(reading(read), len(read))
    return Source(number, path, 1, inode, fingerprint, lines=read.count(b"\n"), finished=finished)


LOG = b"".join(b"line %d\n" % number for number in range(400))


def test_same_file_is_read_on_after_it_grew() -> None:
    folder = Folder()
    folder.write("/l/a.log", 5, LOG + b"more\n")
    matches = folder.match(source_of("/l/a.log", 5, LOG))
    assert [(source.inode, file.path) for source, file in matches.resumed] == [(5, "/l/a.log")]
    assert matches.new == matches.copies == matches.lost == ()


def test_rotation_by_rename_and_create() -> None:
    folder = Folder()
    folder.write("/l/a.log.1", 5, LOG + b"last of the old\n")
    folder.write("/l/a.log", 6, b"first of the new\n")
    matches = folder.match(source_of("/l/a.log", 5, LOG))
    assert [(source.number, file.path) for source, file in matches.resumed] == [(0, "/l/a.log.1")]
    assert [file.path for file in matches.new] == ["/l/a.log"]


def test_rotation_by_copy_and_truncate() -> None:
    folder = Folder()
    source = source_of("/l/a.log", 5, LOG)
    folder.write("/l/a.log", 5, LOG + b"unread\n")
    folder.write("/l/a.log.1", 9, LOG + b"unread\n")  # copied, not yet truncated
    matches = folder.match(source)
    assert [file.path for _, file in matches.resumed] == ["/l/a.log"]
    assert [file.path for file in matches.copies] == ["/l/a.log.1"]
    folder.write("/l/a.log", 5, b"")
    matches = folder.match(source)
    assert [(one.number, one.inode, file.path) for one, file in matches.resumed] == [(0, 9, "/l/a.log.1")]
    assert [file.path for file in matches.new] == ["/l/a.log"]


def test_truncated_file_is_another_one_even_when_it_has_grown_beyond() -> None:
    folder = Folder()
    folder.write("/l/a.log", 5, LOG[:1200] + b"other content from here on\n" * 200)
    matches = folder.match(source_of("/l/a.log", 5, LOG))
    assert [file.path for file in matches.new] == ["/l/a.log"]
    assert [source.number for source in matches.lost] == [0]


def test_compressed_copy_is_known_by_its_content() -> None:
    folder = Folder()
    folder.write("/l/a.log.2.gz", 9, LOG + b"unread\n")
    matches = folder.match(source_of("/l/a.log", 5, LOG))
    assert [(source.inode, file.path) for source, file in matches.resumed] == [(9, "/l/a.log.2.gz")]


def test_inode_used_again_by_another_file() -> None:
    folder = Folder()
    folder.write("/l/b.log", 5, b"quite different\n" * 1000)
    matches = folder.match(source_of("/l/a.log", 5, LOG))
    assert [file.path for file in matches.new] == ["/l/b.log"]


def test_equal_files_of_unrelated_names_are_both_read() -> None:
    folder = Folder()
    folder.write("/l/a.log", 5, LOG)
    folder.write("/l/b.log", 6, LOG)
    matches = folder.match(source_of("/l/a.log", 5, LOG))
    assert [file.path for file in matches.new] == ["/l/b.log"]


def test_nothing_read_has_no_copy() -> None:
    folder = Folder()
    folder.write("/l/a.log", 5, b"")
    folder.write("/l/a.log.1", 6, LOG)
    matches = folder.match(source_of("/l/a.log", 5, b""))
    assert [file.path for file in matches.new] == ["/l/a.log.1"]


def test_finished_sources_are_not_missed() -> None:
    assert Folder().match(source_of("/l/a.log", 5, LOG, finished=True)).lost == ()


def test_files_beside_what_was_asked_for_are_never_new() -> None:
    file = FoundFile("/l/a.log.old", 1, 9, 3, asked_for=False)
    assert match([], [file], lambda _file, _source: False).new == ()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/l/app.log.1", True),
        ("/l/app.log-20260101", True),
        ("/l/app.log.3.gz", True),
        ("/l/app.1.log", True),
        ("/l/app-2026-01-01.log.gz", True),
        ("/l/application.log", False),
        ("/l/other.log", False),
        ("/m/app.log.1", False),
    ],
)
def test_names_that_rotation_gives(path: str, expected: bool) -> None:
    assert is_rotation_name(path, "/l/app.log") is expected


kinds = st.sampled_from(["grow", "rename", "copytruncate", "new"])


@given(st.lists(kinds, max_size=8))
def test_no_file_has_two_sources_and_no_source_two_files(history: list[str]) -> None:
    folder = Folder()
    folder.write("/l/a.log", 1, b"begin\n")
    sources: list[Source] = []
    inode = 1
    for step, kind in enumerate(history):
        inode += 1
        name = f"/l/a.log.{step}"
        if kind == "grow":
            here, data = folder.files["/l/a.log"]
            folder.write("/l/a.log", here, data + b"step %d\n" % step * 40)
        elif kind == "rename":
            folder.files[name] = folder.files["/l/a.log"]
            folder.write("/l/a.log", inode, b"after %d\n" % step)
        elif kind == "copytruncate":
            here, data = folder.files["/l/a.log"]
            folder.write(name, inode, data)
            folder.write("/l/a.log", here, b"")
        else:
            folder.write(f"/l/b{step}.log", inode, b"other %d\n" % step)
        matches = folder.match(*sources)
        assert not matches.lost
        claimed = [file.path for _, file in matches.resumed]
        assert len(set(claimed)) == len(claimed) == len(sources)
        assert sorted(claimed + [file.path for file in (*matches.new, *matches.copies)]) == sorted(
            folder.files
        )
        sources = [source for source, _ in matches.resumed]
        for file in matches.new:
            sources.append(Source(len(sources), file.path, 1, file.inode))
        by_inode = dict(folder.files.values())
        sources = [
            source.read_to(
                Fingerprint.of(reading(by_inode[source.inode]), len(by_inode[source.inode])),
                by_inode[source.inode].count(b"\n"),
            )
            for source in sources
        ]


def test_state_survives_being_written() -> None:
    state = IngestState("abc", "cluster", "t", "id", {0: 5, 3: 9})
    state.add("/l/a.log", 1, 2)
    state.sources[0] = source_of("/l/a.log", 2, LOG, finished=True)
    state.add("/l/ü b.log", 1, 3)
    assert decode_state(encode_state(state), "x") == state
    assert state.number_of(state.tag(1)) == 1
    assert state.number_of(b"other-1") is None
    assert state.number_of(b"\xff") is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version": 9}', b'{"version": 1, "sources": [1]}'])
def test_state_that_is_none_is_refused_with_advice(data: bytes) -> None:
    with pytest.raises(BadState, match=r"state\.json"):
        decode_state(data, "state.json")
