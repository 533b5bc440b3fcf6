"""Records as people read them: keys and values as JSON, text or hex, internal topics decoded; and the
condition on a JSON value by which they are searched. Pure.
"""

from __future__ import annotations

import enum
import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

import msgspec

from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.cluster.states import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from nilometer.groups import records as group_format
from nilometer.schema_registry.decoding import Decoded, NotDecoded
from nilometer.storage.names import TopicPartition
from nilometer.transactions import records as transaction_format
from nilometer.transactions.transaction import PartitionSet
from nilometer.wire.errors import MalformedMessage

# A condition on a record's JSON value: a path, and what is found there must be. Pure.
#
#     $.user.id                 something is there, also null
#     $.user.id == 7            numbers, strings, true, false, null; also !=, <, <=, >, >=
#     $.tags[*] == "new"        any element; [0] is the first one, [-1] the last one
#     $.text ~ late             the text contains "late"; a text needs no quotes
#     $['a name'].b             a name with other characters
#
# A number is compared with numbers only, a text with texts. A value that is not JSON matches nothing.

PATH_MAX = 500
"""A condition with more characters is refused."""
STEPS_MAX = 32

_STEP = re.compile(
    r"""\.?(?P<name>[\w-]+) | \[(?P<index>-?[0-9]{1,9})\] | (?P<any>\.?\* | \[\*\])
        | \[(?P<quoted>'[^']*' | "[^"]*")\]""",
    re.VERBOSE,
)
_OPERATOR = re.compile(r"\s*(==|!=|<=|>=|<|>|=|~)\s*")
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class BadFilter(Exception):
    """The condition cannot be understood; the message says where."""


class _AnyElement(msgspec.Struct, frozen=True):
    pass


_Step = str | int | _AnyElement
_ANY = _AnyElement()


class JsonFilter(msgspec.Struct, frozen=True):
    steps: tuple[_Step, ...]
    operator: str | None
    """None: it is enough that something is there."""
    operand: Any = None

    def matches(self, value: bytes | None) -> bool:
        if value is None:
            return False
        try:
            document: Any = msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        found = _found(document, self.steps)
        if self.operator is None:
            return any(True for _ in found)
        return any(_compares(one, self.operator, self.operand) for one in found)


def json_filter(text: str) -> JsonFilter:
    """Return the condition that ``text`` describes. Raises BadFilter."""
    if len(text) > PATH_MAX:
        raise BadFilter(f"The condition has more than {PATH_MAX} characters.")
    text = text.strip()
    steps, position = _steps(text)
    found = _OPERATOR.match(text, position)
    if found is None:
        if position < len(text):
            rest = text[position:]
            raise BadFilter(f"The path is not understood from {rest!r} on: it is as in $.user.id == 7.")
        return JsonFilter(steps, None)
    sign, operand = found[1].replace("==", "="), text[found.end() :]
    if not operand:
        raise BadFilter(f"There is nothing to compare with after {found[1]}.")
    return JsonFilter(steps, sign, operand if sign == "~" else _operand(operand))


def _steps(text: str) -> tuple[tuple[_Step, ...], int]:
    """Return the steps of the path that ``text`` begins with, and where the path ends."""
    position = 1 if text.startswith("$") else 0
    steps: list[_Step] = []
    while (found := _STEP.match(text, position)) is not None:
        steps.append(_step(found))
        position = found.end()
    if not steps and not text.startswith("$"):
        raise BadFilter("A path is as in $.user.id, or $ for the whole value.")
    if len(steps) > STEPS_MAX:
        raise BadFilter(f"The path has more than {STEPS_MAX} steps.")
    return tuple(steps), position


def _step(found: re.Match[str]) -> _Step:
    if found["name"] is not None:
        return found["name"]
    if found["index"] is not None:
        return int(found["index"])
    return _ANY if found["any"] is not None else found["quoted"][1:-1]


