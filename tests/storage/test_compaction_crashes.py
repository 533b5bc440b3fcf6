"""A round of compaction that ends at every disk operation: by an error, a crash, a loss of power.

Whatever is left, the log opens with the same end, no newest value is lost and no deleted one is back; the
next round cleans it as if nothing had been.
"""

from __future__ import annotations

import pytest

from nilometer.storage import LogFenced, names
from nilometer.storage.producers.transaction_marker import ControlType
from support.compaction_story import FOLDER, RETENTION_MS, Story, read_all, table_of
from support.log_cleaner import make_durable

CRASHES = ["process", "power 1", "power 2"]


def begun_story() -> Story:
    """Four segments: superseded values, tombstones that are due, an aborted and a committed transaction."""
    story = Story()
    for number in range(4):
        story.append([(b"a", b"%d" % number), (b"k%d" % number, b"kept")])
        story.append([(b"gone", b"old")] if number < 2 else [(b"gone", None)])
        story.append([(b"c", b"%d" % number)], producer=11, in_transaction=True)
        story.end_transaction(11, ControlType.ABORT if number % 2 else ControlType.COMMIT)
        story.roll()
        story.now_ms += 10
    story.append([(b"tail", b"1")])
    make_durable(story.log)
    for folder in ("/", "/data", FOLDER):
        story.disk.sync_directory(folder)
    story.now_ms += RETENTION_MS
    return story


def operations_of_a_round() -> int:
    story = begun_story()
    before = story.disk.operations
    story.clean()
    story.check()
    return story.disk.operations - before


def crash(story: Story, how: str) -> None:
    story.disk.work_again()
    if how.startswith("power"):
        story.disk.crash_machine(int(how.split()[1]))


def interrupted_at(number: int) -> Story:
    story = begun_story()
    story.disk.fail_from(number)
    with pytest.raises((OSError, LogFenced)):
        story.clean()
    return story


OPERATIONS = operations_of_a_round()


@pytest.mark.parametrize("how", CRASHES)
def test_a_round_that_ends_anywhere_loses_and_resurrects_nothing(how: str) -> None:
    assert OPERATIONS > 30
    for number in range(1, OPERATIONS + 1):
        story = interrupted_at(number)
        end = story.log.log_end_offset
        crash(story, how)
        story.reopen()
        assert story.log.log_end_offset == end
        assert story.log.damages == ()
        assert story.log.gap is None
        story.check_after_crash()
        left = story.disk.list_directory(FOLDER)
        assert not [name for name in left if name.endswith((names.SWAP_SUFFIX, names.CLEANED_SUFFIX))]
        assert story.clean()
        story.check()


@pytest.mark.parametrize("how", CRASHES)
def test_a_start_that_finishes_a_round_may_be_interrupted_as_well(how: str) -> None:
    for number in range(OPERATIONS - 24, OPERATIONS + 1, 3):
        for again in range(1, 30, 4):
            story = interrupted_at(number)
            crash(story, how)
            story.disk.fail_from(again)
            try:
                story.reopen()
            except OSError:
                crash(story, how)
                story.reopen()
            else:
                story.disk.work_again()
            story.check_after_crash()


def test_an_older_value_behind_the_cleaned_records_is_not_back_after_a_crash() -> None:
    """The last record that stays may lie far before the end of the segments that were cleaned."""
    story = Story()
    story.append([(b"stays", b"1")])
    story.roll()
    for _ in range(3):
        story.append([(b"gone", b"old")])
        story.roll()
    story.append([(b"gone", None)])
    story.roll()
    story.append([(b"tail", b"1")])
    make_durable(story.log)
    first = story.log.segments.first
    bases = [segment.base_offset for segment in tuple(story.log.segments)[:-1]]
    renamed: list[str] = []

    def fail(number: int, verb: str, path: str) -> OSError | None:
        if verb == "rename":
            renamed.append(path)
        is_replacing = verb == "rename" and not path.endswith((names.CLEANED_SUFFIX, names.SWAP_SUFFIX))
        return OSError(5, verb, path) if is_replacing else None

    story.disk.fails = fail
    with pytest.raises(LogFenced):
        story.clean()
    assert any(path.endswith(names.CLEANED_SUFFIX) for path in renamed), "the round was committed"
    crash(story, "process")
    story.reopen()
    assert [segment.base_offset for segment in story.log.segments] == [first.base_offset, bases[-1] + 1]
    assert table_of(story.log) == {b"stays": b"1", b"tail": b"1"}
    assert b"old" not in [record.value for _, records in read_all(story.log) for record in records]


def test_a_swap_of_kafka_has_no_manifest() -> None:
    """Then what it replaces is concluded from its last batch."""
    story = begun_story()
    story.clean()
    cleaned = story.log.segments.first
    content = {path: story.disk.read_file(path) for path in cleaned.existing_files()}
    again = begun_story()
    for path, data in content.items():
        again.disk.replace_file(path + names.SWAP_SUFFIX, data)
    again.reopen()
    assert again.log.segments.first.size == cleaned.size
    again.check_after_crash()
