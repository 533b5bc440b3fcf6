"""Serves the console on loopback until it is stopped."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Generator, Mapping

import uvicorn

from nilometer.console.reading.cluster_reader import ClusterReader
from nilometer.console.reading.connection import ClusterConnection
from nilometer.console.reading.feeds import Feeds
from nilometer.console.reading.record_reader import RecordReader, RecordSlots
from nilometer.console.web.application import application
from nilometer.console.web.guard import allowed_hosts
from nilometer.runtime import Runtime

CONNECTIONS_MAX = 512
STOP_TIMEOUT_S = 1
"""How long requests may take to end when the console is stopped; its events never end by themselves."""


class NotLoopback(Exception):
    """The console has no login yet, so it serves this machine only."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the console cannot listen on {host}: it has no login yet, so it serves loopback only "
            "(127.0.0.1, ::1). To reach it from elsewhere, forward its port: ssh -L 8080:127.0.0.1:8080 HOST"
        )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, end_events: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._end_events = end_events

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._end_events()  # else each open page would delay the end
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals to the command."""
        yield


class Console:
    """Listens from its construction on; :meth:`serve` answers until :meth:`stop`."""

    def __init__(self, client: Mapping[str, str], host: str, port: int, *, read_only: bool = False) -> None:
        """``client``: settings of clients under Kafka's keys. Port 0 lets the system choose.

        Raises NotLoopback, OSError if the port cannot be used, ConfigError.
        """
        self._client = client
        self._host = host
        self._read_only = read_only
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"
        self._server: _Server | None = None
        self._is_stopped = False

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        """Answer requests until :meth:`stop` is called. ``on_ready`` gets the URL."""
        runtime = Runtime.system()
        connection = ClusterConnection(runtime, self._client)
        reader = ClusterReader(connection)
        feeds = Feeds(runtime.clock)
        records = RecordReader(connection, RecordSlots())
        hosts = allowed_hosts(self._host, self.port)
        app = application(reader, records, feeds, hosts, read_only=self._read_only)
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
        )

        async def end_events() -> None:
            await feeds.close()
            await records.close()

        self._server = _Server(config, end_events)
        self._server.should_exit = self._is_stopped
        on_ready(self.url)
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            await end_events()
            await reader.close()
            self._socket.close()

    def stop(self) -> None:
        self._is_stopped = True
        if self._server is not None:
            self._server.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a loopback address. Raises NotLoopback, OSError."""
    if not is_loopback(host):
        raise NotLoopback(host)
    address = "127.0.0.1" if host == "localhost" else host
    found = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address, port))
        found.listen()
    except OSError as error:
        found.close()
        raise OSError(error.errno, f"cannot listen on {address}:{port}: {error.strerror}") from None
    return found


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
