"""Which file is which to ingest: rotations, copies, truncations, names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ingest_sources import LOG, reading, source_of

from nilometer.client.ingest.found_files import FoundFile, is_derived, is_rotation_name, possible_originals
from nilometer.client.ingest.matching import Circumstances, Matches, match
from nilometer.client.ingest.source import HEAD_BYTES, Fingerprint, Source
from support.ingest import model_files
from support.ingest.ingest_scenario import Process, Topic


class Folder:
    """Contents by path; an inode stays with its content when it is moved. What was changed last is newest."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[int, bytes]] = {}
        self._changes: dict[int, int] = {}
        self._now = 0

    def write(self, path: str, inode: int, content: bytes) -> None:
        self.files[path] = (inode, content)
        self._now += 1
        self._changes[inode] = self._now

    def found(self, *, asked_for: bool = True) -> list[FoundFile]:
        return [
            FoundFile(path, 1, inode, len(data), self._changes.get(inode, 0), asked_for)
            for path, (inode, data) in sorted(self.files.items())
        ]

    def head(self, file: FoundFile) -> bytes | None:
        return self.files[file.path][1][:HEAD_BYTES]

    def after_hole(self, file: FoundFile) -> bytes | None:
        return self.files[file.path][1].lstrip(b"\0")[:HEAD_BYTES]

    def fingerprint(self, file: FoundFile, offset: int) -> Fingerprint | None:
        return Fingerprint.of(reading(self.files[file.path][1]), offset)

    def is_beginning(self, file: FoundFile, original: FoundFile) -> bool | None:
        return self.files[original.path][1].startswith(self.files[file.path][1])

    def is_reborn(self, source: Source, file: FoundFile) -> bool:
        return False

    def is_intact(self, source: Source, file: FoundFile) -> bool:
        return self.fingerprint(file, source.known.offset) == source.known

    def match(self, *sources: Source, **circumstances: Any) -> Matches:
        return match(sources, self.found(), self, Circumstances(**circumstances))

    def match_beside(self, named: str, *sources: Source, **circumstances: Any) -> Matches:
        files = [file._replace(asked_for=file.path == named) for file in self.found()]
        return match(sources, files, self, Circumstances(named=frozenset({named}), **circumstances))


def resumed(matches: Matches) -> list[tuple[int, int, str]]:
    """Number of the source, inode and path of its file."""
    return [(source.number, file.inode, file.path) for source, file in matches.resumed]


def new(matches: Matches) -> list[tuple[str, str]]:
    """Path, and the name that the records carry."""
    return [(found.file.path, found.name) for found in matches.new]


def test_same_file_is_read_on_after_it_grew() -> None:
    folder = Folder()
    folder.write("/l/a.log", 5, LOG + b"more\n")
    matches = folder.match(source_of("/l/a.log", 5, LOG))
    assert resumed(matches) == [(0, 5, "/l/a.log")]
    assert matches.new == matches.copies == matches.missing == []


def test_rotation_by_rename_and_create() -> None:
    folder = Folder()
    folder.write("/l/a.log.1", 5, LOG + b"last of the old\n")
    folder.write("/l/a.log", 6, b"first of the new\n")
    matches = folder.match(source_of("/l/a.log", 5, LOG))
    assert resumed(matches) == [(0, 5, "/l/a.log.1")]
    assert new(matches) == [("/l/a.log", "/l/a.log")]


def test_rotation_by_copy_and_truncate() -> None:
    folder = Folder()
    source = source_of("/l/a.log", 5, LOG)
    folder.write("/l/a.log", 5, LOG + b"unread\n")
    folder.write("/l/a.log.1", 9, LOG + b"unread\n")  # copied, not yet truncated
    matches = folder.match(source)
    assert resumed(matches) == [(0, 5, "/l/a.log")]
    assert [(file.path, original) for file, original in matches.copies] == [("/l/a.log.1", "/l/a.log")]
    folder.write("/l/a.log", 5, b"")
    matches = folder.match(source)
    assert resumed(matches) == [(0, 9, "/l/a.log.1")]
    assert new(matches) == [("/l/a.log", "/l/a.log")]


