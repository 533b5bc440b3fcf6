"""A batch of a transaction is appended only to the partition that was verified, as it is then (E-38)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from nilometer.broker import produce
from nilometer.broker.api.spec import Request
from nilometer.broker.connection import Connection
from nilometer.broker.rejected_batches import RejectedBatches
from nilometer.broker.replicas.delayed_requests import ReadyFetches
from nilometer.broker.replicas.traffic import BrokerTraffic
from nilometer.broker.request_context import ANONYMOUS_CONTEXT
from nilometer.broker.responses import wait_whole
from nilometer.broker.transactions.verification import TransactionVerification
from nilometer.broker.turns import SLICE_US, LongWork, Turns
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import ProducerStateEntry
from nilometer.transactions.requests import (
    AddPartitions,
    AddPartitionsResult,
    VerifyPartitions,
    VerifyPartitionsResult,
)
from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.produce import ProduceBody, ProducedRecords, ProducedToTopic
from nilometer.wire.records import BatchBuilder
from support.brokers.fake_rights import rights_of
from support.step_clock import StepClock

PRODUCER_ID, EPOCH, VERSION = 7, 0, 11
VERSION_THAT_ADDS = 12
FIRST_WITH_TOPIC_IDS = 13
TOPIC_ID = UUID(int=5)
ME = 1
RETRY = {"add.partitions.to.txn.retry.backoff.ms": 1, "add.partitions.to.txn.retry.backoff.max.ms": 3}


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class FakePartition:
    def __init__(self, index: int, *, open_transaction: bool = False) -> None:
        self.topic = "t"
        self.appended = 0
        self.waits: list[Any] | None = None
        self.on_append: Callable[[], None] = lambda: None
        known: dict[int, ProducerStateEntry] = {}
        if open_transaction:
            known[PRODUCER_ID] = entry = ProducerStateEntry(PRODUCER_ID)
            entry.producer_epoch, entry.current_txn_first_offset = EPOCH, 10
        self.log = SimpleNamespace(
            topic_partition=TopicPartition("t", index), producers=SimpleNamespace(producers=known)
        )

    def end_transaction(self) -> None:
        self.log.producers.producers = {}

    def append(self, _records: object, **_: object) -> Any:
        self.appended += 1
        self.on_append()
        return SimpleNamespace(first_offset=0, last_offset=0, log_append_time_ms=-1, log_start_offset=0)

    def acknowledge_when_committed(self, _appended: object, outcome: Any, request: Any) -> None:
        """At once, unless the test does it."""
        if self.waits is not None:
            self.waits.append(request.wait_for(outcome))


class Broker:
    """Led by it are ``partitions``; the coordinator, here too, answers when ``answers`` is set."""

    def __init__(self, **partitions: FakePartition) -> None:
        self.partitions = {int(name[1:]): partition for name, partition in partitions.items()}
        self.answers = asyncio.Event()
        self.now_ms = 0
        self.now_us = 0
        self.busy = 0
        """How many requests to add a partition come before the producer's previous transaction has ended."""
        self.added = 0
        self.verified = ErrorCode.none
        self.messages: dict[int, str | None] = {}
        """By partition, the messages of the last response."""
        leader = SimpleNamespace(has_leader=True, leader=ME)
        metadata = SimpleNamespace(image=SimpleNamespace(partition=lambda *_: leader))
        clock: Any = SimpleNamespace(
            monotonic_ms=lambda: 0, monotonic_us=lambda: self.now_us, thread_cpu_us=lambda: 0
        )
        config = SimpleNamespace(node_id=ME, boolean=lambda _: True, integer=RETRY.__getitem__)
        self.parts: Any = SimpleNamespace(
            replicas=SimpleNamespace(
                partition=self.partition, partition_by_id=self.partition, traffic=BrokerTraffic()
            ),
            runtime=SimpleNamespace(clock=clock),
            turns=Turns(clock),
            tasks=SimpleNamespace(spawn=lambda work, **_: asyncio.ensure_future(work)),
            verification=TransactionVerification(
                cast(Any, config), cast(Any, self), cast(Any, metadata), cast(Any, self), cast(Any, None)
            ),
            metadata=SimpleNamespace(
                image=SimpleNamespace(
                    topic=lambda _: None, partition=lambda *_: None, topic_by_uuid=lambda _: None
                )
            ),
            client_quotas=SimpleNamespace(limits_clients=False),
            ready_fetches=ReadyFetches(Turns(StepClock())),
            rights=rights_of(),
        )

    def use_up_slice(self) -> None:
        self.now_us += SLICE_US

    def partition(self, _topic: str, index: int) -> FakePartition:
        if index not in self.partitions:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        return self.partitions[index]

    def partition_for(self, _transactional_id: str) -> int:
        return 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    async def answer_for_id(
        self, asked: VerifyPartitions | AddPartitions
    ) -> VerifyPartitionsResult | AddPartitionsResult:
        await self.answers.wait()
        if isinstance(asked, AddPartitions):
            self.added += 1
            self.now_ms += 1
            busy = self.added <= self.busy
            return AddPartitionsResult(ErrorCode.concurrent_transactions if busy else ErrorCode.none)
        return VerifyPartitionsResult(tuple((each, self.verified) for each in asked.partitions))

    def produce(self, *indexes: int, version: int = VERSION) -> asyncio.Future[dict[int, str]]:
        builder = BatchBuilder()
        builder.append(0, None, b"v")
        records = memoryview(builder.build(0, PRODUCER_ID, EPOCH, 0, transactional=True))
        named: Any = TOPIC_ID if version >= FIRST_WITH_TOPIC_IDS else "t"
        topic = ProducedToTopic(named, [ProducedRecords(index, records) for index in indexes])
        header = messages.RequestHeader(int(ApiKey.PRODUCE), version, 1, None, 0)
        connection = SimpleNamespace(
            rejected_batches=RejectedBatches(), process_alone=lambda: None, has_queued=False
        )
        request = Request(
            header,
            cast(Any, ProduceBody("id", -1, 1_000, [topic])),
            messages.api(ApiKey.PRODUCE, version),
            cast(Connection, connection),
            ANONYMOUS_CONTEXT,
        )
        if len(indexes) > produce.PARTITIONS_AT_ONCE:
            long = produce.handle_long(self.parts, request, LongWork(self.parts.turns))
            reply: Any = asyncio.ensure_future(long)
        else:
            reply = produce.handle(self.parts, request)

        async def errors() -> dict[int, str]:
            frame = await reply if isinstance(reply, asyncio.Future) else reply
            assert frame is not None
            answer = messages.decode_response(
                ApiKey.PRODUCE, version, (await wait_whole(frame, self.parts.turns))[4:]
            )[1]
            [told] = answer.responses
            self.messages = {part.index: part.error_message for part in told.partition_responses}
            return {part.index: part.error_code.name for part in told.partition_responses}

        return asyncio.ensure_future(errors())


