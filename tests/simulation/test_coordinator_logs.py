"""The judge of coordinators' states reads their records as they are written, and tells two states apart."""

from __future__ import annotations

from nilometer.simulation.checkers.transactions import (
    KnownTransaction,
    LogRecord,
    ProducerBatch,
    compare,
    finished_by_another,
    fold,
    is_marked,
    read_value,
)
from nilometer.transactions.records import encode_value
from nilometer.transactions.transaction import PartitionSet, Transaction, TransactionState

ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT = 1, 2, 4


def known(state: int, epoch: int = 3) -> KnownTransaction:
    return KnownTransaction(7, epoch, 60_000, state, ())


def test_a_record_is_read_as_it_was_written() -> None:
    transaction = Transaction(
        producer_id=2**40,
        producer_epoch=32_766,
        timeout_ms=60_000,
        state=TransactionState.PREPARE_ABORT,
        partitions=PartitionSet.of_topics([("a", (1, 0)), ("b", (300,))]),
        started_ms=1,
        updated_ms=2,
        next_producer_id=9,
        version=2,
    )
    found = read_value(encode_value(transaction))
    assert found == KnownTransaction(2**40, 32_766, 60_000, 3, ("a-0", "a-1", "b-300"))


def test_a_record_without_partitions_is_read() -> None:
    transaction = Transaction(producer_id=1, producer_epoch=0, timeout_ms=5, updated_ms=2)
    assert read_value(encode_value(transaction)) == KnownTransaction(1, 0, 5, 0, ())


def test_the_last_record_of_an_id_counts_and_a_deletion_ends_it() -> None:
    records = [
        LogRecord(0, 0, "x", known(ONGOING)),
        LogRecord(0, 0, "y", known(ONGOING)),
        LogRecord(0, 1, "x", known(PREPARE_COMMIT)),
        LogRecord(0, 1, "y", None),
    ]
    logged = fold(iter(records))
    assert logged == {"x": known(PREPARE_COMMIT)}
    assert compare("a broker", {"x": known(PREPARE_COMMIT)}, logged) == []
    assert len(compare("a broker", {"x": known(ONGOING)}, logged)) == 1
    assert len(compare("a broker", {}, logged)) == 1
    assert len(compare("a broker", {**logged, "z": known(ONGOING)}, logged)) == 1


def test_only_what_another_broker_completes_was_finished_by_another() -> None:
    leaders = {0: 1, 1: 2, 2: 2}
    records = [
        LogRecord(0, 0, "x", known(PREPARE_COMMIT)),
        LogRecord(0, 1, "x", known(COMPLETE_COMMIT)),
        LogRecord(0, 1, "y", known(PREPARE_COMMIT)),
        LogRecord(0, 2, "y", known(COMPLETE_COMMIT)),
    ]
    assert finished_by_another(records, leaders) == 1


def batch(epoch: int, *, control: bool) -> ProducerBatch:
    return ProducerBatch(0, 0, 7, epoch, is_transactional=True, is_control=control)


def test_a_marker_is_known_by_an_epoch_that_no_record_has() -> None:
    batches = [
        batch(1, control=False),
        batch(2, control=True),
        batch(3, control=False),
        batch(3, control=True),
    ]
    assert [is_marked(batches, 7, epoch) for epoch in range(5)] == [False, False, True, False, False]
    assert not is_marked(batches, 8, 2)
