"""The open listeners of a broker: bound early, so that a used port is an error at once; serving later."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from nilometer.broker.settings.listener_security import TlsSettings
from nilometer.broker.settings.listeners import Endpoint
from nilometer.runtime import Listener, Runtime
from nilometer.runtime.handshakes import Admitted, HandshakeGate
from nilometer.runtime.tls import TlsUnusable


class CannotListen(Exception):
    """A listener cannot be opened; the message says why and what to do."""


class _Open(msgspec.Struct, frozen=True):
    endpoint: Endpoint
    listener: Listener


class Connections(Protocol):
    """What becomes of accepted clients."""

    def new_connection(self, endpoint: Endpoint) -> asyncio.BaseProtocol:
        """Make the connection of a client; with TLS, of one whose handshake is done."""
        ...

    def handshakes(self, endpoint: Endpoint) -> HandshakeGate:
        """Return what counts the TLS handshakes of a listener."""
        ...


class _Gate:
    """The handshakes of a listener that was bound before anything was there to count them."""

    def __init__(self, endpoint: Endpoint, connections: Connections) -> None:
        self._endpoint = endpoint
        self._connections = connections

    def begin(self, address: str, port: int) -> Admitted | None:
        return self._connections.handshakes(self._endpoint).begin(address, port)

    def end(self, address: str) -> None:
        self._connections.handshakes(self._endpoint).end(address)


class OpenListeners:
    """Invariant: no connection is accepted before :meth:`start`, on any listener."""

    def __init__(self, endpoints: Sequence[Endpoint], tls: Mapping[str, TlsSettings]) -> None:
        """``tls``: the TLS settings, by the name of the listeners that have it."""
        self._endpoints = endpoints
        self._tls = tls
        self._open: list[_Open] = []

    async def bind(self, runtime: Runtime, connections: Connections) -> None:
        """Bind the addresses. Raises CannotListen."""
        for endpoint in self._endpoints:

            def make(endpoint: Endpoint = endpoint) -> asyncio.BaseProtocol:
                return connections.new_connection(endpoint)

            tls = self._tls.get(endpoint.name)
            server = None if tls is None else tls.server
            try:
                gate = _Gate(endpoint, connections)
                listener = await runtime.network.listen(make, endpoint.host, endpoint.port, server, gate)
            except TlsUnusable as error:
                raise CannotListen(f"the listener {endpoint.name} cannot use TLS: {error}") from error
            except OSError as error:
                raise _cannot_listen(endpoint, error) from error
            self._open.append(_Open(endpoint, listener))

    async def start(self) -> None:
        """Accept connections from now on. Raises CannotListen."""
        for one in self._open:
            try:
                await one.listener.start()
            except OSError as error:
                raise _cannot_listen(one.endpoint, error) from error

    def close(self) -> None:
        """Release the addresses; existing connections stay open."""
        for one in self._open:
            one.listener.close()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The listeners, with the ports that the system chose where 0 is configured."""
        ports = {one.endpoint.name: one.listener.port for one in self._open}
        return tuple(
            replace(endpoint, port=ports.get(endpoint.name, endpoint.port)) for endpoint in self._endpoints
        )


def _cannot_listen(endpoint: Endpoint, error: OSError) -> CannotListen:
    return CannotListen(
        f"cannot listen on {endpoint.host}:{endpoint.port}: {error.strerror or error}; "
        "stop what uses the port, which may be another cluster of Nilometer, or choose another one with "
        "listeners= (nilometer up: --port)"
    )
