"""The quotas of clients on this broker, and which new connections are admitted.

Quotas measure what clients use, and say how long they have to wait. The quota of one request for partitions
that are created or deleted (KIP-599) is kept by the controller. Limits say how many connections may be open,
in all, on each listener, and from each address; rates how many per second may be opened, on the broker and on
each listener (KIP-612).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.request_context import RequestContext
from nilometer.broker.settings.access_config_keys import INT_MAX, addresses_with_limits
from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.controller.decision import Refusal
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.image import ClusterImage
from nilometer.quotas import (
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Limit,
    Limits,
    TokenBucket,
    WindowedRate,
    canonical_address,
)
from nilometer.runtime import Clock
from nilometer.runtime.handshakes import Admitted
from nilometer.wire.errors import ErrorCode

KEPT = 256
"""Up to this number of meters none is looked for that can be removed."""
METERS_MAX = 10_000
"""The number of users, client ids or addresses that are measured at once for one quota."""
NAME_CHARACTERS_MAX = 256
"""A meter has a longer name as a digest: each request may name another client id of 32 kB."""


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS_MAX else hashlib.sha256(name.encode()).hexdigest()


class Meter(Protocol):
    def is_idle(self, rate: float, now_ms: int) -> bool:
        """Whether the meter measures what a new one would."""
        ...

    def use(self, rate: float, now_ms: int) -> float:
        """Return how much of what ``rate`` allows is used now, as a share: above 1 the client waits."""
        ...


M = TypeVar("M", bound=Meter)


class _Entry(Generic[M]):
    __slots__ = ("meter", "rate")

    def __init__(self, meter: M, rate: float) -> None:
        self.meter = meter
        self.rate = rate
        """The rate that last counted for the meter."""


class Meters(Generic[M]):
    """One meter for all connections that share a limit."""

    def __init__(self, make: Callable[[float, int], M]) -> None:
        """``make(rate, now_ms)`` returns a new meter."""
        self._make = make
        self._entries: dict[tuple[str, str], _Entry[M]] = {}
        self._swept_at = KEPT

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, limit: Limit, now_ms: int) -> M:
        user, client_id = limit.shared_by
        key = _short(user), _short(client_id)
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= self._swept_at:
                self._sweep(now_ms)
            entry = self._entries[key] = _Entry(self._make(limit.rate, now_ms), limit.rate)
        entry.rate = limit.rate
        return entry.meter

    def _sweep(self, now_ms: int) -> None:
        kept = [
            (key, entry)
            for key, entry in self._entries.items()
            if not entry.meter.is_idle(entry.rate, now_ms)
        ]
        if len(kept) >= METERS_MAX:
            kept.sort(key=lambda one: one[1].meter.use(one[1].rate, now_ms))
            kept = kept[METERS_MAX // 2 :]
        self._entries = dict(kept)
        self._swept_at = min(METERS_MAX, max(KEPT, 2 * len(kept)))


EXCEEDED = "The throttling quota has been exceeded."


class MutationQuota:
    """The quota of one request.

    A decision may be made again, if its entry could not be appended: only the last one counts.
    """

    def __init__(
        self, bucket: TokenBucket | None, rate: float, now_ms: Callable[[], int], *, strict: bool
    ) -> None:
        """``bucket``: of all requests that share the rate; None if there is no quota."""
        self._bucket = bucket
        self._rate = rate
        self._now_ms = now_ms
        self._strict = strict
        self._taken = 0
        self._until_ms = 0

    def begin(self) -> None:
        """Take back what an earlier decision of the same request took."""
        if self._bucket is not None and self._taken:
            self._bucket.take(-self._taken, self._rate, self._now_ms())
        self._taken = 0
        self._until_ms = 0

    def keep(self) -> None:
        """Let what was taken stay: the decision is in force, and another one may follow."""
        self._taken = 0

    def take(self, partitions: int) -> None:
        """Count ``partitions`` that are created or deleted. Raises Refusal (THROTTLING_QUOTA_EXCEEDED)."""
        if self._bucket is None:
            return
        now_ms = self._now_ms()
        if self._strict and (wait_ms := self._bucket.throttle_ms(self._rate, now_ms)):
            self._until_ms = now_ms + wait_ms
            raise Refusal(ErrorCode.throttling_quota_exceeded, EXCEEDED)
        self._bucket.take(partitions, self._rate, now_ms)
        self._taken += partitions
        if not self._strict:
            self._until_ms = now_ms + self._bucket.throttle_ms(self._rate, now_ms)

    @property
    def throttle_ms(self) -> int:
        """How long (ms) the client has to wait from now on."""
        return 0 if self._bucket is None else max(0, self._until_ms - self._now_ms())


UNLIMITED = MutationQuota(None, 0.0, lambda: 0, strict=True)


def listener_of_brokers(config: BrokerConfig) -> str | None:
    """Return the name of the listener between brokers; None if it is the only listener, which clients use
    too. A listener of controllers is another matter: no client of brokers uses it."""
    return config.inter_broker_listener.name if len(config.listeners) > 1 else None


class ConnectionLimits:
    """The listener between brokers counts addresses for itself, and no broker counts for its address: a
    broker opens hundreds of connections when many clients wait for the controller.

    Invariant: it has an address only while this has an open connection that counts.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._max = config.integer("max.connections")
        self._max_of_listeners = config.connections_max
        self._max_of_address = config.integer("max.connections.per.ip")
        self._max_of_addresses = addresses_with_limits(config.string("max.connections.per.ip.overrides"))
        self._exempt = listener_of_brokers(config)
        self._open = 0
        self._by_listener: Counter[str] = Counter()
        self._by_address: Counter[tuple[bool, str]] = Counter()
        """By whether the listener is that between brokers, and by address."""

    def take(self, listener: str, address: str) -> bool:
        """Count a new connection; return false, and count nothing, if it is one too many."""
        of_listener = self._max_of_listeners.get(listener, self._max)
        if self._by_listener[listener] >= of_listener:
            return False
        if listener != self._exempt and self._open >= self._max:
            return False
        counted = self._counted(listener, address)
        if self._by_address[counted] >= self._max_of_addresses.get(counted[1], self._max_of_address):
            return False
        self._open += 1
        self._by_listener[listener] += 1
        self._by_address[counted] += 1
        return True

    def on_broker_proved(self, listener: str, address: str) -> None:
        """Count a connection that ``take`` counted no more for its address."""
        counted = self._counted(listener, address)
        self._by_address[counted] -= 1
        if not self._by_address[counted]:
            del self._by_address[counted]

    def release(self, listener: str, address: str, *, is_broker: bool = False) -> None:
        """Count a connection that ``take`` counted as closed. ``is_broker``: it has proved to be one's."""
        self._open -= 1
        self._by_listener[listener] -= 1
        if not is_broker:
            self.on_broker_proved(listener, address)

    def _counted(self, listener: str, address: str) -> tuple[bool, str]:
        return listener == self._exempt, canonical_address(address) or address


