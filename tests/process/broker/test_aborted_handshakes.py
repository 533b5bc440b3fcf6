"""A TLS handshake that is aborted, at whatever moment, serves no client, and its socket is closed."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from nilometer.runtime.handshakes import Admitted, Handshake, Turns, _Opening
from nilometer.runtime.network import SocketNetwork
from nilometer.runtime.tls import ServerTls, TlsFiles
from support.authority import Authority
from support.eventually import becomes
from support.ports import HOST

RUNS: tuple[Callable[[Coroutine[Any, Any, None]], None], ...] = (asyncio.run, uvloop.run)
TIMEOUT_S = 60.0
"""Longer than all that is waited for: no handshake ends because of its time."""


class Served(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(b"served")  # uvloop's transports are not derived from it


class Counts:
    """A gate that counts what begins and ends."""

    def __init__(self) -> None:
        self.open = Counter[str]()
        self.begun = 0

    def begin(self, address: str, port: int) -> Admitted:
        self.open[address] += 1
        self.begun += 1
        return Admitted()

    def end(self, address: str) -> None:
        self.open[address] -= 1


def what_a_client_gets(authority: Authority, port: int) -> bytes:
    """Return the first bytes that the server sends a client; none, if it ends the connection."""
    try:
        with (
            socket.create_connection((HOST, port), timeout=TIMEOUT_S) as plain,
            authority.context().wrap_socket(plain, server_hostname=HOST) as client,
        ):
            return client.recv(100)
    except TimeoutError:
        raise
    except OSError:
        return b""


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("moment", ["before its task begins", "as its task begins", "as it is done", "never"])
def test_an_aborted_handshake_serves_no_client(
    run: Callable[[Coroutine[Any, Any, None]], None],
    moment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority = Authority(tmp_path)
    key = str(authority.issue("broker", "/CN=broker"))
    begun: list[Handshake] = []
    shake = Handshake._shake

    def shake_and_abort(self: Handshake) -> None:
        shake(self)
        if moment == "before its task begins":
            self.abort("the test ends it")
        elif moment == "as its task begins":
            asyncio.get_running_loop().call_soon(self.abort, "the test ends it")
        begun.append(self)

    made = _Opening.connection_made

    def abort_and_make(self: _Opening, transport: asyncio.BaseTransport) -> None:
        if moment == "as it is done":
            begun[0].abort("the test ends it")
        made(self, transport)

    monkeypatch.setattr(Handshake, "_shake", shake_and_abort)
    monkeypatch.setattr(_Opening, "connection_made", abort_and_make)

    async def scenario() -> None:
        counts, tls = Counts(), ServerTls(files=TlsFiles(key_file=key), handshake_timeout_ms=60_000)
        listener = await SocketNetwork().listen(Served, HOST, 0, tls, counts)
        await listener.start()
        loop = asyncio.get_running_loop()
        got = await loop.run_in_executor(None, what_a_client_gets, authority, listener.port)
        assert got == (b"served" if moment == "never" else b"")
        assert (counts.begun, counts.open[HOST]) == (1, 0)
        [handshake] = begun
        await becomes(lambda: handshake._socket.fileno() == -1, "the socket is closed")
        listener.close()

    run(scenario())


async def test_a_handshake_that_is_aborted_while_it_waits_leaves_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    key = str(authority.issue("broker", "/CN=broker"))
    monkeypatch.setattr(Turns, "_next", lambda _: None)  # as if the turns of others came first
    network, counts = SocketNetwork(), Counts()
    tls = ServerTls(files=TlsFiles(key_file=key), handshake_timeout_ms=60_000)
    listener = await network.listen(Served, HOST, 0, tls, counts)
    await listener.start()
    loop = asyncio.get_running_loop()
    client = loop.run_in_executor(None, what_a_client_gets, authority, listener.port)
    await becomes(lambda: HOST in network._turns._waiting, "the handshake waits for its turn")
    listener.close()
    assert network._turns._waiting == {}
    assert await client == b""
    assert (counts.begun, counts.open[HOST]) == (1, 0)
