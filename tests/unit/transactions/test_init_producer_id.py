"""InitProducerId: new ids, bumps, repeats, fencing, exhausted epochs (KIP-98, KIP-360, E-40)."""

from __future__ import annotations

import pytest
from transaction_harness import A, TransactionWorld

from nilometer.transactions.records import TransactionRecord, encode_record
from nilometer.transactions.requests import InitProducerId, InitProducerIdResult, ProducerIdNeeded
from nilometer.transactions.transaction import Transaction, TransactionConfig
from nilometer.wire.errors import ErrorCode

GIVEN = InitProducerIdResult


def world_at(epoch: int, **transaction: int) -> TransactionWorld:
    """An id whose producer has come to ``epoch`` of producer id 7."""
    kept = Transaction(producer_id=7, producer_epoch=epoch, timeout_ms=1_000, updated_ms=0, **transaction)
    return TransactionWorld(log=[encode_record(TransactionRecord("x", kept))])


def test_a_new_id_asks_for_a_producer_id_and_begins_with_epoch_0() -> None:
    world = TransactionWorld()
    request = InitProducerId(transactional_id="x", transaction_timeout_ms=1)
    assert world.ask(request, ProducerIdNeeded) == ProducerIdNeeded()
    assert world.log == [], "nothing has happened yet"
    assert world.init() == GIVEN(ErrorCode.none, 1_001, 0)
    assert world.state() == "Empty"


def test_a_new_id_begins_with_the_epoch_that_is_set() -> None:
    world = TransactionWorld(config=TransactionConfig(first_epoch=32_765))
    assert [world.init().producer_epoch for _ in range(3)] == [32_765, 32_766, 0]
    with pytest.raises(ValueError, match="first_epoch"):
        TransactionConfig(first_epoch=-1)


def test_a_producer_that_begins_again_gets_the_next_epoch() -> None:
    world = TransactionWorld()
    assert [world.init().producer_epoch for _ in range(3)] == [0, 1, 2]
    assert len({world.init().producer_id for _ in range(3)}) == 1


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_time_out_that_is_not_allowed_is_refused(timeout_ms: int) -> None:
    assert TransactionWorld().init(timeout_ms=timeout_ms) == GIVEN(ErrorCode.invalid_transaction_timeout)


def test_an_empty_id_is_refused() -> None:
    assert TransactionWorld().init("") == GIVEN(ErrorCode.invalid_request)


def test_a_producer_that_goes_on_gets_the_next_epoch_and_the_same_answer_twice() -> None:
    world = TransactionWorld()
    first = world.init()
    has = (first.producer_id, first.producer_epoch)
    assert world.init(has=has).producer_epoch == 1
    assert world.init(has=has).producer_epoch == 1, "asked again, since the answer was lost"
    assert world.init(has=(first.producer_id, 1)).producer_epoch == 2
    assert world.init(has=has) == GIVEN(ErrorCode.producer_fenced)


def test_a_producer_that_another_has_come_after_is_fenced() -> None:
    world = TransactionWorld()
    first = world.init()
    world.init()
    assert world.init(has=(first.producer_id, 0)) == GIVEN(ErrorCode.producer_fenced)
    assert world.init(has=(first.producer_id + 99, 1)) == GIVEN(ErrorCode.producer_fenced)


def test_a_producer_may_bring_what_it_has_to_an_id_that_expired() -> None:
    assert TransactionWorld().init(has=(5, 3)) == GIVEN(ErrorCode.none, 1_001, 0)


def test_an_open_transaction_is_aborted_first_and_its_producer_fenced() -> None:
    world = TransactionWorld()
    first = world.init()
    world.add(first, A)
    assert world.init() == GIVEN(ErrorCode.concurrent_transactions)
    assert world.init() == GIVEN(ErrorCode.concurrent_transactions), "its markers are not written yet"
    assert world.end(first).error_code is ErrorCode.producer_fenced
    markers = world.write_markers()
    assert (markers.committed, markers.producer_epoch, markers.partitions) == (False, 1, (A,))
    assert markers.cause == "another producer has initialized the transactional id"
    assert world.init() == GIVEN(ErrorCode.none, first.producer_id, 2)


def test_a_stranger_does_not_abort_an_open_transaction() -> None:
    world = TransactionWorld()
    world.add(world.init(), A)
    assert world.init(has=(999, 0)) == GIVEN(ErrorCode.producer_fenced)
    assert world.state() == "Ongoing"


# ── E-40: epochs are used up ───────────────────────────────────────────────────────────────────
def test_edge_40_an_exhausted_epoch_is_followed_by_epoch_0_of_a_new_producer_id() -> None:
    world = world_at(32_765)
    assert world.init() == GIVEN(ErrorCode.none, 7, 32_766)
    assert world.init() == GIVEN(ErrorCode.none, 1_001, 0)


def test_edge_40_the_bump_that_rotates_the_producer_id_may_be_repeated() -> None:
    world = world_at(32_766)
    assert world.init(has=(7, 32_766)) == GIVEN(ErrorCode.none, 1_001, 0)
    assert world.init(has=(7, 32_766)) == GIVEN(ErrorCode.none, 1_001, 0)
    assert world.init(has=(1_001, 0)) == GIVEN(ErrorCode.none, 1_001, 1)
    assert world.init(has=(7, 32_766)) == GIVEN(ErrorCode.producer_fenced)


@pytest.mark.parametrize("version", [0, 2])
def test_edge_40_an_open_transaction_can_be_fenced_in_the_last_epoch(version: int) -> None:
    world = world_at(32_766)
    world.version = version
    world.fail_over()
    world.add(GIVEN(ErrorCode.none, 7, 32_766), A, version=version)
    assert world.init() == GIVEN(ErrorCode.concurrent_transactions)
    markers = world.write_markers()
    assert (markers.producer_id, markers.producer_epoch) == (7, 32_767)
    # With version 2 the end has given epoch 0 of the new producer id to the fenced producer.
    assert world.init() == GIVEN(ErrorCode.none, 1_001, 0 if version == 0 else 1)


def test_an_exhausted_producer_that_names_another_epoch_is_fenced() -> None:
    assert world_at(32_766).init(has=(7, 32_000)) == GIVEN(ErrorCode.producer_fenced)
