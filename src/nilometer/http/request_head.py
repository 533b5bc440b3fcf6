"""The head of an HTTP request: parsed from bytes, without I/O.

Only what a scraper or a probe sends is understood (RFC 9112): a request line, then header lines, ended by an
empty line. A body is not read.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HEAD_BYTES_MAX = 8192
"""A longer head is rejected."""
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) ([^\x00-\x20\x7f-\xff]{1,4096}) HTTP/1\.([01])")
_HEADER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*")
_HEAD_END = re.compile(rb"\r?\n\r?\n")


class BadRequest(Exception):
    """The request is rejected with ``status``; the message says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RequestHead(NamedTuple):
    method: str
    path: str
    """Without query and fragment."""
    is_http_1_1: bool


def parse_head(received: bytes | bytearray) -> RequestHead | None:
    """Return the head at the beginning of ``received``; None while its end has not arrived.

    Raises BadRequest: 431 for a head above ``HEAD_BYTES_MAX``, 400 for one that is no HTTP.
    """
    end = _HEAD_END.search(received)
    if end is None or end.start() > HEAD_BYTES_MAX:
        if len(received) > HEAD_BYTES_MAX:
            raise BadRequest(431, f"the request's head is above {HEAD_BYTES_MAX} bytes")
        return None
    request_line, *header_lines = bytes(received[: end.start()]).replace(b"\r\n", b"\n").split(b"\n")
    match = _REQUEST_LINE.fullmatch(request_line)
    if match is None:
        raise BadRequest(400, "the first line is no HTTP/1.1 request line")
    if any(_HEADER_LINE.fullmatch(line) is None for line in header_lines):
        raise BadRequest(400, "a header line is malformed")
    target = match[2].decode("ascii")
    path = re.split(r"[?#]", re.sub(r"^https?://[^/?#]*", "", target), maxsplit=1)[0]
    return RequestHead(match[1].decode("ascii"), path or "/", match[3] == b"1")
