"""Records written as Apache Kafka does it: every version both serve, and batches that are refused.

`support.brokers.comparison` says how the two are compared.
"""

from __future__ import annotations

import time

import pytest
from msgspec import structs

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.compression import Codec
from nilometer.wire.record_batch import HEADER_BYTES, pack_batch, read_header
from nilometer.wire.records import BatchBuilder
from support.brokers.comparison import each_version, same
from support.brokers.record_requests import (
    FIRST_BY_ID,
    fetch,
    fetch_fields,
    list_offsets,
    produce,
)
from support.brokers.two_brokers import Plain, Side, batch, produce_fields
from support.eventually import eventually

pytestmark = pytest.mark.recorded


def changed(data: bytes, **fields: int) -> bytes:
    """Another header over the same records, under a CRC that is right."""
    return pack_batch(structs.replace(read_header(data), **fields), data[HEADER_BYTES:])


def by_producer(producer_id: int, epoch: int, sequence: int, count: int = 1) -> bytes:
    builder = BatchBuilder()
    for number in range(count):
        builder.append(1_000, None, b"%d" % (sequence + number))
    return builder.build(0, producer_id, epoch, sequence)


GOOD = batch(b"one", b"two", b"three")


@each_version(ApiKey.PRODUCE)
def test_produce(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"produce-{version}", 2)
        side.append(name, b"first")
        return {
            "all": produce(side, version, name, GOOD),
            "leader": produce(side, version, name, GOOD, acks=1),
            "acks of nonsense": produce(side, version, name, GOOD, acks=2),
            "other partition": produce(side, version, name, GOOD, partition=1),
            "unknown partition": produce(side, version, name, GOOD, partition=7),
            "negative partition": produce(side, version, name, GOOD, partition=-1),
            "unknown topic": produce(side, version, f"nowhere-{version}", GOOD),
            "no topic": side.ask(ApiKey.PRODUCE, version, acks=-1, timeout_ms=1000, topic_data=()),
        }

    same(sides, scenario)


@each_version(ApiKey.PRODUCE)
def test_produce_without_acknowledgement(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"unacknowledged-{version}")
        side.append(name, b"first")
        topic = side.topic_ids[name] if version >= FIRST_BY_ID else name
        side.peer.tell(ApiKey.PRODUCE, version, **produce_fields(version, topic, {0: GOOD}, acks=0))
        eventually(lambda: end_of(side, name) == 4, "what was sent is there")
        side.peer.tell(ApiKey.PRODUCE, version, **produce_fields(version, topic, {0: GOOD, 9: GOOD}, acks=0))
        ended = side.peer.is_ended()
        side.hang_up()
        return {"closed by a failure": ended, "what had no failure": end_of(side, name)}

    same(sides, scenario)


def end_of(side: Side, name: str) -> int:
    return list_offsets(side, 7, name, 0, -1)["topics"][0]["partitions"][0]["offset"]


