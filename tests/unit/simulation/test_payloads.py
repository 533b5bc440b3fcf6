"""Stand-ins for records: of the same size, equal keys where they were equal, and nothing of the original."""

from __future__ import annotations

import itertools
import re

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from nilometer.simulation.payloads import Payloads, without_old_records
from nilometer.simulation.stand_ins import StandIns
from nilometer.storage.producers import AppendOrigin
from nilometer.storage.record_validation import validate_batches
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.compression import Codec
from nilometer.wire.errors import KafkaError, MalformedMessage, UnsupportedVersion
from nilometer.wire.messages import api, decode_request, encode_request
from nilometer.wire.record_batch import HEADER_BYTES, check_batch, read_header
from nilometer.wire.records import BatchBuilder, decode_records
from support.wire.wire_peer import make

RECORDS = [
    (b"a key", b"a value", (("a header", b"of it"),)),
    (b"a key", None, ()),
    (None, b"another value", (("empty", None),)),
    (b"", b"", ()),
]


def batch(codec: Codec = Codec.NONE) -> bytes:
    builder = BatchBuilder(codec=codec)
    for number, (key, value, headers) in enumerate(RECORDS):
        builder.append(timestamp=1_000 + number, key=key, value=value, headers=headers)
    return bytes(builder.build())


def test_a_batch_has_its_sizes_times_and_keys_that_are_equal() -> None:
    before, payloads = batch(), Payloads(b"random")
    after = payloads.batches(before)
    header = read_header(after)
    check_batch(after, 0, header)
    assert len(after) == len(before)
    old, new = (decode_records(data, 0, read_header(data)) for data in (before, after))
    for one, other in zip(old, new, strict=True):
        assert (one.offset, one.timestamp) == (other.offset, other.timestamp)
        assert (one.value is None) == (other.value is None)
        assert len(one.value or b"") == len(other.value or b"")
        assert not any(other.value or b"")
    assert new[0].key == new[1].key
    assert new[0].key not in (None, b"a key")
    assert (new[2].key, new[3].key) == (None, b"")
    assert new[0].headers == (("x" * 8, bytes(5)),)
    assert payloads.batches(after) != after, "keys are changed again, with the same key"


def test_what_is_compressed_is_zero_bytes() -> None:
    before = batch(Codec.GZIP)
    after = Payloads(b"random").batches(before)
    check_batch(after, 0, read_header(after))
    assert len(after) == len(before)
    assert not any(after[HEADER_BYTES:])


@pytest.mark.parametrize("cut", [1, 40, HEADER_BYTES, HEADER_BYTES + 5])
def test_of_a_batch_that_is_cut_its_header_is_left(cut: int) -> None:
    whole = batch()
    after = Payloads(b"random").batches(whole + whole[:cut])
    tail = after[len(whole) :]
    assert len(tail) == cut
    assert tail == (whole[:HEADER_BYTES] + bytes(cut))[:cut]


def test_what_begins_within_a_batch_is_zero_bytes() -> None:
    whole = batch()
    part = (whole + whole)[70:]
    assert Payloads(b"random").batches(part) == bytes(len(part))
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    assert Payloads(b"random").batches(bytes(damaged)) == bytes(len(whole))


@pytest.mark.parametrize("size", [1, 2])
def test_different_keys_stay_different(size: int) -> None:
    payloads = Payloads(b"random")
    keys = [bytes(one) for one in itertools.product(range(256), repeat=size)]
    assert len({payloads.key(key) for key in keys}) == len(keys)


@given(st.sets(st.binary(min_size=3, max_size=9), min_size=2))
def test_different_keys_of_any_size_stay_different(keys: set[bytes]) -> None:
    payloads = Payloads(b"random")
    found = {payloads.key(key) for key in keys}
    assert len(found) == len(keys)
    assert sorted(map(len, found)) == sorted(map(len, keys))


def produce(*records: bytes) -> bytes:
    key, version = ApiKey.PRODUCE, 9
    parts = tuple(
        make(key, version, "PartitionProduceData", index=index, records=one)
        for index, one in enumerate(records)
    )
    topic = make(key, version, "TopicProduceData", name="warehouse", partition_data=parts)
    fields = {"transactional_id": None, "acks": 1, "timeout_ms": 1, "topic_data": (topic,)}
    return encode_request(7, "warehouse", api(key, version).request(**fields))[4:]


def records_of(frame: bytes) -> list[bytes]:
    _, body = decode_request(frame)
    return [bytes(one.records) for one in body.topic_data[0].partition_data]


def test_records_are_changed_where_they_are_and_not_where_equal_bytes_are() -> None:
    frame = produce(b"w", b"warehouse", b"ware")
    found = Payloads(b"random").produced(frame)
    assert found == produce(bytes(1), bytes(9), bytes(4))


