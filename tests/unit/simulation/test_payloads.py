"""Stand-ins for records: of the same size, equal keys where they were equal, and nothing of the original."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.simulation.payloads import Payloads
from nilometer.wire.compression import Codec
from nilometer.wire.record_batch import HEADER_BYTES, check_batch, read_header
from nilometer.wire.records import BatchBuilder, decode_records

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
