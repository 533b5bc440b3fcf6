"""Makes the connections of accepted clients: those of SASL listeners first have to authenticate, those of
SSL listeners may have authenticated by a certificate."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from nilometer.broker.authentication.handshakes import (
    Admission,
    CertificateGate,
    ListenerHandshakes,
    UnauthenticatedConnections,
)
from nilometer.broker.authentication.sasl import SaslGate, SaslListener
from nilometer.broker.connection import Dispatcher, ServedConnection
from nilometer.broker.connection_memory import RequestMemory, ResponseMemory
from nilometer.broker.rejected_batches import RejectedTotal
from nilometer.broker.request_context import RequestContext
from nilometer.broker.settings.listener_security import TlsSettings
from nilometer.broker.settings.listeners import Endpoint
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import Turns

logger = logging.getLogger("nilometer.broker.connections")


class Acceptor:
    def __init__(
        self,
        dispatcher: Dispatcher,
        frame_bytes_max: int,
        sasl: Mapping[str, SaslListener],
        tls: Mapping[str, TlsSettings],
        admission: Admission,
        turns: Turns,
        memory: ResponseMemory,
        requests: RequestMemory,
    ) -> None:
        """``sasl``, ``tls``: by name, the listeners whose clients authenticate by SASL, and those with
        TLS."""
        self._dispatcher = dispatcher
        self._frame_bytes_max = frame_bytes_max
        self._sasl = sasl
        self._tls = tls
        self._handshakes = {
            name: ListenerHandshakes(
                name,
                sasl[name].unauthenticated
                if name in sasl
                else UnauthenticatedConnections(settings.handshakes_max_per_address),
                admission,
            )
            for name, settings in tls.items()
        }
        self._requests = requests
        self._turns = turns
        self._memory = memory
        self._rejected = RejectedTotal()

    async def open(self, tasks: Tasks) -> None:
        """Fetch the keys of tokens, and go on fetching them. Call it before the listeners are opened."""
        for name, sasl in self._sasl.items():
            keys = None if sasl.tokens is None else sasl.tokens.fetched
            if keys is not None:
                await keys.fetch()
                tasks.service(f"keys of tokens for the listener {name}", keys.run())

    def handshakes(self, endpoint: Endpoint) -> ListenerHandshakes:
        return self._handshakes[endpoint.name]

    def new_connection(self, endpoint: Endpoint) -> ServedConnection:
        dispatcher, limit = self._dispatcher, self._frame_bytes_max
        if endpoint.protocol.has_sasl:
            sasl = self._sasl[endpoint.name]
            dispatcher = SaslGate(sasl, dispatcher, limit)
            limit = sasl.settings.receive_bytes_max
        elif endpoint.protocol.has_tls:
            dispatcher = CertificateGate(self._tls[endpoint.name].mapping, dispatcher, limit)
        context = RequestContext(listener=endpoint.name, security_protocol=endpoint.protocol)
        shared = self._turns, self._memory, self._rejected
        return ServedConnection(dispatcher, limit, logger.info, self._requests, context, *shared)
