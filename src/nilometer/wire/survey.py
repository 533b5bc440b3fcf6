"""Checking the lengths and counts in a message before kio's reader decodes it.

A *surveyor* walks over the bytes according to the schema and checks that every length and count fits into
the rest of the frame. This is needed because kio's reader trusts counts: five bytes that announce four
billion elements make it reserve 32 GB and abort the process. Values are not decoded.

A surveyor also *cuts out* unknown tagged fields, which the protocol says to ignore (KIP-482), and replaces
numbers that no ``datetime`` and no ``timedelta`` can have by the nearest that they can: times before 1970 by
0 (brokers send -1 for no time), and the durations that clients send to say "as long as possible". kio's
reader rejects all of them.

Invariant: the memory for the arrays of a message that passes is bounded by the size of the frame.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from nilometer.wire.building import FIXED_SIZES, EntityShape, FieldShape, shape_of
from nilometer.wire.errors import MalformedMessage
from nilometer.wire.primitives import STRING_BYTES_MAX, decode_unsigned, encode_unsigned, tagged_bounds

Cut = tuple[int, int, bytes]
"""(start, stop, replacement): bytes ``[start, stop)`` are to be replaced."""

Survey = Callable[[bytes, int, int, list[Cut]], int]
"""A surveyor: (buffer, position, end, cuts) → position after the element. Adds to ``cuts``. Raises
MalformedMessage, or IndexError at the end of the buffer; the caller must check for a result above ``end``."""

SurveyItems = Callable[[bytes, int, int, list[Cut], int], int]
"""The same for several elements: (buffer, position, end, cuts, count) → position after them."""

_NUMBER_BYTES = 8
_TIME, _DURATION = "datetime_i64", "timedelta_i64"
TIME_MAX_MS = 253_402_300_799_000
"""The last second of the year 9999."""
DURATION_MAX_MS = (2**63 - 1) // 1000
"""The longest duration that kio's reader accepts, in both directions: it counts microseconds in 64 bits."""


def survey(entity: type[Any], buffer: bytes, position: int) -> bytes | None:
    """Check that ``entity`` can safely be read from ``buffer`` at ``position``. Raises MalformedMessage.

    Returns None if the buffer can be read unchanged, else a copy from ``position`` on without the tagged
    fields that are not in the schema, and without numbers that no value can have.
    """
    end = len(buffer)
    cuts: list[Cut] = []
    try:
        stop = surveyor(entity)(buffer, position, end, cuts)
    except IndexError:
        stop = end + 1
    if stop > end:
        raise MalformedMessage(f"{entity.__name__} exceeds its {end - position} bytes")
    return apply_cuts(buffer, position, stop, cuts) if cuts else None


def skip_tagged_fields(buffer: bytes, position: int, end: int) -> int:
    """Return the position after a section of tagged fields. Raises MalformedMessage, IndexError."""
    return _survey_tags({}, buffer, position, end, [])


@functools.cache
def surveyor(entity: type[Any]) -> Survey:
    return _entity_surveyor(shape_of(entity))


def _entity_surveyor(shape: EntityShape) -> Survey:
    steps = _steps(shape)
    tagged = _tag_surveyors(shape)

    def survey_entity(buffer: bytes, position: int, end: int, cuts: list[Cut]) -> int:
        for step in steps:
            position = step(buffer, position, end, cuts)
        return position

    def survey_flexible(buffer: bytes, position: int, end: int, cuts: list[Cut]) -> int:
        for step in steps:
            position = step(buffer, position, end, cuts)
        if buffer[position] == 0:
            return position + 1
        return _survey_tags(tagged, buffer, position, end, cuts)

    return survey_flexible if shape.flexible else survey_entity


def _steps(shape: EntityShape) -> tuple[Survey, ...]:
    """Return one step for each run of adjacent fixed-size fields, and one for each other field."""
    steps: list[Survey] = []
    run = 0
    for field in shape.plain:
        if (size := _fixed_size(field)) is not None:
            run += size
            continue
        if run:
            steps.append(_skip(run))
            run = 0
        steps.append(field_surveyor(field, flexible=shape.flexible))
    if run:
        steps.append(_skip(run))
    return tuple(steps)


def _fixed_size(field: FieldShape) -> int | None:
    """Return the size in bytes of a field whose value is not surveyed; None for any other field."""
    if field.is_array or field.entity is not None or _is_time(field) or field.kafka_type == _DURATION:
        return None
    return FIXED_SIZES.get(field.kafka_type)


