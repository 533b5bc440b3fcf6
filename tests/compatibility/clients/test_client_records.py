"""Records through real clients: what one writes, all read; where and how it lies is read from the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.brokers.serving import Serving
from support.eventually import eventually
from support.kafka.clients import KafkaClient, Options, Read, Refused, Written
from support.kafka.java_driver import JavaDriver, encoded
from support.logs.segments import CODECS, StoredBatch, stored_batches

PARTITIONS = 3
VALUE = b"the high-water mark of the river, year by year; " * 4  # repeats itself, so that every codec gains


def _keyed(count: int) -> list[Written]:
    return [Written(VALUE + b"%d" % number, b"key-%d" % number) for number in range(count)]


def _stored(broker: Serving, topic: str, partitions: int = 1) -> list[StoredBatch]:
    batches = [
        batch for number in range(partitions) for batch in stored_batches(broker.data_dir, topic, number)
    ]
    assert batches, "nothing reached the log"
    assert all(batch.crc_valid for batch in batches)
    return batches


@pytest.mark.parametrize("codec", CODECS)
def test_each_codec_is_in_the_log_and_keys_are_where_java_puts_them(
    client: KafkaClient,
    codec: str,
    broker: Serving,
    java: JavaDriver,
    new_topic: Callable[..., str],
) -> None:
    topic = new_topic(PARTITIONS)
    written = _keyed(60)
    reported = client.write(topic, written, Options(codec=codec))
    assert {batch.codec for batch in _stored(broker, topic, PARTITIONS)} == {codec}
    expected = java.run(
        "partition_for_keys", keys=[encoded(each.key) for each in written], partitions=PARTITIONS
    )
    read = client.read(topic, PARTITIONS)
    assert {each.key: (each.value, each.partition) for each in read} == {
        each.key: (each.value, partition) for each, partition in zip(written, expected, strict=True)
    }
    assert len(read) == len(written)
    _assert_dense(read)
    position = {each.key: (each.partition, each.offset) for each in read}
    for each, place in zip(written, reported, strict=True):
        assert place in (None, position[each.key])


def _assert_dense(read: list[Read]) -> None:
    for partition in {each.partition for each in read}:
        offsets = [each.offset for each in read if each.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_all_read_what_the_others_wrote(
    clients: dict[str, KafkaClient], broker: Serving, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    odd = [
        Written(None, b"tombstone"),
        Written(b"", b""),
        Written(b"no key"),
        Written(b"headers", b"k", headers=(("a", b"1"), ("a", b"2"), ("empty", b""), ("nil", None))),
        Written(b"when", b"k", timestamp=1_600_000_000_123),
    ]
    plain = [Written(VALUE, b"k")] * 5
    expected: list[Written] = []
    for codec, (name, writer) in zip(CODECS, clients.items(), strict=True):
        batch = plain if name == "kcat" else odd + plain
        if name == "kafka-python":  # cannot write a header without a value
            batch = [Written(each.value, each.key, None, each.timestamp, each.headers[:3]) for each in batch]
        writer.write(topic, batch, Options(codec=codec))
        expected += batch
    assert {batch.codec for batch in _stored(broker, topic)} == set(CODECS)
    by_reader = {name: reader.read(topic, 1) for name, reader in clients.items()}
    for name, read in by_reader.items():
        assert [each.offset for each in read] == list(range(len(expected))), name
        assert [(each.key or b"", each.value or b"") for each in read] == [
            (each.key or b"", each.value or b"") for each in expected
        ], name
        if name != "kcat":  # prints null and empty alike
            assert [(each.key, each.value, each.headers) for each in read] == [
                (each.key, each.value, each.headers) for each in expected
            ], name
        assert [each.timestamp for each in read] == [each.timestamp for each in by_reader["java"]], name
    assert 1_600_000_000_123 in {each.timestamp for each in by_reader["java"]}


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(client: KafkaClient, acks: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    client.write(topic, _keyed(20), Options(acks=acks))
    client.write(topic, [Written(b"last", b"last")], Options(acks="all"))
    # With acks=0 it is unknown when the records are in.
    eventually(lambda: len(client.read(topic, 1)) >= 21, "all 21 records can be read")
    read = client.read(topic, 1)
    assert sorted(each.value or b"" for each in read) == sorted(
        [each.value or b"" for each in _keyed(20)] + [b"last"]
    )


def test_idempotent_producers_number_their_batches(
    client: KafkaClient, broker: Serving, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    client.write(topic, _keyed(50), Options(idempotent=True))
    batches = _stored(broker, topic)
    assert len({(batch.producer_id, batch.producer_epoch) for batch in batches}) == 1
    assert batches[0].producer_id >= 0
    sequence = 0
    for batch in batches:
        assert batch.base_sequence == sequence
        sequence += batch.records_count
    assert sequence == 50


def test_a_topic_appears_when_it_is_written_to(
    client: KafkaClient, broker: Serving, request: pytest.FixtureRequest
) -> None:
    topic = f"appears-for-{client.name}"
    client.write(topic, [Written(b"first", b"k")])
    assert [(each.offset, each.value) for each in client.read(topic, 1)] == [(0, b"first")]


def test_large_records_pass_and_larger_ones_are_refused(
    client: KafkaClient, broker: Serving, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    large = b"x" * 921_600
    client.write(topic, [Written(large, b"large")])
    assert [each.value for each in client.read(topic, 1)] == [large]
    with pytest.raises((Refused, RuntimeError)) as refusal:
        client.write(topic, [Written(large * 2, b"too large")], Options(max_request_bytes=8_000_000))
    if isinstance(refusal.value, Refused):
        assert refusal.value.code in {"MESSAGE_TOO_LARGE", "MESSAGE_SIZE_TOO_LARGE", "MSG_SIZE_TOO_LARGE"}
    else:
        assert "too large" in str(refusal.value)  # kcat's words
    assert sum(batch.records_count for batch in _stored(broker, topic)) == 1
