"""Sends one HTTP request through the runtime's network, and returns its response (RFC 9112)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import NamedTuple, cast

from nilometer.http.url import HttpUrl
from nilometer.runtime import Network
from nilometer.runtime.tls import ClientTls, TlsUnusable

# The response to an HTTP request: parsed from bytes, without I/O (RFC 9112).
#
# The body may have a length, come in chunks, or end with the connection.

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


# Sends one HTTP request and returns its response, through the runtime's network.
#
# Each request has a connection of its own. Redirections are not followed: a URL that was allowed must not
# lead to one that was not. Bounded are the time and the size of a response.

TIMEOUT_S = 10.0
BODY_BYTES_MAX = 1 << 20


class HttpFailed(Exception):
    """There is no response of the status 200; the message says why, without the request."""


async def request(
    network: Network,
    url: HttpUrl,
    *,
    tls: ClientTls,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """GET ``url``, or POST ``body`` to it; return the body of the response.

    ``tls``: the trusted authorities for https. Raises HttpFailed.
    """
    loop = asyncio.get_running_loop()
    exchange: _Exchange | None = None

    def make() -> _Exchange:
        nonlocal exchange
        exchange = _Exchange(_encode(url, headers or {}, body), loop.create_future())
        return exchange

    try:
        async with asyncio.timeout(TIMEOUT_S):
            await network.connect(make, url.host, url.port, tls if url.scheme == "https" else None)
            assert exchange is not None
            response = await exchange.response
    except TimeoutError:
        raise HttpFailed(f"no response within {TIMEOUT_S:.0f} s") from None
    except (OSError, UnicodeError, TlsUnusable) as error:  # UnicodeError: no name of a host
        raise HttpFailed(str(error) or type(error).__name__) from None
    except BadResponse as error:
        raise HttpFailed(str(error)) from None
    finally:
        if exchange is not None:
            exchange.abort()
    if response.status != 200:
        raise HttpFailed(f"the status of the response is {response.status}")
    return response.body


def _encode(url: HttpUrl, headers: Mapping[str, str], body: bytes | None) -> bytes:
    fields = {
        "Host": url.authority,
        "Accept": "application/json",
        "User-Agent": "nilometer",
        "Connection": "close",
        **headers,
    }
    if body is not None:
        fields["Content-Length"] = str(len(body))
    lines = [f"{'GET' if body is None else 'POST'} {url.target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (body or b"")


class _Exchange(asyncio.Protocol):
    """The connection of one request. Invariant: ``response`` is resolved once."""

    def __init__(self, sent: bytes, response: asyncio.Future[HttpResponse]) -> None:
        self._sent = sent
        self.response = response
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._sent)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._parse(ended=False)
        if len(self._received) > HEAD_BYTES_MAX + 2 * BODY_BYTES_MAX:
            self._fail(BadResponse(f"the response is above {BODY_BYTES_MAX} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, OSError):
            self._fail(exc)
        else:
            self._parse(ended=True)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if not self.response.done():
            self.response.cancel()

    def _parse(self, *, ended: bool) -> None:
        if self.response.done():
            return
        try:
            response = parse_response(bytes(self._received), ended, BODY_BYTES_MAX)
        except BadResponse as error:
            self._fail(error)
            return
        if response is not None:
            self.response.set_result(response)

    def _fail(self, error: Exception) -> None:
        if not self.response.done():
            self.response.set_exception(error)
            if self._transport is not None:
                self._transport.abort()
