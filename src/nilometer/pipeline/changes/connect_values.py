"""Converts values that have a schema of Kafka Connect to JSON that needs none. Pure.

Connect sends a date as a number of days and a decimal as bytes, and says so in the schema only. Here dates
and times become text as in ISO 8601 (without a zone where the database has none), and decimals text with all
their digits. Other values stay as they are, to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

Convert = Callable[[msgspec.Raw], Any]
"""Returns a value that msgspec encodes. Raises ValueError or msgspec.DecodeError."""

_DAY_US: Final = 86_400_000_000
_DAYS: Final = range(-2_440_588, 2_145_042_542)
"""The days that PostgreSQL has, from 4714 BC on; Debezium sends its infinite dates as days beyond them."""
_TIMES_US: Final = range(-(2**63) + 1, 9_223_371_331_200_000_000)
"""Likewise the microseconds of its timestamps."""


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
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
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
        members = _decode_object(raw)
        return {name: needed[name](one) if name in needed else one for name, one in members.items()}

    return convert if needed else None


def _of_all_members(of_one: Convert | None) -> Convert | None:
    return of_one and (lambda raw: {name: of_one(one) for name, one in _decode_object(raw).items()})


def _of_items(of_one: Convert | None) -> Convert | None:
    return of_one and (lambda raw: [of_one(one) for one in _decode_list(raw)])


# --- types that only the schema's name tells


def _named(schema: Schema) -> Convert | None:
    of_integer = _OF_INTEGERS.get(schema.name or "")
    if of_integer is not None:
        return lambda raw: of_integer(_decode_integer(raw))
    if schema.name == "org.apache.kafka.connect.data.Decimal":
        scale = int(schema.parameters.get("scale", "0"))
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


def _time(microseconds: int, nanoseconds: int = 0) -> str:
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if fraction or nanoseconds:
        text += f".{fraction:06d}"
    if nanoseconds:
        text += f"{nanoseconds:03d}"
    return f"-{text}" if microseconds < 0 else text


def _timestamp(microseconds: int, nanoseconds: int = 0) -> str:
    if microseconds not in _TIMES_US:
        return "infinity" if microseconds > 0 else "-infinity"
    days, rest = divmod(microseconds, _DAY_US)
    return f"{_date(days)}T{_time(rest, nanoseconds)}"


_OF_INTEGERS: Final[Mapping[str, Callable[[int], str]]] = {
    "io.debezium.time.Date": _date,
    "org.apache.kafka.connect.data.Date": _date,
    "io.debezium.time.Time": lambda ms: _time(ms * 1_000),
    "org.apache.kafka.connect.data.Time": lambda ms: _time(ms * 1_000),
    "io.debezium.time.MicroTime": _time,
    "io.debezium.time.NanoTime": lambda ns: _time(*divmod(ns, 1_000)),
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
            return {name: _canonical(one) for name, one in sorted(_decode_object(raw).items())}
        case b"[":
            return [_canonical(one) for one in _decode_list(raw)]
        case b'"':
            return msgspec.json.decode(raw, type=str)
        case _:
            msgspec.json.decode(raw)
            return msgspec.Raw(bytes(raw).strip())
