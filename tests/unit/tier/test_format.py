"""What a writer of the tier wrote is read again; any other bytes are refused."""

from __future__ import annotations

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from nilometer.steps import at_once
from nilometer.tier import format as tier_format
from nilometer.tier.format import (
    FORMAT_VERSION,
    SEGMENTS_OF_A_LINE,
    DamagedObject,
    Dropped,
    IndexSections,
    Manifest,
    RemoteSegment,
    decode_index,
    decode_manifest,
    decoding_manifest,
    encode_index,
    encode_manifest,
    encoding_manifest,
    manifest_name,
    manifest_number,
)
from support.properties import examples
from support.tier.remote_segments import manifest, segment

WRITTEN = structs.replace(
    manifest(segment(0, 9, epochs=((0, 0), (2, 5))), segment(8, 20, epochs=((2, 8),))).without(
        [segment(0, 9, epochs=((0, 0), (2, 5)))], 1_000
    ),
    number=7,
    oldest=1,
    writer="w",
)


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert decode_manifest(encode_manifest(WRITTEN), 7) == WRITTEN


@given(st.data())
@examples(60)
def test_any_other_byte_of_a_manifest_is_noticed(data: st.DataObject) -> None:
    encoded = bytearray(encode_manifest(WRITTEN))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedObject, match=manifest_name(7)):
        decode_manifest(bytes(encoded), 7)


def many(count: int) -> Manifest:
    segments = tuple(segment(10 * number, 10 * number + 9) for number in range(count))
    return structs.replace(WRITTEN, segments=segments)


@pytest.mark.parametrize("count", [0, 1, SEGMENTS_OF_A_LINE, SEGMENTS_OF_A_LINE + 1])
def test_a_manifest_with_many_segments_is_read_in_steps(count: int) -> None:
    encoded = encode_manifest(many(count))
    assert decode_manifest(encoded, 7) == many(count)
    steps = list(decoding_manifest(encoded, 7))
    assert (sum(steps), max(steps)) == (count, min(count, SEGMENTS_OF_A_LINE))


def test_a_step_reads_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[int]()
    to_segments = tier_format._to_segments

    def count(line: bytes) -> tuple[RemoteSegment, ...]:
        found = to_segments(line)
        read.append(len(found))
        return found

    monkeypatch.setattr(tier_format, "_to_segments", count)
    lines = [len(read) for _ in decoding_manifest(encode_manifest(many(3 * SEGMENTS_OF_A_LINE)), 7)]
    assert lines == [0, 1, 2, 3]


def test_a_manifest_with_many_segments_is_written_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    written = structs.replace(many(2 * SEGMENTS_OF_A_LINE + 1), dropped=())
    encoded = list[int]()
    encode = msgspec.json.encode

    def count(what: object) -> bytes:
        encoded.append(len(what) if isinstance(what, tuple) else 0)
        return encode(what)

    monkeypatch.setattr(msgspec.json, "encode", count)
    steps = [(size, len(encoded)) for size in encoding_manifest(written)]
    assert steps == [(SEGMENTS_OF_A_LINE, 2), (SEGMENTS_OF_A_LINE, 3), (1, 4)]
    assert encoded == [0, SEGMENTS_OF_A_LINE, SEGMENTS_OF_A_LINE, 1]
    assert decode_manifest(encode_manifest(written), 7) == written


MISLEADING = structs.replace(
    WRITTEN.topic,
    settings={'"dropped":[': ']],"topic":', "b": '"dropped":[]', "c": '"dropped":["a",1]],"topic":'},
)


@pytest.mark.parametrize("count", [0, 1, 1_000, 3_001])
def test_a_manifest_that_has_dropped_much_is_written_and_read_in_steps(count: int) -> None:
    """Earlier versions read it, too, and write the same."""
    dropped = tuple(Dropped(f"{number:020d}-{number:016x}.log", number) for number in range(count))
    written = structs.replace(WRITTEN, dropped=dropped, topic=MISLEADING)
    encoded = encode_manifest(written)
    assert encoded.partition(b"\n")[0] == msgspec.json.encode(structs.replace(written, segments=()))
    assert decode_manifest(encoded, 7) == written
    of_segments = len(written.segments)
    for steps in (list(encoding_manifest(written)), list(decoding_manifest(encoded, 7))):
        assert max(steps) <= 1.5 * SEGMENTS_OF_A_LINE
        assert sum(steps) in (count + of_segments, of_segments)
        assert count < 3_000 or len(steps) > 3


def test_a_name_that_looks_like_two_is_damage() -> None:
    """No writer gives an object such a name."""
    written = structs.replace(WRITTEN, dropped=(Dropped("],[" * 50_000, 1), Dropped("b", 1)))
    with pytest.raises(DamagedObject):
        decode_manifest(encode_manifest(written), 7)


def test_a_manifest_mentions_what_it_has_and_what_it_had() -> None:
    kept, gone = segment(8, 20, epochs=((2, 8),)), segment(0, 9, epochs=((0, 0), (2, 5)))
    assert WRITTEN.mentions(kept)
    assert WRITTEN.mentions(gone)
    assert not WRITTEN.mentions(structs.replace(kept, attempt="another"))
    assert not WRITTEN.mentions(segment(21, 30))


@pytest.mark.parametrize("line", [b"{", b"null", b"\xff", b"[]", b'{"format": 2, "writer": "\xff"}'])
def test_a_line_that_is_no_json_of_a_manifest_is_damage(line: bytes) -> None:
    body = line + b"\n"
    with pytest.raises(DamagedObject):
        decode_manifest(b"%b%08x\n" % (body, crc32c(body)), 7)


