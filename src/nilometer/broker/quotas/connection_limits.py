"""How many connections may be open: in all, on each listener, and from each address (Kafka's
``max.connections``, KIP-306).

As in Kafka the listener between brokers is exempt from the maximum of all, if it is not the only one: clients
must not keep brokers from each other.
"""

from __future__ import annotations

from collections import Counter

from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.quota_config_keys import addresses_with_limits
from nilometer.quotas.entity import canonical_address


def listener_of_brokers(config: BrokerConfig) -> str | None:
    """Return the name of the listener between brokers; None if it is the only one, and so of clients too."""
    return config.inter_broker_listener.name if len(config.connections_max) > 1 else None


class ConnectionLimits:
    """Invariant: it has an address only while this has an open connection."""

    def __init__(self, config: BrokerConfig) -> None:
        self._max = config.integer("max.connections")
        self._max_of_listeners = config.connections_max
        self._max_of_address = config.integer("max.connections.per.ip")
        self._max_of_addresses = addresses_with_limits(config.string("max.connections.per.ip.overrides"))
        self._exempt = listener_of_brokers(config)
        self._open = 0
        self._by_listener: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()

    def take(self, listener: str, address: str) -> bool:
        """Count a new connection; return false, and count nothing, if it is one too many."""
        of_listener = self._max_of_listeners.get(listener, self._max)
        if self._by_listener[listener] >= of_listener:
            return False
        if listener != self._exempt and self._open >= self._max:
            return False
        known = canonical_address(address) or address
        if self._by_address[known] >= self._max_of_addresses.get(known, self._max_of_address):
            return False
        self._open += 1
        self._by_listener[listener] += 1
        self._by_address[known] += 1
        return True

    def release(self, listener: str, address: str) -> None:
        """Count a connection that ``take`` counted as closed."""
        known = canonical_address(address) or address
        self._open -= 1
        self._by_listener[listener] -= 1
        self._by_address[known] -= 1
        if not self._by_address[known]:
            del self._by_address[known]
