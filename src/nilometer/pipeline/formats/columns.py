"""From the texts of a line to typed columns, its time, level, key and label. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final, NamedTuple

from nilometer.pipeline.formats.definition import Derived, FormatDefinition, FormatError, Pattern, Type, texts

# Time formats -> functions that read the time of a line. Pure: the time of the record is an argument.
#
# A time format is one of ``NAMED`` or a text with the directives in ``DIRECTIVES``, a part of strptime's:
# exact about the number of digits, in English in every locale. A blank before %e matches one or two blanks.
# Times are integers, microseconds since 1970 in UTC.
#
# A format without a year takes the year of the record's timestamp, or the year before if the time would
# otherwise be more than a day later than the record.

DIRECTIVES: Final = {
    "Y": r"(?P<Y>[0-9]{4})",
    "y": r"(?P<y>[0-9]{2})",
    "m": r"(?P<m>[0-9]{2})",
    "b": r"(?P<b>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)",
    "d": r"(?P<d>[0-9]{2})",
    "e": r"(?P<d>[0-9]{1,2})",
    "H": r"(?P<H>[0-9]{2})",
    "I": r"(?P<I>[0-9]{1,2})",
    "M": r"(?P<M>[0-9]{2})",
    "S": r"(?P<S>[0-9]{2})",
    "f": r"(?P<f>[0-9]{1,9})",
    "p": r"(?P<p>AM|PM|am|pm)",
    "z": r"(?P<z>Z|[+-][0-9]{2}:?[0-9]{2})",
    "Z": r"(?P<Z>UTC|GMT)",
    "a": r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)",
    "k": r"(?P<H>[0-9]{1,2})",
    "N": r"(?P<M>[0-9]{1,2})",
    "s": r"(?P<S>[0-9]{1,2})",
    "L": r"(?P<L>[0-9]{1,3})",
}
"""Directive -> what it matches; %e, %k, %N and %s are day, hour, minute and second of one or two digits, %f
is any fraction of a second, %L a number of milliseconds."""

_ISO = (
    r"(?P<Y>[0-9]{4})-(?P<m>[0-9]{2})-(?P<d>[0-9]{2})(?:T| {1,2})(?P<H>[0-9]{2}):(?P<M>[0-9]{2})"
    r"(?::(?P<S>[0-9]{2})(?:[.,](?P<f>[0-9]{1,9}))?)? ?(?P<z>Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_EPOCH_UNITS: Final = {"epoch_s": 1_000_000, "epoch_ms": 1_000, "epoch_us": 1}
NAMED: Final = ("iso8601", "epoch", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns")
"""``epoch`` takes seconds, milli-, micro- or nanoseconds by the size of the number."""

_MONTHS: Final[dict[str, int]] = dict(
    zip(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
        range(1, 13),
        strict=True,
    )
)
EARLIEST_US: Final = 86_400_000_000
"""A time before 1970-01-02 was misread: no line of a log is so old."""
LATEST_US: Final = 253_402_300_799_999_999
"""The end of the year 9999, which is the last one of both Python and Spark."""
_CACHE_MAX: Final = 4_096
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = timedelta(days=1)

ReadTime = Callable[[str, int], "int | None"]
"""Text and the record's timestamp (microseconds) -> the time in microseconds; None if it is no such time."""


class TimeFormatError(ValueError):
    """The time format is wrong; the message says where."""


def compile_times(formats: Sequence[str], zone: tzinfo) -> ReadTime:
    """Return a function that reads a time in the first of ``formats`` that fits; ``zone`` is for times
    without one. Raises TimeFormatError."""
    readers = [_reader(one, zone) for one in formats]
    known: dict[str, int | None] = {}
    keeps = all(has_year for _, has_year in readers)

    def read(text: str, recorded_us: int) -> int | None:
        # Neighbouring lines often have the same second. What depends on the record is not kept.
        if text in known:
            return known[text]
        found = None
        for reader, _ in readers:
            found = reader(text, recorded_us)
            if found is not None and EARLIEST_US <= found <= LATEST_US:
                break
            found = None
        if keeps:
            if len(known) >= _CACHE_MAX:
                known.clear()
            known[text] = found
        return found

    return read


def _reader(form: str, zone: tzinfo) -> tuple[ReadTime, bool]:
    """Return the function for one format, and whether its times have a year."""
    if form in ("epoch", *_EPOCH_UNITS, "epoch_ns"):
        return lambda text, _: _epoch(text, form), True
    pattern = _ISO if form == "iso8601" else _pattern_of(form)
    compiled = re.compile(pattern)
    has_year = bool({"Y", "y"} & compiled.groupindex.keys())

    def read(text: str, recorded_us: int) -> int | None:
        found = compiled.fullmatch(text)
        return None if found is None else _time_of(found.groupdict(), zone, recorded_us)

    return read, has_year