def _is_time(field: FieldShape) -> bool:
    return field.kafka_type == _TIME and not field.nullable


def _skip(size: int) -> Survey:
    def skip(buffer: bytes, position: int, end: int, cuts: list[Cut]) -> int:
        return position + size

    return skip


def field_surveyor(field: FieldShape, *, flexible: bool) -> Survey:
    """Return the surveyor of one field's value."""
    if field.is_array:
        return _array_surveyor(field, flexible=flexible)
    if field.entity is not None:
        inner = surveyor(field.entity)
        return _nullable_surveyor(inner) if field.nullable and field.tag is None else inner
    if _is_time(field):
        return _survey_time
    if field.kafka_type == _DURATION:
        return _survey_duration
    if (size := FIXED_SIZES.get(field.kafka_type)) is not None:
        return _skip(size)
    if field.kafka_type == "string":
        return _survey_compact_string if flexible else _survey_string
    return _survey_compact_bytes if flexible else _survey_bytes


def _array_surveyor(field: FieldShape, *, flexible: bool) -> Survey:
    read_count = count_reader(field, flexible=flexible)
    item_min = _size_min(field, flexible=flexible)
    survey_items = _items_surveyor(field, item_min, flexible=flexible)

    def survey_array(buffer: bytes, position: int, end: int, cuts: list[Cut]) -> int:
        count, position = read_count(buffer, position, end)
        return survey_items(buffer, position, end, cuts, count) if count > 0 else position

    return survey_array


def count_reader(field: FieldShape, *, flexible: bool) -> Callable[[bytes, int, int], tuple[int, int]]:
    """Return what reads the number of an array's elements, -1 for null, and the position after it.

    It raises MalformedMessage if so many elements cannot be between there and the given end.
    """
    read = _compact_count if flexible else _count
    item_min = _size_min(field, flexible=flexible)

    def read_count(buffer: bytes, position: int, end: int) -> tuple[int, int]:
        count, position = read(buffer, position)
        if count < 0 and not field.nullable:
            raise MalformedMessage(f"{field.name} is null, but not nullable")
        if count * item_min > end - position:
            raise MalformedMessage(f"{count} elements of {field.name} in {end - position} bytes")
        return count, position

    return read_count


def _items_surveyor(field: FieldShape, item_min: int, *, flexible: bool) -> SurveyItems:
    if field.entity is None:
        if field.kafka_type in FIXED_SIZES:
            return lambda buffer, position, end, cuts, count: position + count * item_min
        item = field_surveyor(dataclasses.replace(field, is_array=False), flexible=flexible)
    else:
        shape = shape_of(field.entity)
        if all(_fixed_size(inner) is not None for inner in shape.plain):
            return _fixed_items_surveyor(shape, item_min)
        item = surveyor(field.entity)

    def survey_items(buffer: bytes, position: int, end: int, cuts: list[Cut], count: int) -> int:
        for _ in range(count):
            position = item(buffer, position, end, cuts)
        return position

    return survey_items


def _fixed_items_surveyor(shape: EntityShape, item_min: int) -> SurveyItems:
    """Return a surveyor for an array of entities that have a fixed size, apart from tagged fields."""
    if not shape.flexible:
        return lambda buffer, position, end, cuts, count: position + count * item_min
    tagged = _tag_surveyors(shape)
    size = item_min - 1

    def survey_fixed_items(buffer: bytes, position: int, end: int, cuts: list[Cut], count: int) -> int:
        for _ in range(count):
            position += size
            if buffer[position]:
                position = _survey_tags(tagged, buffer, position, end, cuts)
            else:
                position += 1
        return position

    return survey_fixed_items


def _tag_surveyors(shape: EntityShape) -> dict[int, Survey]:
    return {
        field.tag: field_surveyor(field, flexible=True) for field in shape.tagged if field.tag is not None
    }


def _size_min(field: FieldShape, *, flexible: bool) -> int:
    """Return the smallest size in bytes of one element of an array."""
    if field.entity is None:
        return FIXED_SIZES.get(field.kafka_type, 1 if flexible else 2)
    return _entity_size_min(shape_of(field.entity))


def _entity_size_min(shape: EntityShape) -> int:
    size = 1 if shape.flexible else 0
    for field in shape.plain:
        if field.is_array:
            size += 1 if shape.flexible else 4
        elif field.entity is not None:
            size += 1 if field.nullable else _entity_size_min(shape_of(field.entity))
        elif (fixed := FIXED_SIZES.get(field.kafka_type)) is not None:
            size += fixed
        else:
            size += 1 if shape.flexible else 2 if field.kafka_type == "string" else 4
    return size


