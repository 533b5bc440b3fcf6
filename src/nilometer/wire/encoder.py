"""Encoding messages according to their schemas.

A writer is composed once per message type: adjacent fields of fixed size become one ``struct`` call, every
other field one step, in the legacy or compact encoding. The output is a list of pieces, joined at the end, so
that record sets are copied only once.

A large message is encoded in slices (:func:`encode_slices`): once a slice has ``PIECES_MAX`` pieces, each
array that is being written leaves a :class:`_Rest` in the list, in place of its other elements, which the
next slice goes on with. The elements of an array may be a :class:`LazySequence`, which makes each when it is
encoded.

Invariant: the bytes are the same as those of kio's own (slower) writer, but for texts that say what is wrong
and are longer than a string may be: they are cut, since no client could read a message with one.
"""

from __future__ import annotations

import functools
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Generic, TypeVar, overload
from uuid import UUID

from nilometer.wire.building import (
    EntityShape,
    FieldShape,
    implicit_default,
    milliseconds,
    milliseconds_since_epoch,
    shape_of,
)
from nilometer.wire.primitives import NULL_UUID, STRING_BYTES_MAX, encode_unsigned, unsigned

S = TypeVar("S")
T = TypeVar("T")

Pieces = list[Any]
"""Bytes, and in those of an unfinished slice objects of type :class:`_Rest`."""
Write = Callable[[Pieces, Any], None]
"""``write(pieces, value)`` appends the encoding of ``value`` to ``pieces``."""

PIECES_MAX = 1024
"""About how many pieces one slice of a message has: those of some hundred elements, or of a thousand small
ones that are made meanwhile, in a millisecond or two."""
SLICE_BYTES = 256 * 1024
FEW = 16
"""Arrays of so many elements are not divided."""
_TEXTS = ("message", "detail")
"""The last words of the names of fields that say what is wrong, and may quote what clients have sent."""
_CUT = "…"

_FORMATS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "error_code": "h",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float64": "d",
}
_PADDING = "x"
"""A zero byte: an empty section of tagged fields."""


class LazySequence(Sequence[T], Generic[S, T]):
    """The elements of an array that are made from ``items`` one by one, when they are encoded."""

    __slots__ = ("_items", "_make")

    def __init__(self, make: Callable[[S], T], items: Sequence[S]) -> None:
        self._make, self._items = make, items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return LazySequence(self._make, self._items[index])
        return self._make(self._items[index])

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._items)


class EncodedItems:
    """The elements of an array in their encoded form. It may be the value of an array in a message."""

    __slots__ = ("_joined", "_recent", "_recent_bytes", "count")

    def __init__(self) -> None:
        self.count = 0
        """How many elements the pieces are."""
        self._joined: list[bytes] = []
        self._recent: list[bytes] = []
        self._recent_bytes = 0

    def append(self, piece: bytes) -> None:
        """Append a part of an element. Small ones are joined, so that there are few to walk over."""
        self._recent.append(piece)
        self._recent_bytes += len(piece)
        if len(self._recent) >= PIECES_MAX or self._recent_bytes >= SLICE_BYTES:
            self._join()

    def pieces(self) -> Sequence[bytes]:
        self._join()
        return self._joined

    def _join(self) -> None:
        self._joined.append(b"".join(self._recent))
        self._recent.clear()
        self._recent_bytes = 0


class _Rest:
    """The elements of an array from ``position`` on, which a later slice encodes."""

    __slots__ = ("_item", "_position", "_values")

    def __init__(self, item: Write, values: Sequence[Any], position: int) -> None:
        self._item, self._values, self._position = item, values, position

    def write(self, pieces: Pieces) -> None:
        _write_items(pieces, self._item, self._values, self._position)


def _write_items(pieces: Pieces, item: Write, values: Sequence[Any], start: int) -> None:
    for position in range(start, len(values)):
        if len(pieces) >= PIECES_MAX:
            pieces.append(_Rest(item, values, position))
            return
        item(pieces, values[position])


