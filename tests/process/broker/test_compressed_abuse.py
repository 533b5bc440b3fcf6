"""Small batches that are large when decompressed: what they may cost a broker that has to read their records.

The bound on memory is on the broker's largest resident set, of a process of its own. That others are served
meanwhile is an order of responses: how many a neighbour gets while one such batch is read.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec import structs

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message
from nilometer.wire.record_batch import HEADER_BYTES, pack_batch, read_header
from nilometer.wire.records import BatchBuilder
from support.brokers.nilometer_broker import NilometerBroker
from support.wire.compressed_batches import TIMESTAMP, batch_of, many_records, one_record
from support.wire.new_topics import new_topic
from support.wire.wire_peer import WirePeer, make

MIB = 1 << 20
PEAK_BYTES_MAX = 400 * MIB
STEPS_BYTES_MAX = 32 * MIB
"""What one batch may add that is read in steps: it is sent with less than a megabyte."""
RECORDS = 1_000_000
ANSWERS_MIN = 20
"""Responses that a neighbour gets while a million records are read: there are a thousand steps."""
AT_ONCE = 12
TOPICS = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "recompressed": {"compression.type": "gzip", "max.message.bytes": str(16 * MIB)},
    "dense": {"compression.type": "zstd", "compression.zstd.level": "22"},
}
PRODUCE, LIST_OFFSETS = (ApiKey.PRODUCE, 9), (ApiKey.LIST_OFFSETS, 7)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[NilometerBroker]:
    with NilometerBroker(tmp_path / "data") as broker:
        with WirePeer(broker.bootstrap) as peer:
            topics = [new_topic(name, configs=configs_of(name)) for name in TOPICS]
            answer = peer.ask(ApiKey.CREATE_TOPICS, 7, topics=tuple(topics), timeout_ms=10_000)
            assert [topic.error_code for topic in answer.topics] == [ErrorCode.none] * len(TOPICS)
        yield broker
        assert "Traceback" not in broker.output
        assert " ERROR " not in broker.output


def configs_of(topic: str) -> tuple[Message, ...]:
    configs = TOPICS[topic].items()
    return tuple(
        make(ApiKey.CREATE_TOPICS, 7, "CreatableTopicConfig", name=key, value=value) for key, value in configs
    )


HUGE = batch_of(Codec.ZSTD, 1, one_record(400_000_000))
"""Of 12 kB."""
GIGABYTE = batch_of(Codec.ZSTD, 1, one_record(1 << 30))
MANY = batch_of(Codec.ZSTD, RECORDS, many_records(RECORDS))
ALIKE = batch_of(Codec.ZSTD, RECORDS, [b"\x0e\x00\x00\x00\x02k\x01\x00" * RECORDS])
"""Of 1 kB; all records have the same offset."""


def tell_produce(peer: WirePeer, topic: str, records: bytes) -> None:
    partition = make(*PRODUCE, "PartitionProduceData", index=0, records=records)
    data = make(*PRODUCE, "TopicProduceData", name=topic, partition_data=(partition,))
    peer.tell(*PRODUCE, acks=-1, timeout_ms=60_000, topic_data=(data,))


def hear_produce(peer: WirePeer) -> tuple[ErrorCode, str | None]:
    [topic] = peer.hear(*PRODUCE).responses
    [partition] = topic.partition_responses
    return partition.error_code, partition.error_message


def tell_list_offsets(peer: WirePeer, topic: str, timestamp: int) -> None:
    partition = make(*LIST_OFFSETS, "ListOffsetsPartition", partition_index=0, timestamp=timestamp)
    asked = make(*LIST_OFFSETS, "ListOffsetsTopic", name=topic, partitions=(partition,))
    peer.tell(*LIST_OFFSETS, topics=(asked,))


def hear_list_offsets(peer: WirePeer) -> Message:
    [topic] = peer.hear(*LIST_OFFSETS).topics
    [partition] = topic.partitions
    return partition


def peak_bytes(broker: NilometerBroker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def answers_until_response(broker: NilometerBroker, waiting: WirePeer) -> int:
    """How many responses a neighbour gets before that of ``waiting`` arrives."""
    answers = 0
    with WirePeer(broker.bootstrap) as neighbour:
        while not select.select([waiting.socket], [], [], 0)[0]:
            neighbour.ask(ApiKey.API_VERSIONS, 0)
            answers += 1
    return answers


@pytest.mark.parametrize("topic", ["compacted", "recompressed"])
def test_a_record_of_400_megabytes_in_12_kilobytes_is_refused(broker: NilometerBroker, topic: str) -> None:
    """Several at once, from as many clients: they wait for one another."""
    with ExitStack() as stack:
        peers = [stack.enter_context(WirePeer(broker.bootstrap)) for _ in range(AT_ONCE)]
        for peer in peers:
            tell_produce(peer, topic, HUGE)
        for peer in peers:
            error, message = hear_produce(peer)
            assert error == ErrorCode.message_too_large
            assert message is not None
            assert "decompress" in message
    print("PEAK", peak_bytes(broker) >> 20)
    assert peak_bytes(broker) < PEAK_BYTES_MAX


def test_many_batches_at_the_highest_level_of_zstd_take_little_memory(broker: NilometerBroker) -> None:
    """A compressor of that level that does not know how much comes takes 700 MB, and eight run at once."""
    records = batch_of(Codec.NONE, 1, one_record(900_000))
    with ExitStack() as stack:
        peers = [stack.enter_context(WirePeer(broker.bootstrap)) for _ in range(AT_ONCE)]
        for peer in peers:
            tell_produce(peer, "dense", records)
        assert {hear_produce(peer)[0] for peer in peers} == {ErrorCode.none}
    assert peak_bytes(broker) < PEAK_BYTES_MAX


def test_a_million_records_are_recompressed_while_others_are_served(broker: NilometerBroker) -> None:
    with WirePeer(broker.bootstrap) as peer:
        tell_produce(peer, "recompressed", MANY)
        tell_produce(peer, "recompressed", batch_of(Codec.ZSTD, 1, many_records(1)))
        n = answers_until_response(broker, peer)
        print("ANSWERS", n)
        assert n >= ANSWERS_MIN
        assert hear_produce(peer)[0] == ErrorCode.none
        tell_list_offsets(peer, "recompressed", -1)
        assert hear_produce(peer)[0] == ErrorCode.none, "the later one did not pass"
        assert hear_list_offsets(peer).offset == RECORDS + 1
    print("PEAK", peak_bytes(broker) >> 20)
    assert peak_bytes(broker) < PEAK_BYTES_MAX


def test_a_million_records_of_one_offset_are_refused_at_the_first_step(broker: NilometerBroker) -> None:
    before = peak_bytes(broker)
    with WirePeer(broker.bootstrap) as peer:
        for topic in ("compacted", "recompressed"):
            tell_produce(peer, topic, ALIKE)
            assert hear_produce(peer)[0] == ErrorCode.invalid_record
    assert peak_bytes(broker) - before < STEPS_BYTES_MAX


def test_a_search_by_time_passes_over_a_million_records(broker: NilometerBroker) -> None:
    before = peak_bytes(broker)
    newer = BatchBuilder()
    newer.append(TIMESTAMP + 1, None, b"v")
    with WirePeer(broker.bootstrap) as peer:
        for records in (claims_newer(MANY), newer.build()):
            tell_produce(peer, "plain", records)
            assert hear_produce(peer)[0] == ErrorCode.none
        tell_list_offsets(peer, "plain", TIMESTAMP + 1)
        assert answers_until_response(broker, peer) >= ANSWERS_MIN
        assert hear_list_offsets(peer).offset == RECORDS
    assert peak_bytes(broker) - before < STEPS_BYTES_MAX


def claims_newer(batch: bytes) -> bytes:
    """The batch with a header that says it has a newer record: who looks for that reads it to its end."""
    header = structs.replace(read_header(batch), max_timestamp=TIMESTAMP + 1)
    return pack_batch(header, batch[HEADER_BYTES:])


def test_searches_by_time_in_a_batch_of_a_gigabyte(broker: NilometerBroker) -> None:
    """A plain topic takes it unread; who looks into it is told that it cannot be read."""
    with ExitStack() as stack:
        peers = [stack.enter_context(WirePeer(broker.bootstrap)) for _ in range(AT_ONCE)]
        tell_produce(peers[0], "plain", claims_newer(GIGABYTE))
        assert hear_produce(peers[0])[0] == ErrorCode.none
        for peer in peers:
            tell_list_offsets(peer, "plain", TIMESTAMP + 1)
        for peer in peers:
            assert hear_list_offsets(peer).error_code == ErrorCode.kafka_storage_error
    assert peak_bytes(broker) < PEAK_BYTES_MAX