def _pattern_of(form: str) -> str:
    parts: list[str] = []
    at = 0
    while at < len(form):
        sign = form[at]
        if sign == "%":
            directive = form[at + 1 : at + 2]
            if directive == "%":
                parts.append("%")
            elif directive in DIRECTIVES:
                parts.append(DIRECTIVES[directive])
            else:
                raise TimeFormatError(
                    f"%{directive} is no directive of a time format: there are "
                    f"{', '.join('%' + one for one in DIRECTIVES)}, and the names {', '.join(NAMED)}"
                )
            at += 1
        else:
            parts.append(" {1,2}" if form.startswith(" %e", at) else re.escape(sign))
        at += 1
    try:
        groups = re.compile("".join(parts)).groupindex
    except re.error:
        raise TimeFormatError(f"{form!r} has a directive twice") from None
    missing = [what for what, names in _NEEDED.items() if not any(name in groups for name in names)]
    if missing:
        raise TimeFormatError(
            f"{form!r} has no {' and no '.join(missing)}. Leave `time` out for lines without a whole time"
        )
    return "".join(parts)


_NEEDED: Final = {"month (%m, %b)": "mb", "day (%d, %e)": "d", "hour (%H, %I)": "HI"}


def _epoch(text: str, unit: str) -> int | None:
    """Return microseconds; the sign, digits and a fraction are all that is allowed."""
    whole, _, fraction = text.partition(".")
    if not (whole.isascii() and whole.isdigit() and len(whole) <= 20):
        return None
    if fraction and not (fraction.isascii() and fraction.isdigit()):
        return None
    number = int(whole)
    if unit == "epoch":
        unit = "epoch_s" if number < 10**11 else "epoch_ms" if number < 10**14 else "epoch_us"
        unit = "epoch_ns" if number >= 10**17 else unit
    if unit == "epoch_ns":
        return number // 1_000
    factor = _EPOCH_UNITS[unit]
    below = int((fraction + "000000")[:6]) * factor // 1_000_000
    return number * factor + below


def _time_of(part: dict[str, str | None], zone: tzinfo, recorded_us: int) -> int | None:
    try:
        zoned = _zone_of(part.get("z")) or (UTC if part.get("Z") else zone)
        year = part.get("Y") or (f"20{part['y']}" if part.get("y") else None)
        if year is not None:
            return _microseconds(_in_year(part, int(year), zoned))
        recorded = _EPOCH + timedelta(microseconds=recorded_us)
        return _without_year(part, zoned, recorded)
    except (ValueError, OverflowError):
        return None


def _without_year(part: dict[str, str | None], zone: tzinfo, recorded: datetime) -> int | None:
    year = recorded.astimezone(zone).year
    try:
        time = _in_year(part, year, zone)
        if time <= recorded + _DAY:
            return _microseconds(time)
    except ValueError:  # 29 February, of another year
        pass
    return _microseconds(_in_year(part, year - 1, zone))


def _in_year(part: dict[str, str | None], year: int, zone: tzinfo) -> datetime:
    month = int(part["m"] or 0) if part.get("m") else _MONTHS[part["b"] or ""]
    hour = int(part.get("H") or 0)
    if part.get("I"):
        hour = int(part["I"] or 0)
        if not 1 <= hour <= 12:
            raise ValueError("no such hour")
        hour = hour % 12 + (12 if (part.get("p") or "").lower() == "pm" else 0)
    fraction = int(part["L"] or 0) * 1_000 if part.get("L") else int(((part.get("f") or "") + "000000")[:6])
    minute, second = int(part.get("M") or 0), int(part.get("S") or 0)
    return datetime(year, month, int(part["d"] or 0), hour, minute, second, fraction, tzinfo=zone)


def _zone_of(text: str | None) -> tzinfo | None:
    if not text:
        return None
    if text in ("Z", "UTC", "GMT"):
        return UTC
    hours, minutes = int(text[1:3]), int(text[-2:]) if len(text) > 3 else 0
    if hours > 23 or minutes > 59:
        raise ValueError("no such offset")
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if text[0] == "-" else offset)


def _microseconds(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)


# Names of levels: the words and numbers of many programs -> the severities of syslog. Pure.

SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
"""Syslog's severities, in the order of their numbers (RFC 5424, 6.2.1)."""

_OTHER_WORDS = {
    "panic": "emerg",
    "emergency": "emerg",
    "critical": "crit",
    "fatal": "crit",
    "error": "err",
    "severe": "err",
    "warn": "warning",
    "information": "info",
    "informational": "info",
    "log": "info",
    "note": "notice",
    "failure": "err",
    "fail": "err",
    "dpanic": "crit",
    "assert": "crit",
    "dbug": "debug",
    "verbose": "debug",
    "trce": "trace",
}
_NUMBERS = {**dict(enumerate(SEVERITIES)), 10: "trace", 20: "debug", 30: "info", 40: "warning"} | {
    50: "err",
    60: "crit",
}
"""Syslog's severities, and the levels of JSON loggers that count in tens."""


def level_of(text: str) -> str:
    """Return the severity that ``text`` names, by word or number; another word in lower case."""
    word = text.strip().lower()
    if word.isascii() and word.isdigit() and len(word) <= 2:
        return _NUMBERS.get(int(word), word)
    return _OTHER_WORDS.get(word, word)


def severity_of_priority(priority: int) -> str:
    """Return the severity of syslog's ``<priority>``, which is facility * 8 + severity."""
    return SEVERITIES[priority % 8]


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
