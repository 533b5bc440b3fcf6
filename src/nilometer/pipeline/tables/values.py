"""The types of a table's columns, and a record's JSON value as a row of a type. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import MAXYEAR, UTC, date, datetime
from decimal import Decimal
from struct import Struct
from typing import Annotated, Any, Final, Literal, cast

import msgspec
from msgspec import Meta

from nilometer.pipeline.errors import PipelineError, RejectedValue

# The types of a table's columns. Pure.
#
# They are what JSON Schema, Avro, Delta Lake, Iceberg and Parquet have in common. An object is a struct, also
# the row itself.

Kind = Literal[
    "boolean",
    "int32",
    "int64",
    "float32",
    "float64",
    "string",
    "binary",
    "date",
    "timestamp",
    "list",
    "struct",
]

Others = Literal["ignored", "empty", "refused"]
"""What becomes of a value's fields that a struct does not have. ``empty``: they must hold nothing, that is
null, empty lists and objects, and lists and objects of these; inference gives such fields no column."""

WIDENS: Final = {("int32", "int64"), ("float32", "float64")}
"""The changes of a type that Delta Lake and Iceberg both allow, since no value is lost."""

BOM: Final = b"\xef\xbb\xbf"
"""The byte order mark that some programs write before JSON; it is no part of the value."""
KEY, PARTITION, OFFSET, TIMESTAMP, DAY = "_key", "_partition", "_offset", "_timestamp", "_day"
NO_NAME: Final = re.compile(r'["\\\x00-\x1f]|^$')
"""Matches names that no column can have, because the decoder of JSON has no fields of such names."""
RESERVED: Final = (KEY, PARTITION, OFFSET, TIMESTAMP, DAY, "_deleted")
"""The columns that a table has besides those of the values."""


class SchemaError(PipelineError):
    """A schema cannot be a table's, or does not fit the table that exists; the message says where."""


@dataclass(frozen=True, slots=True)
class ValueType:
    kind: Kind
    item: ValueType | None = None
    """The type of a list's items."""
    fields: tuple[Field, ...] = ()
    """The fields of a struct."""
    others: Others = "ignored"
    """What becomes of other fields than a struct's."""

    def field(self, name: str) -> Field | None:
        return next((one for one in self.fields if one.name == name), None)


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: ValueType
    required: bool = False
    """Whether each value must have it, and not null."""


def struct(*fields: Field, others: Others = "ignored") -> ValueType:
    return ValueType("struct", fields=fields, others=others)


def check_columns(row: ValueType) -> ValueType:
    """Return ``row``. Raises SchemaError if it cannot be a table's: its names, or a struct without fields."""
    if row.kind != "struct" or not row.fields:
        raise SchemaError("the schema must describe an object with at least one property")
    for field in row.fields:
        if field.name.lower() in RESERVED:
            raise SchemaError(f"{field.name}: this name is taken by the table itself; rename the property")
    _check_struct(row, "$")
    if len(without_collisions(row).fields) < len(row.fields):
        twice = next(path for path, count in Counter(paths_of(row, "")).items() if count > 1)
        raise SchemaError(f"{twice} names two columns: one has a dot in its name. Rename a property")
    return row


def paths_of(one: ValueType, where: str) -> list[str]:
    """Return the paths of a type's parts, joined by dots as Iceberg does, in lower case."""
    if one.kind == "list" and one.item is not None:
        return [f"{where}.element", *paths_of(one.item, f"{where}.element")]
    found: list[str] = []
    for field in one.fields:
        path = f"{where}.{field.name.lower()}" if where else field.name.lower()
        found += [path, *paths_of(field.type, path)]
    return found


def without_collisions(row: ValueType) -> ValueType:
    """Return the row without columns of which a part has the path of another: of several, the first counts.

    ``{"a.b": 1, "a": {"b": 2}}`` has ``a.b`` twice.
    """
    seen: set[str] = set()
    kept: list[Field] = []
    for field in row.fields:
        paths = paths_of(struct(field), "")
        if len(set(paths)) == len(paths) and seen.isdisjoint(paths):
            seen.update(paths)
            kept.append(field)
    return replace(row, fields=tuple(kept))