def _operand(text: str) -> Any:
    """Return the JSON value that ``text`` is; else itself, without quotes."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError):
        is_quoted = len(text) > 1 and text[0] == text[-1] == "'"
        return text[1:-1] if is_quoted else text


def _found(document: Any, steps: tuple[_Step, ...]) -> Iterator[Any]:
    """Yield what the path leads to: nothing, one value, or with :data:`_ANY` several."""
    if not steps:
        yield document
        return
    step, rest = steps[0], steps[1:]
    for inner in _inner(document, step):
        yield from _found(inner, rest)


def _inner(document: Any, step: _Step) -> Iterator[Any]:
    if isinstance(document, dict):
        members = cast("dict[str, Any]", document)
        if isinstance(step, _AnyElement):
            yield from members.values()
        elif isinstance(step, str) and step in members:
            yield members[step]
    elif isinstance(document, list):
        elements = cast("list[Any]", document)
        if isinstance(step, _AnyElement):
            yield from elements
        elif isinstance(step, int) and -len(elements) <= step < len(elements):
            yield elements[step]


def _compares(found: Any, sign: str, operand: Any) -> bool:
    if sign == "~":
        return isinstance(found, str) and operand in found
    is_equal = type(found) is type(operand) and found == operand
    if _is_number(found) and _is_number(operand):
        is_equal = found == operand
    if sign in ("=", "!="):
        return is_equal == (sign == "=")
    comparable = (_is_number(found) and _is_number(operand)) or (
        isinstance(found, str) and isinstance(operand, str)
    )
    return comparable and _ORDERS[sign](found, operand)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Records as people read them: keys and values as JSON, text or hex, internal topics decoded. Pure.
#
# A view is text, never markup: templates escape it.

AUTO, JSON, TEXT, HEX = "auto", "json", "text", "hex"
FORMATS = (AUTO, JSON, TEXT, HEX)
NULL = "null"
SHOWN_BYTES = 2_048
"""How much of a key or value a list shows."""
WHOLE_BYTES = 262_144
"""How much of it the page of one record shows."""
PAGE_BYTES = 2_097_152
"""How much of all keys, values and headers one page shows."""
HEADERS_KEPT = 1_000
"""A record that is shown has so many headers at most."""
HEADER_COST = 64
"""What a header counts for besides its name and value."""
JSON_GROWTH = 8
"""JSON that indenting makes longer than this many times its size is shown as it is."""
HEX_COLUMNS = 16

BySchema = tuple[Decoded | NotDecoded | None, Decoded | NotDecoded | None]
"""A record's key and value by the schemas of a registry."""
NO_SCHEMAS: BySchema = (None, None)


class CutBytes(bytes):
    """The beginning of a key, value or header: more of it is shown on no page."""

    whole_size: int


def cut_bytes(data: bytes | None) -> bytes | None:
    """Return what is kept of a key, value or header until it is shown."""
    if data is None or len(data) <= WHOLE_BYTES:
        return data
    cut = CutBytes(data[: WHOLE_BYTES + 1])
    cut.whole_size = len(data)
    return cut


def kept(record: ConsumerRecord) -> ConsumerRecord:
    """Return what is kept of a record until it is shown: a batch of some kilobytes may hold 128 MiB."""
    headers = record.headers[:HEADERS_KEPT]
    return record._replace(
        key=cut_bytes(record.key),
        value=cut_bytes(record.value),
        headers=tuple((name, cut_bytes(value)) for name, value in headers),
    )


def size_of(data: bytes) -> int:
    return data.whole_size if isinstance(data, CutBytes) else len(data)


class Shown(msgspec.Struct, frozen=True):
    """The bytes of a key, value or header as text."""

    kind: str
    """``null``, ``json``, ``text`` or ``hex``."""
    text: str
    size: int
    """In bytes."""
    is_cut: bool
    """Whether the text shows only the beginning."""
    note: str = ""
    """By which schema of a registry it is shown as JSON, or why it is not."""


