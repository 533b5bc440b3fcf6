"""AddPartitionsToTxn of producers, and of brokers that verify (E-38, E-41)."""

from __future__ import annotations

from msgspec.structs import replace
from transaction_harness import A, B, C, TransactionWorld

from nilometer.transactions.requests import (
    AddPartitions,
    InitProducerIdResult,
    VerifyPartitions,
    VerifyPartitionsResult,
)
from nilometer.wire.errors import ErrorCode


def verify(world: TransactionWorld, producer: InitProducerIdResult, *, name: str = "x") -> list[ErrorCode]:
    request = VerifyPartitions(
        transactional_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        partitions=(A, B),
    )
    return [error for _, error in world.ask(request, VerifyPartitionsResult).errors]


def test_the_first_partition_begins_a_transaction_and_more_are_added() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.now_ms = 5
    assert world.add(producer, B) is ErrorCode.none
    world.now_ms = 9
    assert world.add(producer, A, B) is ErrorCode.none
    described = world.describe()
    assert (described.transaction_state, described.partitions) == ("Ongoing", (A, B))
    assert described.transaction_start_time_ms == world.wall_ms - 4


def test_edge_41_a_producer_hears_of_its_partition_only_once_the_record_is_committed() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.commits_at_once = False
    token = world.send(
        AddPartitions(
            transactional_id="x",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            partitions=frozenset({A}),
        )
    )
    assert token not in world.replies
    world.commit()
    assert token in world.replies


def test_what_is_added_already_needs_no_record() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, A, B)
    written = len(world.log)
    assert world.add(producer, A) is ErrorCode.none
    assert len(world.log) == written


def test_a_wrong_producer_is_refused() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.init()
    assert world.add(producer, A) is ErrorCode.producer_fenced
    assert world.add(replace(producer, producer_id=5), A) is ErrorCode.invalid_producer_id_mapping
    assert world.add(producer, A, name="other") is ErrorCode.invalid_producer_id_mapping
    assert world.add(producer, A, name="") is ErrorCode.invalid_request


def test_a_transaction_that_is_being_ended_takes_no_partition_from_any_producer() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, A)
    world.end(producer)
    assert world.add(producer, B) is ErrorCode.concurrent_transactions
    stranger = replace(producer, producer_id=producer.producer_id + 1)
    assert world.add(stranger, B) is ErrorCode.concurrent_transactions
    world.write_markers()
    assert world.add(producer, C) is ErrorCode.none
    assert world.describe().partitions == (C,)


# ── verification ──────────────────────────────────────────────────────────────────────────────────
def test_edge_38_only_partitions_of_an_open_transaction_are_verified() -> None:
    world = TransactionWorld()
    producer = world.init()
    assert verify(world, producer) == [ErrorCode.transaction_abortable] * 2
    world.add(producer, A)
    assert verify(world, producer) == [ErrorCode.none, ErrorCode.transaction_abortable]
    world.end(producer)
    assert verify(world, producer) == [ErrorCode.concurrent_transactions] * 2
    world.write_markers()
    assert verify(world, producer) == [ErrorCode.transaction_abortable] * 2


def test_a_wrong_producer_is_not_verified() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, A)
    older = replace(producer, producer_epoch=-1)
    assert verify(world, older) == [ErrorCode.producer_fenced] * 2
    assert verify(world, replace(producer, producer_id=1)) == [ErrorCode.invalid_producer_id_mapping] * 2
    assert verify(world, producer, name="other") == [ErrorCode.invalid_producer_id_mapping] * 2
    assert verify(world, producer, name="") == [ErrorCode.invalid_request] * 2
