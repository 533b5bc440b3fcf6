"""Batches of a transaction: their flag, their sequences, and which of them an abort drops."""

from __future__ import annotations

import pytest

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import ProducerBatch, RecordAccumulator
from nilometer.client.producer.idempotence import IdempotenceState, Verdict
from nilometer.client.producer.producer import Producer
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.config import ConfigError
from nilometer.runtime import Runtime
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode
from nilometer.wire.record_batch import read_header

PLACE = TopicPartition("t", 0)


def state_with(count: int) -> tuple[IdempotenceState, list[ProducerBatch]]:
    """Batches of one partition that are under way; the first one before them is acknowledged."""
    state = IdempotenceState(transactional=True)
    state.adopt(7, 3)
    made: list[ProducerBatch] = []
    for number in range(count + 1):
        batch = ProducerBatch(PLACE, None, 0, 1_000, transactional=True)
        batch.records_count = 1
        state.begin(batch)
        if number == 0:
            state.on_acknowledged(batch)
        else:
            made.append(batch)
    return state, made


def test_a_gap_is_repeated_while_an_earlier_batch_may_close_it_and_else_fails_the_transaction() -> None:
    state, (first, second) = state_with(2)
    gap = ErrorCode.out_of_order_sequence_number
    assert state.judge(second, gap) is Verdict.RETRY, "the first one was overtaken, and is on its way"
    assert state.judge(first, gap) is Verdict.FAILED, "nothing can close it"


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
    ],
)
def test_the_producer_itself_never_takes_another_epoch(code: ErrorCode) -> None:
    state, (batch,) = state_with(1)
    assert state.judge(batch, code) is Verdict.FAILED
    state.on_failed(batch, maybe_written=True)
    assert (state.producer_id, state.producer_epoch) == (7, 3)


def test_sequences_go_on_in_the_same_epoch_and_begin_at_0_in_another() -> None:
    state, (batch,) = state_with(1)
    state.on_acknowledged(batch)
    for identity, expected in (((7, 3), 2), ((7, 4), 0), ((8, 0), 0)):
        state.adopt(*identity)
        following = ProducerBatch(PLACE, None, 0, 1_000, transactional=True)
        following.records_count = 1
        assert state.may_send(following)
        state.begin(following)
        assert (following.producer_id, following.producer_epoch) == identity
        assert following.base_sequence == expected
        state.on_acknowledged(following)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_every_batch_of_a_transaction_says_so_however_it_came_to_be(codec: Codec) -> None:
    accumulator = RecordAccumulator(
        batch_size=200,
        linger_ms=0,
        buffer_memory=100_000,
        delivery_timeout_ms=1_000,
        codec=codec,
        transactional=True,
    )
    batches: dict[ProducerBatch, None] = {}
    for number in range(20):
        batch = accumulator.append(PLACE, 0, None, b"%030d" % number, (), 0)
        assert batch is not None
        batches[batch] = None
    assert len(batches) > 1, "some were closed when they were full, the last is open"
    built = list(batches)
    halves = built.pop(0).split(codec, None)
    for batch in (*built, *halves):
        batch.set_sequence(7, 3, 0)
        assert read_header(batch.encoded()).is_transactional


def test_what_was_never_sent_is_dropped_and_what_has_a_sequence_is_not() -> None:
    accumulator = RecordAccumulator(
        batch_size=1, linger_ms=0, buffer_memory=100_000, delivery_timeout_ms=1_000, transactional=True
    )
    sent, unsent = (accumulator.append(PLACE, 0, None, value, (), 0) for value in (b"sent", b"unsent"))
    assert sent is not None and unsent is not None
    assert accumulator.take_first(PLACE) is sent
    sent.set_sequence(7, 3, 0)
    sent.attempts = 1
    accumulator.put_back(sent, 0)
    other = accumulator.append(TopicPartition("t", 1), 0, None, b"other", (), 0)
    assert accumulator.discard_unsent() == [unsent, other]
    assert list(accumulator.queued()) == [sent]


def test_settings_that_contradict_a_transaction_are_refused() -> None:
    where = {"bootstrap.servers": "h:1"}
    with pytest.raises(ConfigError, match=r"transactional\.id must be given"):
        TransactionalProducer(Runtime.system(), where)
    with pytest.raises(ConfigError, match="TransactionalProducer"):
        Producer(Runtime.system(), {**where, "transactional.id": "x"})
    with pytest.raises(ConfigError, match="must not be empty"):
        TransactionalProducer(Runtime.system(), {**where, "transactional.id": ""})
    for key, value in (
        ("acks", "1"),
        ("retries", 0),
        ("max.in.flight.requests.per.connection", 6),
        ("enable.idempotence", False),
    ):
        with pytest.raises(ConfigError, match="idempotent"):
            TransactionalProducer(Runtime.system(), {**where, "transactional.id": "x", key: value})