@pytest.mark.parametrize("copied", [0, 100, 1024, 2000])
def test_copy_that_is_being_made_is_no_file_of_its_own(copied: int) -> None:
    folder = Folder()
    folder.write("/l/a.log", 5, LOG)
    folder.write("/l/a.log.1", 9, LOG[:copied])
    matches = folder.match(source_of("/l/a.log", 5, LOG), is_settled=lambda _file: False)
    assert [file.path for file, _ in matches.copies] == ["/l/a.log.1"]
    assert matches.new == []


def test_copy_of_a_file_that_is_truncated_while_it_is_compared_is_left_to_the_next_look() -> None:
    class Truncated(Folder):
        looked = 0

        def is_intact(self, source: Source, file: FoundFile) -> bool:
            self.looked += 1
            return self.looked == 1

        def is_beginning(self, file: FoundFile, original: FoundFile) -> bool | None:
            return False

    folder = Truncated()
    folder.write("/l/a.log", 5, LOG)
    folder.write("/l/a.log.1", 9, LOG)
    matches = folder.match(source_of("/l/a.log", 5, LOG))
    assert [file.path for file in matches.undecided] == ["/l/a.log.1"]
    assert matches.may_be_unread == {(1, 9)}


def test_truncated_file_is_another_one_even_when_it_has_grown_beyond() -> None:
    folder = Folder()
    folder.write("/l/a.log", 5, LOG[:1200] + b"other content from here on\n" * 200)
    matches = folder.match(source_of("/l/a.log", 5, LOG))
    assert new(matches) == [("/l/a.log", "/l/a.log")]
    assert [source.number for source in matches.missing] == [0]


def test_compressed_copy_is_known_by_its_content() -> None:
    folder = Folder()
    folder.write("/l/a.log.2.gz", 9, LOG + b"unread\n")
    assert resumed(folder.match(source_of("/l/a.log", 5, LOG))) == [(0, 9, "/l/a.log.2.gz")]


@pytest.mark.parametrize(
    "known",
    [
        {"rotated_before": frozenset({"/l/a.log.1"})},
        {"may_be_unread": lambda file: file.path == "/l/a.log.1.gz"},
    ],
    ids=["just rotated", "rotated earlier"],
)
def test_source_takes_the_compressed_copy_that_no_rotation_explains(known: dict[str, Any]) -> None:
    """The other one with the same content is new, though it is older."""
    folder = Folder()
    folder.write("/l/a.log", 5, b"start\n")
    folder.write("/l/a.log.1.gz", 6, b"start\n")
    folder.write("/l/a.log.2.gz", 7, b"start\n")
    gone = source_of("/l/a.log", 4, b"start\n")
    matches = folder.match_beside("/l/a.log", gone, source_of("/l/a.log", 5, b"start\n", 1), **known)
    assert sorted(resumed(matches)) == [(0, 7, "/l/a.log.2.gz"), (1, 5, "/l/a.log")]
    assert [found.file.path for found in matches.new] == ["/l/a.log.1.gz"]
    assert matches.skipped == []


def test_inode_used_again_by_another_file() -> None:
    folder = Folder()
    folder.write("/l/b.log", 5, b"quite different\n" * 1000)
    assert new(folder.match(source_of("/l/a.log", 5, LOG))) == [("/l/b.log", "/l/b.log")]


def test_equal_files_of_unrelated_names_are_both_read() -> None:
    folder = Folder()
    folder.write("/l/a.log", 5, LOG)
    folder.write("/l/b.log", 6, LOG)
    assert new(folder.match(source_of("/l/a.log", 5, LOG))) == [("/l/b.log", "/l/b.log")]


def test_equal_files_found_together_are_two_files_if_they_are_short() -> None:
    folder = Folder()
    folder.write("/l/data.csv", 5, b"time,name\n")
    folder.write("/l/data-2.csv", 6, b"time,name\n")
    assert len(folder.match().new) == 2
    folder.write("/l/data.csv", 5, LOG)
    folder.write("/l/data-2.csv", 6, LOG)
    assert new(folder.match()) == [("/l/data.csv", "/l/data.csv")]


