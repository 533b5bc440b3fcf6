"""EndTxn with and without an epoch bump, repeated and late requests (KIP-890, E-39), and completion."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from test_init_producer_id import world_at
from transaction_harness import A, B, TransactionWorld

from nilometer.invariants import InvariantBroken
from nilometer.transactions.requests import EndTransactionResult, InitProducerIdResult
from nilometer.transactions.transaction import NO_PRODUCER_ID, Transaction
from nilometer.wire.errors import ErrorCode

ENDED = EndTransactionResult


def opened(world: TransactionWorld, version: int = 0) -> InitProducerIdResult:
    producer = world.init()
    assert world.add(producer, A, B, version=version) is ErrorCode.none
    return producer


@pytest.mark.parametrize(("commit", "state"), [(True, "Commit"), (False, "Abort")])
@pytest.mark.parametrize("version", [0, 2])
def test_a_transaction_is_prepared_then_its_markers_are_written_then_it_is_complete(
    commit: bool, state: str, version: int
) -> None:
    world = TransactionWorld()
    producer = opened(world, version)
    epoch = 1 if version == 2 else 0
    assert world.end(producer, commit=commit, version=version) == ENDED(
        ErrorCode.none, producer.producer_id, epoch
    )
    assert world.state() == f"Prepare{state}"
    markers = world.markers()
    assert (markers.committed, markers.partitions, markers.version) == (commit, (A, B), version)
    assert (markers.producer_id, markers.producer_epoch) == (producer.producer_id, epoch)
    assert world.report(markers).completed
    assert (world.state(), world.describe().partitions) == (f"Complete{state}", ())
    assert not world.report(markers).completed, "it is complete already"


@pytest.mark.parametrize("version", [0, 2])
def test_markers_leave_only_once_the_decision_is_committed(version: int) -> None:
    world = TransactionWorld()
    producer = opened(world, version)
    world.commits_at_once = False
    before = len(world.log)
    world.send_end(producer, version=version)
    assert len(world.log) == before + 1
    assert world.actions == []
    world.commit(before)
    assert world.actions == []
    world.commit(before + 1)
    assert world.markers().committed


def test_a_decision_that_was_lost_with_its_coordinator_was_never_made() -> None:
    world = TransactionWorld()
    producer = opened(world)
    world.commits_at_once = False
    world.send_end(producer)
    world.commits_at_once = True
    world.fail_over(loses_uncommitted=True)
    assert (world.state(), world.actions) == ("Ongoing", [])
    assert world.end(producer, commit=False).error_code is ErrorCode.none


@pytest.mark.parametrize("version", [0, 2])
def test_a_producer_that_is_not_the_transactions_is_refused(version: int) -> None:
    world = TransactionWorld()
    producer = opened(world, version)
    other = replace(producer, producer_id=5)
    assert world.end(other, version=version) == ENDED(ErrorCode.invalid_producer_id_mapping)
    assert world.end(replace(producer, producer_epoch=1), version=version) == ENDED(ErrorCode.producer_fenced)
    assert world.end(producer, name="y", version=version) == ENDED(ErrorCode.invalid_producer_id_mapping)
    assert world.end(producer, name="", version=version) == ENDED(ErrorCode.invalid_request)
    assert world.state() == "Ongoing"


@pytest.mark.parametrize("commit", [True, False])
def test_without_a_bump_an_end_may_be_repeated_and_nothing_cannot_be_ended(commit: bool) -> None:
    world = TransactionWorld()
    producer = world.init()
    assert world.end(producer, commit=commit) == ENDED(ErrorCode.invalid_txn_state)
    world.add(producer, A)
    world.end(producer, commit=commit)
    assert world.end(producer, commit=commit) == ENDED(ErrorCode.concurrent_transactions)
    assert world.end(producer, commit=not commit) == ENDED(ErrorCode.concurrent_transactions)
    world.write_markers()
    assert world.end(producer, commit=commit).error_code is ErrorCode.none
    assert world.end(producer, commit=not commit) == ENDED(ErrorCode.invalid_txn_state)
    assert world.actions == []


# ── with a bump: KIP-890 ──────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_gets_the_answer_of_the_first(commit: bool) -> None:
    world = TransactionWorld()
    producer = opened(world, 2)
    first = world.end(producer, commit=commit, version=2)
    assert world.end(producer, commit=commit, version=2) == ENDED(ErrorCode.concurrent_transactions)
    world.write_markers()
    assert world.end(producer, commit=commit, version=2) == first
    assert world.end(producer, commit=not commit, version=2) == ENDED(ErrorCode.invalid_txn_state)
    assert world.actions == []


def test_a_repeated_end_gets_its_answer_from_the_next_coordinator() -> None:
    world = TransactionWorld()
    producer = opened(world, 2)
    first = world.end(producer, version=2)
    world.fail_over()
    world.write_markers()
    world.fail_over()
    assert world.end(producer, version=2) == first


def test_edge_39_a_late_end_does_not_touch_the_next_transaction() -> None:
    world = TransactionWorld()
    producer = opened(world, 2)
    following = world.end(producer, version=2)
    world.write_markers()
    next_producer = InitProducerIdResult(ErrorCode.none, following.producer_id, following.producer_epoch)
    world.add(next_producer, B, version=2)
    for commit in (True, False):
        assert world.end(producer, commit=commit, version=2) == ENDED(ErrorCode.producer_fenced)
    assert (world.state(), world.describe().partitions) == ("Ongoing", (B,))


@pytest.mark.parametrize("complete", [False, True])
def test_an_abort_without_partitions_bumps_the_epoch_and_a_commit_is_refused(complete: bool) -> None:
    world = TransactionWorld()
    producer: InitProducerIdResult | EndTransactionResult = world.init()
    if complete:
        assert world.add(world.init(), A, version=2) is ErrorCode.none
        producer = replace(producer, producer_epoch=1)
        producer = world.end(producer, version=2)
        world.write_markers()
    assert world.end(producer, commit=True, version=2) == ENDED(ErrorCode.invalid_txn_state)
    aborted = world.end(producer, commit=False, version=2)
    assert aborted == ENDED(ErrorCode.none, producer.producer_id, producer.producer_epoch + 1)
    assert world.write_markers().partitions == ()
    assert world.state() == "CompleteAbort"


@pytest.mark.parametrize("commit", [True, False])
def test_edge_40_the_end_that_uses_up_the_last_epoch_hands_out_a_new_producer_id(commit: bool) -> None:
    world = world_at(32_766)
    producer = InitProducerIdResult(ErrorCode.none, 7, 32_766)
    world.add(producer, A, version=2)
    first = world.end(producer, commit=commit, version=2)
    assert first == ENDED(ErrorCode.none, 1_001, 0)
    successor = InitProducerIdResult(ErrorCode.none, 1_001, 0)
    assert world.add(successor, B, version=2) is ErrorCode.concurrent_transactions
    world.fail_over()
    markers = world.write_markers()
    assert (markers.producer_id, markers.producer_epoch) == (7, 32_767)
    assert world.end(producer, commit=commit, version=2) == first, "asked again"
    assert world.add(successor, B, version=2) is ErrorCode.none
    assert world.end(producer, commit=commit, version=2) == ENDED(ErrorCode.producer_fenced), "too late"


def test_a_fence_never_goes_beyond_the_largest_epoch() -> None:
    """The largest epoch only fences: no producer has it, so no transaction of it can be open."""
    empty = Transaction(producer_id=7, producer_epoch=32_766, timeout_ms=1_000, updated_ms=0)
    opened = empty.with_partitions(frozenset({A}), version=0, wall_ms=0)

    def fenced(transaction: Transaction) -> Transaction:
        return transaction.prepared(
            commit=False, version=0, next_producer_id=NO_PRODUCER_ID, fences=True, wall_ms=1
        )

    assert fenced(opened).producer_epoch == 32_767
    with pytest.raises(InvariantBroken, match="an epoch is left to fence the producer"):
        fenced(replace(opened, producer_epoch=32_767))


@pytest.mark.parametrize("version", [0, 2])
def test_a_late_report_of_markers_does_not_complete_another_transaction(version: int) -> None:
    world = TransactionWorld()
    opened(world, version)
    world.init()  # fences it
    late = world.write_markers()
    successor = world.init()
    world.add(successor, B, version=version)
    world.end(successor, version=version)
    assert not world.report(late).completed
    assert world.state() == "PrepareCommit"