def _check_struct(one: ValueType, where: str) -> None:
    seen: dict[str, str] = {}
    for field in one.fields:
        if NO_NAME.search(field.name):
            raise SchemaError(
                f"{where}: {field.name!r} is no name of a column, as it is empty or has a quotation mark, a "
                "backslash or a control character; rename the property"
            )
        # Delta Lake and Spark do not distinguish upper and lower case in the names of columns.
        other = seen.setdefault(field.name.lower(), field.name)
        if other is not field.name:
            raise SchemaError(f"{where}: {other} and {field.name} differ only in upper and lower case")
        _check_type(field.type, f"{where}.{field.name}")


def _check_type(one: ValueType, where: str) -> None:
    if one.kind == "list" and one.item is not None:
        _check_type(one.item, f"{where}[]")
    elif one.kind == "struct":
        if not one.fields:
            raise SchemaError(f"{where}: an object must have at least one property")
        _check_struct(one, where)


def relaxed(one: ValueType) -> ValueType:
    """Return the type as a table stores it: no field is required, and other fields do not matter."""
    if one.kind == "list" and one.item is not None:
        return replace(one, item=relaxed(one.item))
    if one.kind == "struct":
        return struct(*(Field(field.name, relaxed(field.type)) for field in one.fields))
    return one


# Decodes a record's JSON value as a row of a type, or says why it is none. Pure.
#
# The decoder is compiled from the type once; a value's objects become dicts in the order of the type's
# fields. No value is changed to fit: a number whose digits its column would round, and a time with more than
# microseconds, are rejected, and so is a property whose name differs from a column's only in upper and lower
# case. Properties without a column that hold nothing (null, ``[]``, ``{}``) are left out where the type says
# so, others where it allows them: such rows are counted in the decoder's ``notes``.

_FLOAT32_MAX: Final = (2 - 2**-23) * 2.0**127
_SCALARS: Final[dict[str, Any]] = {
    "boolean": bool,
    "int32": Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)],
    "int64": Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)],
    "float32": Annotated[float, Meta(ge=-_FLOAT32_MAX, le=_FLOAT32_MAX)],
    "float64": int | float,  # msgspec would round an integer without a word
    "string": str,
    "binary": bytes,
    "date": date,
    "timestamp": Annotated[datetime, Meta(tz=True)],
}
_FLOAT32: Final = Struct("<f")
_KEPT: Final = (datetime, date, bytes)

NOTE: Final = "rows have properties without a column, which are left out"


class Decoder:
    """Returns a value's row. Raises RejectedValue."""

    def __init__(self, decode: Callable[[bytes], dict[str, Any]]) -> None:
        self.decode = decode
        self.notes: Counter[str] = Counter()
        """What is to be said of rows that were returned, and of how many."""

    def __call__(self, value: bytes, /) -> dict[str, Any]:
        return self.decode(value)


def json_decoder(row: ValueType) -> Decoder:
    """Return the decoder of JSON values that are rows of type ``row``."""
    strict = msgspec.json.Decoder(_python_type(row, _ALL)).decode
    lenient = msgspec.json.Decoder(_python_type(row, ("refused",))).decode

    def read(given: bytes) -> Any:
        value = given.removeprefix(BOM)
        try:
            found = strict(value)
        except msgspec.ValidationError:
            found = lenient(value)
            if _check_others(msgspec.json.decode(value), row, "$"):
                decoder.notes[NOTE] += 1
        if _may_be_changed(value):
            _check_digits(json.loads(value, parse_float=Decimal), row, "$")
        return found

    decoder = Decoder(_checked(read, row))
    return decoder


def row_converter(row: ValueType) -> Callable[[Any], dict[str, Any]]:
    """Return a function that makes rows of type ``row`` of values in Python. It raises RejectedValue."""
    kind = _python_type(row, ("refused", "empty"))
    return _checked(lambda value: msgspec.convert(value, kind, builtin_types=_KEPT), row)


def _checked(read: Callable[[Any], Any], row: ValueType) -> Callable[[Any], dict[str, Any]]:
    kept = _kept_of(row, "$")

    def decode(value: Any) -> dict[str, Any]:
        try:
            found: dict[str, Any] = msgspec.to_builtins(read(value), builtin_types=_KEPT)
            if kept is not None:
                kept(found)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
            raise _rejected(error, value) from None
        return found

    return decode