BAD_BATCHES: dict[str, bytes] = {
    "empty": b"",
    "a bit flipped": GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
    "cut short": GOOD[:-1],
    "only a header": GOOD[:HEADER_BYTES],
    "part of a header": GOOD[:20],
    "something behind it": GOOD + b"x",
    "two batches": GOOD + batch(b"four"),
    "magic 0": GOOD[:16] + b"\0" + GOOD[17:],
    "magic 1": GOOD[:16] + b"\1" + GOOD[17:],
    "magic 3": GOOD[:16] + b"\3" + GOOD[17:],
    "length 0": GOOD[:8] + bytes(4) + GOOD[12:],
    "length negative": GOOD[:8] + b"\xff\xff\xff\xff" + GOOD[12:],
    "base offset 5": changed(GOOD, base_offset=5),
    "more records than there are": changed(GOOD, records_count=4, last_offset_delta=3),
    "fewer records than there are": changed(GOOD, records_count=2, last_offset_delta=1),
    "count and offsets differ": changed(GOOD, records_count=3, last_offset_delta=7),
    "no records": changed(GOOD, records_count=0, last_offset_delta=-1),
    "negative count": changed(GOOD, records_count=-1),
    "codec 5": changed(GOOD, attributes=5),
    "not compressed as it says": changed(GOOD, attributes=int(Codec.GZIP)),
    "log append time": changed(GOOD, attributes=8),
    "control": changed(GOOD, attributes=0x20),
    "transactional": changed(GOOD, attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0),
    "unknown attributes": changed(GOOD, attributes=0x300),
    "producer without a sequence": changed(GOOD, producer_id=1, producer_epoch=0, base_sequence=-1),
    "producer without an epoch": changed(GOOD, producer_id=1, producer_epoch=-1, base_sequence=0),
    "leader epoch": changed(GOOD, partition_leader_epoch=99),
}
MEANT: dict[str, tuple[str, str]] = {
    # Kafka's answer, and Nilometer's.
    "something behind it": ("none", "invalid_record"),  # Kafka drops what it does not understand
    "log append time": ("none", "invalid_timestamp"),  # Kafka takes the flag back
    "producer without an epoch": ("none", "invalid_record"),  # Kafka takes it for no producer
    "magic 3": ("corrupt_message", "unsupported_for_message_format"),
    "no records": ("invalid_record", "corrupt_message"),
    "negative count": ("invalid_record", "corrupt_message"),
    "codec 5": ("unknown_server_error", "corrupt_message"),
    # Nilometer does not take a batch apart whose header answers all questions; Kafka walks its records.
    "more records than there are": ("invalid_record", "none"),
    "fewer records than there are": ("invalid_record", "none"),
    "not compressed as it says": ("unknown_server_error", "none"),
}
"""Where the two differ, and are known to."""


@pytest.mark.parametrize("what", BAD_BATCHES)
def test_produce_bad_batches(sides: tuple[Side, Side], what: str) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"bad-{what.replace(' ', '-')}")
        side.append(name, b"first")
        told = produce(side, 9, name, BAD_BATCHES[what])
        side.hang_up()
        end = end_of(side, name)
        if what in MEANT:
            [partition] = told["responses"][0]["partition_responses"]
            return partition["error_code"] == MEANT[what][side.name == "Nilometer"]
        return {"answer": told, "end": end}

    same(sides, scenario)


def test_no_records_at_all_are_refused(nilometer: Side) -> None:
    """Kafka never answers."""
    name = nilometer.create("null-records")
    assert produce(nilometer, 9, name, None)["responses"][0]["partition_responses"] == [
        {"index": 0, "error_code": "invalid_record"}
    ]


