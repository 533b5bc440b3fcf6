"""Batches gathered and given out (SPEC P-1): full, lingered, put back, expired; memory counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import Acknowledged, ProducerBatch, RecordAccumulator, size_bound
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import check_batch, read_header
from nilometer.wire.records import decode_records
from support.properties import examples

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def accumulator(**options: int) -> RecordAccumulator:
    settings = {"batch_size": 400, "linger_ms": 10, "buffer_memory": 10_000, "delivery_timeout_ms": 1000}
    return RecordAccumulator(**{**settings, **options})


def add(
    gathered: RecordAccumulator, partition: TopicPartition, value: bytes, now_ms: int = 0
) -> ProducerBatch:
    batch = gathered.append(partition, 0, None, value, (), now_ms)
    assert batch is not None
    return batch


def values(batch: ProducerBatch) -> list[bytes | None]:
    data = batch.encoded()
    header = read_header(data)
    check_batch(data, 0, header)
    return [record.value for record in decode_records(data, 0, header)]


def test_p1_batch_goes_when_it_lingered() -> None:
    gathered = accumulator()
    add(gathered, ZERO, b"a", now_ms=100)
    assert gathered.ready(100) == ([], 110)
    assert gathered.ready(109) == ([], 110)
    assert gathered.ready(110) == ([ZERO], None)


def test_p1_batch_goes_when_it_is_full() -> None:
    gathered = accumulator()
    first = add(gathered, ZERO, b"x" * 300)
    assert gathered.ready(0) == ([], 10)
    second = add(gathered, ZERO, b"y" * 300)
    assert second is not first
    assert gathered.ready(0) == ([ZERO], None)
    assert gathered.take_first(ZERO) is first
    assert gathered.ready(0) == ([], 10)
    assert values(first) == [b"x" * 300]


def test_p1_flush_and_short_memory_do_not_wait() -> None:
    gathered = accumulator(linger_ms=1_000_000)
    add(gathered, ZERO, b"a")
    assert gathered.ready(0)[0] == []
    assert gathered.ready(0, buffer_is_full=True)[0] == [ZERO]
    gathered.flushing = True
    assert gathered.ready(0)[0] == [ZERO]


def test_records_of_a_partition_keep_their_order_across_batches() -> None:
    gathered = accumulator()
    sent = [b"%04d" % number * 20 for number in range(40)]
    for value in sent:
        add(gathered, ZERO, value)
    received: list[bytes | None] = []
    while gathered.ready_batch(ZERO, 10) is not None:
        received += values(gathered.take_first(ZERO))
    assert received == sent


def test_record_larger_than_a_batch_has_one_of_its_own() -> None:
    gathered = accumulator()
    add(gathered, ZERO, b"small")
    big = add(gathered, ZERO, b"x" * 5000)
    assert big.records_count == 1
    assert add(gathered, ZERO, b"small") is not big


def test_memory_is_bounded_and_freed_on_release() -> None:
    gathered = accumulator(buffer_memory=1000, batch_size=300)
    batches = [add(gathered, ZERO, b"x" * 250) for _ in range(3)]
    assert gathered.append(ZERO, 0, None, b"x" * 250, (), 0) is None
    held = gathered.held_bytes
    taken = gathered.take_first(ZERO)
    assert gathered.held_bytes == held, "taken away is not yet done with"
    gathered.release(taken)
    assert taken is batches[0]
    assert gathered.held_bytes < held
    add(gathered, ZERO, b"x" * 250)


def test_single_record_above_the_bound_is_let_in_alone() -> None:
    gathered = accumulator(buffer_memory=100)
    batch = add(gathered, ZERO, b"x" * 500)
    assert gathered.append(ONE, 0, None, b"", (), 0) is None
    gathered.release(batch)
    assert gathered.held_bytes == 0


def test_batch_that_comes_back_goes_first_and_waits_out_its_pause() -> None:
    gathered = accumulator()
    first = add(gathered, ZERO, b"x" * 390)
    add(gathered, ZERO, b"y" * 390)
    taken = gathered.take_first(ZERO)
    taken.attempts = 1
    taken.encoded()
    gathered.put_back(taken, retry_at_ms=50)
    assert gathered.ready(20) == ([], 50)
    assert gathered.ready_batch(ZERO, 50) is first


def test_p3_batches_that_come_back_are_ordered_by_sequence() -> None:
    gathered = accumulator(batch_size=100)
    batches = [add(gathered, ZERO, b"%d" % number * 90) for number in range(4)]
    for number, batch in enumerate(batches[:3]):
        taken = gathered.take_first(ZERO)
        taken.set_sequence(1, 0, 0x7FFF_FFFF if number == 0 else number - 1)  # the numbers begin again at 0
        taken.attempts = 1
        assert taken is batch
    for number in (1, 2, 0):
        gathered.put_back(batches[number], retry_at_ms=0)
    assert [gathered.take_first(ZERO) for _ in range(4)] == batches


def test_late_batches_are_given_out_once() -> None:
    gathered = accumulator(delivery_timeout_ms=100, batch_size=100)
    old = add(gathered, ZERO, b"x" * 90, now_ms=0)
    new = add(gathered, ZERO, b"y" * 90, now_ms=50)
    assert gathered.oldest_deadline_ms() == 100
    assert gathered.expired(99) == []
    assert gathered.expired(100) == [old]
    assert gathered.expired(100) == []
    assert gathered.take_first(ZERO) is new


@pytest.mark.parametrize("codec", list(Codec))
def test_batch_can_be_numbered_before_and_after_it_is_built(codec: Codec) -> None:
    gathered = RecordAccumulator(
        batch_size=10_000, linger_ms=0, buffer_memory=100_000, delivery_timeout_ms=1, codec=codec
    )
    batch = add(gathered, ZERO, b"first")
    add(gathered, ZERO, b"second")
    batch.set_sequence(7, 1, 40)
    header = read_header(batch.encoded())
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.codec) == (
        7,
        1,
        40,
        codec,
    )
    assert not batch.resequenced
    batch.attempts = 1
    batch.set_sequence(7, 2, 0)
    header = read_header(batch.encoded())
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 0)
    assert values(batch) == [b"first", b"second"]
    assert batch.resequenced


def test_split_halves_carry_the_records_the_sequences_and_the_memory() -> None:
    gathered = accumulator(batch_size=5000)
    *_, batch = [add(gathered, ZERO, b"%d" % number) for number in range(7)]
    held = gathered.held_bytes
    taken = gathered.take_first(ZERO)
    taken.set_sequence(9, 0, 100)
    first, second = taken.split(Codec.NONE, None)
    gathered.replace(taken, (first, second), 0)
    assert values(first) == [b"0", b"1", b"2"]
    assert values(second) == [b"3", b"4", b"5", b"6"]
    assert (first.base_sequence, second.base_sequence) == (100, 103)
    assert read_header(second.encoded()).base_sequence == 103
    assert gathered.held_bytes == held == first.held_bytes + second.held_bytes
    assert [gathered.take_first(ZERO), gathered.take_first(ZERO)] == [first, second]
    assert [batch.locate(index) for index in (0, 2, 3, 6)] == [
        (first, 0),
        (first, 2),
        (second, 0),
        (second, 3),
    ]
    done: list[ProducerBatch] = []
    batch.add_done_callback(done.append)
    first.resolve(Acknowledged(5))
    assert not done
    second.resolve(KafkaError(ErrorCode.message_too_large))
    assert done == [batch]
    assert isinstance(batch.outcome, KafkaError)
    gathered.release(first)
    gathered.release(second)
    assert gathered.held_bytes == 0


def test_outcome_is_set_once() -> None:
    batch = add(accumulator(), ZERO, b"a")
    batch.resolve(Acknowledged(5))
    batch.resolve(KafkaError(ErrorCode.unknown_server_error))
    assert batch.outcome == Acknowledged(5)


texts = st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=20), st.none() | texts), max_size=4)


@examples(200)
@given(st.none() | texts, st.none() | texts, headers)
def test_bound_is_never_below_what_a_record_takes(
    key: bytes | None, value: bytes | None, given_headers: list[tuple[str, bytes | None]]
) -> None:
    gathered = accumulator(batch_size=1 << 20)
    before = add(gathered, ZERO, b"").size
    batch = gathered.append(ZERO, 10**13, key, value, given_headers, 0)
    assert batch is not None
    assert batch.size - before <= size_bound(key, value, given_headers)


moves = st.lists(st.tuples(st.sampled_from("aatrpre"), st.integers(0, 2), st.integers(0, 400)), max_size=60)


@given(moves)
def test_memory_held_is_the_sum_over_live_batches(history: list[tuple[str, int, int]]) -> None:
    gathered = accumulator(buffer_memory=3000)
    live: dict[ProducerBatch, None] = {}
    taken: list[ProducerBatch] = []
    for now_ms, (move, index, amount) in enumerate(history):
        partition = TopicPartition("t", index)
        if move == "a":
            batch = gathered.append(partition, 0, None, b"x" * amount, (), now_ms)
            if batch is not None:
                live[batch] = None
        elif move == "t" and gathered.ready_batch(partition, now_ms, True) is not None:
            batch = gathered.take_first(partition)
            batch.encoded()
            batch.attempts += 1
            taken.append(batch)
        elif move == "r" and taken:
            batch = taken.pop(index % len(taken))
            gathered.release(batch)
            del live[batch]
        elif move == "p" and taken:
            gathered.put_back(taken.pop(), now_ms)
        elif move == "e":
            for batch in gathered.expired(now_ms - 30 + 1000):
                gathered.release(batch)
                del live[batch]
        assert gathered.held_bytes == sum(batch.held_bytes for batch in live)
        assert gathered.held_bytes <= 3000
        assert set(gathered.incomplete()) == set(live)