_ALL: Final[tuple[Others, ...]] = ("refused", "empty", "ignored")
_EXPECTED: Final = re.compile(r"Expected `(.*?)`, got `(.*?)`(?: - at `(.*)`)?$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `")
# Numbers of up to 15 digits, and times of up to microseconds, are always kept as they are.
_SHAPE: Final = bytes.maketrans(b"123456789.E+", b"0000000000e-")
_LONG_NUMBER: Final = b"0" * 16
_LARGE_EXPONENT: Final = re.compile(rb"0e-?000")
_LONG_FRACTION: Final = re.compile(rb"\.[0-9]{7}")
_KINDS: Final = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number with a fraction",
    "int | float": "a number",
    "str": "a text",
    "array": "a list",
    "object": "an object",
    "datetime": "a time",
    "date": "a date",
    "bytes": "a text in base64",
    "null": "null",
}


class _Refused(ValueError):
    """A value that a column would change, with the reason and the value."""


def _rejected(error: Exception, value: Any) -> RejectedValue:
    """Return why a value is rejected, in words for people. The reason has nothing of the single value, since
    rejections are counted by it; the detail may have."""
    said = str(error)
    if isinstance(error, _Refused):
        return RejectedValue(*error.args)
    if isinstance(error, msgspec.ValidationError):
        expected = _EXPECTED.match(said)
        if expected is None and _UNKNOWN.match(said):
            return RejectedValue("a property without a column", said)
        if expected is None:
            return RejectedValue(said)
        wanted, got, where = expected.groups()
        kinds = [_KINDS.get(one, one) for one in (wanted.removesuffix(" | null"), got)]
        if where is None:
            return RejectedValue(f"the value is {kinds[1]}, and no object", said)
        return RejectedValue(f"`{where}` is {kinds[1]}, and its column takes {kinds[0]}", said)
    if isinstance(error, msgspec.DecodeError | UnicodeDecodeError):
        return RejectedValue(_no_json(value), said)
    return RejectedValue(_KINDS_OF_ERRORS.get(type(error), "a value that cannot be kept as it is"), said)


_KINDS_OF_ERRORS: Final[Mapping[type[Exception], str]] = {
    RecursionError: "too many levels",
    OverflowError: "a time outside of the years 1 to 9999",
}


def _no_json(value: Any) -> str:
    """Return why bytes are no JSON in UTF-8."""
    if value[:2] in (b"\xfe\xff", b"\xff\xfe"):
        return "no JSON in UTF-8, but UTF-16"
    try:
        # Python's own decoder takes what no text in UTF-8 can hold.
        json.dumps(json.loads(value), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "a text has half of a surrogate pair, which no UTF-8 can hold"
    except UnicodeDecodeError:
        return "no JSON: the bytes are no UTF-8"
    except (ValueError, RecursionError):
        pass
    return "no JSON"


def _check_others(value: Any, one: ValueType, where: str) -> bool:
    """Return whether a value of the type has properties besides the type's that are left out.

    Raises _Refused for one that must not be.
    """
    if isinstance(value, list) and one.item is not None:
        items = [_check_others(item, one.item, f"{where}[...]") for item in cast("list[Any]", value)]
        return any(items)
    if not isinstance(value, dict):
        return False
    types = {field.name: field.type for field in one.fields}
    by_case = {name.lower(): name for name in types}
    left_out = False
    for name, inner in cast("dict[str, Any]", value).items():
        if name in types:
            left_out |= _check_others(inner, types[name], f"{where}.{name}")
        elif not _holds_nothing(inner):
            if name.lower() in by_case:
                column = f"{where}.{by_case[name.lower()]}"
                raise _Refused(f"a property differs from `{column}` only in upper and lower case", name)
            if one.others == "empty":
                unknown = f"Object contains unknown field `{name}` - at `{where}`"
                if where == "$" and name.lower() in RESERVED:
                    raise _Refused(f"a property has the name {name.lower()}, which the table has for itself")
                raise _Refused("a property without a column", unknown)
            left_out = True
    return left_out


def _may_be_changed(value: bytes) -> bool:
    """Return whether JSON may have a number or a time with more digits than columns keep."""
    shape = value.translate(_SHAPE)
    return (
        _LONG_NUMBER in shape
        or _LARGE_EXPONENT.search(shape) is not None
        or _LONG_FRACTION.search(value) is not None
    )


def _check_digits(value: Any, one: ValueType, where: str) -> None:
    """Raise _Refused for a number or a time whose digits the type would not keep."""
    if isinstance(value, list) and one.item is not None:
        for item in cast("list[Any]", value):
            _check_digits(item, one.item, f"{where}[...]")
    elif isinstance(value, dict):
        for field in one.fields:
            _check_digits(cast("dict[str, Any]", value).get(field.name), field.type, f"{where}.{field.name}")
    elif isinstance(value, Decimal) and one.kind in ("float32", "float64"):
        found = float(value)
        digits = len(value.as_tuple().digits)
        is_kept = value in (Decimal(found), Decimal(repr(found)))
        is_whole = value == value.to_integral_value()
        if not is_kept and (digits > _DIGITS_MAX or is_whole or found == 0):
            raise _Refused(f"a number would be rounded as a 64-bit float - at `{where}`", str(value))
    elif isinstance(value, str) and one.kind == "timestamp":
        fraction = re.search(r"\.([0-9]+)", value)
        if fraction is not None and fraction[1][6:].strip("0"):
            raise _Refused(f"a time with more than microseconds - at `{where}`", value)


_FLOAT_BITS: Final = 1_023
_DIGITS_MAX: Final = 17
_DIGITS32_MAX: Final = 9
"""The digits with which programs write floats of 64 and of 32 bits so that they are read as the same ones."""


def _holds_nothing(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_holds_nothing, cast("dict[str, Any]", value).values()))
    return value is None or (isinstance(value, list) and all(map(_holds_nothing, cast("list[Any]", value))))