def encode_slices(write: Write, message: Any) -> Iterator[bytes]:
    """Yield the encoding of ``message`` in parts, each after a bounded amount of work."""
    pieces: Pieces = []
    write(pieces, message)
    if len(pieces) < PIECES_MAX:
        yield b"".join(pieces)
        return
    left: deque[Any] = deque(pieces)
    while left:
        if isinstance(left[0], _Rest):
            pieces = []
            left.popleft().write(pieces)
            left.extendleft(reversed(pieces))
        ready: list[bytes] = []
        size = 0
        while left and not isinstance(left[0], _Rest) and size < SLICE_BYTES:
            ready.append(left.popleft())
            size += len(ready[-1])
        yield b"".join(ready)


@functools.cache
def writer(entity: type[Any]) -> Write:
    shape = shape_of(entity)
    steps = _steps(shape)
    if len(steps) == 1:
        return steps[0]

    def write_entity(pieces: Pieces, value: Any) -> None:
        for step in steps:
            step(pieces, value)

    return write_entity


def _steps(shape: EntityShape) -> tuple[Write, ...]:
    steps: list[Write] = []
    run: list[FieldShape] = []
    for field in shape.plain:
        if not field.is_array and field.kafka_type in _FORMATS:
            run.append(field)
            continue
        if run:
            steps.append(_run_writer(run))
            run = []
        steps.append(_field_writer(field, flexible=shape.flexible))
    ends_without_tags = shape.flexible and not shape.tagged
    if run or ends_without_tags:
        steps.append(_run_writer(run, padded=ends_without_tags))
    if shape.tagged:
        steps.append(_tags_writer(shape.tagged))
    return tuple(steps)


def _run_writer(fields: Sequence[FieldShape], *, padded: bool = False) -> Write:
    """Return a writer for adjacent fields of fixed size; ``padded`` adds an empty tagged fields section."""
    formats = ">" + "".join(_FORMATS[field.kafka_type] for field in fields) + (_PADDING if padded else "")
    pack = struct.Struct(formats).pack
    if not fields:
        constant = pack()
        return lambda pieces, value: pieces.append(constant)
    get = attrgetter(*(field.name for field in fields))
    if len(fields) == 1:
        return lambda pieces, value: pieces.append(pack(get(value)))
    return lambda pieces, value: pieces.append(pack(*get(value)))


def _field_writer(field: FieldShape, *, flexible: bool) -> Write:
    get = attrgetter(field.name)
    write = _value_writer(field, flexible=flexible)
    return lambda pieces, value: write(pieces, get(value))


def _value_writer(field: FieldShape, *, flexible: bool) -> Write:
    if field.is_array:
        return _array_writer(field, flexible=flexible)
    if field.entity is not None:
        inner = writer(field.entity)
        return _nullable_writer(inner) if field.nullable and field.tag is None else inner
    if field.kafka_type in _FORMATS:
        pack = struct.Struct(">" + _FORMATS[field.kafka_type]).pack
        return lambda pieces, value: pieces.append(pack(value))
    if field.kafka_type in ("string", "bytes", "records"):
        is_string = field.kafka_type == "string"
        write = _blob_writer(is_string, flexible=flexible, nullable=field.nullable)
        return _text_writer(write) if is_string and field.name.endswith(_TEXTS) else write
    return _OTHERS[field.kafka_type]


def _text_writer(write: Write) -> Write:
    return lambda pieces, value: write(pieces, value and _cut(value))


def _cut(text: str) -> str:
    """Return the text, or the beginning of one that is longer than a string may be."""
    if 4 * len(text) <= STRING_BYTES_MAX or len(data := text.encode()) <= STRING_BYTES_MAX:
        return text
    return data[: STRING_BYTES_MAX - len(_CUT.encode())].decode(errors="ignore") + _CUT


def _blob_writer(is_string: bool, *, flexible: bool, nullable: bool) -> Write:
    def write_compact(pieces: Pieces, value: Any) -> None:
        if value is None:
            _check_nullable(nullable)
            pieces.append(b"\x00")
            return
        data: bytes = value.encode() if is_string else value
        pieces.append(unsigned(len(data) + 1))
        pieces.append(data)

    size_bytes = 2 if is_string else 4

    def write_legacy(pieces: Pieces, value: Any) -> None:
        if value is None:
            _check_nullable(nullable)
            pieces.append(b"\xff" * size_bytes)
            return
        data: bytes = value.encode() if is_string else value
        pieces.append(len(data).to_bytes(size_bytes, "big", signed=True))
        pieces.append(data)

    return write_compact if flexible else write_legacy


