"""Batches: built, read, checked, patched."""

from __future__ import annotations

import pytest

from nilometer.wire.compression import Codec
from nilometer.wire.errors import CorruptBatch, UnsupportedMagic
from nilometer.wire.record_batch import (
    HEADER_BYTES,
    batches,
    check_batch,
    check_produced_batch,
    offset_range,
    patched_header,
    read_header,
    skip_good_batches,
)
from nilometer.wire.records import BatchBuilder, Record, decode_records


def a_batch(codec: Codec = Codec.NONE, count: int = 3) -> bytes:
    builder = BatchBuilder(codec)
    for number in range(count):
        assert builder.append(1000 + number, b"k%d" % number, b"value", [("h", b"x"), ("n", None)])
    return builder.build(base_offset=5, producer_id=9, producer_epoch=1, base_sequence=3)


@pytest.mark.parametrize("codec", Codec)
def test_what_is_built_passes_the_checks_and_reads_back(codec: Codec) -> None:
    batch = a_batch(codec)
    ((position, header),) = batches(batch)
    check_batch(batch, position, header)
    check_produced_batch(header)
    assert header.codec is codec
    assert (header.size, header.last_offset, header.next_offset, header.last_sequence) == (
        len(batch),
        7,
        8,
        5,
    )
    headers = (("h", b"x"), ("n", None))
    assert decode_records(batch, 0, header) == [
        Record(5 + n, 1000 + n, b"k%d" % n, b"value", headers) for n in range(3)
    ]


def test_an_incomplete_last_batch_is_left_out() -> None:
    two = a_batch() + a_batch()
    for cut in range(1, len(two) // 2):
        assert [position for position, _ in batches(two[:-cut])] == [0]


def range_of_headers(data: bytes) -> object:
    try:
        headers = [header for _, header in batches(data)]
    except (CorruptBatch, UnsupportedMagic) as error:
        return str(error)
    return (headers[0].base_offset, headers[-1].next_offset) if headers else (-1, -1)


def test_the_range_of_offsets_is_that_of_the_headers_for_every_flipped_bit_and_cut() -> None:
    two = a_batch() + patched_header(a_batch(), 0, base_offset=8, leader_epoch=0) + a_batch()[HEADER_BYTES:]
    damaged = [two[:end] for end in range(len(two))]
    for place in range(HEADER_BYTES):
        for bit in range(8):
            flipped = bytearray(two)
            flipped[place + (bit % 2) * len(a_batch())] ^= 1 << bit
            damaged.append(bytes(flipped))
    assert offset_range(two) == (5, 11)
    for data in damaged:
        try:
            found: object = offset_range(data)
        except (CorruptBatch, UnsupportedMagic) as error:
            found = str(error)
        assert found == range_of_headers(data), data.hex()


def test_any_flipped_bit_under_the_crc_is_noticed() -> None:
    batch = a_batch()
    for position in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptBatch):
            check_batch(damaged, 0, read_header(damaged))


def three_batches() -> tuple[bytes, list[int]]:
    """Offsets 5 to 7 three times over, three apart; and where each begins."""
    batches_of_it = [patched_header(a_batch(), 0, base_offset=5 + 3 * n, leader_epoch=0) for n in range(3)]
    whole = b"".join(header + a_batch()[HEADER_BYTES:] for header in batches_of_it)
    return whole, [n * len(whole) // 3 for n in range(4)]


@pytest.mark.parametrize(
    ("limit_cut", "upper", "good"), [(0, 14, 3), (1, 14, 2), (0, 13, 2), (0, 11, 2), (0, 10, 1), (0, 7, 0)]
)
def test_good_batches_are_skipped_up_to_both_limits(limit_cut: int, upper: int, good: int) -> None:
    data, begins = three_batches()
    found = skip_good_batches(data, 0, len(data) - limit_cut, 5, upper, 3)
    assert found == (begins[good], 5 + 3 * good, good)


def test_no_more_batches_are_skipped_than_may_be() -> None:
    data, begins = three_batches()
    assert skip_good_batches(data, 0, len(data), 5, 14, 2) == (begins[2], 11, 2)


def test_skipping_and_checking_agree_on_every_flipped_bit() -> None:
    data, begins = three_batches()
    for position in range(begins[1], begins[2]):
        for bit in (0x01, 0x80):
            damaged = bytearray(data)
            damaged[position] ^= bit
            passes = True
            try:
                header = read_header(damaged, begins[1])
                check_batch(damaged, begins[1], header)
                passes = header.base_offset == 8 and header.next_offset <= 14
            except (CorruptBatch, UnsupportedMagic):
                passes = False
            end, _, _ = skip_good_batches(damaged, 0, len(damaged), 5, 14, 3)
            assert (end > begins[1]) is passes, (position, bit)


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_other_magics_are_refused(magic: int) -> None:
    batch = bytearray(a_batch())
    batch[16] = magic
    with pytest.raises(UnsupportedMagic):
        list(batches(batch))
    if magic < 2:
        with pytest.raises(UnsupportedMagic):
            list(batches(bytes(batch[:30])))


def test_offset_and_epoch_are_patched_without_a_new_crc() -> None:
    batch = a_batch()
    patched = patched_header(batch, 0, base_offset=77, leader_epoch=4) + batch[HEADER_BYTES:]
    header = read_header(patched)
    check_batch(patched, 0, header)
    assert (header.base_offset, header.partition_leader_epoch, header.crc) == (77, 4, read_header(batch).crc)


def test_log_append_time_becomes_every_records_timestamp() -> None:
    batch = a_batch()
    start = patched_header(batch, 0, base_offset=77, leader_epoch=4, max_timestamp=9999, log_append_time=True)
    patched = start + batch[HEADER_BYTES:]
    header = read_header(patched)
    check_batch(patched, 0, header)
    assert header.timestamp_type == 1
    assert [record.timestamp for record in decode_records(patched, 0, header)] == [9999] * 3
