"""The offset map: the newest offset of each key, in a fixed amount of memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.storage.cleaning.offset_map import NO_OFFSET, PIECE_BYTES, SLOT_BYTES, OffsetMap, RecordMarks
from support.properties import examples


def put(found: OffsetMap, key: bytes, offset: int) -> bool:
    full_at = found.put_all([(key, 0)], offset, RecordMarks(0, 0))
    assert full_at in (None, offset)
    return full_at is None


@given(keys=st.lists(st.binary(max_size=3), max_size=80), slots=st.integers(2, 60))
@examples(200)
def test_an_offset_map_is_a_dictionary_until_it_is_full(keys: list[bytes], slots: int) -> None:
    found, expected = OffsetMap(slots * SLOT_BYTES), dict[bytes, int]()
    for offset, key in enumerate(keys):
        has_room = key in expected or len(expected) < found.capacity
        assert put(found, key, offset) == has_room
        if has_room:
            expected[key] = offset
    assert len(found) == len(expected) <= found.capacity < slots
    assert found.is_full == (len(expected) == found.capacity)
    assert found.newest(keys) == [expected.get(key, NO_OFFSET) for key in keys]


# The second map is larger than one freed piece, and not nearly full: a search would take thousands of steps.
@pytest.mark.parametrize(("slots", "load_factor"), [(100, 1.0), (PIECE_BYTES // SLOT_BYTES + 3, 0.8)])
def test_an_offset_map_has_all_slots_of_its_load_factor_until_it_is_released(
    slots: int, load_factor: float
) -> None:
    found = OffsetMap(slots * SLOT_BYTES, load_factor)
    room = min(slots - 1, int(slots * load_factor))
    keys = [b"%d" % number for number in range(room)]
    assert found.put_all(zip(keys, range(room), strict=True), 0, RecordMarks(0, 0)) is None
    assert found.is_full
    assert not put(found, b"one more", slots)
    assert found.newest(keys) == list(range(room))
    found.release()
    assert (len(found), found.newest([b"0"]), put(found, b"0", 1)) == (0, [NO_OFFSET], False)


def test_an_offset_map_is_not_larger_than_its_keys_need() -> None:
    assert OffsetMap(1 << 30, keys_max=100).capacity < 110
    with pytest.raises(ValueError, match="holds no key"):
        OffsetMap(SLOT_BYTES)