def test_header_of_another_file_makes_no_copy_once_it_is_settled() -> None:
    folder = Folder()
    header = source_of("/l/data.csv", 5, b"time,name\n")
    folder.write("/l/data.csv", 5, b"time,name\n")
    folder.write("/l/data-2.csv", 6, b"time,name\n")
    assert [file.path for file, _ in folder.match(header, is_settled=lambda _file: False).copies] == [
        "/l/data-2.csv"
    ]
    assert new(folder.match(header)) == [("/l/data-2.csv", "/l/data-2.csv")]
    folder.write("/l/data-2.csv", 6, b"time,name\n1,a\n")
    assert len(folder.match(header, is_settled=lambda _file: False).new) == 1


def test_successor_that_begins_as_the_deleted_file_is_new() -> None:
    folder = Folder()
    folder.write("/l/a.log", 6, b"start\nsecond\n")
    folder.write("/l/a.log.1", 7, b"start\nfirst\n")
    matches = folder.match(source_of("/l/a.log", 5, b"start\n"))
    assert {found.file.inode for found in matches.new} == {6, 7}
    assert [source.number for source in matches.missing] == [0]


def test_much_content_under_another_inode_is_the_same_file() -> None:
    folder = Folder()
    folder.write("/l/a.log", 6, LOG + b"more\n")  # as a mirroring tool puts it there
    assert resumed(folder.match(source_of("/l/a.log", 5, LOG))) == [(0, 6, "/l/a.log")]


def test_two_rotations_since_the_last_look() -> None:
    folder = Folder()
    folder.write("/l/a.log.2", 5, LOG)
    folder.write("/l/a.log.1", 6, b"between\n")
    folder.write("/l/a.log", 7, b"now\n")
    matches = folder.match_beside("/l/a.log", source_of("/l/a.log", 5, LOG))
    assert resumed(matches) == [(0, 5, "/l/a.log.2")]
    assert sorted(new(matches)) == [("/l/a.log", "/l/a.log"), ("/l/a.log.1", "/l/a.log")]


def test_two_truncations_of_a_file_that_was_empty_at_the_last_look() -> None:
    folder = Folder()
    folder.write("/l/a.log.1", 6, b"between\n")
    folder.write("/l/a.log", 5, b"")
    seen_empty = replace(source_of("/l/a.log", 5, b""), read_at=(0, 0))
    matches = folder.match_beside("/l/a.log", seen_empty)
    assert new(matches) == [("/l/a.log.1", "/l/a.log")]


def test_file_beside_one_that_was_not_rotated_is_skipped() -> None:
    folder = Folder()
    folder.write("/l/a.log", 5, LOG)
    folder.write("/l/a-2.log", 6, b"another file  \n")
    folder.write("/l/a.log.errors", 7, b"no rotation gives such a name\n")
    matches = folder.match_beside("/l/a.log", source_of("/l/a.log", 5, LOG))
    assert [file.path for file in matches.skipped] == ["/l/a-2.log"]
    assert matches.new == []
    again = folder.match_beside(
        "/l/a.log", source_of("/l/a.log", 5, LOG), may_be_unread=lambda file: file.inode == 6
    )
    assert new(again) == [("/l/a-2.log", "/l/a-2.log")]


def test_rotated_file_of_before_the_first_look_is_skipped() -> None:
    folder = Folder()
    folder.write("/l/a.log", 5, LOG)
    folder.write("/l/a.log.1", 6, b"old\n")
    matches = folder.match_beside("/l/a.log", is_watched=lambda _file: False)
    assert new(matches) == [("/l/a.log", "/l/a.log")]
    assert [file.path for file in matches.skipped] == ["/l/a.log.1"]


def test_skipped_file_is_new_when_it_is_asked_for() -> None:
    folder = Folder()
    folder.write("/l/a.log.1", 6, LOG)
    skipped = replace(source_of("/l/a.log.1", 6, LOG), skipped=True)
    matches = folder.match(skipped)
    assert matches.replaced == [skipped]
    assert new(matches) == [("/l/a.log.1", "/l/a.log.1")]