def _check_nullable(nullable: bool) -> None:
    if not nullable:
        raise TypeError("None for a field that cannot be null")


def item_writer(field: FieldShape, *, flexible: bool) -> Write:
    """Return the writer of one element of an array."""
    if field.entity is not None:
        return writer(field.entity)
    if field.kafka_type in _OTHERS:
        return _OTHERS[field.kafka_type]
    return _blob_writer(field.kafka_type == "string", flexible=flexible, nullable=field.nullable)


def _write_encoded(pieces: Pieces, items: EncodedItems, *, flexible: bool) -> None:
    pieces.append(unsigned(items.count + 1) if flexible else items.count.to_bytes(4, "big"))
    pieces += items.pieces()


def _array_writer(field: FieldShape, *, flexible: bool) -> Write:
    if field.entity is None and field.kafka_type in _FORMATS:
        return _numbers_writer(_FORMATS[field.kafka_type], flexible=flexible)
    item = item_writer(field, flexible=flexible)

    def write_array(pieces: Pieces, values: Sequence[Any] | EncodedItems | None) -> None:
        if values is None:
            pieces.append(b"\x00" if flexible else b"\xff\xff\xff\xff")
            return
        if isinstance(values, EncodedItems):
            _write_encoded(pieces, values, flexible=flexible)
            return
        count = len(values)
        pieces.append(unsigned(count + 1) if flexible else count.to_bytes(4, "big"))
        if count <= FEW and len(pieces) < PIECES_MAX:
            for value in values:
                item(pieces, value)
        else:
            _write_items(pieces, item, values, 0)

    return write_array


def _numbers_writer(letter: str, *, flexible: bool) -> Write:
    """Return a writer for arrays of numbers, with one ``struct`` call; those for short arrays are cached."""
    packers = [struct.Struct(f">{count}{letter}").pack for count in range(16)]

    def write_numbers(pieces: Pieces, values: Sequence[Any] | None) -> None:
        if values is None:
            pieces.append(b"\x00" if flexible else b"\xff\xff\xff\xff")
            return
        count = len(values)
        pieces.append(unsigned(count + 1) if flexible else count.to_bytes(4, "big"))
        if count < 16:
            pieces.append(packers[count](*values))
        else:
            pieces.append(struct.pack(f">{count}{letter}", *values))

    return write_numbers


def _nullable_writer(inner: Write) -> Write:
    def write_nullable(pieces: Pieces, value: Any) -> None:
        if value is None:
            pieces.append(b"\xff")
            return
        pieces.append(b"\x01")
        inner(pieces, value)

    return write_nullable


def _tags_writer(tagged: Sequence[FieldShape]) -> Write:
    """Return a writer for tagged fields: those not equal to their default, each with its tag and size."""
    plans = [
        (
            encode_unsigned(field.tag or 0),
            attrgetter(field.name),
            field.default if field.has_default else implicit_default(field),
            _value_writer(field, flexible=True),
        )
        for field in tagged
    ]

    def write_tags(pieces: Pieces, entity: Any) -> None:
        present: Pieces = []
        count = 0
        for tag, get, default, write in plans:
            value = get(entity)
            if value is default or value == default:
                continue
            encoded = b"".join(encode_slices(write, value))
            present += (tag, unsigned(len(encoded)), encoded)
            count += 1
        pieces.append(unsigned(count))
        pieces += present

    return write_tags


def _write_uuid(pieces: Pieces, value: UUID | None) -> None:
    pieces.append(NULL_UUID if value is None else value.bytes)


def _write_duration_32(pieces: Pieces, value: timedelta) -> None:
    pieces.append(milliseconds(value).to_bytes(4, "big", signed=True))


def _write_duration_64(pieces: Pieces, value: timedelta) -> None:
    pieces.append(milliseconds(value).to_bytes(8, "big", signed=True))


def _write_time(pieces: Pieces, value: datetime | None) -> None:
    number = -1 if value is None else milliseconds_since_epoch(value)
    pieces.append(number.to_bytes(8, "big", signed=True))


_OTHERS: dict[str, Write] = {
    "uuid": _write_uuid,
    "timedelta_i32": _write_duration_32,
    "timedelta_i64": _write_duration_64,
    "datetime_i64": _write_time,
}
