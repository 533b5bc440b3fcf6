"""Which open transactions are hanging, if some end or go on while they are searched for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from nilometer.client.admin.transaction_admin import (
    ActiveProducer,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
)
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.errors import ErrorCode, KafkaError

PARTITION, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
ProducersOf = dict[TopicPartition, list[ActiveProducer] | KafkaError]


def producer(producer_id: int, start_offset: int | None, last_timestamp_ms: int = 1_000) -> ActiveProducer:
    return ActiveProducer(producer_id, 0, 5, last_timestamp_ms, -1, start_offset)


class Cluster(TransactionAdmin):
    """Leaders with one response after another, and a coordinator that has only producer 9 in the other
    partition."""

    def __init__(self, *looks: ProducersOf) -> None:
        clock = SimpleNamespace(wall_ms=lambda: 10_000)
        super().__init__(cast(Any, SimpleNamespace(runtime=SimpleNamespace(clock=clock))), 1_000)
        self.looks = list(looks)
        self.asked: list[list[TopicPartition]] = []

    async def producers(self, partitions: Iterable[TopicPartition]) -> ProducersOf:
        self.asked.append(list(partitions))
        return self.looks.pop(0)

    async def list_transactions(self, *_: object, **__: object) -> list[TransactionListing]:
        return [
            TransactionListing("ended", 1, "CompleteCommit", 1),
            TransactionListing("goes on", 9, "Ongoing", 1),
        ]

    async def describe(self, ids: Iterable[str]) -> dict[str, TransactionDescription | KafkaError]:
        known: dict[str, TransactionDescription | KafkaError] = {
            "ended": TransactionDescription("ended", "CompleteCommit", 1, 0, 60_000, None, (), 1),
            "goes on": TransactionDescription("goes on", "Ongoing", 9, 0, 60_000, 1_000, (OTHER,), 1),
        }
        return {one: known[one] for one in ids}

    def hanging(self) -> tuple[list[tuple[TopicPartition, int]], Sequence[TopicPartition]]:
        found, failed = asyncio.run(self.find_hanging([PARTITION, OTHER], 100))
        return [(one.partition, one.producer.producer_id) for one in found], list(failed)


def test_a_transaction_that_stays_open_without_a_coordinator_is_hanging() -> None:
    look: ProducersOf = {PARTITION: [producer(1, 7), producer(2, None)], OTHER: [producer(3, 0)]}
    cluster = Cluster(look, look)
    assert cluster.hanging() == ([(PARTITION, 1), (OTHER, 3)], [])


def test_a_transaction_of_a_coordinator_is_not_and_its_leader_is_not_asked_again() -> None:
    look: ProducersOf = {PARTITION: [producer(1, 7)], OTHER: [producer(9, 0)]}
    cluster = Cluster(look, {PARTITION: look[PARTITION]})
    assert cluster.hanging() == ([(PARTITION, 1)], [])
    assert cluster.asked == [[PARTITION, OTHER], [PARTITION]]


def test_a_transaction_that_goes_on_meanwhile_is_not() -> None:
    before: ProducersOf = {PARTITION: [producer(1, 7)], OTHER: []}
    assert Cluster(before, {PARTITION: [producer(1, 7, last_timestamp_ms=9_950)]}).hanging() == ([], [])


def test_a_transaction_that_ended_before_its_coordinator_was_asked_is_not() -> None:
    """Aborting it would abort the producer's next transaction."""
    before: ProducersOf = {PARTITION: [producer(1, 7)], OTHER: [producer(1, 3)]}
    after: ProducersOf = {PARTITION: [producer(1, 12)], OTHER: [producer(1, None)]}
    assert Cluster(before, after).hanging() == ([], [])


def test_a_partition_that_cannot_be_asked_again_is_an_error() -> None:
    error = KafkaError(ErrorCode.request_timed_out, "no leader")
    cluster = Cluster({PARTITION: [producer(1, 7)], OTHER: [producer(3, 0)]}, {PARTITION: error, OTHER: []})
    assert cluster.hanging() == ([], [PARTITION])


def test_no_leader_is_asked_again_for_nothing() -> None:
    cluster = Cluster({PARTITION: [producer(2, None)], OTHER: []})
    assert cluster.hanging() == ([], [])
    assert cluster.asked == [[PARTITION, OTHER]]
