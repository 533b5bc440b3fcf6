"""Makes the connections of accepted clients: those of SASL listeners first have to authenticate."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from nilometer.broker.authentication.sasl_gate import SaslGate
from nilometer.broker.authentication.sasl_listener import SaslListener
from nilometer.broker.connection import Connection, Dispatcher, Reserve
from nilometer.broker.request_context import RequestContext
from nilometer.broker.settings.listeners import Endpoint

logger = logging.getLogger("nilometer.broker")


class Acceptor:
    def __init__(
        self, dispatcher: Dispatcher, frame_bytes_max: int, sasl: Mapping[str, SaslListener]
    ) -> None:
        """``sasl``: by name, the listeners whose clients authenticate by SASL."""
        self._dispatcher = dispatcher
        self._frame_bytes_max = frame_bytes_max
        self._sasl = sasl
        self._reserve = Reserve()

    def new_connection(self, endpoint: Endpoint) -> Connection:
        dispatcher, limit = self._dispatcher, self._frame_bytes_max
        if endpoint.protocol.has_sasl:
            sasl = self._sasl[endpoint.name]
            dispatcher = SaslGate(sasl, dispatcher, limit)
            limit = sasl.settings.receive_bytes_max
        context = RequestContext(listener=endpoint.name, security_protocol=endpoint.protocol)
        return Connection(dispatcher, limit, logger.info, self._reserve, context)
