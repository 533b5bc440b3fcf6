"""What happens to files between a look and the reading, and between two threads: scenario by scenario.

Each of these scenarios lost or repeated lines. Random ones are in ``test_ingest_model``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nilometer.client.ingest.found_files import FoundFile, Identity, Look
from nilometer.client.ingest.matching import TELLING_BYTES
from nilometer.client.ingest.source import HEAD_BYTES, Source
from nilometer.client.ingest.source_files import HeldFiles, OsFiles, birth_ns
from nilometer.client.ingest.source_run import SourceRun
from support.ingest import ingest_scenario
from support.ingest.ingest_scenario import IngestScenario
from support.ingest.model_files import LOG, ModelDisk, ModelFile


@pytest.fixture
def long_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line is enough to tell a file by."""
    monkeypatch.setattr(ingest_scenario, "LINE_BYTES", TELLING_BYTES)


def verdict(steps: str, *, named: bool, banner: bool = False) -> tuple[list[bytes], list[bytes]]:
    """Of a scenario that is given as ``step argument``, separated by commas."""
    scenario = IngestScenario(named=named, banner=banner)
    scenario.play([(name, int(argument)) for name, argument in (step.split() for step in steps.split(", "))])
    return scenario.verdict()


# --- truncated between the look and the reading


@pytest.mark.usefixtures("long_lines")
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("end", ["kill 100, start 0", "checkpoint 0"])
def test_file_is_truncated_and_written_again_before_it_is_opened(named: bool, end: str) -> None:
    """Its state says how the old content begins: the new content must not go by its name."""
    steps = f"rename 1, write 2, look 0, take 0, copy 0, truncate 0, write 3, read 2, read 2, {end}"
    assert verdict(steps, named=named) == ([], [])


@pytest.mark.usefixtures("long_lines")
@pytest.mark.parametrize("named", [False, True])
def test_file_that_was_read_is_truncated_and_written_again_before_it_is_opened(named: bool) -> None:
    """As above, where some of it was read by a run before this one."""
    before = "write 2, turn 0, kill 100, write 2, start 0, look 0, take 0"
    steps = f"{before}, copy 0, truncate 0, write 3, write 3, write 3, read 2, kill 100, start 0"
    assert verdict(steps, named=named) == ([], [])


def opened(content: bytes, source: Source) -> tuple[ModelDisk, SourceRun]:
    disk = ModelDisk()
    inode = disk.create(LOG)
    disk.append(inode, content)
    file = FoundFile(LOG, disk.device, inode.number, len(content), inode.modified_ns)
    return disk, SourceRun(source, file, ModelFile(disk, inode), b"tag")


OLD, NEW = b"old line\n" * HEAD_BYTES, b"new line\n" * HEAD_BYTES


def test_first_piece_is_of_the_content_that_the_state_knows() -> None:
    disk, run = opened(OLD, Source(0, LOG, 1, 1).previewed(OLD[:HEAD_BYTES]))
    assert run.begins_as_known()
    disk.truncate(disk.names[LOG])
    disk.append(disk.names[LOG], NEW)
    assert not run.is_intact()
    piece = run.read()
    assert (piece.data, piece.is_intact, run.is_stalled) == (b"", False, True)


def test_first_piece_of_a_file_that_was_empty_is_taken_as_it_is() -> None:
    _, run = opened(NEW, Source(0, LOG, 1, 1))
    assert run.begins_as_known()
    assert run.read().data == NEW


# --- what is compared is of different times


def test_copy_that_was_empty_at_the_look_is_compared_as_it_is_now() -> None:
    before = "copy 0, half 0, turn 0, truncate 0, copy 0, write 0, look 0, half 0, take 0, read 1"
    assert verdict(f"{before}, look 0, truncate 0, take 0", named=False) == ([], [])


# --- files of which nothing was read when they were gone


@pytest.mark.usefixtures("long_lines")
def test_empty_file_is_written_and_compressed_after_its_folder_was_away() -> None:
    steps = "unmount 0, turn 0, mount 0, rename 0, write_old 0, pack 0"
    assert verdict(steps, named=False) == ([], [])


@pytest.mark.usefixtures("long_lines")
def test_empty_rotated_file_is_written_and_compressed_while_ingest_is_down() -> None:
    assert verdict("rename 1, turn 0, write_old 0, pack 0, kill 0", named=True) == ([], [])


def test_rotated_file_that_may_be_unread_is_remembered_while_its_folder_is_away() -> None:
    away = "unmount 0, kill 0, start 0, turn 0, kill 0, mount 0"
    assert verdict(f"rename 1, rename 1, turn 0, {away}, write_old 0", named=True) == ([], [])


