"""The judge of transactions says yes to what is lawful, and names what is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nilometer.simulation.checkers.history import History, Seen
from nilometer.simulation.checkers.transactions import (
    Consumed,
    Fate,
    LoggedTransaction,
    ProducerBatch,
    TransactionLedger,
    Visible,
    compare_table,
    dirty_writes,
    exactly_once,
    expected_table,
    information_cycles,
    judge,
    judge_log,
    not_consumed,
    torn,
)

A, B = "a-0", "b-0"


class Scenario:
    def __init__(self) -> None:
        self.ledger = TransactionLedger()
        self.history = History()

    def transaction(
        self, fate: Fate, *writes: tuple[str, str, int], name: str = "x", epoch: int = 0
    ) -> LoggedTransaction:
        begun = self.ledger.begin(name, 7, epoch)
        begun.fate = fate
        for partition, value, offset in writes:
            begun.write(partition, value).offset = offset
        return begun

    def reads(self, *records: tuple[str, str, int], consumer: str = "last") -> None:
        self.history.poll(consumer, [Seen(partition, offset, value) for partition, value, offset in records])

    def visible(self) -> Visible:
        return Visible.by(self.history, "last")

    def verdict(self) -> list[str]:
        return list(judge(self.ledger, self.history, (A, B)))


def test_what_was_committed_and_read_is_right() -> None:
    scenario = Scenario()
    scenario.transaction(Fate.COMMITTED, (A, "1", 0), (B, "2", 0))
    scenario.transaction(Fate.OPEN, (A, "3", 2))
    scenario.transaction(Fate.UNKNOWN, (A, "4", 4), (B, "5", 2))
    scenario.reads((A, "1", 0), (A, "4", 4), (B, "2", 0), (B, "5", 2))
    assert scenario.verdict() == []
    assert list(torn(scenario.ledger, scenario.visible(), (A, B))) == []
    assert list(dirty_writes(scenario.ledger, scenario.visible())) == []


@pytest.mark.parametrize("fate", [Fate.OPEN, Fate.ABORTED])
def test_a_record_of_an_aborted_transaction_is_not_to_be_read(fate: Fate) -> None:
    scenario = Scenario()
    scenario.transaction(fate, (A, "1", 0))
    scenario.reads((A, "1", 0))
    (found,) = scenario.verdict()
    assert found.startswith("transactions: aborted-read")
    (found,) = torn(scenario.ledger, scenario.visible(), (A, B))
    assert found.startswith("aborted read")


@pytest.mark.parametrize("fate", [Fate.COMMITTED, Fate.UNKNOWN])
def test_a_reader_that_passes_a_record_of_a_transaction_shows_that_it_is_torn(fate: Fate) -> None:
    scenario = Scenario()
    scenario.transaction(fate, (A, "1", 0), (B, "2", 0))
    scenario.transaction(Fate.COMMITTED, (B, "3", 5))
    scenario.reads((A, "1", 0), (B, "3", 5))
    assert "lost-write" in scenario.verdict()[0]
    (found,) = torn(scenario.ledger, scenario.visible(), (A, B))
    assert found.startswith("torn transaction")


def test_a_committed_record_that_no_reader_finds_is_lost() -> None:
    scenario = Scenario()
    scenario.transaction(Fate.COMMITTED, (A, "1", 0))
    scenario.history.read_to_end("last")
    assert "unseen" in scenario.verdict()[0]


def _visible(scenario: Scenario, *records: tuple[str, str, int]) -> Visible:
    scenario.reads(*records)
    return scenario.visible()


def test_a_later_transaction_of_an_id_does_not_lie_before_an_earlier_one() -> None:
    scenario = Scenario()
    scenario.transaction(Fate.COMMITTED, (A, "1", 5))
    scenario.transaction(Fate.COMMITTED, (A, "2", 1), epoch=1)
    scenario.transaction(Fate.COMMITTED, (A, "3", 0), name="another")
    (found,) = dirty_writes(scenario.ledger, _visible(scenario, (A, "3", 0), (A, "2", 1), (A, "1", 5)))
    assert found.startswith("G0")


@pytest.mark.parametrize(("reads", "is_circular"), [((["2"], ["1"]), True), (([], ["1"]), False)])
def test_information_does_not_flow_in_a_circle(reads: Sequence[list[str]], is_circular: bool) -> None:
    scenario = Scenario()
    for value, read in zip("12", reads, strict=True):
        scenario.transaction(Fate.COMMITTED, (A, value, int(value)), name=value).read += read
    assert [found.partition(":")[0] for found in information_cycles(scenario.ledger)] == ["G1c"] * is_circular


@pytest.mark.parametrize(
    ("outputs", "committed", "problems"),
    [
        (["in1>1", "in2>1"], 2, 0),
        (["in1>1"], 2, 1),
        (["in1>1", "in2>1", "in2>2"], 2, 1),
        (["in1>1", "in2>1"], 1, 1),
        (["in1>1"], 1, 0),
    ],
)
def test_each_input_has_one_output_and_the_offsets_agree(
    outputs: list[str], committed: int, problems: int
) -> None:
    scenario = Scenario()
    transaction = scenario.transaction(Fate.COMMITTED)
    transaction.inputs = (Consumed(A, 0, "in1"), Consumed(A, 1, "in2"))
    seen = [(B, value, index) for index, value in enumerate(outputs)]
    visible = _visible(scenario, (A, "in1", 0), (A, "in2", 1), *seen)
    assert len(list(exactly_once(scenario.ledger, visible, [A], B, {A: committed}))) == problems
    assert len(not_consumed(visible, [A], {A: committed})) == 2 - committed


def test_a_compacted_table_has_the_last_committed_value_of_each_key() -> None:
    scenario = Scenario()
    scenario.transaction(Fate.COMMITTED, (A, "k=1", 0), (A, "j=1", 1))
    scenario.transaction(Fate.OPEN, (A, "k=2", 3))
    scenario.transaction(Fate.UNKNOWN, (A, "j=3", 5))
    expected, possible = expected_table(scenario.ledger, A, read=set())
    assert list(compare_table({"k": "k=1", "j": "j=1"}, expected, possible)) == []
    assert list(compare_table({"k": "k=1", "j": "j=3"}, expected, possible)) == []
    assert len(list(compare_table({"k": "k=2", "j": "j=3"}, expected, possible))) == 1
    assert len(list(compare_table({"j": "j=3"}, expected, possible))) == 1


def batch(first: int, epoch: int, *, control: bool = False) -> ProducerBatch:
    return ProducerBatch(first, first, 7, epoch, is_transactional=True, is_control=control)


@pytest.mark.parametrize(
    ("batches", "kinds"),
    [
        ([batch(0, 0), batch(1, 0, control=True), batch(2, 0), batch(3, 1, control=True)], []),
        ([batch(0, 0)], ["hanging transaction"]),
        ([batch(0, 1), batch(1, 1, control=True), batch(2, 0), batch(3, 2, control=True)], ["G0"]),
        ([batch(0, 0), batch(1, 1), batch(2, 1, control=True)], ["G0"]),
    ],
)
def test_transactions_lie_in_a_log_one_after_the_other(
    batches: list[ProducerBatch], kinds: list[str]
) -> None:
    assert [found.partition(":")[0] for found in judge_log("a-0", batches)] == kinds