@pytest.mark.parametrize("version", [0, 2])
def test_an_old_request_keeps_what_it_is_refused_by(version: int) -> None:
    header = b"\0\0" + version.to_bytes(2, "big") + b"\0\0\0\x07\0\x02me"
    topic = b"\0\x01" + bytes(4) + b"\0\0\0\x01" + b"\0\x01t" + b"\0\0\0\x01" + bytes(4)
    frame = header + topic + b"\0\0\0\x07a value" + b"behind"
    assert without_old_records(frame) == header + topic + b"\0\0\0\x07" + bytes(7) + bytes(6)


@pytest.mark.parametrize("version", [0, 3, 8, 9, 13])
def test_a_malformed_request_stays_malformed_and_has_no_record(version: int) -> None:
    header = b"\0\0" + version.to_bytes(2, "big") + b"\0\0\0\x07\0\x02me"
    frame = header + b"\0\x09a value" * 9
    found = StandIns(b"key")
    found.payloads = Payloads(b"random")
    changed = found.request(frame)
    assert b"a value" not in changed
    with pytest.raises((MalformedMessage, UnsupportedVersion)):
        decode_request(changed)


@pytest.mark.parametrize("payloads", [None, Payloads(b"random")])
@pytest.mark.parametrize("key", [ApiKey.LIST_GROUPS, ApiKey.API_VERSIONS])
def test_a_client_id_that_is_no_text_stays_none(key: int, payloads: Payloads | None) -> None:
    frame = key.to_bytes(2, "big") + b"\0\0" + b"\0\0\0\x07\0\x02\xc3\xfe"
    stand_ins = StandIns(b"key")
    stand_ins.payloads = payloads
    changed = stand_ins.request(frame)
    assert b"\xc3" not in changed
    with pytest.raises((MalformedMessage, UnsupportedVersion)):
        decode_request(changed)


def damaged(at: int, value: bytes, *, has_right_crc: bool) -> bytes:
    data = bytearray(batch())
    data[at : at + len(value)] = value
    if has_right_crc:
        data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def why_refused(records: bytes) -> tuple[type[KafkaError], str]:
    with pytest.raises(KafkaError) as refused:
        validate_batches(records, LogConfig(), AppendOrigin.CLIENT, wall_ms=10_000)
    return type(refused.value), re.sub("computed CRC 0x[0-9a-f]+", "computed CRC", str(refused.value))


ZEROS = bytes(len(batch()) - HEADER_BYTES)


@pytest.mark.parametrize(
    "refused",
    [
        *(damaged(16, bytes([magic]), has_right_crc=True) for magic in (0, 1, 3, 119, 255)),
        *(damaged(21, codec.to_bytes(2, "big"), has_right_crc=True) for codec in (5, 7, 0x20)),
        *(damaged(57, n.to_bytes(4, "big", signed=True), has_right_crc=True) for n in (-1, 0, 2, 9, 1 << 30)),
        *(damaged(8, n.to_bytes(4, "big", signed=True), has_right_crc=False) for n in (-1, 9, 49, 60, 9000)),
        damaged(17, b"\0\0\0\1", has_right_crc=False),
        damaged(17, crc32c(batch()[21:HEADER_BYTES] + ZEROS).to_bytes(4, "big"), has_right_crc=False),
        b"a value" * 9,
        b"a value" * 2,
        b"a value" * 40,
        batch() + damaged(16, b"\x77", has_right_crc=True),
        batch() + b"a value" * 8,
        batch() + bytes(16) + b"\1a value",
    ],
)
def test_what_a_broker_refuses_is_refused_in_the_same_way(refused: bytes) -> None:
    changed = Payloads(b"random").produced_batches(refused)
    assert len(changed) == len(refused)
    for secret in (b"a value", b"a key", b"another", b"a header"):
        assert secret not in changed
    assert why_refused(changed) == why_refused(refused)


def test_records_behind_those_that_a_batch_says_it_has_are_zero_bytes() -> None:
    fewer = damaged(57, b"\0\0\0\1", has_right_crc=True)
    changed = Payloads(b"random").produced_batches(fewer)
    check_batch(changed, 0, read_header(changed))
    first = changed[HEADER_BYTES : HEADER_BYTES + 1 + changed[HEADER_BYTES] // 2]
    assert len(first) > len(b"a key" + b"a value")
    assert changed[HEADER_BYTES + len(first) :] == bytes(len(changed) - HEADER_BYTES - len(first))


def test_of_what_a_client_sends_control_records_and_a_rest_are_changed_too() -> None:
    marker = bytearray(batch())
    marker[22] |= 0x20
    marker[17:21] = crc32c(bytes(marker[21:])).to_bytes(4, "big")
    whole = batch()
    found = records_of(Payloads(b"random").produced(produce(bytes(marker), whole + b"a value" * 8)))
    assert not any(b"a value" in one for one in found)
    rest = found[1][len(whole) :]
    assert rest == bytes(16) + b"v" + bytes(39), "the place of a magic number has what was there"
    assert Payloads(b"random").batches(bytes(marker)) == marker, "of a log they stay"
