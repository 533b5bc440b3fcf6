"""The HTTP server on a loopback port: responses, bad and slow clients, and its share of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

import pytest

from nilometer.http import server as http_server
from nilometer.http.server import CONNECTIONS_MAX, HttpServer, Response, Route, plain
from nilometer.runtime import Runtime
from support.eventually import becomes

HOST = "127.0.0.1"


class StepClock:
    """Time advances by a millisecond with each part of a body that `step` wraps."""

    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def step(self, parts: int, text: str = "x\n") -> Iterator[str]:
        for _ in range(parts):
            self.now_ms += 1
            yield text


@asynccontextmanager
async def serving(routes: Mapping[str, Route], clock: StepClock | None = None) -> AsyncIterator[HttpServer]:
    server = HttpServer(clock or Runtime.system().clock, routes, asyncio.ensure_future)
    await server.start(Runtime.system().network, HOST, 0)
    try:
        yield server
    finally:
        server.close()


async def exchange(server: HttpServer, request: bytes) -> tuple[bytes, bytes]:
    """Send ``request``; return the head and the body of the response, once the server has closed."""
    reader, writer = await asyncio.open_connection(HOST, server.port)
    writer.write(request)
    received = await reader.read()
    writer.close()
    head, _, body = received.partition(b"\r\n\r\n")
    return head, body


def get(path: str, version: str = "1.1") -> bytes:
    return f"GET {path} HTTP/{version}\r\nHost: x\r\n\r\n".encode()


def unchunked(body: bytes) -> bytes:
    data = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            assert body == b"\r\n", "nothing follows the last chunk"
            return data
        assert body[length : length + 2] == b"\r\n"
        data, body = data + body[:length], body[length + 2 :]


async def test_a_body_arrives_whole_in_chunks_or_up_to_the_end() -> None:
    text = "".join(f"line {number}\n" for number in range(20_000))
    parts = {"/long": lambda: Response(200, iter(text.splitlines(keepends=True)), "text/x")}
    async with serving(parts) as server:
        head, body = await exchange(server, get("/long"))
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Type: text/x" in head
        assert b"Connection: close" in head
        assert unchunked(body) == text.encode()
        head, body = await exchange(server, get("/long", "1.0"))
        assert b"chunked" not in head
        assert body == text.encode()
        head, body = await exchange(server, b"HEAD /long HTTP/1.1\r\n\r\n")
        assert (head[:15], body) == (b"HTTP/1.1 200 OK", b"")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/nowhere"), b"404"),
        (b"POST /here HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000, b"431"),
        (get("/broken"), b"500"),
        (get("/later"), b"503"),
        (get("/here") * 3, b"200"),
    ],
)
async def test_each_request_gets_one_response_with_its_status(request_bytes: bytes, status: bytes) -> None:
    def broken() -> Response:
        raise RuntimeError("broken")

    async def later() -> Response:
        await asyncio.sleep(0)
        return plain(503, "later\n")

    routes: dict[str, Route] = {"/here": lambda: plain(200, "here\n"), "/broken": broken, "/later": later}
    async with serving(routes) as server:
        head, body = await exchange(server, request_bytes)
        assert head.split()[1] == status
        assert b"HTTP/1.1 " not in body.replace(b"no HTTP/1.1 request", b""), "there is no second response"
        assert (await exchange(server, get("/here")))[0].split()[1] == b"200", "the server still serves"


async def test_the_event_loop_runs_others_between_parts_of_a_body() -> None:
    clock, turns = StepClock(), 0
    at_part: list[int] = []

    def count_turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(count_turn)

    def body() -> Iterator[str]:
        for part in clock.step(400):
            at_part.append(turns)
            yield part

    async with serving({"/long": lambda: Response(200, body())}, clock) as server:
        count_turn()
        await exchange(server, get("/long"))
    for first, last in zip(at_part[::8], at_part[8::8], strict=False):
        assert first < last, "others ran between eight parts that took eight milliseconds"


async def test_a_response_that_breaks_off_is_not_taken_for_a_whole_one() -> None:
    def body() -> Iterator[str]:
        yield "x\n" * 40_000
        raise RuntimeError("broken")

    async with serving({"/breaks": lambda: Response(200, body())}) as server:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(get("/breaks"))
        received = b""
        try:
            while data := await reader.read(65_536):
                received += data
        except ConnectionResetError:
            pass
        assert not received.endswith(b"0\r\n\r\n")


async def test_nothing_is_produced_for_a_client_that_does_not_read_and_it_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "READ_TIMEOUT_S", 0.3)
    clock, produced, parts_max = StepClock(), 0, 10_000

    def body() -> Iterator[str]:
        nonlocal produced
        for part in clock.step(parts_max, "x" * 10_000):
            produced += 1
            yield part

    async with serving({"/endless": lambda: Response(200, body())}, clock) as server:
        reader, writer = await asyncio.open_connection(HOST, server.port, limit=1024)
        writer.write(get("/endless"))
        await becomes(lambda: not server.connections_open, "the client is disconnected")
        assert 0 < produced < parts_max
        writer.transport.abort()
        del reader


async def test_a_client_that_sends_no_request_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", 0.2)
    async with serving({}) as server:
        head, _ = await exchange(server, b"GET / HTTP/1.1\r\nX: ")
        assert head.split()[1] == b"408"


async def test_connections_are_limited_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving({"/here": lambda: plain(200, "here\n")}) as server:
        idle = [await asyncio.open_connection(HOST, server.port) for _ in range(CONNECTIONS_MAX)]
        await becomes(lambda: server.connections_open == CONNECTIONS_MAX, "all are accepted")
        assert (await exchange(server, b""))[0].split()[1] == b"503"
        for _, writer in idle:
            writer.close()
        await becomes(lambda: not server.connections_open, "all are closed")
        assert (await exchange(server, get("/here")))[0].split()[1] == b"200"


async def test_a_client_that_leaves_ends_the_production_of_its_response() -> None:
    clock, ended = StepClock(), False

    def body() -> Iterator[str]:
        nonlocal ended
        try:
            while True:
                yield from clock.step(1, "x" * 1000)
        finally:
            ended = True

    async with serving({"/endless": lambda: Response(200, body())}, clock) as server:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(get("/endless"))
        await reader.readexactly(1000)
        writer.transport.abort()
        await becomes(lambda: ended, "its body is no longer produced")
