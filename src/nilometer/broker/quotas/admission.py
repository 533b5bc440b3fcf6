"""Which new connections are admitted, and how long each waits: by how many are open, and by the rates.

With TLS that is decided before the handshake, as in Kafka, which counts what it accepts.
"""

from __future__ import annotations

from nilometer.broker.quotas.client_quotas import ClientQuotas
from nilometer.broker.quotas.connection_limits import ConnectionLimits
from nilometer.broker.quotas.connection_rates import WAIT_MS_MAX, ConnectionRates
from nilometer.runtime.handshakes import Admitted


class ConnectionAdmission:
    def __init__(self, limits: ConnectionLimits, rates: ConnectionRates, quotas: ClientQuotas) -> None:
        self._limits = limits
        self._rates = rates
        self._quotas = quotas

    def begin(self, listener: str, address: str) -> Admitted | None:
        """Count a new connection; None, and it is not counted as open, if it must be closed."""
        if not self._limits.take(listener, address):
            return None
        quotas, rates = self._quotas, self._rates
        if quotas.limits_connections and (wait_ms := quotas.on_connection(listener, address)):
            return Admitted(wait_ms, ends=True)
        wait_ms = rates.on_connection(listener) if rates.limits_connections else 0
        if wait_ms > WAIT_MS_MAX:
            self._limits.release(listener, address)
            return None
        return Admitted(wait_ms)

    def go_on(self, listener: str, address: str) -> bool:
        """Count a connection as open that :meth:`begin` admitted, and that :meth:`end` counted as ended."""
        return self._limits.take(listener, address)

    def end(self, listener: str, address: str) -> None:
        self._limits.release(listener, address)
