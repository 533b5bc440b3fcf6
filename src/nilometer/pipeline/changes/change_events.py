"""Decodes the change events of databases: Debezium's, and plain ones that a program makes itself. Pure.

Of Debezium, what its connectors for PostgreSQL, MySQL and MariaDB write as JSON, with or without the schema
of each value (``schemas.enable``). With it, values become JSON that needs no schema; without it, a row
is as Debezium wrote it, to the byte.

A change has a position in its database's log, two numbers that order the changes of a row: for PostgreSQL the
LSN, for MySQL and MariaDB binary log file and position, then the number of the row. Rows of a snapshot are at
the position at which it was taken, and precede the changes there.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from nilometer.pipeline.errors import RejectedValue
from nilometer.pipeline.tables.values import BOM

# Converts values that have a schema of Kafka Connect to JSON that needs none. Pure.
#
# Connect sends a date as a number of days and a decimal as bytes, and says so in the schema only. Here dates
# and times become text as in ISO 8601 (without a zone where the database has none), and decimals text with
# all their digits. Other values stay as they are, to the byte.

Convert = Callable[[msgspec.Raw], Any]
"""Returns a value that msgspec encodes. Raises ValueError or msgspec.DecodeError."""

_DAY_US: Final = 86_400_000_000
_DAYS: Final = range(-2_440_588, 2_145_042_542)
"""The days that PostgreSQL has, from 4714 BC on; Debezium sends its infinite dates as days beyond them."""
_OF_CONNECT_TIMES_US: Final = range(-(2**63) + 1, 9_223_371_331_200_000_000)
"""Likewise the microseconds of its timestamps."""
UNSIGNED: Final = r".*(BIGINT|INT8) UNSIGNED.*"
"""The types of MySQL whose integers a capture has Debezium send as decimals: Connect has no such integers.
INT8 is another name of BIGINT."""


class Schema(msgspec.Struct, gc=False):
    """A schema as Connect's JsonConverter writes it."""

    type: str
    name: str | None = None
    field: str | None = None
    parameters: dict[str, str] = {}
    fields: list[Schema] = []
    items: Schema | None = None
    values: Schema | None = None

    def member(self, name: str) -> Schema | None:
        return next((one for one in self.fields if one.field == name), None)


_decode_schema = msgspec.json.Decoder(Schema).decode
_decode_object_of_connect = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_integer = msgspec.json.Decoder(int).decode
_decode_bytes = msgspec.json.Decoder(bytes).decode


class _Scaled(msgspec.Struct):
    scale: int
    value: bytes


_decode_scaled = msgspec.json.Decoder(_Scaled).decode


@lru_cache(maxsize=1024)
def parse_schema(raw: bytes) -> Schema:
    """Raises msgspec.DecodeError."""
    return _decode_schema(raw)


@lru_cache(maxsize=1024)
def converter_at(raw: bytes, *path: str) -> Convert | None:
    """Return how to convert the values at ``path`` of a schema; None: they stay as they are.

    Raises msgspec.DecodeError.
    """
    schema: Schema | None = parse_schema(raw)
    for name in path:
        schema = schema.member(name) if schema is not None else None
    return _converter(schema) if schema is not None else None


def _converter(schema: Schema) -> Convert | None:
    named = _named(schema)
    if named is None:
        match schema.type:
            case "struct":
                named = _of_members({one.field or "": _converter(one) for one in schema.fields})
            case "map" if schema.values is not None:
                named = _of_all_members(_converter(schema.values))
            case "array" if schema.items is not None:
                named = _of_items(_converter(schema.items))
            case _:
                return None
    convert = named
    return convert and (lambda raw: None if bytes(raw) == b"null" else convert(raw))


def _of_members(converters: Mapping[str, Convert | None]) -> Convert | None:
    needed = {name: convert for name, convert in converters.items() if convert is not None}

    def convert(raw: msgspec.Raw) -> dict[str, Any]:
        members = _decode_object_of_connect(raw)
        return {name: needed[name](one) if name in needed else one for name, one in members.items()}

    return convert if needed else None


def _of_all_members(of_one: Convert | None) -> Convert | None:
    return of_one and (
        lambda raw: {name: of_one(one) for name, one in _decode_object_of_connect(raw).items()}
    )


def _of_items(of_one: Convert | None) -> Convert | None:
    return of_one and (lambda raw: [of_one(one) for one in _decode_list(raw)])


# --- types that only the schema's name tells


