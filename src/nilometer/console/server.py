"""Serves the console until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from nilometer.console.reading.cluster_access import ClusterAccess, check_login, settings_of_user
from nilometer.console.reading.record_reader import DecodedValues, RecordSlots
from nilometer.console.reading.recordings import Recordings
from nilometer.console.serving import Serving, check_protected, listening_socket
from nilometer.console.web.application import UserPages
from nilometer.console.web.guard import Guard, Served, allowed_hosts
from nilometer.console.web.live_page import Rendering
from nilometer.console.web.login import Credentials, LoginAttempts, LoginGate, Sessions
from nilometer.runtime import Runtime
from nilometer.runtime.handshakes import Admitted, TlsAcceptance, Turns
from nilometer.runtime.network import Listener, SocketListener, TlsListener
from nilometer.runtime.tls import ServerContexts

CONNECTIONS_MAX = 512
CONNECTIONS_OF_ADDRESS_MAX = 256
"""Further ones of an address are closed at once, so that none keeps all others out."""
HANDSHAKES_MAX = 128
"""How many connections may be in their TLS handshake: the oldest one ends for one more, so that silent ones
keep no browser out."""
STOP_TIMEOUT_S = 1
"""How long requests may take to end when the console is stopped; its events never end by themselves."""
HEAD_TIMEOUT_S = 10.0
"""How long a connection may wait for the head of a request; at most twice as long for a later one."""

EndEvents = Callable[[], Awaitable[None]]


class _Connection(H11Protocol):
    """A connection that is ended when no request arrives in time; without this it would stay for ever."""

    _waiting_after: object = None
    """The request after which the connection waited when it was last looked at; None before the first."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = (self.client or ("",))[0]
        others = cast("set[H11Protocol]", self.connections)
        if sum((one.client or ("",))[0] == address for one in others) > CONNECTIONS_OF_ADDRESS_MAX:
            transport.abort()
            return
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        cycle = cast("Any", self.cycle)  # None before the first request
        is_waiting = cycle is None or cycle.response_complete
        if is_waiting and self._waiting_after is cycle:
            self.transport.abort()
            return
        self._waiting_after = cycle if is_waiting else self
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._look)


class _Handshakes:
    """Implements :class:`~nilometer.runtime.handshakes.HandshakeGate`."""

    def __init__(self) -> None:
        self._open = 0

    def begin(self, address: str, port: int) -> Admitted:
        is_full = self._open >= HANDSHAKES_MAX
        self._open += 1
        return Admitted(replaces_oldest=is_full)

    def end(self, address: str) -> None:
        self._open -= 1


class _Server(uvicorn.Server):
    """It accepts connections by itself: asyncio's servers do not bound TLS handshakes, and these would use up
    the descriptors of the process."""

    def __init__(self, config: uvicorn.Config, end_events: EndEvents) -> None:
        super().__init__(config)
        self._end_events = end_events
        self._listener: Listener | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        assert sockets is not None, "given to serve"
        if self.config.ssl is None:
            self._listener = SocketListener(sockets, self._new_connection)
        else:
            self._listener = TlsListener(
                sockets,
                TlsAcceptance(self.config.ssl, HEAD_TIMEOUT_S, _Handshakes(), Turns(), self._new_connection),
            )
        await self._listener.start()

    def _new_connection(self) -> _Connection:
        return _Connection(self.config, self.server_state, self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._listener is not None:
            self._listener.close()
        await self._end_events()  # else each open page would delay the end
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals to the command."""
        yield


class Console:
    """Listens from its construction on; :meth:`serve` answers until :meth:`stop`."""

    def __init__(self, client: Mapping[str, str], serving: Serving) -> None:
        """``client``: settings of clients under Kafka's keys.

        Raises NotProtected, CannotLogIn, TlsUnusable, BadRecording, OSError if the port or a recording
        cannot be used.
        """
        check_protected(serving)
        if serving.has_login:
            check_login(client)
        self._client = client
        self._serving = serving
        self._recordings = Recordings(serving.recordings)
        self._tls = None if serving.tls is None else ServerContexts(serving.tls)
        self._socket = listening_socket(serving)
        self.port: int = self._socket.getsockname()[1]
        self.url = serving.url(self.port)
        self._server: _Server | None = None
        self._is_stopped = False

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        """Answer requests until :meth:`stop` is called. ``on_ready`` gets the URL. Raises ConfigError."""
        try:
            opened = self._with_login() if self._serving.has_login else self._without_login()
            async with opened as (app, end_events):
                self._server = _Server(self._config(app), end_events)
                self._server.should_exit = self._is_stopped
                on_ready(self.url)
                await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()

    @property
    def replay_url(self) -> str | None:
        """The address of the first recording that is a file; None without one."""
        name = self._recordings.first_file
        return None if name is None else f"{self.url}replay/{name}"

    def stop(self) -> None:
        self._is_stopped = True
        if self._server is not None:
            self._server.should_exit = True

    @asynccontextmanager
    async def _without_login(self) -> AsyncGenerator[tuple[ASGIApp, EndEvents]]:
        """All browsers see the cluster with the rights of the command."""
        changes, scheme = self._serving.changes, self._serving.scheme
        access = ClusterAccess(Runtime.system(), self._client, RecordSlots())
        rendering = Rendering(changes=changes)
        values = DecodedValues(self._serving.registry)
        pages = UserPages(access, values, rendering, self._recordings, changes)
        served = Served(scheme, allowed_hosts(self._serving.host, self.port, scheme))
        try:
            yield Guard(pages.app, served), pages.end_events
        finally:
            await pages.close()

    @asynccontextmanager
    async def _with_login(self) -> AsyncGenerator[tuple[ASGIApp, EndEvents]]:
        """Each session sees the cluster with the rights of its user."""
        runtime, slots, changes = Runtime.system(), RecordSlots(), self._serving.changes
        rendering = Rendering(changes=changes)
        values = DecodedValues(self._serving.registry)

        async def open_pages(found: Credentials) -> UserPages:
            client = settings_of_user(self._client, found.user, found.password)
            access = ClusterAccess(runtime, client, slots)
            try:
                await access.connect()
            except BaseException:
                await access.close()
                raise
            shown = rendering.of_user(found.user)
            return UserPages(access, values, shown, self._recordings, changes)

        sessions = Sessions(runtime.clock)
        gate = LoginGate(sessions, LoginAttempts(runtime.clock), rendering, open_pages, self.port)
        keeper = asyncio.create_task(sessions.keep(), name="console-sessions")
        try:
            yield Guard(gate, Served(self._serving.scheme, None)), sessions.end_events
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            await sessions.close()

    def _config(self, app: ASGIApp) -> uvicorn.Config:
        config = uvicorn.Config(
            app,
            http=_Connection,
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
        config.load()
        config.ssl = None if self._tls is None else self._tls.first
        return config
