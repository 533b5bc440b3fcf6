"""From the texts of a line to typed columns, its time, level, key and label. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import Final, NamedTuple

from nilometer.pipeline.formats.definition import Derived, FormatDefinition, FormatError, Type, texts
from nilometer.pipeline.formats.levels import level_of, severity_of_priority
from nilometer.pipeline.formats.patterns import Pattern
from nilometer.pipeline.formats.times import ReadTime, TimeFormatError, compile_times

Value = str | int | float | bool
INT64_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
NUMBER_CHARS_MAX: Final = 400


class Line(NamedTuple):
    """What a format found in a line."""

    format: str
    time_us: int | None = None
    """The event time in microseconds since 1970; None if the line has none."""
    level: str = ""
    key: str = ""
    label: str = ""
    fields: Mapping[str, Value] = {}


class Columns:
    """Applies everything in a definition that comes after a line was taken apart."""

    def __init__(self, definition: FormatDefinition, zone: tzinfo) -> None:
        """Prepare the definition; ``zone`` is for times without one. Raises FormatError."""
        self._definition = definition
        self._derived = [_Derivation(one) for one in definition.derived]
        self._convert = [(column, CONVERSIONS[kind]) for column, kind in definition.types.items()]
        self._time_columns = texts(definition.time)
        self._levels = texts(definition.level)
        self._read_time: ReadTime | None = None
        if self._time_columns:
            try:
                self._read_time = compile_times(texts(definition.time_format), zone)
            except TimeFormatError as error:
                raise FormatError(f"format {definition.name}: time_format: {error}") from None

    def line(self, found: dict[str, Value], recorded_us: int) -> Line | None:
        """Return the line, or None if a required column, a type or the time does not fit."""
        definition = self._definition
        for derivation in self._derived:
            derivation.apply(found)
        for column, convert in self._convert:
            if column in found:
                converted = convert(found[column])
                if converted is None:
                    return None
                found[column] = converted
        for column in definition.required:
            if found.get(column, "") == "":
                return None
        time_us = self._time(found, recorded_us)
        if time_us is None and self._read_time is not None and definition.time_required:
            return None
        level = next((level_of(as_text(found[one])) for one in self._levels if found.get(one, "") != ""), "")
        level = level or definition.level_otherwise
        key = as_text(found.get(definition.key, "")) if definition.key else ""
        label = as_text(found.get(definition.label, "")) if definition.label else level
        return Line(definition.name, time_us, level, key, label, found)

    def _time(self, found: Mapping[str, Value], recorded_us: int) -> int | None:
        if self._read_time is None:
            return None
        parts = [as_text(found[one]) for one in self._time_columns if one in found]
        return self._read_time(" ".join(parts), recorded_us) if parts else None


class _Derivation:
    def __init__(self, derived: Derived) -> None:
        self._column, self._of = derived.column, derived.of
        self._pattern = Pattern(derived.pattern)
        self._value, self._otherwise = derived.value, derived.otherwise

    def apply(self, found: dict[str, Value]) -> None:
        if self._of not in found:
            return
        part = self._pattern.search(as_text(found[self._of]))
        if part is not None:
            found[self._column] = self._value if self._value is not None else part
        elif self._otherwise is not None and self._otherwise in found:
            found[self._column] = found[self._otherwise]


def as_text(value: Value) -> str:
    """Return a value as it is written in JSON, without the quotes of a string."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def _integer(value: Value) -> int | None:
    text = as_text(value)
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        return None
    number = int(text)
    return number if -INT64_MAX - 1 <= number <= INT64_MAX else None


def _number(value: Value) -> float | None:
    text = as_text(value)
    if len(text) > NUMBER_CHARS_MAX or _NUMBER.fullmatch(text) is None:
        return None
    number = float(text)
    return number if abs(number) != float("inf") else None


def _boolean(value: Value) -> bool | None:
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(
        as_text(value).lower()
    )


def _severity(value: Value) -> str | None:
    text = as_text(value)
    return severity_of_priority(int(text)) if text.isascii() and text.isdigit() and len(text) <= 3 else None


CONVERSIONS: Final[Mapping[Type, Callable[[Value], Value | None]]] = {
    "string": as_text,
    "lower": lambda value: as_text(value).lower(),
    "upper": lambda value: as_text(value).upper(),
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "severity": _severity,
    "bytes": as_text,
}
"""Type -> its conversion, which returns None for a value that is none of the type. Arrays of bytes are text
already: the reader of JSON, which can tell an array from a string, has decoded them."""
