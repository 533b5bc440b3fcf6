"""Decodes a record's JSON value as a row of a type, or says why it is none. Pure.

The decoder is compiled from the type once; a value's objects become dicts in the order of the type's fields.
No value is changed to fit: an integer that a column of 64-bit floats would round is rejected. Fields
without a column that hold nothing (null, ``[]``, ``{}``) are left out, where the type says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Annotated, Any, Final, cast

import msgspec
from msgspec import Meta

from nilometer.pipeline.tables.value_types import Field, Others, ValueType

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
_KEPT: Final = (datetime, date, bytes)

Decoder = Callable[[bytes], dict[str, Any]]
"""Returns a value's row. Raises RejectedValue."""


class RejectedValue(Exception):
    """A value is no row of the table; the message is reason and detail, for the dead letter."""

    def __init__(self, reason: str, detail: str = "") -> None:
        """``reason`` is one of not many, by which such values are counted."""
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


def json_decoder(row: ValueType) -> Decoder:
    """Return the decoder of JSON values that are rows of type ``row``."""
    read = msgspec.json.Decoder(_python_type(row)).decode
    return _checked(_with_empty_others(read, row) if _has_empty_others(row) else read, row)


def row_converter(row: ValueType) -> Callable[[Any], dict[str, Any]]:
    """Return a function that makes rows of type ``row`` of values in Python. It raises RejectedValue."""
    kind = _python_type(row)
    return _checked(lambda value: msgspec.convert(value, kind, builtin_types=_KEPT), row)


def _checked(read: Callable[[Any], Any], row: ValueType) -> Callable[[Any], dict[str, Any]]:
    has_times, with_floats = _has_times(row), _floats_of(row, "$")

    def decode(value: Any) -> dict[str, Any]:
        try:
            found: dict[str, Any] = msgspec.to_builtins(read(value), builtin_types=_KEPT)
            if has_times:
                _check_times(found)
            if with_floats is not None:
                with_floats(found)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
            raise _rejected(error, value) from None
        return found

    return decode


_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`( - at `.*`)?$", re.DOTALL)


def _rejected(error: Exception, value: Any) -> RejectedValue:
    """Return the reason for people, without what differs from value to value."""
    said = str(error)
    unknown = _UNKNOWN.match(said)
    if unknown is not None:
        return RejectedValue("a property without a column", said)
    if isinstance(error, msgspec.ValidationError):
        return RejectedValue(said)
    if isinstance(error, msgspec.DecodeError | UnicodeDecodeError):
        return RejectedValue("no JSON", said)
    return RejectedValue(_KINDS_OF_ERRORS.get(type(error), "a value that cannot be kept as it is"), said)


_KINDS_OF_ERRORS: Final[Mapping[type[Exception], str]] = {
    RecursionError: "too many levels",
    OverflowError: "a time outside of the years 1 to 9999",
}


def _with_empty_others(read: Callable[[Any], Any], row: ValueType) -> Callable[[Any], Any]:
    """Return ``read``, but that it leaves out other fields that hold nothing where the type allows them."""
    read_without = msgspec.json.Decoder(_python_type(row, refused=("refused",))).decode

    def read_all(value: Any) -> Any:
        try:
            return read(value)
        except msgspec.ValidationError:
            found = read_without(value)
            if _loses_others(msgspec.json.decode(value), row):
                raise
            return found

    return read_all


def _loses_others(value: Any, one: ValueType) -> bool:
    """Return whether a value of the type has fields, besides the type's, that hold something."""
    if isinstance(value, list) and one.item is not None:
        return any(_loses_others(item, one.item) for item in cast("list[Any]", value))
    if not isinstance(value, dict):
        return False
    types = {field.name: field.type for field in one.fields}
    return any(
        _loses_others(inner, types[name])
        if name in types
        else one.others == "empty" and not _holds_nothing(inner)
        for name, inner in cast("dict[str, Any]", value).items()
    )


def _holds_nothing(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_holds_nothing, cast("dict[str, Any]", value).values()))
    return value is None or (isinstance(value, list) and all(map(_holds_nothing, cast("list[Any]", value))))


def _has_empty_others(one: ValueType) -> bool:
    return (
        one.others == "empty"
        or (one.item is not None and _has_empty_others(one.item))
        or any(_has_empty_others(field.type) for field in one.fields)
    )


def _python_type(one: ValueType, refused: tuple[Others, ...] = ("refused", "empty")) -> Any:
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


def _has_times(one: ValueType) -> bool:
    return (
        one.kind == "timestamp"
        or (one.item is not None and _has_times(one.item))
        or any(_has_times(field.type) for field in one.fields)
    )


def _floats_of(one: ValueType, where: str) -> Callable[[Any], Any] | None:
    """Return a function that makes floats of integers in columns of floats; None if there are no such ones.

    It raises ValueError for an integer that would be rounded.
    """
    if one.kind == "float64":
        return lambda value: _exact_float(value, where) if isinstance(value, int) else value
    if one.item is not None:
        of_item = _floats_of(one.item, f"{where}[...]")
        if of_item is None:
            return None
        return lambda values: None if values is None else [of_item(value) for value in values]
    found = [(field.name, _floats_of(field.type, f"{where}.{field.name}")) for field in one.fields]
    of_fields = [(name, of_field) for name, of_field in found if of_field is not None]

    def in_struct(value: Any) -> Any:
        if value is not None:
            for name, of_field in of_fields:
                value[name] = of_field(value[name])
        return value

    return in_struct if of_fields else None


def _exact_float(value: int, where: str) -> float:
    found = float(value)
    if int(found) != value:
        raise ValueError(f"{value} would be rounded as a 64-bit float - at `{where}`")
    return found


def _check_times(value: Any) -> None:
    """Raise OverflowError for a time that is in the year 0 or 10000 in UTC, which readers could not read."""
    match value:
        case datetime():
            value.astimezone(UTC)
        case dict():
            for inner in value.values():  # pyright: ignore[reportUnknownVariableType]
                _check_times(inner)
        case list():
            for inner in value:  # pyright: ignore[reportUnknownVariableType]
                _check_times(inner)
        case _:
            pass
