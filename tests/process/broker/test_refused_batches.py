"""A producer's batch does not pass the one before it that was refused: no gap is made of a late answer."""

from __future__ import annotations

from pathlib import Path

from nilometer.broker.rejected_batches import (
    ALL_REMEMBERED_MAX,
    ALWAYS_REMEMBERED,
    REMEMBERED_MAX,
    REMEMBERED_MS,
    RejectedBatches,
    RejectedTotal,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.record_batch import BatchHeader, read_header
from nilometer.wire.records import BatchBuilder
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Side, produce_fields
from support.wire.wire_peer import WirePeer

WHERE = ("topic", 0)
MOVED = ErrorCode.not_leader_or_follower
ABSENT = ErrorCode.unknown_topic_or_partition
NO_ERROR = ErrorCode.none
GAP = ErrorCode.out_of_order_sequence_number


def sequenced(sequence: int, epoch: int = 0, producer_id: int = 7) -> bytes:
    builder = BatchBuilder()
    builder.append(1_000, None, b"%d" % sequence)
    return builder.build(0, producer_id, epoch, sequence)


def header(sequence: int, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    return read_header(sequenced(sequence, epoch, producer_id))


def test_what_comes_after_a_refused_batch_is_known_until_that_one_comes_again() -> None:
    refused = RejectedBatches()
    refused.note(WHERE, header(10), MOVED, 0)
    refused.note(WHERE, header(12), ErrorCode.not_enough_replicas, 1)
    assert refused.error_before(WHERE, header(11), 2) is MOVED
    assert refused.error_before(WHERE, header(14), 2) is MOVED
    assert refused.error_before(WHERE, header(14, producer_id=8), 2) is None
    assert refused.error_before(("topic", 1), header(14), 2) is None
    assert refused.error_before(WHERE, header(10), 3) is None
    assert refused.error_before(WHERE, header(11), 3) is None
    assert not refused


def test_another_epoch_or_a_minute_makes_an_end() -> None:
    refused = RejectedBatches()
    refused.note(WHERE, header(10), MOVED, 0)
    assert refused.error_before(WHERE, header(11, epoch=1), 1) is None
    refused.note(WHERE, header(10), MOVED, 0)
    assert refused.error_before(WHERE, header(11), REMEMBERED_MS - 1) is MOVED
    assert refused.error_before(WHERE, header(11), REMEMBERED_MS) is None


def test_sequences_go_round() -> None:
    refused = RejectedBatches()
    refused.note(WHERE, header(2**31 - 1), MOVED, 0)
    assert refused.error_before(WHERE, header(0), 1) is MOVED
    assert refused.error_before(WHERE, header(2**31 - 2), 1) is None


def test_the_oldest_are_forgotten_first() -> None:
    refused = RejectedBatches()
    for producer_id in range(REMEMBERED_MAX + 1):
        refused.note(WHERE, header(10, producer_id=producer_id), MOVED, 0)
    assert refused.error_before(WHERE, header(11, producer_id=0), 1) is None
    assert refused.error_before(WHERE, header(11, producer_id=1), 1) is MOVED


def test_all_connections_together_remember_a_bounded_number() -> None:
    total = RejectedTotal()
    connections = [RejectedBatches(total) for _ in range(2 * ALL_REMEMBERED_MAX // REMEMBERED_MAX)]
    for refused in connections:
        for producer_id in range(REMEMBERED_MAX):
            refused.note(WHERE, header(10, producer_id=producer_id), MOVED, 0)
    late = connections[-1]
    assert ALL_REMEMBERED_MAX <= total.count < ALL_REMEMBERED_MAX + len(connections) * ALWAYS_REMEMBERED
    first = REMEMBERED_MAX - ALWAYS_REMEMBERED
    assert late.error_before(WHERE, header(11, producer_id=first), 1) is MOVED
    assert late.error_before(WHERE, header(11, producer_id=first - 1), 1) is None
    for refused in connections:
        refused.forget_all()
    assert total.count == 0


def test_a_broker_that_comes_to_serve_a_partition_between_two_batches(tmp_path: Path) -> None:
    """As on a new leader that learns of its leadership while a producer's requests arrive."""
    with NilometerBroker(tmp_path / "data", {"auto.create.topics.enable": "false"}) as broker:
        side = Side("Nilometer", broker.bootstrap)
        side.create("known")
        with WirePeer(broker.bootstrap) as peer, WirePeer(broker.bootstrap) as another:

            def produce(
                sequence: int, to: WirePeer = peer, topic: str = "late", producer_id: int = 7
            ) -> ErrorCode:
                records = {0: sequenced(sequence, producer_id=producer_id)}
                answer = to.ask(ApiKey.PRODUCE, 9, **produce_fields(9, topic, records))
                return ErrorCode(answer.responses[0].partition_responses[0].error_code)

            assert produce(0) is ABSENT
            side.create("late")
            assert produce(1) is ABSENT
            assert produce(2) is ABSENT
            assert [produce(sequence) for sequence in (0, 1, 2, 3)] == [NO_ERROR] * 4
            assert produce(5) is GAP
            assert produce(0, topic="known", producer_id=8) is NO_ERROR
            assert produce(2, topic="known", producer_id=8) is GAP
            # What another connection was told is another matter.
            assert produce(0, topic="later", producer_id=9) is ABSENT
            side.create("later")
            assert produce(1, another, "later", 9) is NO_ERROR
        side.hang_up()


def test_the_invalid_records_of_a_batch_are_named(tmp_path: Path) -> None:
    """So that a client fails these, and says of the others that they were beside them (KIP-467)."""
    builder = BatchBuilder()
    for number in range(100):
        builder.append(1_000, None if number % 10 == 3 else b"key", b"value")
    with NilometerBroker(tmp_path / "data") as broker:
        side = Side("Nilometer", broker.bootstrap)
        topic = side.create("compacted", cleanup_policy="compact")
        for version in (8, 12):
            answer = side.message(
                ApiKey.PRODUCE, version, **produce_fields(version, topic, {0: builder.build()})
            )
            outcome = answer.responses[0].partition_responses[0]
            assert outcome.error_code == ErrorCode.invalid_record
            assert [one.batch_index for one in outcome.record_errors] == list(range(3, 100, 10))
            assert all("needs a key" in one.batch_index_error_message for one in outcome.record_errors)
        side.hang_up()
