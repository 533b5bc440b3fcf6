"""Formats records as text for ``nilometer consume`` and ``nilometer log dump``. Pure."""

from __future__ import annotations

import base64
import json
import os
import string
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nilometer.client.consumer.fetch_exchange import ConsumerRecord

Formatter = Callable[[ConsumerRecord], bytes]
Render = Callable[[Sequence[ConsumerRecord]], Awaitable[bytes]]
"""Several records at once; it may wait."""

FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "leader_epoch")
NULL = "null"
"""What is printed for a null by default, as Kafka's console consumer does; an empty value prints nothing."""
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}


class BadFormat(ValueError):
    """The format is invalid or names a field that records do not have."""


def value_lines(null: str = NULL) -> Formatter:
    """Return a formatter that prints the value and a newline, and ``null`` for a null value."""
    marker = os.fsencode(null)

    def render(record: ConsumerRecord) -> bytes:
        return (marker if record.value is None else record.value) + b"\n"

    return render


def json_lines(record: ConsumerRecord) -> bytes:
    return json.dumps(as_json(record), ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def template(text: str, null: str = NULL) -> Formatter:
    """Return a formatter for a format such as ``{offset}: {key} {value}\\n``. Raises BadFormat.

    ``null`` is printed for a null key, value or header value. Bytes that are not valid UTF-8 are printed
    unchanged.
    """
    for escape, meant in _ESCAPES.items():
        text = text.replace(escape, meant)
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise BadFormat(f"{text!r}: {error}") from None
    for _, name, _, _ in parts:
        if name is not None and name not in FIELDS:
            raise BadFormat(f"{{{name}}} is none of {', '.join(FIELDS)}")

    def render(record: ConsumerRecord) -> bytes:
        shown = {
            **{name: getattr(record, name) for name in FIELDS},
            "key": _text(record.key, null),
            "value": _text(record.value, null),
            "headers": ",".join(f"{name}={_text(value, null)}" for name, value in record.headers),
        }
        return text.format(**shown).encode("utf-8", "surrogateescape")

    try:
        render(ConsumerRecord("t", 0, 0, 0, 0, None, None, (), 0))
    except (ValueError, IndexError, KeyError) as error:
        raise BadFormat(f"{text!r}: {error}") from None
    return render


def as_json(record: ConsumerRecord) -> dict[str, Any]:
    """Return a record as a JSON object; bytes that are not UTF-8 are under ``…_base64``."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "LogAppendTime" if record.timestamp_type else "CreateTime",
        "leader_epoch": record.leader_epoch,
        **as_text_or_base64("key", record.key),
        **as_text_or_base64("value", record.value),
        "headers": [{"name": name, **as_text_or_base64("value", value)} for name, value in record.headers],
    }


def as_text_or_base64(name: str, value: bytes | None) -> dict[str, str | None]:
    """Return ``value`` as text under ``name`` if it is UTF-8, else in base64 under ``{name}_base64``."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _text(value: bytes | None, null: str) -> str:
    return null if value is None else value.decode("utf-8", "surrogateescape")
