"""The entries of a form that a browser posts, bounded in size and in time, and what a user may enter."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

TIMEOUT_S = 30.0
ENTRIES_MAX = 1_000
"""A million entries of two bytes would hold the event loop for a second."""


class BadForm(Exception):
    """The form is refused with ``status``; the message says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def form_entries(request: Request, bytes_max: int) -> dict[str, str]:
    """Return the last value of each name. Raises BadForm."""
    body = bytearray()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            async for part in request.stream():
                body += part
                if len(body) > bytes_max:
                    raise BadForm(413, f"A form may have at most {bytes_max:,} bytes here.")
    except TimeoutError:
        raise BadForm(408, f"The form did not arrive within {TIMEOUT_S:.0f} s.") from None
    except ClientDisconnect:
        raise BadForm(400, "The form did not arrive.") from None
    try:
        entries = parse_qsl(
            body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=ENTRIES_MAX
        )
    except ValueError:
        raise BadForm(413, f"A form may have at most {ENTRIES_MAX} entries.") from None
    return dict(entries)


INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


class BadEntry(Exception):
    """An entry of a form cannot be used; the message says which, and what it must be."""


def number_in(text: str, what: str, most: int) -> int:
    """Raises BadEntry, whose message begins with ``what``."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise BadEntry(f"{what} must be a whole number from 0 to {most:,}, not {text!r}.")
    return int(text)


def time_in(text: str) -> int:
    """Return milliseconds since the epoch: those, or an ISO 8601 time; without a zone it is UTC.

    Raises BadEntry.
    """
    if text.isascii() and text.isdigit():
        return number_in(text, "The time in ms", INT64_MAX)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadEntry(f"The time must be as in 2026-01-31 12:00:00 (UTC), or in ms, not {text!r}.") from None
    return max(0, round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000))
