"""Large requests: decoded in slices, divided into parts that are handled one after another, answered as one.

The elements of most requests are independent of each other: the groups of DescribeGroups, the partitions of
ListOffsets. Such a request is divided along a *path*, the names of its nested arrays from the outside to the
inside, and the responses to its parts are merged along the path of the response. The result is the response
that the whole request would have got, but no part takes long.

Invariant: a slice and a part have a bounded number of elements, whatever the request's nesting.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast
from uuid import UUID

from kio.serial import entity_reader, readers

from nilometer.wire.body_reader import ELEMENTS_MAX, SLICE_ELEMENTS
from nilometer.wire.building import EntityShape, FieldShape, Message, shape_of
from nilometer.wire.encoder import EncodedItems, encode_slices, item_writer
from nilometer.wire.errors import MalformedMessage, MalformedRequest
from nilometer.wire.messages import as_malformed
from nilometer.wire.survey import apply_cuts, count_reader, field_surveyor, skip_tagged_fields, surveyor

Path = tuple[str, ...]
Slices = Generator[int, None, tuple[Any, int]]
"""Yields how many elements were decoded since the last step; returns a value and the position after it."""
Read = Callable[[bytes, int], tuple[Any, int]]
"""Checks and reads what begins at a position; returns it and the position after it."""


class Repeated(enum.Enum):
    """What becomes of an element that a request names again."""

    EACH_TIME = enum.auto()
    """It is handled each time: it is a change, or has other fields."""
    AT_MOST_TWICE = enum.auto()
    """It is answered again, as Kafka does, but no further time."""
    TOGETHER = enum.auto()
    """Its repetition is an error, which the handler finds: two of the same key go into the same part, and
    further ones are left out."""


PART_ELEMENTS = 64


class Division(NamedTuple):
    """How a request is divided, and how the responses to its parts are merged."""

    request: Path
    response: Path
    repeated: Repeated = Repeated.EACH_TIME
    key: tuple[str, ...] = ()
    """The fields of an innermost element that say what it is about; the whole element if there are none."""
    elements_max: int = PART_ELEMENTS
    """A part has at most so many elements, long names counted as several, or one more. Most cost some
    microseconds, some ten."""


# --- decoding


def decode_in_slices(
    request_type: type[Any], buffer: bytes, position: int, path: Path = (), whole_max: int = ELEMENTS_MAX
) -> Generator[int, None, Message]:
    """Decode a request's body slice by slice; the generator returns the message. Raises MalformedRequest.

    The arrays on ``path`` are lists, from which :func:`divide` removes what it has divided: to free hundreds
    of thousands of objects at once takes long, too. What is handled as a whole, the request or, with a path,
    one of its innermost elements, is malformed with more than ``whole_max`` elements in all its arrays.
    """
    try:
        counted = _Counted(whole_max)
        message, _ = yield from _read_entity(request_type, buffer, position, counted, path)
        return message
    except BaseException as error:
        raise as_malformed(error, MalformedRequest, request_type) from error


class _Counted:
    """Counts elements: of a request, of what is handled as a whole, and since the last step."""

    __slots__ = ("_whole_max", "since", "total", "whole")

    def __init__(self, whole_max: int) -> None:
        self._whole_max = whole_max
        self.total = self.whole = self.since = 0

    def add(self, count: int, path: Path) -> None:
        """``path``: the rest of the path, if the array is on it."""
        self.total += count
        if not path:
            self.whole += count
        if self.total > ELEMENTS_MAX or self.whole > self._whole_max:
            limit = self._whole_max if self.whole > self._whole_max else ELEMENTS_MAX
            raise MalformedMessage(f"more than {limit} elements in one request, or in an element of it")


class _Step(NamedTuple):
    """How one field is decoded."""

    name: str
    read: Read
    """Reads the value, or one element of an array."""
    read_count: Callable[[bytes, int, int], tuple[int, int]] | None
    """Reads the number of an array's elements."""
    nested: type[Any] | None
    """The type of an array's elements if they have arrays: they are decoded field by field."""


