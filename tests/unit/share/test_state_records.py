"""The records of ``__share_group_state`` as bytes, and how they merge to a state."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.identifiers import TopicId
from nilometer.share.state_records import (
    NO_EPOCH,
    NO_START_OFFSET,
    UNKNOWN_COUNT,
    DeliveryState,
    SharePartitionKey,
    SharePartitionState,
    ShareRecord,
    ShareSnapshot,
    ShareUpdate,
    StateBatch,
    decode_record,
    encode_record,
    merged,
    merged_batches,
)
from nilometer.wire.errors import MalformedMessage
from support.properties import examples

A, D, X = DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED
KEY = SharePartitionKey("workers", TopicId("AAAAAAAAAAEAAAAAAAAAAg"), 6)
BATCHES = (StateBatch(110, 119, A, 1), StateBatch(120, 129, D, 3), StateBatch(130, 130, X, 5))
SNAPSHOT = ShareSnapshot(
    KEY, SharePartitionState(3, 4, 105, 11, BATCHES), 7, 1_700_000_000_000, 1_700_000_001_000
)
UNDECIDED = SharePartitionState(1, 0, NO_START_OFFSET, UNKNOWN_COUNT)

KEY_BYTES = "0007776f726b6572730000000000000001000000000000000200000006"
BATCHES_BYTES = (
    "04000000000000006e00000000000000770000010000000000000000780000000000000081020003000000000000000082000000"
    "00000000820400050001"
)
KAFKAS_BYTES: dict[str, tuple[ShareRecord, str, str | None]] = {
    "snapshot": (
        SNAPSHOT,
        "0000" + KEY_BYTES,
        "000000000007000000030000000400000000000000690000018bcfe568000000018bcfe56be8"
        + BATCHES_BYTES
        + "00040000000b",
    ),
    "update": (
        ShareUpdate(KEY, 7, 4, 105, 11, BATCHES),
        "0001" + KEY_BYTES,
        "000000000007000000040000000000000069" + BATCHES_BYTES + "00040000000b",
    ),
    "undecided": (
        ShareSnapshot(KEY, UNDECIDED, 0, 5, 5),
        "0000" + KEY_BYTES,
        "0000000000000000000100000000ffffffffffffffff000000000000000500000000000000050100",
    ),
    "nothing": (
        ShareUpdate(KEY, 0, 0, NO_START_OFFSET, UNKNOWN_COUNT, ()),
        "0001" + KEY_BYTES,
        "00000000000000000000ffffffffffffffff0100",
    ),
    "tombstone": (ShareSnapshot(KEY, None), "0000" + KEY_BYTES, None),
}
"""Made by ShareCoordinatorRecordSerde of Apache Kafka 4.4.0 from records of ShareCoordinatorRecordHelpers, in
a class that was compiled and run with the class path ``tests/java/target/kafka/*``."""


@pytest.mark.parametrize(("record", "key", "value"), KAFKAS_BYTES.values(), ids=KAFKAS_BYTES)
def test_the_bytes_of_apache_kafka(record: ShareRecord, key: str, value: str | None) -> None:
    as_bytes = bytes.fromhex(key), None if value is None else bytes.fromhex(value)
    assert encode_record(record) == as_bytes
    assert decode_record(*as_bytes) == record


def test_records_of_unknown_types_are_left_out() -> None:
    assert decode_record(b"\x00\x02" + bytes.fromhex(KEY_BYTES), b"") is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00\x01" + b"\x00" * 30,  # a later version
        bytes.fromhex(KAFKAS_BYTES["update"][2] or "").replace(b"\x81\x02\x00", b"\x81\x05\x00"),  # its state
        bytes.fromhex(KAFKAS_BYTES["update"][2] or "")[:-3],
    ],
)
def test_damaged_values_are_malformed(value: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_record(bytes.fromhex("0001" + KEY_BYTES), value)


def test_tagged_fields_of_a_later_version_are_left_out() -> None:
    record, _, value = KAFKAS_BYTES["update"]
    assert value is not None
    tagged = value.replace("0000000000000081020003" + "00", "0000000000000081020003" + "01050100")
    assert tagged != value
    assert decode_record(bytes.fromhex("0001" + KEY_BYTES), bytes.fromhex(tagged)) == record


def test_an_update_changes_what_it_has() -> None:
    state = SharePartitionState(3, 4, 105, 11, BATCHES)
    after = merged(state, ShareUpdate(KEY, 7, 5, 115, 12, (StateBatch(131, 135, D, 1),)))
    kept = (StateBatch(115, 119, A, 1), *BATCHES[1:], StateBatch(131, 135, D, 1))
    assert after == SharePartitionState(3, 5, 115, 12, kept)


def test_an_update_without_start_offset_and_epoch_leaves_them() -> None:
    state = SharePartitionState(3, 4, 105, 11, BATCHES)
    assert merged(state, ShareUpdate(KEY, 7, NO_EPOCH, NO_START_OFFSET, 11, ())) == state


# ── merging ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("known", "changed", "start", "expected"),
    [
        ([], [], 0, []),
        ([], [(0, 4, A, 1), (5, 9, A, 1)], 0, [(0, 9, A, 1)]),  # neighbours that are alike
        ([(0, 4, A, 1)], [(5, 9, A, 2)], 0, [(0, 4, A, 1), (5, 9, A, 2)]),
        ([(0, 9, A, 1)], [(3, 5, A, 2)], 0, [(0, 2, A, 1), (3, 5, A, 2), (6, 9, A, 1)]),  # the higher count
        ([(3, 5, A, 2)], [(0, 9, A, 1)], 0, [(0, 2, A, 1), (3, 5, A, 2), (6, 9, A, 1)]),  # not the later one
        ([(0, 9, A, 1)], [(0, 9, D, 1)], 0, [(0, 9, D, 1)]),  # the higher state
        ([(0, 9, X, 1)], [(0, 9, A, 2)], 0, [(0, 9, A, 2)]),  # before it, the count
        ([(0, 4, D, 1), (6, 9, D, 1)], [(5, 5, D, 1)], 0, [(0, 9, D, 1)]),  # joins both sides
        ([(0, 9, A, 1), (12, 14, D, 1)], [], 5, [(5, 9, A, 1), (12, 14, D, 1)]),
        ([(0, 9, A, 1)], [(2, 20, D, 1)], 15, [(15, 20, D, 1)]),
        ([(0, 9, A, 1)], [(2, 3, D, 1)], 10, []),
    ],
)
def test_batches_merge(
    known: list[tuple[int, int, DeliveryState, int]],
    changed: list[tuple[int, int, DeliveryState, int]],
    start: int,
    expected: list[tuple[int, int, DeliveryState, int]],
) -> None:
    merged_to = merged_batches(
        [StateBatch(*one) for one in known], [StateBatch(*one) for one in changed], start
    )
    assert merged_to == tuple(StateBatch(*one) for one in expected)


Offsets = dict[int, tuple[int, DeliveryState]]


def by_offset(batches: list[StateBatch] | tuple[StateBatch, ...], start: int) -> Offsets:
    """The naive model: the highest delivery count and state of each offset."""
    found: Offsets = {}
    for one in batches:
        for offset in range(max(one.first_offset, start), one.last_offset + 1):
            found[offset] = max(found.get(offset, (-1, A)), (one.delivery_count, one.state))
    return found


some_batches = st.lists(
    st.builds(
        lambda first, more, state, count: StateBatch(first, first + more, state, count),
        st.integers(0, 40),
        st.integers(0, 12),
        st.sampled_from([A, D, X]),
        st.integers(1, 3),
    ),
    max_size=8,
)


@examples(300)
@given(st.lists(some_batches, min_size=1, max_size=4), st.integers(-1, 45))
def test_merging_is_the_highest_of_each_offset(writes: list[list[StateBatch]], start: int) -> None:
    """Whatever is written, the result is in order, and as short as it can be."""
    state: tuple[StateBatch, ...] = ()
    for write in writes:
        state = merged_batches(state, write, NO_START_OFFSET)
    state = merged_batches(state, (), start)
    assert by_offset(state, start) == by_offset([one for write in writes for one in write], start)
    for before, after in pairwise(state):
        assert before.last_offset < after.first_offset
        alike = (before.state, before.delivery_count) == (after.state, after.delivery_count)
        assert not (alike and before.last_offset + 1 == after.first_offset), "neighbours that are alike"