def _count(buffer: bytes, position: int) -> tuple[int, int]:
    count = int.from_bytes(buffer[position : position + 4], "big", signed=True)
    if count < -1:
        raise MalformedMessage(f"invalid array length {count}")
    return count, position + 4


def _compact_count(buffer: bytes, position: int) -> tuple[int, int]:
    count = buffer[position]
    if count < 0x80:
        return count - 1, position + 1
    count, position = decode_unsigned(buffer, position)
    return count - 1, position


def _survey_time(buffer: bytes, position: int, end: int, cuts: list[Cut]) -> int:
    return _survey_number(buffer, position, 0, TIME_MAX_MS, cuts)


def _survey_duration(buffer: bytes, position: int, end: int, cuts: list[Cut]) -> int:
    return _survey_number(buffer, position, -DURATION_MAX_MS, DURATION_MAX_MS, cuts)


def _survey_number(buffer: bytes, position: int, low: int, high: int, cuts: list[Cut]) -> int:
    stop = position + _NUMBER_BYTES
    value = int.from_bytes(buffer[position:stop], "big", signed=True)
    if not low <= value <= high:
        nearest = low if value < low else high
        cuts.append((position, stop, nearest.to_bytes(_NUMBER_BYTES, "big", signed=True)))
    return stop


def _survey_compact_bytes(buffer: bytes, position: int, end: int, cuts: list[Cut]) -> int:
    size = buffer[position]
    if size < 0x80:
        return position + size + (not size)
    size, position = decode_unsigned(buffer, position)
    return position + max(size - 1, 0)


def _survey_compact_string(buffer: bytes, position: int, end: int, cuts: list[Cut]) -> int:
    size = buffer[position]
    if size < 0x80:
        return position + size + (not size)
    size, position = decode_unsigned(buffer, position)
    if size > STRING_BYTES_MAX + 1:
        raise MalformedMessage(f"a string of {size - 1} bytes; it may have {STRING_BYTES_MAX}")
    return position + max(size - 1, 0)


def _survey_string(buffer: bytes, position: int, end: int, cuts: list[Cut]) -> int:
    size = int.from_bytes(buffer[position : position + 2], "big", signed=True)
    if size < -1:
        raise MalformedMessage(f"invalid string length {size}")
    return position + 2 + max(size, 0)


def _survey_bytes(buffer: bytes, position: int, end: int, cuts: list[Cut]) -> int:
    size = int.from_bytes(buffer[position : position + 4], "big", signed=True)
    if size < -1:
        raise MalformedMessage(f"invalid bytes length {size}")
    return position + 4 + max(size, 0)


def _nullable_surveyor(inner: Survey) -> Survey:
    def survey_nullable(buffer: bytes, position: int, end: int, cuts: list[Cut]) -> int:
        if buffer[position] == _NULL_ENTITY:
            return position + 1
        return inner(buffer, position + 1, end, cuts)

    return survey_nullable


_NULL_ENTITY = 0xFF


def _survey_tags(tagged: dict[int, Survey], buffer: bytes, position: int, end: int, cuts: list[Cut]) -> int:
    """Check a section of tagged fields; cut it if it has unknown ones, also inside known ones."""
    fields, section_end = tagged_bounds(buffer, position, end)
    kept: list[bytes] = []
    changed = False
    for tag, start, stop in fields:
        if tag not in tagged:
            changed = True
        else:
            inner: list[Cut] = []
            if tagged[tag](buffer, start, stop, inner) != stop:
                raise MalformedMessage(f"tagged field {tag} does not fill its {stop - start} bytes")
            changed = changed or bool(inner)
            value = apply_cuts(buffer, start, stop, inner)
            kept.append(encode_unsigned(tag) + encode_unsigned(len(value)) + value)
    if changed:
        cuts.append((position, section_end, encode_unsigned(len(kept)) + b"".join(kept)))
    return section_end


def apply_cuts(buffer: bytes, position: int, stop: int, cuts: list[Cut]) -> bytes:
    """Return the bytes ``[position, stop)`` with their cuts replaced."""
    parts: list[bytes] = []
    for cut_start, cut_stop, replacement in cuts:
        parts += (buffer[position:cut_start], replacement)
        position = cut_stop
    parts.append(buffer[position:stop])
    return b"".join(parts)
