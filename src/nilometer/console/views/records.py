"""Records as people read them: keys and values as JSON, text or hex, internal topics decoded. Pure.

A view is text, never markup: templates escape it.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from nilometer.client.consumer.fetched_records import ConsumerRecord
from nilometer.cluster.topic import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from nilometer.groups import record_format as group_format
from nilometer.storage import TopicPartition
from nilometer.transactions import record_format as transaction_format
from nilometer.wire.errors import MalformedMessage

AUTO, JSON, TEXT, HEX = "auto", "json", "text", "hex"
FORMATS = (AUTO, JSON, TEXT, HEX)
NULL = "null"
SHOWN_BYTES = 2_048
"""How much of a key or value a list shows."""
WHOLE_BYTES = 262_144
"""How much of it the page of one record shows."""
HEX_COLUMNS = 16


@dataclass(frozen=True, slots=True)
class Shown:
    """The bytes of a key, value or header as text."""

    kind: str
    """``null``, ``json``, ``text`` or ``hex``."""
    text: str
    size: int
    """In bytes."""
    is_cut: bool
    """Whether the text shows only the beginning."""


@dataclass(frozen=True, slots=True)
class RecordView:
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: str
    leader_epoch: int
    key: Shown
    value: Shown
    headers: tuple[tuple[str, Shown], ...]
    decoded: str | None
    """A record of an internal topic as JSON; None for other topics, and if it cannot be decoded."""


def record_view(record: ConsumerRecord, form: str = AUTO, limit: int = SHOWN_BYTES) -> RecordView:
    """Return a record as text. ``form``: one of :data:`FORMATS`. ``limit``: bytes of each key and value."""
    return RecordView(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        "LogAppendTime" if record.timestamp_type else "CreateTime",
        record.leader_epoch,
        shown(record.key, form, limit),
        shown(record.value, form, limit),
        tuple((name, shown(value, form, limit)) for name, value in record.headers),
        decoded(record),
    )


def shown(data: bytes | None, form: str, limit: int) -> Shown:
    if data is None:
        return Shown(NULL, "null", 0, False)
    part = data[:limit]
    is_cut = len(part) < len(data)
    if form in (AUTO, JSON) and not is_cut and (text := _json(data, loose=form == JSON)) is not None:
        return Shown(JSON, text, len(data), False)
    if form == HEX or (form == AUTO and not _is_text(part, is_cut)):
        return Shown(HEX, _hex(part), len(data), is_cut)
    return Shown(TEXT, part.decode("utf-8", "replace"), len(data), is_cut)


def _json(data: bytes, *, loose: bool) -> str | None:
    """Return JSON text indented; None if it is not JSON, or not an object or array (unless ``loose``)."""
    if not loose and data[:1] not in (b"{", b"["):
        return None
    try:
        text = json.dumps(json.loads(data), indent=2, ensure_ascii=False)
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
    """Return a value of dataclasses, ids and bytes as one that JSON has."""
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
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
