"""Serves GET requests on a listener of the runtime's network, beside the other work of the event loop.

A response's body is an iterator of text, which is produced while it is sent: after at most :data:`SLICE_MS`
of work the event loop runs its other tasks, and while the client does not read, nothing is produced. Each
connection serves one request, and is closed after its response.

What a client can cost is bounded: the number of connections, the size of a request's head, the time until it
has arrived, and the time until the client has read a part of the response.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, NamedTuple, cast

import msgspec

from nilometer.runtime import Clock, Listener, Network

# The head of an HTTP request: parsed from bytes, without I/O.
#
# Only what a scraper or a probe sends is understood (RFC 9112): a request line, then header lines, ended by
# an empty line. A body is not read.

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


logger = logging.getLogger("nilometer.http")

CONNECTIONS_MAX = 16
HEAD_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 20.0
"""A client that reads nothing for this long, while its response waits, is disconnected."""
SLICE_MS = 1
"""The event loop runs other tasks when the millisecond clock has advanced by this: after 0 to 2 ms of
work."""
PAUSE_S = 0.002
"""How long the production of a body pauses then: it takes at most about a third of the event loop's time."""
PARTS_PER_LOOK = 8
"""How many parts of a body are produced between two looks at the clock."""
LINGER_S = 5.0
"""How long a client may take to read the end of its response and to close the connection."""
CHUNK_BYTES = 32 * 1024
WRITE_BUFFER_BYTES = 64 * 1024
PLAIN_TEXT = "text/plain; charset=utf-8"

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Response(msgspec.Struct, frozen=True):
    status: int
    body: Iterator[str]
    """The body in parts, which may be empty: the event loop may run other tasks after each."""
    content_type: str = PLAIN_TEXT


def plain(status: int, text: str) -> Response:
    return Response(status, iter((text,)))


Route = Callable[[], Response | Awaitable[Response]]
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class HttpServer:
    """``routes``: what is served, by path. ``spawn`` runs the task of a connection."""

    def __init__(self, clock: Clock, routes: Mapping[str, Route], spawn: Spawn) -> None:
        self.clock = clock
        self.spawn = spawn
        self._routes = routes
        self._listener: Listener | None = None
        self._connections: dict[HttpConnection, None] = {}

    async def start(self, network: Network, host: str, port: int) -> None:
        """Serve on ``host`` and ``port`` (0 lets the system choose). Raises OSError."""
        self._listener = await network.listen(lambda: HttpConnection(self), host, port)
        await self._listener.start()

    @property
    def port(self) -> int:
        assert self._listener is not None, "the server was started"
        return self._listener.port

    @property
    def connections_open(self) -> int:
        return len(self._connections)

    def close(self) -> None:
        """Stop accepting, and drop all connections."""
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.abort()

    def opened(self, connection: HttpConnection) -> bool:
        """Add a connection; false if there are too many."""
        if len(self._connections) >= CONNECTIONS_MAX:
            return False
        self._connections[connection] = None
        return True

    def closed(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)

    async def respond(self, head: RequestHead) -> Response:
        """Return the response to a request. An unexpected error is logged, and becomes a response."""
        if head.method not in ("GET", "HEAD"):
            return plain(405, "only GET and HEAD are served\n")
        route = self._routes.get(head.path)
        if route is None:
            return plain(404, f"there is no {head.path}; there is {', '.join(sorted(self._routes))}\n")
        try:
            response = route()
            return response if isinstance(response, Response) else await response
        except Exception:
            logger.exception("The request for %s failed", head.path)
            return plain(500, "the request failed; the log has the reason\n")