@on_a_loop
async def test_a_verified_batch_is_appended() -> None:
    broker = Broker(p0=FakePartition(0), p1=FakePartition(1, open_transaction=True))
    errors = broker.produce(0, 1)
    broker.answers.set()
    assert await errors == {0: "none", 1: "none"}
    assert [partition.appended for partition in broker.partitions.values()] == [1, 1]


@on_a_loop
async def test_no_batch_is_appended_to_a_partition_that_is_hosted_again_while_its_coordinator_is_asked() -> (
    None
):
    broker = Broker(p0=FakePartition(0))
    errors = broker.produce(0)
    await asyncio.sleep(0)
    broker.partitions[0] = FakePartition(0)
    broker.answers.set()
    assert await errors == {0: "not_leader_or_follower"}
    assert "changed while the transaction coordinator was asked" in str(broker.messages[0])
    assert broker.partitions[0].appended == 0


@pytest.mark.parametrize("what", ["hosted", "ended"])
@on_a_loop
async def test_no_batch_is_appended_that_was_not_asked_about_and_needs_it_by_now(what: str) -> None:
    broker = Broker(p0=FakePartition(0))
    if what == "ended":
        broker.partitions[1] = FakePartition(1, open_transaction=True)
    errors = broker.produce(0, 1)
    await asyncio.sleep(0)
    if what == "ended":
        broker.partitions[1].end_transaction()
    else:
        broker.partitions[1] = FakePartition(1)
    broker.answers.set()
    assert await errors == {0: "none", 1: "not_leader_or_follower"}
    assert broker.partitions[1].appended == 0


@pytest.mark.parametrize(
    ("verified", "error", "message"),
    [
        ("invalid_producer_id_mapping", "invalid_producer_id_mapping", "the transactional id does not have"),
        ("producer_fenced", "invalid_producer_epoch", "producer 7 does not have epoch 0 any more: another"),
        ("coordinator_not_available", "not_enough_replicas", "the transaction coordinator could not confirm"),
        ("transaction_abortable", "transaction_abortable", "is not part of the transaction, or"),
    ],
)
@on_a_loop
async def test_a_rejected_batch_says_why(verified: str, error: str, message: str) -> None:
    broker = Broker(p0=FakePartition(0))
    broker.verified = ErrorCode[verified]
    broker.answers.set()
    assert await broker.produce(0) == {0: error}
    assert message in str(broker.messages[0])