@functools.cache
def _steps(entity: type[Any]) -> tuple[_Step, ...]:
    shape = shape_of(entity)
    return tuple(_step(field, flexible=shape.flexible) for field in shape.plain)


def _step(field: FieldShape, *, flexible: bool) -> _Step:
    if not field.is_array:
        return _Step(field.name, _reader(field, flexible=flexible), None, None)
    nested = field.entity if field.entity is not None and _is_divisible(shape_of(field.entity)) else None
    read = _reader(dataclasses.replace(field, is_array=False), flexible=flexible, is_item=True)
    return _Step(field.name, read, count_reader(field, flexible=flexible), nested)


def _read_entity(entity: type[Any], buffer: bytes, position: int, counted: _Counted, path: Path) -> Slices:
    values: dict[str, Any] = {}
    for step in _steps(entity):
        if step.read_count is None:
            values[step.name], position = step.read(buffer, position)
        else:
            on_path = path if path and step.name == path[0] else ()
            values[step.name], position = yield from _read_array(step, buffer, position, counted, on_path)
    if entity.__flexible__:
        position = skip_tagged_fields(buffer, position, len(buffer))
        if position > len(buffer):
            raise MalformedMessage("the tagged fields exceed the request")
    return entity(**values), position


def _read_array(step: _Step, buffer: bytes, position: int, counted: _Counted, path: Path) -> Slices:
    assert step.read_count is not None
    count, position = step.read_count(buffer, position, len(buffer))
    if count < 0:
        return None, position
    counted.add(count, path)
    read, nested = step.read, step.nested
    items: list[Any] = []
    for _ in range(count):
        if path:
            counted.whole = 0
        if nested is None:
            item, position = read(buffer, position)
        else:
            item, position = yield from _read_entity(nested, buffer, position, counted, path[1:])
        items.append(item)
        counted.since += 1
        if counted.since >= SLICE_ELEMENTS:
            done, counted.since = counted.since, 0
            yield done
    return items if path else tuple(items), position


def _is_divisible(shape: EntityShape) -> bool:
    """Whether an entity has arrays, and no known tagged fields, which are read with the entity as a whole."""
    return any(field.is_array for field in shape.plain) and not shape.tagged


def can_decode_in_slices(request_type: type[Any]) -> bool:
    return dataclasses.is_dataclass(request_type) and not shape_of(request_type).tagged


def _reader(field: FieldShape, *, flexible: bool, is_item: bool = False) -> Read:
    """Return what checks and reads one value that is no array."""
    if field.entity is not None and is_item:
        survey, read = surveyor(field.entity), entity_reader(field.entity)
    else:
        survey = field_surveyor(field, flexible=flexible)
        if field.entity is not None:
            read = entity_reader(field.entity, field.nullable)
        else:
            read = _value_reader(field, flexible=flexible, nullable=field.nullable and not is_item)

    def read_checked(buffer: bytes, position: int) -> tuple[Any, int]:
        cuts: list[Any] = []
        stop = survey(buffer, position, len(buffer), cuts)
        if stop > len(buffer):
            raise MalformedMessage(f"{field.name} exceeds the request")
        if cuts:
            return read(apply_cuts(buffer, position, stop, cuts), 0)[0], stop
        return read(buffer, position)[0], stop

    return read_checked


def _value_reader(field: FieldShape, *, flexible: bool, nullable: bool) -> Callable[[bytes, int], Any]:
    """Return kio's reader of a value that is neither an array nor an entity."""
    kind = field.kafka_type
    if kind in ("string", "bytes", "records"):
        return _BLOB_READERS[kind == "string", flexible, nullable]
    if kind == "bool":
        return readers.read_boolean
    if kind == "datetime_i64" and nullable:
        return readers.read_nullable_datetime_i64
    return getattr(readers, f"read_{kind}")


