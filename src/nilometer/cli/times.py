"""Parses timestamps given on the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime

TIME_MAX_MS = (1 << 63) - 1
_MILLISECONDS = re.compile("[0-9]{1,19}")


def parse_time(text: str) -> int:
    """Return milliseconds since 1970, from such a number or from an ISO time (UTC if it has no zone).

    Raises ValueError, also for times before 1970: a record has none of them.
    """
    try:
        found = int(text) if _MILLISECONDS.fullmatch(text) else _from_iso(text)
    except (ValueError, OverflowError):
        found = -1
    if not 0 <= found <= TIME_MAX_MS:
        raise ValueError(
            f"{text!r} is neither milliseconds since 1970 nor a time such as 2026-01-31T12:00:00"
        )
    return found


def _from_iso(text: str) -> int:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1000)