def test_files_that_are_not_text_are_passed_over() -> None:
    folder = Folder()
    folder.write("/l/program", 5, b"\x7fELF\x00\x00\n")
    folder.write("/l/a.log.xz", 6, b"packed otherwise")
    folder.write("/l/wide", 7, "line\n".encode("utf-16"))
    folder.write("/l/zeros", 8, b"\0" * 5000)
    folder.write("/l/lastlog", 9, b"\0" * 5000 + b"\x7fx\0\0")
    assert {file.path: why.split()[0] for file, why in folder.match().not_text} == {
        "/l/a.log.xz": "its",
        "/l/program": "it",
        "/l/wide": "it",
        "/l/zeros": "it",
        "/l/lastlog": "it",
    }
    assert "iconv" in {file.path: why for file, why in folder.match().not_text}["/l/wide"]
    assert new(folder.match(named=frozenset({"/l/program"}))) == [("/l/program", "/l/program")]


@pytest.mark.parametrize("hole", [5, 1024, 600_000])
def test_a_hole_before_the_lines_leaves_a_file_a_log(hole: int) -> None:
    folder = Folder()
    folder.write("/l/a.log", 5, b"\0" * hole + LOG)
    assert new(folder.match()) == [("/l/a.log", "/l/a.log")]


@pytest.mark.parametrize("name", ["/l/a.log", "/l/a.log.1"])
def test_a_log_stays_a_log_whatever_is_in_it(name: str) -> None:
    folder = Folder()
    folder.write(name, 7, b"a line \0\0\0 torn\n")
    assert folder.match(source_of("/l/a.log", 6, LOG)).not_text == []
    assert [file.path for file, _ in folder.match(source_of("/l/b.log", 6, LOG)).not_text] == [name]


def test_folder_mounted_again_under_another_device() -> None:
    folder = Folder()
    folder.write("/l/a.log", 5, LOG)
    source = replace(source_of("/l/a.log", 5, LOG), device=7)
    assert resumed(folder.match(source)) == [(0, 5, "/l/a.log")]


def test_nothing_read_has_no_copy() -> None:
    folder = Folder()
    folder.write("/l/a.log", 5, b"")
    folder.write("/l/a.log.1", 6, LOG)
    assert new(folder.match(source_of("/l/a.log", 5, b""))) == [("/l/a.log.1", "/l/a.log.1")]


@pytest.mark.parametrize(
    ("path", "related", "derived"),
    [
        ("/l/app.log.1", True, True),
        ("/l/app.log-20260101", True, True),
        ("/l/app.log.3.gz", True, True),
        ("/l/app.log.gz", True, True),
        ("/l/app.log.old", True, True),
        ("/l/app.1.log", True, True),
        ("/l/app-2026-01-01.log.gz", True, True),
        ("/l/app-2026-01-01T10:00:00Z.log", True, True),
        ("/l/app.log.errors", True, False),
        ("/l/app.log.1.tmp", True, False),
        ("/l/app.log", True, False),
        ("/l/app.txt", False, False),
        ("/l/app-server.log", False, False),
        ("/l/application.log", False, False),
        ("/l/other.log", False, False),
        ("/m/app.log.1", False, False),
    ],
)
def test_names_that_rotation_gives(path: str, related: bool, derived: bool) -> None:
    assert is_rotation_name(path, "/l/app.log") is related
    assert is_derived(path, "/l/app.log") is derived
    assert not derived or "/l/app.log" in possible_originals(path)


def test_rotated_names_of_numbered_files_are_their_own() -> None:
    assert is_derived("/l/host-1.log.2.gz", "/l/host-1.log")
    assert not is_derived("/l/host-2.log", "/l/host-1.log")
    assert is_rotation_name("/l/app.log.2.gz", "/l/app.log.1")


def test_a_file_that_was_empty_when_it_was_found_is_recognised_by_the_first_bytes_that_came() -> None:
    disk = model_files.ModelDisk()
    inode = disk.create(model_files.LOG)
    process = Process(disk, Topic(), None, named=True, follow=True)
    for content in (b"", b"first\n", b"second\n"):
        disk.append(inode, content)
        process.look()
        process.take()
        process.read(1)
    (source,) = process.tracker.live.values()
    assert source.preview == Fingerprint.of(reading(b"first\n"), 6)
    process.end()