def _named(schema: Schema) -> Convert | None:
    of_integer = _OF_INTEGERS.get(schema.name or "")
    if of_integer is not None:
        return lambda raw: of_integer(_decode_integer(raw))
    if schema.name == "org.apache.kafka.connect.data.Decimal":
        scale = int(schema.parameters.get("scale", "0"))
        if re.fullmatch(UNSIGNED, schema.parameters.get("__debezium.source.column.type", "")):
            return lambda raw: msgspec.Raw(_decimal(raw, scale).encode())
        return lambda raw: _decimal(raw, scale)
    if schema.name == "io.debezium.data.VariableScaleDecimal":
        return scaled_decimal
    return None


def _decimal(raw: msgspec.Raw, scale: int) -> Any:
    if not bytes(raw).startswith(b'"'):
        return bytes(raw).decode()  # the converter's decimal.format is NUMERIC
    return _decimal_text(_decode_bytes(raw), scale)


def scaled_decimal(raw: msgspec.Raw) -> str:
    """Return the text of a decimal that has its scale with it."""
    found = _decode_scaled(raw)
    return _decimal_text(found.value, found.scale)


def _decimal_text(unscaled: bytes, scale: int) -> str:
    number = int.from_bytes(unscaled, "big", signed=True)
    if scale <= 0:
        return str(number * 10**-scale)
    digits = str(abs(number)).rjust(scale + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def _date(days: int) -> str:
    if days not in _DAYS:
        return "infinity" if days > 0 else "-infinity"
    # Of eras of 400 years, counted from a 1 March: a year ends with its day of February then.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = (month_from_march + 2) % 12 + 1
    year = year_of_era + era * 400 + (month <= 2)
    if 0 <= year <= 9_999:
        return f"{year:04d}-{month:02d}-{day:02d}"
    return f"{year:+05d}-{month:02d}-{day:02d}"


def _time_of_connect(microseconds: int, nanoseconds: int = 0) -> str:
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if fraction or nanoseconds:
        text += f".{fraction:06d}"
    if nanoseconds:
        text += f"{nanoseconds:03d}"
    return f"-{text}" if microseconds < 0 else text


def _timestamp(microseconds: int, nanoseconds: int = 0) -> str:
    if microseconds not in _OF_CONNECT_TIMES_US:
        return "infinity" if microseconds > 0 else "-infinity"
    days, rest = divmod(microseconds, _DAY_US)
    return f"{_date(days)}T{_time_of_connect(rest, nanoseconds)}"


_OF_INTEGERS: Final[Mapping[str, Callable[[int], str]]] = {
    "io.debezium.time.Date": _date,
    "org.apache.kafka.connect.data.Date": _date,
    "io.debezium.time.Time": lambda ms: _time_of_connect(ms * 1_000),
    "org.apache.kafka.connect.data.Time": lambda ms: _time_of_connect(ms * 1_000),
    "io.debezium.time.MicroTime": _time_of_connect,
    "io.debezium.time.NanoTime": lambda ns: _time_of_connect(*divmod(ns, 1_000)),
    "io.debezium.time.Timestamp": lambda ms: _timestamp(ms * 1_000),
    "org.apache.kafka.connect.data.Timestamp": lambda ms: _timestamp(ms * 1_000),
    "io.debezium.time.MicroTimestamp": _timestamp,
    "io.debezium.time.NanoTimestamp": lambda ns: _timestamp(*divmod(ns, 1_000)),
}


# --- one text per value


def canonical(raw: bytes) -> bytes:
    """Return JSON with the members of objects in order and no spaces: equal for equal values.

    Numbers keep their digits. Raises msgspec.DecodeError.
    """
    return msgspec.json.encode(_canonical(msgspec.Raw(raw)))


def _canonical(raw: msgspec.Raw) -> Any:
    match bytes(raw).lstrip()[:1]:
        case b"{":
            return {name: _canonical(one) for name, one in sorted(_decode_object_of_connect(raw).items())}
        case b"[":
            return [_canonical(one) for one in _decode_list(raw)]
        case b'"':
            return msgspec.json.decode(raw, type=str)
        case _:
            msgspec.json.decode(raw)
            return msgspec.Raw(bytes(raw).strip())


Op = Literal["c", "r", "u", "d", "t"]

SNAPSHOT_SEQ: Final = -1
UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Debezium's default for the value of a large column that an update did not change and the log omits."""
OLD_KEY: Final = "__debezium.oldkey"
"""The header of a row's first record under a new key."""
TOMBSTONE: Final = "a deletion's second record, without a value"
MESSAGE: Final = "a message or the bounds of a transaction, no row's"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES_US: Final = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
"""The years 1 to 9999."""
_POSITIONS: Final = range(2**63)
_LOG_FILE: Final = re.compile(r".*\.(\d+)$")
_PLACEHOLDERS: Final = {
    msgspec.json.encode(one)
    for one in (
        UNAVAILABLE,
        b64encode(UNAVAILABLE.encode()).decode(),
        [UNAVAILABLE],
        list(UNAVAILABLE.encode()),
        {UNAVAILABLE: UNAVAILABLE},
    )
}
"""How it looks as text, bytes, lists of texts and of integers, and a map."""
_MARKS: Final = (UNAVAILABLE.encode(), b64encode(UNAVAILABLE.encode()), b"95,95,100,101,98,101,122")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    op: Op
    table: str
    """The server's name, the schema or database, and the table, as in Debezium's names of topics."""
    key: str | None
    """The row's key as JSON, the same for equal keys; None for a truncate, which is of all rows."""
    row: str | None
    """The row as JSON; None if it is deleted."""
    lsn: int
    seq: int
    snapshot: bool
    """Whether it is one of a snapshot of the whole table: of what it does not have, no row is left."""
    at_us: int
    missing: Sequence[str] = ()
    """The columns whose value the event does not have: it is that of the version before."""
    old_key: str | None = None
    """The key that the row had before."""


class LeftOut(Exception):
    """A record is no change of a row, by design; the message says what it is."""


class _Source(msgspec.Struct, gc=False):
    connector: str = "postgresql"
    name: str | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    snapshot: str | bool | None = None
    lsn: int | None = None
    file: str | None = None
    pos: int | None = None
    row: int | None = None
    ts_us: int | None = None
    ts_ms: int | None = None


class _Event(msgspec.Struct, gc=False):
    """Debezium's event, a plain one, and the envelope around either."""

    schema: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    op: str | None = None
    after: msgspec.Raw = msgspec.Raw(b"null")
    source: _Source | None = None
    table: str | None = None
    key: msgspec.Raw = msgspec.Raw(b"null")
    lsn: int | None = None
    seq: int = 0
    at: str | None = None
    old_key: msgspec.Raw = msgspec.Raw(b"null")
    status: str | None = None
    ddl: str | None = None


class _Key(msgspec.Struct, gc=False):
    schema: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_key = msgspec.json.Decoder(_Key).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def decode_change(
    key: bytes | None, value: bytes | None, headers: Sequence[Mapping[str, Any]], recorded_us: int
) -> Change:
    """Return the change of a record. ``recorded_us`` is its time, which counts if the event has none.

    Raises RejectedValue, and LeftOut for a record that is no change of a row.
    """
    if value is None or not value.strip():
        raise LeftOut(TOMBSTONE)
    try:
        event, schema = _decode_event(value.removeprefix(BOM)), None
        if event.op is None and event.payload is not msgspec.UNSET:
            schema = None if event.schema is msgspec.UNSET else bytes(event.schema)
            event = _decode_event(event.payload)
        return _change(event, schema, key, headers, recorded_us)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RejectedValue("no JSON of a change event", str(error)) from None
    except (ValueError, OverflowError) as error:
        raise RejectedValue("a value that its schema does not describe", str(error)) from None


def _change(
    event: _Event,
    schema: bytes | None,
    key: bytes | None,
    headers: Sequence[Mapping[str, Any]],
    recorded_us: int,
) -> Change:
    source, op = event.source, event.op
    if op == "m" or (op is None and event.status is not None):
        raise LeftOut(MESSAGE)
    if op is None and event.ddl is not None:
        raise LeftOut("a change of the database's schema, no row's")
    if op not in ("c", "r", "u", "d", "t"):
        raise RejectedValue("no change event: it has no op such as c, u, d, r or t", str(op or ""))
    if source is None:
        table, lsn, seq = event.table, event.lsn, event.seq
        own = None if bytes(event.key) == b"null" else bytes(event.key)
        found_key = _key(own if own is not None else key)
    else:
        table, (lsn, seq) = _table_of(source), _position(source)
        found_key = _key(key)
    if not table:
        raise RejectedValue("the change names no table")
    if lsn is None:
        raise RejectedValue("the change has no position in the log of its database")
    if lsn not in _POSITIONS or seq not in _POSITIONS:
        raise RejectedValue("the change's position is no number from 0 to 2^63 - 1", f"{lsn}, {seq}")
    if op == "r":
        seq = SNAPSHOT_SEQ
    if op == "t":
        found_key = None
    elif found_key is None:
        raise RejectedValue("the change has no key: its table needs a primary key", table)
    row, missing = (None, ()) if op in ("d", "t") else _row(event.after, schema, op)
    return Change(
        op=op,
        table=table,
        key=found_key,
        row=row,
        lsn=lsn,
        seq=seq,
        snapshot=op == "r" and (source is None or source.snapshot not in ("incremental", None)),
        at_us=_time(event, recorded_us),
        missing=missing,
        old_key=(_key(bytes(event.old_key)) or _old_key(headers)) if missing else None,
    )


def _table_of(source: _Source) -> str:
    within = source.schema if source.connector == "postgresql" else source.db
    parts = [one for one in (source.name, within, source.table) if one]
    return ".".join(parts) if source.table else ""


def _position(source: _Source) -> tuple[int | None, int]:
    match source.connector:
        case "postgresql":
            return source.lsn, 0
        case "mysql" | "mariadb":
            found = _LOG_FILE.match(source.file or "")
            if found is None or source.pos is None:
                return None, 0
            return int(found[1]) * 2**32 + source.pos, source.row or 0
        case other:
            raise RejectedValue(
                "changes of this connector are not ordered here: postgresql, mysql and mariadb are", other
            )


def _key(key: bytes | None) -> str | None:
    """Return the key's text, without the schema around it; None if there is no key."""
    if key is None or not key.strip():
        return None
    raw, convert = key, None
    if key.lstrip().startswith(b"{"):
        envelope = _decode_key(key)
        if envelope.payload is not msgspec.UNSET and envelope.schema is not msgspec.UNSET:
            raw = bytes(envelope.payload)
            schema = bytes(envelope.schema)
            convert = converter_at(schema) if schema != b"null" else None
    if convert is not None:
        raw = msgspec.json.encode(convert(msgspec.Raw(raw)))
    text = canonical(raw).decode()
    return None if text == "null" else text


def _row(after: msgspec.Raw, schema: bytes | None, op: str) -> tuple[str, Sequence[str]]:
    """Return the row's JSON, and the columns that it does not have."""
    raw = bytes(after)
    if not raw.startswith(b"{"):
        raise RejectedValue(f"a change with op {op} needs the row in after")
    missing: list[str] = []
    if any(mark in raw for mark in _MARKS):
        missing = [name for name, one in _decode_object(after).items() if _is_placeholder(bytes(one))]
    convert = converter_at(schema, "after") if schema not in (None, b"null") else None
    if convert is not None:
        raw = msgspec.json.encode(convert(_without(after, missing)))
    elif missing:
        raw = msgspec.json.encode(_decode_object(_without(after, missing)))
    return raw.decode(), missing


def _without(after: msgspec.Raw, missing: Sequence[str]) -> msgspec.Raw:
    if not missing:
        return after
    members = {name: one for name, one in _decode_object(after).items() if name not in missing}
    return msgspec.Raw(msgspec.json.encode(members))


def _is_placeholder(raw: bytes) -> bool:
    return b"".join(raw.split()) in _PLACEHOLDERS


def completed(row: str, missing: Sequence[str], before: str) -> str | None:
    """Return the row with its missing columns as in the version before; None if that has not all of them."""
    known = _decode_object(before)
    if any(name not in known for name in missing):
        return None
    return msgspec.json.encode(_decode_object(row) | {name: known[name] for name in missing}).decode()


def _old_key(headers: Sequence[Mapping[str, Any]]) -> str | None:
    for header in headers:
        if header["key"] == OLD_KEY and header["value"] is not None:
            try:
                return _key(bytes(header["value"]))
            except msgspec.DecodeError:
                return None  # written by another converter than that of JSON
    return None


def _time(event: _Event, recorded_us: int) -> int:
    """Return the time of the change in microseconds: the event's own, or its record's."""
    if event.source is not None:
        found = event.source.ts_us
        if found is None and event.source.ts_ms is not None:
            found = event.source.ts_ms * 1_000
    elif event.at is not None:
        try:
            at = datetime.fromisoformat(event.at)
            found = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
        except (ValueError, OverflowError):
            raise RejectedValue("the change's time is none", event.at) from None
    else:
        found = None
    if found is None:
        found = recorded_us
    if found not in _TIMES_US:
        raise RejectedValue("the change's time is outside of the years 1 to 9999", str(found))
    return found
