"""Coordinator records as bytes: every type there and back, older versions, and bytes that are no records."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nilometer.groups.records import (
    CoordinatorRecord,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_by_type,
    decode_record,
    encode_key,
    encode_record,
    read_offset_commit,
)
from nilometer.wire.errors import MalformedMessage
from support.groups.record_samples import GROUP, ID, NOW_MS, OFFSET, SAMPLES
from support.properties import examples


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


@pytest.mark.parametrize("record", SAMPLES, ids=lambda record: type(record.value or record.key).__name__)
def test_every_type_of_record_there_and_back(record: CoordinatorRecord) -> None:
    assert decode_record(*encode_record(record)) == record


OFFSET_VALUES = [
    (struct.pack(">hq", 0, 7) + text("m") + struct.pack(">q", NOW_MS), {}),
    (struct.pack(">hq", 1, 7) + text("m") + struct.pack(">qq", NOW_MS, 99), {"expire_timestamp": 99}),
    (struct.pack(">hq", 2, 7) + text("m") + struct.pack(">q", NOW_MS), {}),
    (struct.pack(">hqi", 3, 7, 5) + text("m") + struct.pack(">q", NOW_MS), {"leader_epoch": 5}),
    (
        struct.pack(">hqi", 4, 7, 5) + b"\x02m" + struct.pack(">q", NOW_MS) + b"\x01\x00\x10" + ID.bytes,
        {"leader_epoch": 5, "topic_id": ID},
    ),
    (
        struct.pack(">hqi", 4, 7, 5) + b"\x02m" + struct.pack(">q", NOW_MS) + b"\x01\x09\x02??",
        {"leader_epoch": 5},
    ),
]


@pytest.mark.parametrize(
    ("value", "also"), OFFSET_VALUES, ids=["0", "1", "2", "3", "4", "4, tag of tomorrow"]
)
@pytest.mark.parametrize("key_type", [0, 1])
def test_offset_commits_of_every_version(key_type: int, value: bytes, also: dict[str, object]) -> None:
    key = struct.pack(">h", key_type) + encode_key(OFFSET)[2:]
    expected = replace(OffsetCommitValue(7, "m", NOW_MS), **also)
    assert decode_record(key, value) == CoordinatorRecord(OFFSET, expected)


NAMES = st.text(max_size=6) | st.just("ö" * 40)
INT32, INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
OFFSET_COMMITS = st.builds(
    CoordinatorRecord,
    st.builds(OffsetCommitKey, NAMES, NAMES, INT32),
    st.builds(
        OffsetCommitValue,
        offset=INT64,
        metadata=st.sampled_from(["", "m"]),
        commit_timestamp=INT64,
        leader_epoch=INT32,
        expire_timestamp=st.sampled_from([-1, 99]),
        topic_id=st.none() | st.uuids(),
    ),
)


@given(record=OFFSET_COMMITS)
@examples(300)
def test_the_short_way_is_taken_for_usual_offset_commits_and_reads_the_same(
    record: CoordinatorRecord,
) -> None:
    key, value = encode_record(record)
    assert value is not None
    assert isinstance(record.value, OffsetCommitValue)
    is_usual = not record.value.metadata and record.value.expire_timestamp == -1
    assert read_offset_commit(key, value) == (decode_by_type(key, value) if is_usual else None)


@given(record=OFFSET_COMMITS, in_key=st.booleans(), data=st.data())
@examples(500)
def test_the_short_way_reads_nothing_into_damaged_bytes(
    record: CoordinatorRecord, in_key: bool, data: st.DataObject
) -> None:
    encoded = list(encode_record(record))
    damaged = bytearray(encoded[not in_key] or b"")
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    encoded[not in_key] = bytes(damaged)
    key, value = encoded
    assert key is not None
    assert value is not None
    found = read_offset_commit(key, value)
    if found is not None:
        assert found == decode_by_type(key, value)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_groups_of_every_version(version: int) -> None:
    since = lambda first, data: data if version >= first else b""  # noqa: E731
    value = (
        struct.pack(">h", version)
        + text("consumer")
        + struct.pack(">i", 3)
        + text("range")
        + text("m-1")
        + since(2, struct.pack(">q", NOW_MS))
        + struct.pack(">i", 1)
        + text("m-1")
        + since(3, text("inst"))
        + text("m")
        + text("/host")
        + since(1, struct.pack(">i", 300))
        + struct.pack(">i", 100)
        + blob(b"sub")
        + blob(b"given")
    )
    member = MemberMetadata(
        "m-1",
        "inst" if version >= 3 else None,
        "m",
        "/host",
        300 if version >= 1 else -1,
        100,
        b"sub",
        b"given",
    )
    timestamp = NOW_MS if version >= 2 else -1
    expected = GroupMetadataValue("consumer", 3, "range", "m-1", timestamp, (member,))
    assert decode_record(encode_key(GROUP), value) == CoordinatorRecord(GROUP, expected)


def test_groups_of_the_flexible_version() -> None:
    member = b"\x02m\x00\x02c\x02h" + struct.pack(">ii", 300, 100) + b"\x03xy\x01\x00"
    value = (
        struct.pack(">h", 4)
        + b"\x09consumer"
        + struct.pack(">i", 3)
        + b"\x06range\x02m"
        + struct.pack(">q", NOW_MS)
        + (b"\x02" + member + b"\x00")
    )
    expected = MemberMetadata("m", None, "c", "h", 300, 100, b"xy", b"")
    decoded = decode_record(encode_key(GROUP), value)
    assert decoded is not None
    assert decoded.value == GroupMetadataValue("consumer", 3, "range", "m", NOW_MS, (expected,))


# Written by Apache Kafka 4.4.0's GroupCoordinatorRecordSerde from the same fields: serializeKey and
# serializeValue of CoordinatorRecord.record(new ShareGroup…Key()…, new ApiMessageAndVersion(
# new ShareGroup…Value()…, (short) 0)), in jshell --class-path 'tests/java/target/kafka/*'.
_ID = "80000000000000000000000000000005"
_OTHER_ID = "0193d3b07f5e7000800000000000abcd"
SHARE_GROUP_BYTES = [
    ("000a00016700016d", "000002720263032f68030274027500"),
    ("000a00016700016d", "0000000263032f680100"),
    ("000b000167", "000000000009c00000000000000000"),
    ("000c000167", "00000000000901000800000199c82cc000"),
    ("000c000167", "00000000000900"),
    ("000d00016700016d", f"000002{_ID}0300000000000000020000"),
    ("000e00016700016d", f"000000000009000000080002{_ID}0300000000000000020000"),
    (
        "000f000167",
        f"000002{_ID}027402000000020002{_ID}02740300000000000000010002{_OTHER_ID}02750000",
    ),
]


def test_records_of_share_groups_are_the_bytes_that_kafka_writes() -> None:
    written = [
        (key.hex(), value.hex())
        for key, value in map(encode_record, SAMPLES)
        if value is not None and 10 <= int.from_bytes(key[:2]) <= 15
    ]
    assert written == SHARE_GROUP_BYTES


@pytest.mark.parametrize("key_type", [9, 18, 24, 99, -1])
def test_records_of_other_kinds_of_groups_are_passed_over(key_type: int) -> None:
    assert decode_record(struct.pack(">h", key_type) + text("g"), b"\x00\x00whatever") is None


@pytest.mark.parametrize("version", [-1, 5])
def test_a_version_that_does_not_exist_yet_is_not_guessed_at(version: int) -> None:
    with pytest.raises(MalformedMessage, match=f"version {version}"):
        decode_record(encode_key(OFFSET), struct.pack(">h", version) + bytes(40))


def test_bytes_cut_short_at_any_place_are_malformed() -> None:
    for record in SAMPLES:
        key, value = encode_record(record)
        for end in range(len(key)):
            with pytest.raises(MalformedMessage):
                decode_record(key[:end], value)
        for end in range(len(value or b"")):
            with pytest.raises(MalformedMessage):
                decode_record(key, (value or b"")[:end])


SAMPLE_BYTES = [encode_record(record) for record in SAMPLES if record.value is not None]


@examples(300)
@given(st.sampled_from(SAMPLE_BYTES), st.integers(0, 10_000), st.binary(min_size=1, max_size=6))
def test_mutated_bytes_are_a_record_or_malformed(
    sample: tuple[bytes, bytes], at: int, replacement: bytes
) -> None:
    key, value = sample
    at %= len(value)
    mutated = value[:at] + replacement + value[at + len(replacement) :]
    try:
        decoded = decode_record(key, mutated)
    except MalformedMessage:
        return
    assert decoded is not None
    assert decode_record(*encode_record(decoded)) == decoded


def test_a_key_of_a_group_with_any_name() -> None:
    for name in ("", "🐊", "x" * 32_000):
        record = CoordinatorRecord(OffsetCommitKey(name, "t", 0), None)
        assert decode_record(*encode_record(record)) == record
