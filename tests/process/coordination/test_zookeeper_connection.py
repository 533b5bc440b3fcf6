"""The connection to one ZooKeeper server after the other: what is logged of it, and when it is given up."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.protocol.serialization import Exists

from nilometer.coordination.factory import make_store
from nilometer.coordination.zookeeper.connect import ConnectString, parse_connect_string
from nilometer.coordination.zookeeper.ensemble import Disconnected
from nilometer.coordination.zookeeper.kazoo_bridge import KazooBridge
from nilometer.runtime import Runtime
from support.coordination.zookeeper_server import ZooKeeperServer, running_ensemble

SESSION_TIMEOUT_MS = 4000


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_servers_that_hang_and_die_are_left_and_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def said(text: str) -> list[str]:
        return [line for line in caplog.messages if text in line]

    def server_in_use() -> ZooKeeperServer:
        (port,) = [line.split()[4].strip(":").split(":")[1] for line in said("Connected to ZooKeeper")][-1:]
        return next(server for server in ensemble.servers if server.port == int(port))

    async def scenario() -> None:
        store = make_store(
            f"zookeeper://{ensemble.hosts}/connection",
            Runtime.system(),
            local_folder="",
            session_timeout_ms=SESSION_TIMEOUT_MS,
        )
        await store.open()
        session = await store.register(1, b"")
        hung = server_in_use()
        hung.signal(signal.SIGSTOP)
        await _until(lambda: len(said("Connected to ZooKeeper")) == 2)
        named = f"ZooKeeper server 127.0.0.1:{hung.port}"  # by kazoo, if its ping is due first
        assert said(f"{named} does not respond") or said(f"Lost the connection to {named}")
        assert server_in_use() is not hung
        await _until(session.is_live)
        hung.signal(signal.SIGCONT)
        for server in ensemble.servers:
            server.kill()
        last = server_in_use()
        await _until(lambda: bool(said(f"Lost the connection to ZooKeeper server 127.0.0.1:{last.port}")))
        await _until(lambda: not session.is_live())
        await store.close()

    with running_ensemble(3) as ensemble:
        asyncio.run(scenario())
    talk = [record for record in caplog.records if record.name.startswith(("kazoo", "nilometer"))]
    assert not [record.getMessage() for record in talk if record.name.startswith("kazoo")]
    assert len(talk) < 20, "\n".join(record.getMessage() for record in talk)


def test_an_answer_that_was_not_asked_for_ends_one_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    """kazoo's thread ended with it, and a broker without a session waited for another one for ever."""

    async def scenario(where: ConnectString) -> None:
        bridge = KazooBridge(where, SESSION_TIMEOUT_MS, lambda: None, lambda: None)
        await bridge.start(10)
        session = bridge.session_id
        kazoo: Any = bridge._client  # pyright: ignore[reportPrivateUsage]
        kazoo._pending.append((Exists("/", None), kazoo.handler.async_result(), 1_000_000))
        with pytest.raises(Disconnected):
            await bridge.exists("/")
        assert await bridge.exists("/zookeeper")
        assert bridge.session_id == session
        await bridge.stop()

    with running_ensemble(1) as ensemble:
        asyncio.run(scenario(ConnectString(tuple(ensemble.hosts.split(",")), "")))
    assert [line for line in caplog.messages if "malformed response" in line and "xids do not match" in line]


def test_who_reaches_no_server_says_why() -> None:
    async def scenario() -> None:
        store = make_store(
            "zookeeper://127.0.0.1:1/x", Runtime.system(), local_folder="", session_timeout_ms=1000
        )
        with pytest.raises(Exception, match=r"127.0.0.1:1/x cannot be reached.*Connection refused"):
            await store.open()

    asyncio.run(scenario())


def _grant(connection: socket.socket, timeout_ms: int) -> None:
    """Begin a session, as a server does."""
    connection.recv(1024)
    welcome = struct.pack(">iiqi16s?", 0, timeout_ms, 1, 16, b"", False)
    connection.sendall(struct.pack(">i", len(welcome)) + welcome)


def test_stopping_leaves_a_server_that_hangs__however_long_a_timeout_it_granted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(listener: socket.socket) -> None:
        port = listener.getsockname()[1]
        bridge = KazooBridge(parse_connect_string(f"127.0.0.1:{port}"), 1000, lambda: None, lambda: None)
        starting = asyncio.create_task(bridge.start(30))
        connection, _ = await asyncio.to_thread(listener.accept)
        with connection:
            await asyncio.to_thread(_grant, connection, 600_000)
            await starting
            async with asyncio.timeout(60):  # unhurried it would be 400 s
                await bridge.stop()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(scenario(listener))
    assert "could not be closed" not in caplog.text