# --- compressed copies of short files


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        # A copy that is deleted before it is of use must not be found again.
        ("write 0, copy 0, truncate 0, pack 0, turn 0, packed 0, delete 1, copy 0", True),
        (
            "rename 1, rename 1, delete 1, write 0, look 0, delete 1, copy 0, truncate 0, turn 0, pack 0",
            False,
        ),
        # The time for which a copy stands begins when it is complete, not when it is begun.
        ("half 0, rename 0, pack 0, look 0, take 0, packed 0, rename 0, sleep 0", False),
        ("rename 0, write_old 0, pack 0, turn 0, packed 0, sleep 0, rename 0", True),
    ],
)
def test_compressed_copy_of_a_short_file_that_is_gone_is_no_new_file(steps: str, named: bool) -> None:
    assert verdict(steps, named=named) == ([], [])


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        # Of another rotated file the name without ".gz" is free again, or taken again.
        (
            "rename 1, write 0, rename 1, pack 0, turn 0, packed 0, kill 0, start 0, "
            "pack 0, look 0, packed 0, copy 0",
            False,
        ),
        (
            "rename 1, write_old 0, pack 0, turn 0, kill 0, start 0, turn 0, packed 0, rename 0, delete 1",
            True,
        ),
    ],
)
def test_compressed_copy_is_known_though_its_plain_name_is_another_files(steps: str, named: bool) -> None:
    assert verdict(steps, named=named) == ([], [])


# --- files that begin with the same line


def test_rotated_files_that_begin_alike_are_told_apart_after_their_folder_was_away() -> None:
    steps = "rename 1, rename 1, turn 0, unmount 0, turn 0, turn 0, kill 0"
    assert verdict(steps, named=True, banner=True) == ([], [])


@pytest.mark.parametrize(
    "steps",
    [
        "delete 0, kill 0, create 0, write 0, start 0, look 0, rename 0, take 0, read 0, kill 1",
        "rename 1, look 0, rename 0, take 0, kill 0, pack 0, packed 0, rename 1",
    ],
)
def test_inode_that_is_used_again_is_told_though_its_file_was_renamed_since_the_look(steps: str) -> None:
    assert verdict(steps, named=False, banner=True) == ([], [])


def test_of_sources_that_begin_alike_the_one_is_resumed_of_which_more_was_seen() -> None:
    steps = "rename 1, half 0, turn 0, delete 1, half 0, read 0, kill 1, rename 0, pack 0"
    assert verdict(steps, named=True, banner=True) == ([], [])


def test_time_of_creation_is_that_of_the_file_that_was_found(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("line\n")
    files = OsFiles([str(log)], follow=True)
    [found] = files.look(frozenset()).files
    log.rename(tmp_path / "app.log.1")
    log.write_text("another file\n")
    try:
        assert files.birth_ns(found) == birth_ns(str(tmp_path / "app.log.1"), found.inode)
    finally:
        files.close()


# --- held files


class Held:
    """Looks at one file that is held."""

    def __init__(self) -> None:
        self.disk = ModelDisk()
        self.inode = self.disk.create(LOG)
        self.files = HeldFiles(lambda _file: ModelFile(self.disk, self.inode))

    def look(self, number: int) -> Look:
        found = FoundFile(LOG, 1, self.inode.number, len(self.inode.content), self.inode.modified_ns)
        look = Look(number, (found,) if LOG in self.disk.names else ())
        self.files.on_look(look)
        return look


@pytest.mark.usefixtures("long_lines")
def test_file_that_came_and_went_between_two_looks_that_are_taken_is_read() -> None:
    """The look before it came and the look after it was gone found the same."""
    assert verdict("delete 0, look 0, take 0, create 0, write 0, look 0, delete 0", named=False) == ([], [])


def test_file_that_changed_after_the_look_that_is_taken_stays_held() -> None:
    held = Held()
    first = held.look(1)
    held.disk.append(held.inode, b"more\n")
    held.look(2)
    held.files.release(first, frozenset())
    del held.disk.names[LOG]
    [found] = held.files.unnamed(held.look(3))
    assert (found.size, found.is_gone) == (5, True)


def test_file_that_did_not_change_after_the_look_that_is_taken_is_let_go() -> None:
    held = Held()
    first = held.look(1)
    held.look(2)
    held.files.release(first, frozenset())
    assert held.inode.opened == 0


def test_file_that_is_let_go_during_a_look_is_not_held_closed() -> None:
    """A descriptor that is closed may be another file's by then."""
    held = Held()
    first = held.look(1)

    class Found(FoundFile):
        """When it is asked again which file it is, the other thread lets go of it."""

        @property
        def identity(self) -> Identity:
            asked.append(self.path)
            if len(asked) == 2:
                held.files.release(first, frozenset())
            return self.device, self.inode

    asked: list[str] = []
    found = Found(*first.files[0])._replace(size=5)
    held.files.on_look(Look(2, (found,)))
    held.files.close()
    assert held.inode.opened == 0
