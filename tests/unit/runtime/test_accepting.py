"""A listener accepts the clients that wait in a few turns of the event loop, not one in each turn.

Between two turns the requests of all connected clients are processed: with one in each turn a thousand busy
clients would keep others waiting for minutes.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from nilometer.runtime import Listener
from nilometer.runtime.network import ACCEPTED_AT_ONCE_MAX, SocketNetwork, bound_sockets
from support.eventually import becomes
from support.ports import HOST

CLIENTS = ACCEPTED_AT_ONCE_MAX - 4
TURNS_MAX = 20
"""Far below the number of clients."""
RUNS: tuple[Callable[[Coroutine[Any, Any, None]], None], ...] = (asyncio.run, uvloop.run)


class Served(asyncio.Protocol):
    def __init__(self, all_of_them: list[Served]) -> None:
        self._all = all_of_them
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._all.append(self)

    def data_received(self, data: bytes) -> None:
        self.received += data


async def listening(served: list[Served]) -> Listener:
    listener = await SocketNetwork().listen(lambda: Served(served), HOST, 0)
    await listener.start()
    return listener


def connected(port: int, count: int) -> list[socket.socket]:
    """Connect without a turn of the event loop: the kernel takes them until they are accepted."""
    return [socket.create_connection((HOST, port)) for _ in range(count)]


@pytest.mark.parametrize("run", RUNS)
def test_all_that_wait_are_accepted_in_a_few_turns(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def scenario() -> None:
        served: list[Served] = []
        listener = await listening(served)
        clients = connected(listener.port, CLIENTS)
        turns = 0
        while len(served) < CLIENTS and turns < TURNS_MAX:
            await asyncio.sleep(0)
            turns += 1
        assert len(served) == CLIENTS
        for number, client in enumerate(clients):
            client.sendall(b"%d" % number)
        sent = sorted(b"%d" % number for number in range(CLIENTS))
        await becomes(lambda: sorted(one.received for one in served) == sent, "all bytes have arrived")
        for client in clients:
            client.close()
        listener.close()

    run(scenario())


@pytest.mark.parametrize("run", RUNS)
def test_a_listener_that_is_closed_leaves_no_connection_half_open(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def scenario() -> None:
        served: list[Served] = []
        listener = await listening(served)
        [client] = connected(listener.port, 1)
        client.setblocking(False)
        for _ in range(TURNS_MAX):
            if listener._opening:  # type: ignore[attr-defined]
                break
            await asyncio.sleep(0)
        listener.close()
        listener.close()
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
        with pytest.raises(ConnectionRefusedError):
            connected(listener.port, 1)
        assert served == []
        client.close()

    run(scenario())


@pytest.mark.parametrize("run", RUNS)
def test_it_goes_on_when_there_are_descriptors_again(
    run: Callable[[Coroutine[Any, Any, None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        served: list[Served] = []
        listener = await listening(served)
        accept, failures = socket.socket.accept, [errno.EMFILE]

        def fail_once(self: socket.socket) -> tuple[socket.socket, Any]:
            if failures:
                raise OSError(failures.pop(), "Too many open files")
            return accept(self)

        monkeypatch.setattr(socket.socket, "accept", fail_once)
        monkeypatch.setattr("nilometer.runtime.network.PAUSE_S", 0.01)
        [client] = connected(listener.port, 1)
        await becomes(lambda: len(served) == 1, "the connection is accepted")
        assert failures == []
        client.close()
        listener.close()

    run(scenario())


@pytest.mark.parametrize("lacks", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
async def test_addresses_that_the_machine_does_not_have_are_left_out(
    lacks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine without IPv6, whose resolver gives ::1 for localhost nevertheless."""
    inet, inet6 = socket.AF_INET, socket.AF_INET6
    found = [
        (inet6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (inet, socket.SOCK_STREAM, 6, "", (HOST, 0)),
    ]
    asked: list[int] = []

    async def resolved(*_: object, **__: object) -> list[Any]:
        return found

    class Machine(socket.socket):
        def __init__(self, family: int, *rest: int) -> None:
            asked.append(family)
            if family == inet6 and lacks == errno.EAFNOSUPPORT:
                raise OSError(lacks, "Address family not supported by protocol")
            super().__init__(inet, *rest)  # so that the test runs on a machine without IPv6
            self.is_missing = family == inet6

        def setsockopt(self, level: int, *rest: Any) -> None:
            if level != socket.IPPROTO_IPV6:
                super().setsockopt(level, *rest)

        def bind(self, address: Any) -> None:
            if self.is_missing:
                raise OSError(lacks, "Cannot assign requested address")
            super().bind(address)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
    monkeypatch.setattr(socket, "socket", Machine)
    [bound] = await bound_sockets("localhost", 0)
    assert asked == [inet6, inet]
    assert bound.getsockname()[0] == HOST
    bound.close()
    del found[1]
    with pytest.raises(OSError, match=r"not supported|Cannot assign") as error:
        await bound_sockets("localhost", 0)
    assert error.value.errno == lacks
