"""Counts the TLS handshakes of one listener: each is an open connection, and one that has not authenticated.

The same counts go on when the handshake is done: those of the connection, and on a SASL listener those of
clients that have not logged in.
"""

from __future__ import annotations

import logging
from typing import Protocol

from nilometer.broker.authentication.unauthenticated import UnauthenticatedConnections
from nilometer.runtime.handshakes import Admitted

logger = logging.getLogger("nilometer.broker")


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
            logger.info("Closing the connection from %s:%d: too many connections", address, port)
        return admitted

    def end(self, address: str) -> None:
        self._unauthenticated.release(address)
        self._admission.end(self._listener, address)