_BLOB_READERS: dict[tuple[bool, bool, bool], Callable[[bytes, int], Any]] = {
    (True, True, True): readers.read_compact_string_nullable,
    (True, True, False): readers.read_compact_string,
    (True, False, True): readers.read_nullable_legacy_string,
    (True, False, False): readers.read_legacy_string,
    (False, True, True): readers.read_compact_string_as_bytes_nullable,
    (False, True, False): readers.read_compact_string_as_bytes,
    (False, False, True): readers.read_nullable_legacy_bytes,
    (False, False, False): readers.read_legacy_bytes,
}
"""By (is it a string, is the message flexible, may it be null)."""


# --- dividing and merging


def division_for(divisions: Sequence[Division], request_type: type[Any]) -> Division | None:
    """Return the first division whose path this version of the request has."""
    return next((one for one in divisions if _has(request_type, one.request)), None)


@functools.cache
def _has(entity: type[Any], path: Path) -> bool:
    for field in shape_of(entity).fields:
        if field.name == path[0] and field.is_array:
            return len(path) == 1 or (field.entity is not None and _has(field.entity, path[1:]))
    return False


def has_more_than(message: Message, path: Path, count: int) -> bool:
    """Return whether the innermost arrays of the path have more elements. One that has none counts as one;
    null, which asks for all that there is, as a part."""
    return _left(message, path, count) < 0


def _left(message: Message, path: Path, count: int) -> int:
    items: Sequence[Any] | None = getattr(message, path[0])
    inner = path[1:]
    if items is None:
        return count - PART_ELEMENTS
    if not inner or not items:
        return count - max(1, len(items))
    for item in items:
        if (count := _left(item, inner, count)) < 0:
            break
    return count


ENTITY_BYTES = 128
"""About what the values of an entity take, its texts and bytes apart."""


