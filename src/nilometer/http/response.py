"""The response to an HTTP request: parsed from bytes, without I/O (RFC 9112).

The body may have a length, come in chunks, or end with the connection.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HEAD_BYTES_MAX = 16 * 1024
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: [^\r\n]*)?")
_HEADER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHUNK_HEAD = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]{0,200})?\r\n")


class BadResponse(Exception):
    """What was received is no HTTP response, or one that is too large; the message says which."""


class HttpResponse(NamedTuple):
    status: int
    body: bytes


def parse_response(received: bytes, ended: bool, body_bytes_max: int) -> HttpResponse | None:
    """Return the response at the beginning of ``received``; None while it is not complete.

    ``ended``: the server has closed the connection. Raises BadResponse.
    """
    end = _HEAD_END.search(received)
    if end is None or end.start() > HEAD_BYTES_MAX:
        if len(received) > HEAD_BYTES_MAX:
            raise BadResponse(f"the response's head is above {HEAD_BYTES_MAX} bytes")
        if ended:
            raise BadResponse("the connection ended before the response")
        return None
    status, headers = _parse_head(received[: end.start()])
    start = end.end()
    if len(received) - start > 2 * body_bytes_max:
        raise BadResponse(f"the response is above {body_bytes_max} bytes")
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        body = _chunked_body(received, start)
    elif b"transfer-encoding" in headers:
        raise BadResponse("the response has a transfer encoding that is not understood")
    elif b"content-length" in headers:
        body = _sized_body(received, start, headers[b"content-length"], body_bytes_max)
    else:
        body = received[start:] if ended else None
    if body is None:
        if ended:
            raise BadResponse("the connection ended within the response")
        return None
    if len(body) > body_bytes_max:
        raise BadResponse(f"the response is above {body_bytes_max} bytes")
    return HttpResponse(status, body)


def _parse_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    status_line, *header_lines = head.replace(b"\r\n", b"\n").split(b"\n")
    status = _STATUS_LINE.fullmatch(status_line)
    found = [_HEADER_LINE.fullmatch(line) for line in header_lines]
    if status is None or not all(found):
        raise BadResponse("the response is no HTTP/1.1")
    return int(status[1]), {line[1].lower(): line[2].strip() for line in found if line is not None}


def _sized_body(received: bytes, start: int, text: bytes, body_bytes_max: int) -> bytes | None:
    if not text.isdigit() or len(text) > 12:
        raise BadResponse("the response's length is no number")
    size = int(text)
    if size > body_bytes_max:
        raise BadResponse(f"the response is above {body_bytes_max} bytes")
    return received[start : start + size] if len(received) - start >= size else None


def _chunked_body(received: bytes, start: int) -> bytes | None:
    """Return the joined chunks; None while the last one has not arrived. Trailers are not read."""
    parts: list[bytes] = []
    while True:
        head = _CHUNK_HEAD.match(received, start)
        if head is None:
            if len(received) - start > 256:
                raise BadResponse("a chunk of the response is malformed")
            return None
        size, start = int(head[1], 16), head.end()
        if size == 0:
            return b"".join(parts)
        if len(received) < start + size + 2:
            return None
        if received[start + size : start + size + 2] != b"\r\n":
            raise BadResponse("a chunk of the response is malformed")
        parts.append(received[start : start + size])
        start += size + 2
