"""A checkpoint file that has its content already is not written again; a failed disk is still noticed."""

from __future__ import annotations

import random

import pytest

from nilometer.storage import checkpoints, names
from nilometer.storage.directories.checkpoint_files import FILES, CheckpointFiles, Offsets
from nilometer.storage.names import TopicPartition
from support.logs.memory_disk import MemoryDisk

KEY = TopicPartition("t", 0)
POINTS, MARKS, STARTS, CLEANED = FILES


class Files:
    """The checkpoint files of ``/data``, with the names of the files that were replaced."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.disk.make_directories("/data")
        self.replaced: list[str] = []
        self.disk.fails = self._note
        self.open()

    def _note(self, number: int, verb: str, path: str) -> None:
        if verb == "replace":
            self.replaced.append(path.removeprefix("/data/"))

    def open(self) -> None:
        self.files = CheckpointFiles(self.disk, "/data")
        self.files.load()

    def write(self, content: dict[str, Offsets]) -> list[str]:
        """Plan, write and record ``content``; return the names of the files that were replaced."""
        self.replaced.clear()
        plan = self.files.plan(content, ())
        assert plan.run()
        self.files.note_written(plan)
        return list(self.replaced)

    def read(self) -> dict[str, Offsets]:
        return {name: checkpoints.read_offsets(self.disk, f"/data/{name}") for name in FILES}


def offsets(points: int, marks: int, starts: int = 0) -> dict[str, Offsets]:
    return {POINTS: {KEY: points}, MARKS: {KEY: marks}, STARTS: {KEY: starts} if starts else {}, CLEANED: {}}


def test_only_changed_files_are_replaced() -> None:
    files = Files()
    assert files.write(offsets(3, 4)) == [POINTS, MARKS, STARTS]
    assert files.write(offsets(3, 5)) == [MARKS]
    assert files.write(offsets(6, 5, starts=2)) == [POINTS, STARTS]
    assert files.read() == offsets(6, 5, starts=2)


def test_one_file_is_replaced_if_none_has_changed_so_that_a_failed_disk_is_noticed() -> None:
    files = Files()
    files.write(offsets(3, 4))
    assert files.write(offsets(3, 4)) == [STARTS]  # the smallest
    plan = files.files.plan(offsets(3, 4), ())
    files.disk.fails = lambda number, verb, path: OSError(5, "EIO")
    with pytest.raises(OSError, match="EIO"):
        plan.run()


def test_all_files_are_replaced_after_a_restart_because_they_may_be_missing_or_damaged() -> None:
    files = Files()
    files.write(offsets(3, 4))
    files.disk.remove(f"/data/{STARTS}")
    files.open()
    assert files.write(offsets(3, 4)) == [POINTS, MARKS, STARTS]


def test_all_files_are_replaced_while_an_earlier_plan_is_not_recorded() -> None:
    files = Files()
    files.write(offsets(3, 4))
    abandoned = files.files.plan(offsets(1, 1), ())
    assert abandoned.run()  # the task that waited for it was cancelled
    assert files.write(offsets(3, 4)) == [POINTS, MARKS, STARTS]
    assert files.read() == offsets(3, 4)


@pytest.mark.parametrize("seed", range(40))
def test_the_files_have_the_content_of_the_newest_plan_that_ran(seed: int) -> None:
    """Replay one: ``pytest tests/unit/storage/test_unchanged_checkpoints.py -k 'that_ran and <seed>'``."""
    chance = random.Random(seed)
    files = Files()
    planned = []
    newest = None
    for _ in range(200):
        match chance.randrange(4):
            case 0 | 1:
                content = offsets(chance.randrange(2), chance.randrange(2), chance.randrange(2))
                planned.append(files.files.plan(content, ()))
            case 2 if planned:
                plan = planned.pop(chance.randrange(len(planned)))
                if plan.run():
                    newest = plan
                    if chance.random() < 0.7:
                        files.files.note_written(plan)
            case _:
                if chance.random() < 0.1:
                    files.open()
                    planned.clear()
        if newest is not None:
            assert files.read() == newest.content
    assert newest is not None


def test_the_cleaner_checkpoint_is_replaced_once_it_has_offsets() -> None:
    files = Files()
    files.write(offsets(3, 4))
    cleaned = {**offsets(3, 4), CLEANED: {KEY: 2}}
    assert files.write(cleaned) == [names.CLEANER_OFFSET_CHECKPOINT]
    assert files.write(offsets(3, 4)) == [names.CLEANER_OFFSET_CHECKPOINT]
    assert files.read()[CLEANED] == {}


def test_files_that_are_read_are_durable_although_their_writer_was_killed_before_it_synced_the_folder() -> (
    None
):
    files = Files()
    files.write(offsets(3, 4))
    verbs: list[tuple[str, str]] = []
    files.disk.fails = lambda _number, verb, path: verbs.append((verb, path))
    files.open()
    assert verbs[0] == ("sync", "/data")