def is_larger_than(message: Message, size: int) -> bool:
    """Return whether the texts and bytes of a message take more than ``size`` bytes, with ``ENTITY_BYTES``
    for each entity.

    A walk that ends as soon as that is known; arrays of numbers are not walked.
    """
    left: list[Any] = [message]
    while left and size >= 0:
        value = left.pop()
        if isinstance(value, str | bytes):
            size -= len(value)
        elif isinstance(value, tuple):
            items = cast("tuple[Any, ...]", value)
            if items and not isinstance(items[0], int):
                left += items
        elif names := _field_names(type(value)):
            size -= ENTITY_BYTES
            left += [each for name in names if not isinstance(each := getattr(value, name), int)]
    return size < 0


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of an entity's fields; none of another value."""
    return tuple(one.name for one in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


REPETITIONS_KEPT = 2
"""How often an element is answered whose repetitions are left out or are an error."""


def has_repetitions(message: Message, path: Path) -> bool:
    """Return whether an innermost element, or what it is part of, is named more than twice."""
    items: Sequence[Any] = getattr(message, path[0]) or ()
    inner = path[1:]
    keys = [_identity(item, inner[0]) if inner else _key_of(item) for item in items]
    if len(keys) > REPETITIONS_KEPT and max(Counter(keys).values()) > REPETITIONS_KEPT:
        return True
    return any(has_repetitions(item, inner) for item in items) if inner else False


Part = tuple[Message | None, int]
"""A part of a message and the number of its elements; or None after that number was walked over in vain."""


def divide(message: Message, division: Division) -> Iterator[Part]:
    """Yield the parts of a message."""
    divider = _Divider(division)
    yield from divider.divide(message, division.request, ())
    yield from divider.end()


class _Divider:
    def __init__(self, division: Division) -> None:
        self._elements_max = division.elements_max
        self._repeated = division.repeated
        self._key = division.key
        self._known: dict[Any, int] = {}
        """How often an element was named."""

    def divide(self, message: Message, path: Path, within: tuple[Any, ...]) -> Iterator[Part]:
        """``within``: what the message is part of."""
        name, inner = path[0], path[1:]
        items: list[Any] | tuple[Any, ...] | None = getattr(message, name)
        batch: list[Any] = []
        weight = 0
        for part, part_weight in self._parts(_consumed(items or ()), inner, within):
            if not part:
                yield None, part_weight
                continue
            if batch and weight + part_weight > self._elements_max:
                yield dataclasses.replace(message, **{name: tuple(batch)}), weight
                batch, weight = [], 0
            batch += part
            weight += part_weight
        if batch:
            yield dataclasses.replace(message, **{name: tuple(batch)}), weight
        elif not items:
            yield message, 1

    def end(self) -> Iterator[Part]:
        """Give up what is known, slice by slice."""
        while self._known:
            for _ in range(min(SLICE_ELEMENTS, len(self._known))):
                self._known.popitem()
            yield None, SLICE_ELEMENTS

    def _parts(
        self, items: Iterable[Any], inner: Path, within: tuple[Any, ...]
    ) -> Iterator[tuple[Sequence[Any], int]]:
        """Yield what may not be divided further, and how many elements it has; or nothing, and how many
        elements were walked over."""
        if not inner:
            yield from self._groups(items, within)
            return
        before: Any = None
        for item in items:
            if getattr(item, inner[0]) is None:  # all of them: a part of its own, with its repetition
                for part, weight in self._groups((item,), within):
                    is_repetition = self._repeated is Repeated.AT_MOST_TWICE and item == before
                    yield part, 0 if is_repetition else max(weight, self._elements_max)
                before = item
                continue
            for part, weight in self.divide(item, inner, (*within, *_identity(item, inner[0]))):
                yield () if part is None else (part,), weight

    def _groups(self, items: Iterable[Any], within: tuple[Any, ...]) -> Iterator[tuple[Sequence[Any], int]]:
        """Yield the elements that belong together, without repetitions that are left out."""
        if self._repeated is Repeated.EACH_TIME:
            yield from (((item,), _weight(item)) for item in items)
        elif self._repeated is Repeated.AT_MOST_TWICE:
            yield from self._without_repetitions(items, within)
        else:
            yield from self._pairs(items)

    def _without_repetitions(
        self, items: Iterable[Any], within: tuple[Any, ...]
    ) -> Iterator[tuple[Sequence[Any], int]]:
        left_out = 0
        for item in items:
            key = (within, _key_of(item))
            times = self._known[key] = self._known.get(key, 0) + 1
            if times <= REPETITIONS_KEPT:
                yield (item,), _weight(item)
            elif (left_out := left_out + 1) % SLICE_ELEMENTS == 0:
                yield (), SLICE_ELEMENTS

    def _pairs(self, items: Iterable[Any]) -> Iterator[tuple[Sequence[Any], int]]:
        same: dict[Any, list[Any]] = {}
        for number, item in enumerate(items, 1):
            key = tuple(_hashed(getattr(item, name)) for name in self._key) if self._key else _key_of(item)
            if len(group := same.setdefault(key, [])) < REPETITIONS_KEPT:
                group.append(item)
            if number % SLICE_ELEMENTS == 0:
                yield (), SLICE_ELEMENTS
        keys = list(same)
        keys.reverse()
        while keys:  # all of them are not freed at once
            group = same.pop(keys.pop())
            yield group, sum(map(_weight, group))


CHARACTERS_OF_AN_ELEMENT = 512
"""So much text counts as one more element: names are hashed and compared character by character."""


def _weight(item: Any) -> int:
    """Return as how many elements one counts, by the length of the strings in it."""
    if isinstance(item, str):
        return 1 + len(item) // CHARACTERS_OF_AN_ELEMENT
    if isinstance(item, int):
        return 1
    texts = (getattr(item, name) for name in _string_names(cast(Any, type(item))))
    return 1 + sum(len(text) for text in texts if text) // CHARACTERS_OF_AN_ELEMENT


@functools.cache
def _string_names(entity: type[Any]) -> tuple[str, ...]:
    return tuple(f.name for f in shape_of(entity).fields if f.kafka_type == "string" and not f.is_array)


def _consumed(items: list[Any] | tuple[Any, ...]) -> Iterator[Any]:
    """Yield the elements; a list gives each up before the next one is taken."""
    if isinstance(items, tuple):
        yield from items
        return
    for position, item in enumerate(items):
        items[position] = None
        yield item


def _identity(entity: Message, nested: str) -> tuple[Any, ...]:
    """Return the fields of an entity but for its nested array: what it is about."""
    names = _names(cast(Any, type(entity)))
    return tuple(_hashed(getattr(entity, name)) for name in names if name != nested)


def _key_of(item: Any) -> Any:
    """Return what an element is known by."""
    if not dataclasses.is_dataclass(item):
        return _hashed(item)
    return tuple(_hashed(getattr(item, name)) for name in _names(cast(Any, type(item))))


def _hashed(value: Any) -> Any:
    """Return a value of a field as a part of a key: of an id its bytes, whose hash a client cannot choose."""
    return value.bytes if isinstance(value, UUID) else value


@functools.cache
def _names(entity: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in shape_of(entity).fields)


class Merged:
    """The response that is merged from those to the parts of a request.

    The elements of its arrays are kept in their encoded form, but for the last one of each array on the path,
    with which the response to the next part may go on.
    """

    def __init__(self, response_type: type[Any], path: Path) -> None:
        self._first: Message | None = None
        self._path = path
        self._root = _MergedArray(response_type, path)

    def add(self, response: Message) -> Iterator[int]:
        """Add the response to a part; yields after each bounded step how many bytes that has encoded."""
        first = self._first
        if first is None or (getattr(response, "error_code", 0) and not getattr(first, "error_code", 0)):
            self._first = response
        return self._root.add(getattr(response, self._path[0]) or ())

    def message(self) -> Message:
        assert self._first is not None, "a request has at least one part"
        return dataclasses.replace(self._first, **{self._path[0]: self._root.finish()})


class _MergedArray:
    """One array on the path."""

    def __init__(self, entity: type[Any], path: Path) -> None:
        shape = shape_of(entity)
        field = next(field for field in shape.fields if field.name == path[0])
        self._write = item_writer(field, flexible=shape.flexible)
        self._entity = field.entity
        self._inner = path[1:]
        self._items = EncodedItems()
        self._last: tuple[Message, tuple[Any, ...], _MergedArray] | None = None
        """With further arrays on the path: the last element, its identity and its array."""

    def add(self, items: Sequence[Any]) -> Iterator[int]:
        """Add what the response to the next part has: its first element may go on with the last one."""
        for position, item in enumerate(items):
            if not self._inner or getattr(item, self._inner[0]) is None:
                self._end_last()
                yield from self._encode(item)
                continue
            identity = _identity(item, self._inner[0])
            if position or self._last is None or self._last[1] != identity:
                self._end_last()
                assert self._entity is not None, "only entities have nested arrays"
                self._last = item, identity, _MergedArray(self._entity, self._inner)
            yield from self._last[2].add(getattr(item, self._inner[0]))

    def _encode(self, item: Any) -> Iterator[int]:
        self._items.count += 1
        for piece in encode_slices(self._write, item):
            self._items.append(piece)
            yield len(piece)

    def _end_last(self) -> None:
        """Encode the last element: what is nested in it is encoded already."""
        if self._last is not None:
            item, _, array = self._last
            self._last = None
            whole = dataclasses.replace(item, **{self._inner[0]: array.finish()})
            self._items.count += 1
            for piece in encode_slices(self._write, whole):
                self._items.append(piece)

    def finish(self) -> EncodedItems:
        self._end_last()
        return self._items
