"""A rejected record as a dead letter: its key, value and headers, with four headers more. Pure.

A record may be larger than what a producer may send. Of such a record the letter has the beginning of the
value only, and its size in ``dead.size``; the topic that the record is from has the rest.
"""

from __future__ import annotations

from typing import Any, Final

from nilometer.client.producer.accumulator import size_bound
from nilometer.pipeline.tables.staging import Rejected

CARRIED_BYTES_MAX: Final = 900_000
"""Key, value and headers of a record that its letter has whole. With the headers that the letter adds it is
below 1 MiB: the default of ``max.request.size``, and of ``max.message.bytes`` of the letters' topic."""
PART_BYTES_MAX: Final = 64 * 1024
"""What a letter has of a larger record: that much of its value; key and headers, if they are no larger."""
REASON_CHARACTERS_MAX: Final = 1_000


def dead_letter(one: Rejected) -> dict[str, Any]:
    """Return the columns of the letter: key, value and headers."""
    record = one.record
    key: bytes | None = record["key"]
    value: bytes | None = record["value"]
    headers: list[dict[str, Any]] = record.get("headers") or []
    said = {
        "dead.reason": str(one)[:REASON_CHARACTERS_MAX],
        "dead.topic": record["topic"],
        "dead.partition": str(record["partition"]),
        "dead.offset": str(record["offset"]),
    }
    pairs = [(header["key"], header["value"]) for header in headers]
    if size_bound(key, value, pairs) > CARRIED_BYTES_MAX:
        of_headers = sum(len(name.encode(errors="replace")) + len(own or b"") for name, own in pairs)
        said["dead.size"] = str(len(key or b"") + len(value or b"") + of_headers)
        key = key if len(key or b"") <= PART_BYTES_MAX else None
        value = value[:PART_BYTES_MAX] if value is not None else None
        headers = headers if size_bound(None, None, pairs) <= PART_BYTES_MAX else []
    added = [{"key": name, "value": text.encode(errors="replace")} for name, text in said.items()]
    return {"key": key, "value": value, "headers": [*headers, *added]}