class HttpConnection(asyncio.Protocol):
    """One connection: collects the head of its request, then sends the response in a task."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._has_begun = False
        self._has_ended = False
        self._client_has_ended = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()

    # ── asyncio's side ──────────────────────────────────────────────────────────────────────────
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not derived from it
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if not self._server.opened(self):
            self._reject(BadRequest(503, "too many connections"))
            self._transport.close()
            return
        self._timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, self._on_head_timeout)

    def data_received(self, data: bytes) -> None:
        if self._has_begun:
            return  # a body, or a second request: neither is served
        self._received += data
        try:
            head = parse_head(self._received)
        except BadRequest as error:
            self._reject(error)
            return
        if head is not None:
            self._begin()
            self._task = self._server.spawn(self._serve(head))

    def eof_received(self) -> bool:
        self._client_has_ended = True
        return self._has_begun and not self._has_ended  # a client may close its side after its request

    def connection_lost(self, exc: Exception | None) -> None:
        self._begin()
        self._has_ended = True
        self._transport = None
        self._may_write.set()
        self._server.closed(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    # ── the request and its response ────────────────────────────────────────────────────────────
    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _begin(self) -> None:
        """Read no more: the request has arrived, was rejected, or will not arrive."""
        self._has_begun = True
        self._received.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _on_head_timeout(self) -> None:
        self._reject(BadRequest(408, f"no complete request within {HEAD_TIMEOUT_S:.0f} s"))

    def _reject(self, error: BadRequest) -> None:
        self._begin()
        if self._transport is not None:
            text = f"{error}\n".encode()
            length = (f"Content-Length: {len(text)}",)
            self._write(_head(error.status, PLAIN_TEXT, length) + text)
            self._end()

    def _end(self) -> None:
        """End the response. The client closes the connection: if this side did, with bytes of the client
        unread, the client's system could drop the response."""
        transport = self._transport
        if transport is None or self._has_ended or transport.is_closing():
            return
        self._has_ended = True
        if self._client_has_ended or not transport.can_write_eof():
            transport.close()
        else:
            transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self.abort)

    async def _serve(self, head: RequestHead) -> None:
        response = await self._server.respond(head)
        is_chunked = head.is_http_1_1  # so that a client can tell a complete body from a lost connection
        framing = ("Transfer-Encoding: chunked",) if is_chunked else ()
        self._write(_head(response.status, response.content_type, framing))
        try:
            if head.method == "GET":
                await self._send_body(response.body, is_chunked=is_chunked)
        except Exception:
            logger.exception("The response to %s could not be completed", head.path)
            self.abort()
        else:
            self._end()
        finally:
            _end_early(response.body)

    async def _send_body(self, body: Iterator[str], *, is_chunked: bool) -> None:
        """Send the body; returns early if the connection is lost."""
        clock = self._server.clock
        parts: list[str] = []
        size, began_ms = 0, clock.monotonic_ms()
        for number, part in enumerate(body):
            if part:
                parts.append(part)
                size += len(part)
            if size >= CHUNK_BYTES:
                self._write_chunk(parts, is_chunked=is_chunked)
                parts, size = [], 0
            if number % PARTS_PER_LOOK == 0 and clock.monotonic_ms() - began_ms >= SLICE_MS:
                await self._let_others_run()
                began_ms = clock.monotonic_ms()
            if self._transport is None:
                return
        self._write_chunk(parts, is_chunked=is_chunked)
        if is_chunked:
            self._write(b"0\r\n\r\n")

    async def _let_others_run(self) -> None:
        """Leave the event loop to the other tasks for a while; then wait until the client has read enough."""
        await asyncio.sleep(PAUSE_S)
        if self._may_write.is_set():
            return
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self._may_write.wait()
        except TimeoutError:
            logger.info("A client that did not read its response was disconnected")
            self.abort()
            self._transport = None

    def _write_chunk(self, parts: list[str], *, is_chunked: bool) -> None:
        data = "".join(parts).encode()
        if not data:
            return
        self._write(b"%x\r\n%b\r\n" % (len(data), data) if is_chunked else data)

    def _write(self, data: bytes) -> None:
        # A transport that a reset has closed raises until connection_lost, which follows, is called.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def _end_early(body: Iterator[str]) -> None:
    """End a body that is a generator: the client may have left before its end."""
    close: Callable[[], None] | None = getattr(body, "close", None)
    if close is not None:
        close()


def _head(status: int, content_type: str, more: tuple[str, ...]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}",
        f"Content-Type: {content_type}",
        "Cache-Control: no-store",
        *(("Allow: GET, HEAD",) if status == 405 else ()),
        *more,
        "Connection: close",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
