"""The identity of a client of an SSL listener: the subject of its certificate, once the handshake is done."""

from __future__ import annotations

import asyncio
import dataclasses
import logging

from typing_extensions import Buffer

from nilometer.broker.connection import Connection, Dispatcher, Reply
from nilometer.security.principal import USER, Principal
from nilometer.security.principal_mapping import PrincipalMapping, subject_of

logger = logging.getLogger("nilometer.broker")


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

    def dispatch(self, frame: Buffer, connection: Connection) -> asyncio.Future[Reply] | Reply:
        return self._served.dispatch(frame, connection)

    def may_pipeline(self, frame: Buffer) -> bool:
        return self._served.may_pipeline(frame)

    def request_failed(self, error: BaseException) -> None:
        self._served.request_failed(error)
