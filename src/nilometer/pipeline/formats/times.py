"""Time formats -> functions that read the time of a line. Pure: the time of the record is an argument.

A time format is one of ``NAMED`` or a text with the directives in ``DIRECTIVES``, a part of strptime's: exact
about the number of digits, in English in every locale. A blank before %e matches one or two blanks. Times
are integers, microseconds since 1970 in UTC.

A format without a year takes the year of the record's timestamp, or the year before if the time would
otherwise be more than a day later than the record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final

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