PERCENT_PER_US = 100 / 1_000_000
_MEASURED_BY_RATE = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONNECTION_CREATION_RATE)


class ClientQuotas:
    def __init__(self, config: BrokerConfig, clock: Clock, metadata: MetadataLog) -> None:
        self._now_ms: Callable[[], int] = clock.monotonic_ms
        self._windows = config.integer("quota.window.num")
        self._window_ms = 1000 * config.integer("quota.window.size.seconds")
        mutation_windows = config.integer("controller.quota.window.num")
        mutation_ms = 1000 * config.integer("controller.quota.window.size.seconds")
        self._rates = {
            key: Meters[WindowedRate](lambda _rate, _now: WindowedRate(self._windows, self._window_ms))
            for key in _MEASURED_BY_RATE
        }
        self._buckets = Meters[TokenBucket](
            lambda rate, now_ms: TokenBucket(mutation_windows, mutation_ms, rate, now_ms)
        )
        self._limits: dict[str, Limits] = {}
        self._exempt_listener = listener_of_brokers(config)
        self.limits_clients = False
        """Whether any user or client id has a quota."""
        self.limits_connections = False
        """Whether any address has a quota."""
        self.throttled: Counter[str] = Counter()
        """How often clients had to wait, by key of the quota."""
        self.throttled_ms: Counter[str] = Counter()
        """The sum of the times that they had to wait, by key of the quota."""
        metadata.subscribe(self._on_delta, self._read)
        self._read(metadata.image)

    def _on_delta(self, delta: ImageDelta, image: ClusterImage) -> None:
        if delta.quotas:
            self._read(image)

    def _read(self, image: ClusterImage) -> None:
        quotas = image.client_quotas
        self._limits = {key: quotas.limits(key) for key in (*CLIENT_KEYS, CONNECTION_CREATION_RATE)}
        self.limits_clients = any(self._limits[key] for key in CLIENT_KEYS)
        self.limits_connections = bool(self._limits[CONNECTION_CREATION_RATE])

    # --- clients

    def on_produce(self, context: RequestContext, client_id: str | None, size: int, spent_us: int) -> int:
        """Count a Produce request of ``size`` bytes that took ``spent_us``; return the throttle time (ms)."""
        bandwidth_ms = self._record(PRODUCER_BYTE_RATE, context, client_id, size)
        return self._longer(PRODUCER_BYTE_RATE, bandwidth_ms, self._request_ms(context, client_id, spent_us))

    def on_fetch(self, context: RequestContext, client_id: str | None, size: int, spent_us: int) -> int:
        """Count a Fetch response with ``size`` bytes; return the throttle time (ms).

        If the client has to wait, it gets no records, and they are not counted (KIP-219).
        """
        request_ms = self._request_ms(context, client_id, spent_us)
        bandwidth_ms = self._record(CONSUMER_BYTE_RATE, context, client_id, size)
        if bandwidth_ms or request_ms:
            self._record(CONSUMER_BYTE_RATE, context, client_id, -size)
        return self._longer(CONSUMER_BYTE_RATE, bandwidth_ms, request_ms)

    def on_share_fetch(self, context: RequestContext, client_id: str | None, size: int) -> int:
        """Count a ShareFetch response with ``size`` bytes of records; return the throttle time (ms).

        The records are delivered, so they are sent, and the client waits afterwards.
        """
        bandwidth_ms = self._record(CONSUMER_BYTE_RATE, context, client_id, size)
        self._note(CONSUMER_BYTE_RATE, bandwidth_ms)
        return bandwidth_ms

    def fetch_bytes_max(self, context: RequestContext, client_id: str | None, bytes_max: int) -> int:
        """Return ``bytes_max``, or less if that many bytes alone would be above the client's quota."""
        limit = self._limits[CONSUMER_BYTE_RATE].of_client(context.principal.name, client_id or "")
        if limit is None:
            return bytes_max
        return min(bytes_max, int(limit.rate * (self._windows - 1) * self._window_ms / 1000))

    def on_request(self, context: RequestContext, client_id: str | None, spent_us: int) -> int:
        """Count a request of another API; return the throttle time (ms)."""
        request_ms = self._request_ms(context, client_id, spent_us)
        self._note(REQUEST_PERCENTAGE, request_ms)
        return request_ms

    def mutations(self, context: RequestContext, client_id: str | None, *, strict: bool) -> MutationQuota:
        """Return the quota for the partitions that one request creates or deletes, for the controller.

        ``strict``: a request above the quota is rejected; otherwise it is accepted, and its client waits.
        """
        limit = self._limits[CONTROLLER_MUTATION_RATE].of_client(context.principal.name, client_id or "")
        if limit is None:
            return UNLIMITED
        bucket = self._buckets.of(limit, self._now_ms())
        return MutationQuota(bucket, limit.rate, self._now_ms, strict=strict)

    def note_mutation_throttle(self, throttle_ms: int) -> None:
        self._note(CONTROLLER_MUTATION_RATE, throttle_ms)

    def _request_ms(self, context: RequestContext, client_id: str | None, spent_us: int) -> int:
        percent = spent_us * PERCENT_PER_US
        return min(self._window_ms, self._record(REQUEST_PERCENTAGE, context, client_id, percent))

    def _record(self, key: str, context: RequestContext, client_id: str | None, value: float) -> int:
        limit = self._limits[key].of_client(context.principal.name, client_id or "")
        if limit is None:
            return 0
        now_ms = self._now_ms()
        meter = self._rates[key].of(limit, now_ms)
        meter.record(value, now_ms)
        return meter.throttle_ms(limit.rate, now_ms)

    def _longer(self, key: str, bandwidth_ms: int, request_ms: int) -> int:
        if bandwidth_ms > request_ms:
            self._note(key, bandwidth_ms)
            return bandwidth_ms
        self._note(REQUEST_PERCENTAGE, request_ms)
        return request_ms

    def _note(self, key: str, throttle_ms: int) -> None:
        if throttle_ms > 0:
            self.throttled[key] += 1
            self.throttled_ms[key] += throttle_ms

    # --- connections

    def on_connection(self, listener: str, address: str) -> int:
        """Count a connection; return for how long (ms) no more may come from its address, at most one window.

        If that is not 0 the connection must be closed, and is not counted. Those of the listener between
        brokers never are, if clients have another one: brokers may have the address of clients.
        """
        limit = self._limits[CONNECTION_CREATION_RATE].of_address(address)
        if limit is None or listener == self._exempt_listener:
            return 0
        now_ms = self._now_ms()
        meter = self._rates[CONNECTION_CREATION_RATE].of(limit, now_ms)
        meter.record(1, now_ms)
        throttle_ms = min(self._window_ms, meter.throttle_ms(limit.rate, now_ms))
        if throttle_ms > 0:
            meter.record(-1, now_ms)
            self._note(CONNECTION_CREATION_RATE, throttle_ms)
        return throttle_ms

    def on_broker_proved(self, listener: str, address: str) -> None:
        """Take back the count of a connection that has turned out to be a broker's."""
        limit = self._limits[CONNECTION_CREATION_RATE].of_address(address)
        if limit is not None and listener != self._exempt_listener:
            now_ms = self._now_ms()
            self._rates[CONNECTION_CREATION_RATE].of(limit, now_ms).record(-1, now_ms)


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

    def on_broker_proved(self, listener: str, address: str) -> None:
        """Take back the count of a connection for its address: it has turned out to be a broker's."""
        self._limits.on_broker_proved(listener, address)
        self._quotas.on_broker_proved(listener, address)

    def end(self, listener: str, address: str, *, is_broker: bool = False) -> None:
        self._limits.release(listener, address, is_broker=is_broker)