class RecordView(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: str
    leader_epoch: int
    key: Shown
    value: Shown
    headers: tuple[tuple[str, Shown], ...]
    headers_left_out: int
    """How many headers are not shown."""
    decoded: str | None
    """A record of an internal topic as JSON; None for other topics, and if it cannot be decoded."""


class _Room:
    """How many bytes may still be shown: ``each`` of a key or value, and ``left`` in all."""

    def __init__(self, each: int, left: int) -> None:
        self.each = each
        self.left = left

    def show(self, data: bytes | None, form: str, by_schema: Decoded | NotDecoded | None = None) -> Shown:
        limit = max(0, min(self.each, self.left))
        size = size_of(data or b"")
        if form not in (AUTO, JSON) or by_schema is None:
            self.left -= min(size, limit)
            return shown(data, form, limit)
        if isinstance(by_schema, NotDecoded):
            self.left -= min(size, limit)
            return msgspec.structs.replace(shown(data, HEX, limit), note=f"Not decoded: {by_schema.reason}")
        self.left -= min(len(by_schema.content), limit)
        note = f"{by_schema.kind}, schema {by_schema.schema_id}"
        return msgspec.structs.replace(shown(by_schema.content, JSON, limit), size=size, note=note)

    def cut(self, text: str | None) -> str | None:
        if text is None:
            return None
        limit = max(0, min(JSON_GROWTH * self.each, self.left))
        self.left -= min(len(text), limit)
        return text if len(text) <= limit else f"{text[:limit]}…"

    def show_headers(
        self, headers: Sequence[tuple[str, bytes | None]], form: str
    ) -> tuple[tuple[str, Shown], ...]:
        found: list[tuple[str, Shown]] = []
        for name, value in headers:
            if self.left <= 0:
                break
            shown_name = name if len(name) <= self.each else f"{name[: self.each]}…"
            self.left -= HEADER_COST + len(shown_name)
            found.append((shown_name, self.show(value, form)))
        return tuple(found)


def record_views(
    records: Sequence[ConsumerRecord],
    form: str = AUTO,
    limit: int = SHOWN_BYTES,
    by_schema: Sequence[BySchema] | None = None,
) -> tuple[RecordView, ...]:
    """Return records as text: at most about :data:`PAGE_BYTES` of them, of which each has a share.

    ``form``: one of :data:`FORMATS`. ``limit``: bytes of each key, value and header at most. ``by_schema``:
    of each record, in the same order.
    """
    share, each = PAGE_BYTES // max(1, len(records)), cut_after(len(records), limit)
    known = by_schema or [NO_SCHEMAS] * len(records)
    return tuple(
        _record_view(record, form, _Room(each, share), one)
        for record, one in zip(records, known, strict=True)
    )


def cut_after(count: int, limit: int) -> int:
    """Return how many bytes of each key and value a page of ``count`` records shows, at most ``limit``."""
    return min(limit, PAGE_BYTES // (2 * max(1, count)))


def _record_view(record: ConsumerRecord, form: str, room: _Room, by_schema: BySchema) -> RecordView:
    key, value = room.show(record.key, form, by_schema[0]), room.show(record.value, form, by_schema[1])
    text = room.cut(decoded(record))
    headers = room.show_headers(record.headers, form)
    return RecordView(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        "LogAppendTime" if record.timestamp_type else "CreateTime",
        record.leader_epoch,
        key,
        value,
        headers,
        len(record.headers) - len(headers),
        text,
    )


def shown(data: bytes | None, form: str, limit: int) -> Shown:
    if data is None:
        return Shown(NULL, "null", 0, False)
    part, size = data[:limit], size_of(data)
    is_cut = len(part) < size
    if form in (AUTO, JSON) and not is_cut and (text := _json(data, loose=form == JSON)) is not None:
        return Shown(JSON, text, size, False)
    if form == HEX or (form == AUTO and not _is_text(part, is_cut)):
        return Shown(HEX, _hex(part), size, is_cut)
    return Shown(TEXT, part.decode("utf-8", "replace"), size, is_cut)


def _json(data: bytes, *, loose: bool) -> str | None:
    """Return JSON text indented; None if it is not JSON, or not an object or array (unless ``loose``)."""
    if not loose and data[:1] not in (b"{", b"["):
        return None
    parts: list[str] = []
    room = JSON_GROWTH * len(data) + 1024
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(data)):
            parts.append(part)
            room -= len(part)
            if room < 0:  # deep arrays: each line would begin with thousands of spaces
                return None
        text = "".join(parts)
        text.encode()  # an escaped half of a surrogate pair is valid JSON, but no text
    except (ValueError, RecursionError):
        return None
    return text


def _is_text(data: bytes, is_cut: bool) -> bool:
    """Whether bytes are UTF-8 without control characters; the last character may be cut off."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(data) - 3:
            return False
        text = data[: error.start].decode()
    return all(character.isprintable() or character in "\t\r\n" for character in text)


def _hex(data: bytes) -> str:
    lines: list[str] = []
    for begin in range(0, len(data), HEX_COLUMNS):
        part = data[begin : begin + HEX_COLUMNS]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{begin:06x}  {part.hex(' '):<{HEX_COLUMNS * 3 - 1}}  {text}")
    return "\n".join(lines)


# ── internal topics ─────────────────────────────────────────────────────────────────────────────
def decoded(record: ConsumerRecord) -> str | None:
    """Return a record of ``__consumer_offsets`` or ``__transaction_state`` as JSON text; None for others."""
    if record.key is None:
        return None
    try:
        match record.topic:
            case topic if topic == GROUP_METADATA_TOPIC:
                found: object = group_format.decode_record(record.key, record.value)
            case topic if topic == TRANSACTION_STATE_TOPIC:
                found = transaction_format.decode_record(record.key, record.value)
            case _:
                return None
    except MalformedMessage as error:
        return json.dumps({"cannot be decoded": error.message})
    if found is None:
        return None
    return json.dumps(_named(found), indent=2, ensure_ascii=False)


def _named(found: object) -> dict[str, Any]:
    """Return a decoded record with the name of its type: that of its key, or its own."""
    typed = getattr(found, "key", found)
    return {"type": type(typed).__name__.removesuffix("Key"), **cast("dict[str, Any]", plain(found))}


def plain(value: object) -> object:
    """Return a value of structs, ids and bytes as one that JSON has."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, PartitionSet):
        return [str(each) for each in value]
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, TopicPartition):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in cast("Mapping[object, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in cast("Iterable[object]", value)]
    if isinstance(value, (set, frozenset)):
        return sorted(str(plain(one)) for one in cast("Iterable[object]", value))
    return value
