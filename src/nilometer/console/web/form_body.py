"""The entries of a form that a browser posts: bounded in size and in time."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

TIMEOUT_S = 30.0


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
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
