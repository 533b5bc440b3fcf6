"""Parses timestamps given on the command line."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str) -> int:
    """Return milliseconds since 1970, from such a number or from an ISO time (UTC if it has no zone).

    Raises ValueError.
    """
    if text.isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither milliseconds since 1970 nor a time such as 2026-01-31T12:00:00"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1000)
