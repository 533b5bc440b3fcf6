"""How many connections per second may be opened: on the broker, and on each listener (KIP-612).

A connection above ``max.connection.creation.rate`` is not read until the rate allows it, as Kafka's waits to
be accepted; one that would wait longer than ``WAIT_MS_MAX`` is closed, so that the connections that wait are
few. As in Kafka the listener between brokers is exempt from the rate of the broker, if it is not the only
one. The rate of an address is a quota of clients: :mod:`nilometer.broker.quotas.client_quotas`.

Invariant: a connection that is closed is not counted.
"""

from __future__ import annotations

from collections.abc import Callable

from nilometer.broker.quotas.connection_limits import listener_of_brokers
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.quota_config_keys import INT_MAX
from nilometer.quotas.rates import TokenBucket

WAIT_MS_MAX = 5_000


class _Limited:
    """A rate, and what is left of it: as many at once as in all full windows, then one after another."""

    def __init__(self, rate: int, config: BrokerConfig, now_ms: int) -> None:
        self.rate = rate
        windows = max(1, config.integer("quota.window.num") - 1)
        window_ms = 1000 * config.integer("quota.window.size.seconds")
        self.bucket = TokenBucket(windows, window_ms, rate, now_ms)


class ConnectionRates:
    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        rate, began_ms = config.integer("max.connection.creation.rate"), now_ms()
        self._of_broker = None if rate == INT_MAX else _Limited(rate, config, began_ms)
        self._of_listeners = {
            name: _Limited(rate, config, began_ms) for name, rate in config.connection_rates.items()
        }
        self._exempt = listener_of_brokers(config)
        self.limits_connections = bool(self._of_broker or self._of_listeners)

    def on_connection(self, listener: str) -> int:
        """Count a connection; return for how long (ms) it must wait.

        If that is more than ``WAIT_MS_MAX`` the connection must be closed, and is not counted.
        """
        of_broker = None if listener == self._exempt else self._of_broker
        limits = [each for each in (self._of_listeners.get(listener), of_broker) if each is not None]
        now_ms = self._now_ms()
        wait_ms = 0
        for limited in limits:
            limited.bucket.take(1, limited.rate, now_ms)
            wait_ms = max(wait_ms, limited.bucket.throttle_ms(limited.rate, now_ms))
        if wait_ms > WAIT_MS_MAX:
            for limited in limits:
                limited.bucket.take(-1, limited.rate, now_ms)
        return wait_ms