def test_produce_batches_of_every_codec(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        told = {}
        for codec in Codec:
            name = side.create(f"codec-{codec.name}")
            side.append(name, b"first")
            builder = BatchBuilder(codec)
            for number in range(100):
                builder.append(1_000 + number, b"key", b"value %d" % number)
            records = builder.build()
            told[codec.name] = (
                [produce(side, version, name, records) for version in (3, 6, 7, 12)],
                fetch(side, 11, name, [(0, 0)]),
            )
        return told

    same(sides, scenario)


LIMITED: dict[str, tuple[dict[str, str], bytes]] = {
    "too large": ({"max_message_bytes": "100"}, batch(b"x" * 100)),
    "just small enough": ({"max_message_bytes": str(len(batch(b"x" * 100)))}, batch(b"x" * 100)),
    "one too large": ({"max_message_bytes": str(len(batch(b"x" * 100)) - 1)}, batch(b"x" * 100)),
    "from the future": ({}, batch(b"x", timestamp=4_000_000_000_000)),
    "without a time": ({}, batch(b"x", timestamp=-1, step=0)),
    "too old": ({"message_timestamp_before_max_ms": "1000"}, batch(b"x")),
    "old enough": ({"message_timestamp_before_max_ms": "99999999999999"}, batch(b"x")),
    "compacted, without a key": ({"cleanup_policy": "compact"}, batch(b"x")),
    "recompressed": ({"compression_type": "gzip"}, batch(b"x" * 500, b"y" * 500)),
    "decompressed": ({"compression_type": "uncompressed"}, batch(b"x" * 500)),
}


@pytest.mark.parametrize("what", LIMITED)
def test_produce_within_limits(sides: tuple[Side, Side], what: str) -> None:
    configs, records = LIMITED[what]

    def scenario(side: Side) -> Plain:
        name = side.create(f"limits-{what.replace(' ', '-').replace(',', '')}", **configs)
        told = produce(side, 9, name, records)
        return {"answer": told, "read": fetch(side, 11, name, [(0, 0)])}

    same(sides, scenario)


SOME, OLD, FUTURE = frozenset((3, 7)), 1_000, 4_000_000_000_000
INVALID_RECORDS: dict[str, tuple[dict[str, str], bool, int]] = {
    # The topic's settings, whether those records have a key, and their timestamp, 0 for now.
    "no key": ({"cleanup_policy": "compact"}, False, 0),
    "too old": ({"message_timestamp_before_max_ms": "100000"}, True, OLD),
    "from the future": ({}, True, FUTURE),
    "no key and from the future": ({"cleanup_policy": "compact"}, False, FUTURE),
    "recompressed, no key": ({"cleanup_policy": "compact", "compression_type": "lz4"}, False, 0),
}


@pytest.mark.parametrize("version", [7, 8, 9, 12])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("what", INVALID_RECORDS)
def test_the_invalid_records_of_a_batch_are_named(
    sides: tuple[Side, Side], what: str, codec: Codec, version: int
) -> None:
    """So the producer's client fails these, and says of the others that they were beside them (KIP-467)."""
    configs, has_key, timestamp = INVALID_RECORDS[what]
    now = int(time.time() * 1000)
    builder = BatchBuilder(codec)
    for number in range(20):
        is_invalid = number in SOME
        key = None if is_invalid and not has_key else b"key"
        builder.append(timestamp if is_invalid and timestamp else now, key, b"value")

    def scenario(side: Side) -> Plain:
        name = side.create(
            f"invalid-{what.replace(' ', '-').replace(',', '')}-{codec.name}-{version}", **configs
        )
        fields = produce_fields(version, name, {0: builder.build()})
        outcome = side.message(ApiKey.PRODUCE, version, **fields).responses[0].partition_responses[0]
        named = [error.batch_index for error in getattr(outcome, "record_errors", ())]
        return {"error": outcome.error_code, "records": named, "end": end_of(side, name)}

    same(sides, scenario)


def test_log_append_time(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create("append-time", message_timestamp_type="LogAppendTime")
        before = int(time.time() * 1000)
        fields = produce_fields(9, name, {0: batch(b"x")})
        outcome = side.message(ApiKey.PRODUCE, 9, **fields).responses[0].partition_responses[0]
        newest = list_offsets(side, 7, name, 0, -3)["topics"][0]["partitions"][0]
        set_by = side.message(ApiKey.FETCH, 11, **fetch_fields(side, 11, name, [(0, 0)]))
        header = read_header(set_by.responses[0].partitions[0].records)
        appended = int(outcome.log_append_time.timestamp() * 1000)
        return {
            "told": appended >= before,
            "stored": header.max_timestamp == appended == newest["timestamp"],
            "type": header.attributes & 8,
        }

    same(sides, scenario)


def test_idempotent_producers(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create("idempotent", 3)
        for partition in range(3):
            side.append(name, b"first", partition=partition)
        first, other = 7001, 7002
        told: dict[str, Plain] = {}

        def step(what: str, records: bytes, partition: int = 0) -> None:
            told[what] = produce(side, 9, name, records, partition=partition)

        step("begins at 0", by_producer(first, 0, 0))
        step("goes on", by_producer(first, 0, 1, 2))
        step("again", by_producer(first, 0, 1, 2))
        step("the first again", by_producer(first, 0, 0))
        step("overlapping", by_producer(first, 0, 2, 2))
        step("a gap", by_producer(first, 0, 9))
        for sequence in range(3, 9):
            step(f"on to {sequence}", by_producer(first, 0, sequence))
        step("the fifth back", by_producer(first, 0, 4))
        step("more than five back", by_producer(first, 0, 0))
        step("a new epoch", by_producer(first, 1, 0))
        step("the old epoch", by_producer(first, 0, 9))
        step("a newer epoch from the middle", by_producer(first, 2, 5))
        step("unknown, from the middle", by_producer(other, 0, 5), 1)
        step("and on", by_producer(other, 0, 6), 1)
        step("to the last sequence", by_producer(7003, 0, 2**31 - 1), 2)
        step("and round", by_producer(7003, 0, 0), 2)
        step("and on from there", by_producer(7003, 0, 1), 2)
        told["read"] = [fetch(side, 11, name, [(partition, 0)]) for partition in range(3)]
        return told

    same(sides, scenario)
