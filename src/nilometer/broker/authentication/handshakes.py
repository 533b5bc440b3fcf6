"""Connections that have not authenticated yet: how many each address has, and the TLS handshakes among them.

The identity of a client of an SSL listener is the subject of its certificate, once the handshake is done.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Protocol

from typing_extensions import Buffer

from nilometer.broker.connection import Connection, Dispatcher
from nilometer.broker.responses import Response
from nilometer.runtime.handshakes import Admitted
from nilometer.security.principal import USER, Principal, PrincipalMapping, subject_of


class UnauthenticatedConnections:
    """Invariant: an address has an entry only while it has such connections."""

    def __init__(self, max_per_address: int) -> None:
        self._max_per_address = max_per_address
        self._open: dict[str, int] = {}

    def take(self, address: str) -> bool:
        """Count one more connection; return false, and count nothing, if the address has too many."""
        count = self._open.get(address, 0)
        if count >= self._max_per_address:
            return False
        self._open[address] = count + 1
        return True

    def release(self, address: str) -> None:
        count = self._open.pop(address, 0)
        if count > 1:
            self._open[address] = count - 1


logger = logging.getLogger("nilometer.broker.authentication")
connections_logger = logging.getLogger("nilometer.broker.connections")


class Admission(Protocol):
    """Limits the connections of all listeners."""

    def begin(self, listener: str, address: str) -> Admitted | None:
        """Count a new connection; None, and it is not counted as open, if it must be closed."""
        ...

    def end(self, listener: str, address: str) -> None:
        """Count it as open no longer."""
        ...


class ListenerHandshakes:
    """Implements :class:`~nilometer.runtime.handshakes.HandshakeGate`."""

    def __init__(
        self, listener: str, unauthenticated: UnauthenticatedConnections, admission: Admission
    ) -> None:
        self._listener = listener
        self._unauthenticated = unauthenticated
        self._admission = admission

    def begin(self, address: str, port: int) -> Admitted | None:
        admitted = None
        if self._unauthenticated.take(address):
            admitted = self._admission.begin(self._listener, address)
            if admitted is None:
                self._unauthenticated.release(address)
        if admitted is None:
            connections_logger.info("Closing the connection from %s:%d: too many connections", address, port)
        return admitted

    def end(self, address: str) -> None:
        self._unauthenticated.release(address)
        self._admission.end(self._listener, address)


class CertificateGate:
    """Implements :class:`~nilometer.broker.connection.Dispatcher` until a connection has opened.

    A client without a certificate stays ``User:ANONYMOUS``.
    """

    def __init__(self, mapping: PrincipalMapping, served: Dispatcher, frame_bytes_max: int) -> None:
        self._mapping = mapping
        self._served = served
        self._frame_bytes_max = frame_bytes_max

    def connection_opened(self, connection: Connection) -> bool:
        if connection.certificate is not None:
            try:
                name = self._mapping.name_of(subject_of(connection.certificate))
            except ValueError as error:
                address, port = connection.peer
                logger.warning("Authentication failed: %s:%d, TLS: %s", address, port, error)
                return False
            context = dataclasses.replace(connection.context, principal=Principal(USER, name))
            connection.context = context
        connection.hand_over(self._served, self._frame_bytes_max)
        return self._served.connection_opened(connection)

    def connection_closed(self, connection: Connection) -> None:
        self._served.connection_closed(connection)

    def dispatch(self, frame: Buffer, connection: Connection) -> asyncio.Future[Response] | Response:
        return self._served.dispatch(frame, connection)

    def may_pipeline(self, frame: Buffer) -> bool:
        return self._served.may_pipeline(frame)

    def request_failed(self, error: BaseException) -> None:
        self._served.request_failed(error)