@on_a_loop
async def test_a_marker_that_comes_while_the_coordinator_is_asked_ends_the_transaction() -> None:
    broker = Broker(p0=FakePartition(0))
    errors = broker.produce(0)
    await asyncio.sleep(0)
    entry = ProducerStateEntry(PRODUCER_ID)
    entry.producer_epoch = EPOCH
    broker.partitions[0].log.producers.producers = {PRODUCER_ID: entry}
    broker.answers.set()
    assert await errors == {0: "invalid_txn_state"}
    assert broker.partitions[0].appended == 0


@pytest.mark.parametrize("what", ["hosted", "ended"])
@on_a_loop
async def test_no_batch_is_appended_in_a_later_turn_that_needs_to_be_verified_by_then(what: str) -> None:
    """None of them had to be when the request arrived."""
    broker = Broker(p0=FakePartition(0, open_transaction=True), p1=FakePartition(1, open_transaction=True))
    last = FakePartition(2, open_transaction=True)
    if what == "ended":
        broker.partitions[2] = last
    broker.partitions[1].on_append = broker.use_up_slice
    errors = broker.produce(0, 1, 2)
    assert last.appended == 0, "it is left for a later turn"
    if what == "ended":
        last.end_transaction()
    else:
        broker.partitions[2] = last = FakePartition(2)
    assert await errors == {0: "none", 1: "none", 2: "not_leader_or_follower"}
    assert last.appended == 0


@on_a_loop
async def test_no_batch_is_left_for_a_later_turn_whose_topic_is_not_known_here() -> None:
    """Whether its principal may write to the topic was not looked up. So this must be refused at once."""
    broker = Broker(p0=FakePartition(0, open_transaction=True), p1=FakePartition(1, open_transaction=True))
    broker.partitions[1].on_append = broker.use_up_slice
    errors = broker.produce(0, 1, 2, version=FIRST_WITH_TOPIC_IDS)
    broker.partitions[2] = FakePartition(2, open_transaction=True)
    assert await errors == {0: "none", 1: "none", 2: "not_leader_or_follower"}
    assert broker.partitions[2].appended == 0


@on_a_loop
async def test_no_part_of_a_large_request_waits_for_the_acknowledgement_of_another() -> None:
    """Those that are verified, and those whose batches are appended in several turns: none waits alone."""
    count = 3 * produce.PARTITIONS_AT_ONCE
    broker = Broker()
    waits = list[Any]()
    for index in range(count):
        partition = broker.partitions[index] = FakePartition(index, open_transaction=index > 0)
        partition.waits, partition.on_append = waits, broker.use_up_slice
    errors = broker.produce(*range(count))
    broker.answers.set()
    for _ in range(4 * count):
        await asyncio.sleep(0)
    assert len(waits) == count, "all are appended"
    for wait in waits:
        wait.release()
    assert await errors == dict.fromkeys(range(count), "none")


@pytest.mark.parametrize(("busy", "error", "added"), [(2, "none", 3), (9, "concurrent_transactions", 3)])
@on_a_loop
async def test_a_batch_waits_for_the_end_of_the_previous_transaction_but_not_for_long(
    busy: int, error: str, added: int
) -> None:
    """As in Kafka (KAFKA-18654): a producer would repeat its request after 100 ms only."""
    broker = Broker(p0=FakePartition(0))
    broker.busy = busy
    broker.answers.set()
    assert await broker.produce(0, version=VERSION_THAT_ADDS) == {0: error}
    assert ("has not ended yet; try again" in str(broker.messages[0])) == (error != "none")
    assert (broker.added, broker.partitions[0].appended) == (added, error == "none")


@on_a_loop
async def test_the_time_for_a_quota_is_that_before_and_after_the_coordinators_answer() -> None:
    spent: list[int] = []

    def on_produce(_context: object, _client: object, _size: int, spent_us: int) -> int:
        spent.append(spent_us)
        return 0

    broker = Broker(p0=FakePartition(0))
    broker.parts.client_quotas = SimpleNamespace(limits_clients=True, on_produce=on_produce)
    broker.now_us = 30  # the request began at 0
    reply = broker.produce(0)
    await asyncio.sleep(0)
    broker.now_us = 5_000_000
    broker.answers.set()
    assert await reply == {0: "none"}
    assert spent == [30]
