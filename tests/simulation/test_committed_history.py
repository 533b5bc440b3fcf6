"""Each planted violation of exactly once is found in a history of real clients, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nilometer.simulation.checkers.transactions import Fate
from support.simulation.history import Seen
from support.transactions.committed_history import LAST, CommittedHistory

A, B, OUT = "t-0", "t-1", "out-0"
PARTITIONS = [A, B]
COMMITTED = {A: 6, B: 5}


def good() -> CommittedHistory:
    """Two writers: committed, aborted, left open, unknown and there, unknown and not there."""
    run = CommittedHistory()
    transaction(run, "w1", Fate.COMMITTED, (A, "w1-1-0", 0), (B, "w1-1-1", 0))
    transaction(run, "w2", Fate.OPEN, (A, "w2-1-0", 2), (B, "w2-1-1", 2))
    transaction(run, "w1", Fate.UNKNOWN, (A, "w1-2-0", 4), (B, "w1-2-1", 4))
    transaction(run, "w2", Fate.UNKNOWN, (A, "w2-2-0", None), (B, "w2-2-1", None))
    transaction(run, "w1", Fate.COMMITTED, (A, "w1-3-0", 5))
    for reader in ("tail", LAST):
        run.history.moved(reader)
        run.history.poll(reader, [Seen(A, 0, "w1-1-0"), Seen(B, 0, "w1-1-1")])
        run.history.poll(reader, [Seen(A, 4, "w1-2-0"), Seen(B, 4, "w1-2-1"), Seen(A, 5, "w1-3-0")])
    run.history.read_to_end(LAST)
    inputs = ("w1-1-0", "w1-1-1", "w1-2-0", "w1-2-1", "w1-3-0")
    run.outputs.poll(LAST, [Seen(OUT, offset, f"{value}>1") for offset, value in enumerate(inputs)])
    return run


def transaction(run: CommittedHistory, name: str, fate: Fate, *writes: tuple[str, str, int | None]) -> None:
    begun = run.begin(name)
    begun.fate = fate
    for partition, value, offset in writes:
        begun.write(partition, value).offset = offset


def findings(run: CommittedHistory) -> list[str]:
    return [*run.anomalies(PARTITIONS), *run.wrong_outputs("group", OUT, COMMITTED)]


def test_nothing_is_found_in_a_good_history() -> None:
    assert findings(good()) == []


def _aborted_record_read_by_a_passing_reader(run: CommittedHistory) -> None:
    run.history.poll("other", [Seen(B, 2, "w2-1-1")])


def _aborted_record_read_at_the_end(run: CommittedHistory) -> None:
    run.history.poll(LAST, [Seen(A, 6, "w2-1-0")])


def _record_twice(run: CommittedHistory) -> None:
    run.history.poll(LAST, [Seen(A, 7, "w1-1-0")])


def _record_lost(run: CommittedHistory) -> None:
    transaction(run, "w2", Fate.COMMITTED, (A, "w2-3-0", 3), (B, "w2-3-1", 5))


def _record_lost_at_the_end_of_the_log(run: CommittedHistory) -> None:
    transaction(run, "w2", Fate.COMMITTED, (A, "w2-3-0", 9))


def _torn(run: CommittedHistory) -> None:
    transaction(run, "w2", Fate.UNKNOWN, (A, "w2-3-0", None), (B, "w2-3-1", None))
    run.history.poll(LAST, [Seen(A, 8, "w2-3-0")])


def _out_of_order_in_a_transaction(run: CommittedHistory) -> None:
    transaction(run, "w2", Fate.COMMITTED, (A, "w2-3-0", 8), (A, "w2-3-1", 7))
    run.history.poll(LAST, [Seen(A, 7, "w2-3-1"), Seen(A, 8, "w2-3-0")])


def _transactions_out_of_order(run: CommittedHistory) -> None:
    transaction(run, "w2", Fate.COMMITTED, (A, "w2-3-0", 8))
    transaction(run, "w2", Fate.COMMITTED, (A, "w2-4-0", 7))
    run.history.poll(LAST, [Seen(A, 7, "w2-4-0"), Seen(A, 8, "w2-3-0")])


def _reader_that_goes_back(run: CommittedHistory) -> None:
    run.history.poll("tail", [Seen(A, 4, "w1-2-0")])


def _reader_that_skips(run: CommittedHistory) -> None:
    run.history.moved("other")
    run.history.poll("other", [Seen(A, 0, "w1-1-0"), Seen(A, 5, "w1-3-0")])


def _another_value_at_an_offset(run: CommittedHistory) -> None:
    run.history.poll("other", [Seen(A, 4, "w2-2-0")])


def _second_output(run: CommittedHistory) -> None:
    run.outputs.poll(LAST, [Seen(OUT, 9, "w1-1-0>2")])


def _no_output(run: CommittedHistory) -> None:
    run.history.poll("x", [])
    transaction(run, "w2", Fate.COMMITTED, (B, "w2-3-0", 1))
    for reader in ("tail", LAST):
        run.history.moved(reader)
        run.history.poll(reader, [Seen(B, 1, "w2-3-0")])


def _output_of_an_aborted_record(run: CommittedHistory) -> None:
    run.outputs.poll(LAST, [Seen(OUT, 9, "w2-1-0>2")])


@pytest.mark.parametrize(
    ("violate", "name"),
    [
        (_aborted_record_read_by_a_passing_reader, "aborted-read"),
        (_aborted_record_read_at_the_end, "aborted-read"),
        (_record_twice, "duplicate"),
        (_record_lost, "lost-write"),
        (_record_lost_at_the_end_of_the_log, "unseen"),
        (_torn, "torn transaction"),
        (_out_of_order_in_a_transaction, "nonmonotonic-send"),
        (_transactions_out_of_order, "G0"),
        (_reader_that_goes_back, "nonmonotonic-poll"),
        (_reader_that_skips, "poll-skip"),
        (_another_value_at_an_offset, "inconsistent-offsets"),
        (_second_output, "exactly once"),
        (_no_output, "exactly once"),
        (_output_of_an_aborted_record, "no committed record"),
    ],
)
def test_a_violation_is_found(violate: Callable[[CommittedHistory], None], name: str) -> None:
    run = good()
    violate(run)
    assert any(name in finding for finding in findings(run)), findings(run)