def test_a_manifest_of_one_line_is_read() -> None:
    line = msgspec.json.encode(WRITTEN) + b"\n"
    assert decode_manifest(b"%b%08x\n" % (line, crc32c(line)), 7) == WRITTEN


def test_a_segment_that_tells_less_is_read() -> None:
    """Its last batch was not noted, and it is in no archive."""
    line = msgspec.json.encode(WRITTEN).replace(b",null,null,null]", b"]") + b"\n"
    assert b"null" not in line
    assert decode_manifest(b"%b%08x\n" % (line, crc32c(line)), 7) == WRITTEN


class EightElements(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A segment as the versions read it that know no CRC."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    log_bytes: int
    index_bytes: int
    has_aborted: bool
    id: str
    epochs: tuple[tuple[int, int], ...]


@pytest.mark.parametrize("crc", [None, 0, 0xFFFFFFFF])
def test_an_earlier_version_reads_the_segments_of_remote_storage(crc: int | None) -> None:
    """An upgrade may be taken back, and while it goes on leaders of both versions write."""
    written = manifest(segment(0, 9, attempt="0f", last_crc=crc))
    encoded = encode_manifest(written)
    (read,) = msgspec.json.decode(encoded.splitlines()[1], type=tuple[EightElements, ...])
    (one,) = written.segments
    assert f"{read.base_offset:020d}-{read.id}.log" == one.log_name
    assert f"{read.base_offset:020d}-{read.id}.index" == one.index_name
    assert read.id.isalnum()
    assert decode_manifest(encoded, 0) == written


def test_archives_tell_more_of_a_segment() -> None:
    written = structs.replace(manifest(segment(0, 9, log_crc=5, records=7)), is_archive=True)
    assert decode_manifest(encode_manifest(written), 0) == written


@pytest.mark.parametrize("name", ["x00000001", "0fx0000001", "0fx0000000A", "0fx+0000001"])
def test_an_id_without_a_crc_is_taken_as_it_is(name: str) -> None:
    written = manifest(segment(0, 9, attempt=name))
    assert decode_manifest(encode_manifest(written), 0) == written


def test_a_crc_that_is_not_in_the_id_changes_no_name() -> None:
    written = manifest(segment(0, 9, attempt="0f"))
    line = msgspec.json.encode(written).replace(b",null,null,null]", b",5,null,null]") + b"\n"
    assert decode_manifest(b"%b%08x\n" % (line, crc32c(line)), 0) == written


def test_the_order_is_that_of_all_lines_together() -> None:
    wrong = many(SEGMENTS_OF_A_LINE + 1)
    last = structs.replace(wrong.segments[-1], base_offset=9)
    with pytest.raises(DamagedObject, match="order"):
        decode_manifest(encode_manifest(structs.replace(wrong, segments=(*wrong.segments[:-1], last))), 7)


def test_a_manifest_that_ends_early_is_noticed() -> None:
    encoded = encode_manifest(WRITTEN)
    for length in range(len(encoded)):
        with pytest.raises(DamagedObject, match="CRC"):
            decode_manifest(encoded[:length], 7)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (structs.replace(WRITTEN, format=FORMAT_VERSION + 1), "format 3"),
        (structs.replace(WRITTEN, number=8), "its number is 8"),
        (structs.replace(WRITTEN, segments=(segment(5, 9), segment(0, 4))), "order"),
        (structs.replace(WRITTEN, segments=(segment(0, 9), segment(2, 9))), "order"),
        (structs.replace(WRITTEN, segments=(segment(9, 8),)), "order"),
        (structs.replace(WRITTEN, writer=1), "writer"),  # type: ignore[arg-type]
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(wrong: Manifest, reason: str) -> None:
    with pytest.raises(DamagedObject, match=reason):
        decode_manifest(encode_manifest(wrong), 7)


def test_the_number_is_that_of_its_name() -> None:
    assert manifest_number(manifest_name(42)) == 42
    for other in ("head", "manifest-", "manifest-x", f"{0:020d}-a.log", "manifest-1.unfinished"):
        assert manifest_number(other) is None


SECTIONS = IndexSections(b"offsets", b"", b"aborted", b"producers")


def test_an_index_object_is_read_as_it_was_written() -> None:
    assert decode_index(encode_index(SECTIONS), "x") == SECTIONS


@given(st.data())
@examples(60)
def test_any_other_byte_of_an_index_object_is_noticed(data: st.DataObject) -> None:
    encoded = bytearray(encode_index(SECTIONS))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedObject, match="x"):
        decode_index(bytes(encoded), "x")


def test_an_index_object_that_ends_early_or_late_is_noticed() -> None:
    encoded = encode_index(SECTIONS)
    for wrong in (encoded[:-1], encoded[:3], b"", encoded + b"0"):
        with pytest.raises(DamagedObject, match="x"):
            decode_index(wrong, "x")


def test_the_segment_of_an_offset_is_the_first_that_has_it() -> None:
    held = manifest(segment(10, 19), segment(15, 29), segment(40, 49))
    assert [held.holding(offset) for offset in (9, 10, 19, 20, 29, 30, 39, 40, 49, 50)] == [
        None, 0, 0, 1, 1, None, None, 2, 2, None,
    ]  # fmt: skip


def test_a_segment_takes_the_place_of_those_that_it_covers() -> None:
    held = manifest(segment(0, 9), segment(10, 14), segment(15, 19))
    held = at_once(held.adding(segment(5, 29), 1_000))
    assert [(one.base_offset, one.last_offset) for one in held.segments] == [(0, 9), (5, 29)]
    assert sorted(one.name for one in held.dropped) == sorted(
        name for one in (segment(10, 14), segment(15, 19)) for name in (one.log_name, one.index_name)
    )