def _python_type(one: ValueType, refused: tuple[Others, ...]) -> Any:
    """Return the type in Python; other fields make a value invalid where ``one.others`` is in ``refused``."""
    if one.kind == "list" and one.item is not None:
        return list[_python_type(one.item, refused) | None]
    if one.kind == "struct":
        fields = [_defined(number, field, refused) for number, field in enumerate(one.fields)]
        rename = {f"f{number}": field.name for number, field in enumerate(one.fields)}
        closed = one.others in refused
        return msgspec.defstruct(
            "Row", fields, rename=rename, forbid_unknown_fields=closed, kw_only=True, gc=False
        )
    return _SCALARS[one.kind]


def _defined(number: int, field: Field, refused: tuple[Others, ...]) -> Any:
    """Return a struct's field, by a name that is an identifier."""
    kind = _python_type(field.type, refused)
    return (f"f{number}", kind) if field.required else (f"f{number}", kind | None, None)


def _kept_of(one: ValueType, where: str) -> Callable[[Any], Any] | None:
    """Return a function that returns a value as its column keeps it; None if that is how it is.

    Integers become floats in columns of floats. It raises ValueError for one that would be rounded, and
    OverflowError for a time that is in the year 0 or 10000 in UTC, which readers could not read.
    """
    if one.kind == "timestamp":
        return _readable_time
    if one.kind == "float64":
        return lambda value: _exact_float(value, where) if isinstance(value, int) else value
    if one.kind == "float32":
        return lambda value: None if value is None else _exact_float32(value, where)
    if one.item is not None:
        of_item = _kept_of(one.item, f"{where}[...]")
        if of_item is None:
            return None
        return lambda values: None if values is None else [of_item(value) for value in values]
    found = [(field.name, _kept_of(field.type, f"{where}.{field.name}")) for field in one.fields]
    of_fields = [(name, of_field) for name, of_field in found if of_field is not None]

    def in_struct(value: Any) -> Any:
        if value is not None:
            for name, of_field in of_fields:
                value[name] = of_field(value[name])
        return value

    return in_struct if of_fields else None


def _exact_float(value: int, where: str) -> float:
    if value.bit_length() <= _FLOAT_BITS and (found := float(value)) == value:
        return found
    raise _Refused(f"a number would be rounded as a 64-bit float - at `{where}`", str(value))


def _exact_float32(value: float, where: str) -> float:
    """Return a number that is a 32-bit float, or a fraction with no more digits than such a float is written
    with."""
    (found,) = _FLOAT32.unpack(_FLOAT32.pack(value))
    digits = len(Decimal(repr(value)).as_tuple().digits)
    if found != value and (value == int(value) or digits > _DIGITS32_MAX):
        raise _Refused(f"a number would be rounded as a 32-bit float - at `{where}`", repr(value))
    return value


def _readable_time(value: datetime | None) -> datetime | None:
    if value is not None and not 1 < value.year < MAXYEAR:
        value.astimezone(UTC)
    return value
