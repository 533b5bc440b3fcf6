"""A round of compaction that ends at every disk operation: by an error, a crash, a loss of power.

Whatever is left, the log opens with the same end, no newest value is lost and no deleted one is back; the
next round cleans it as if nothing had been.
"""

from __future__ import annotations

import pytest

from nilometer.storage import names
from nilometer.storage.errors import LogFenced
from nilometer.wire.records import ControlType
from support.logs.compaction_scenario import FOLDER, RETENTION_MS, CompactionScenario, read_all, table_of
from support.logs.log_cleaner import make_durable

CRASHES = ["process", "power 1", "power 2"]
ONE_ERROR = "one error, then process"


def begun_scenario() -> CompactionScenario:
    """Four segments: superseded values, tombstones that are due, an aborted and a committed transaction."""
    scenario = CompactionScenario()
    for number in range(4):
        scenario.append([(b"a", b"%d" % number), (b"k%d" % number, b"kept")])
        scenario.append([(b"gone", b"old")] if number < 2 else [(b"gone", None)])
        scenario.append([(b"c", b"%d" % number)], producer=11, in_transaction=True)
        scenario.end_transaction(11, ControlType.ABORT if number % 2 else ControlType.COMMIT)
        scenario.roll()
        scenario.now_ms += 10
    scenario.append([(b"tail", b"1")])
    make_durable(scenario.log)
    for folder in ("/", "/data", FOLDER):
        scenario.disk.sync_directory(folder)
    scenario.now_ms += RETENTION_MS
    return scenario


def operations_of_a_round() -> int:
    scenario = begun_scenario()
    before = scenario.disk.operations
    scenario.clean()
    scenario.check()
    return scenario.disk.operations - before


def crash(scenario: CompactionScenario, how: str) -> None:
    scenario.disk.work_again()
    if how.startswith("power"):
        scenario.disk.crash_machine(int(how.split()[1]))


def interrupted_at(number: int, how: str = "") -> CompactionScenario:
    scenario = begun_scenario()
    (scenario.disk.fail_once if how == ONE_ERROR else scenario.disk.fail_from)(number)
    with pytest.raises((OSError, LogFenced)):
        scenario.clean()
    return scenario


OPERATIONS = operations_of_a_round()


@pytest.mark.parametrize("how", [*CRASHES, ONE_ERROR])
def test_a_round_that_ends_anywhere_loses_and_resurrects_nothing(how: str) -> None:
    assert OPERATIONS > 30
    for number in range(1, OPERATIONS + 1):
        scenario = interrupted_at(number, how)
        end = scenario.log.log_end_offset
        crash(scenario, how)
        scenario.reopen()
        assert scenario.log.log_end_offset == end
        assert scenario.log.damages == ()
        assert scenario.log.gap is None
        scenario.check_after_crash()
        left = scenario.disk.list_directory(FOLDER)
        assert not [name for name in left if name.endswith((names.SWAP_SUFFIX, names.CLEANED_SUFFIX))]
        assert scenario.clean()
        scenario.check()


@pytest.mark.parametrize("how", CRASHES)
def test_a_start_that_finishes_a_round_may_be_interrupted_as_well(how: str) -> None:
    for number in range(OPERATIONS - 24, OPERATIONS + 1, 3):
        for again in range(1, 30, 4):
            scenario = interrupted_at(number)
            crash(scenario, how)
            scenario.disk.fail_from(again)
            try:
                scenario.reopen()
            except OSError:
                crash(scenario, how)
                scenario.reopen()
            else:
                scenario.disk.work_again()
            scenario.check_after_crash()


def test_an_older_value_behind_the_cleaned_records_is_not_back_after_a_crash() -> None:
    """The last record that stays may lie far before the end of the segments that were cleaned."""
    scenario = CompactionScenario()
    scenario.append([(b"stays", b"1")])
    scenario.roll()
    for _ in range(3):
        scenario.append([(b"gone", b"old")])
        scenario.roll()
    scenario.append([(b"gone", None)])
    scenario.roll()
    scenario.append([(b"tail", b"1")])
    make_durable(scenario.log)
    first = scenario.log.segments.first
    bases = [segment.base_offset for segment in tuple(scenario.log.segments)[:-1]]
    renamed: list[str] = []

    def fail(number: int, verb: str, path: str) -> OSError | None:
        if verb == "rename":
            renamed.append(path)
        is_replacing = verb == "rename" and not path.endswith((names.CLEANED_SUFFIX, names.SWAP_SUFFIX))
        return OSError(5, verb, path) if is_replacing else None

    scenario.disk.fails = fail
    with pytest.raises(LogFenced):
        scenario.clean()
    assert any(path.endswith(names.CLEANED_SUFFIX) for path in renamed), "the round was committed"
    crash(scenario, "process")
    scenario.reopen()
    assert [segment.base_offset for segment in scenario.log.segments] == [first.base_offset, bases[-1] + 1]
    assert table_of(scenario.log) == {b"stays": b"1", b"tail": b"1"}
    assert b"old" not in [record.value for _, records in read_all(scenario.log) for record in records]


def test_a_swap_of_kafka_has_no_manifest() -> None:
    """Then what it replaces is concluded from its last batch."""
    scenario = begun_scenario()
    scenario.clean()
    cleaned = scenario.log.segments.first
    content = {path: scenario.disk.read_file(path) for path in cleaned.paths if scenario.disk.exists(path)}
    again = begun_scenario()
    for path, data in content.items():
        again.disk.replace_file(path + names.SWAP_SUFFIX, data)
    again.reopen()
    assert again.log.segments.first.size == cleaned.size
    again.check_after_crash()
