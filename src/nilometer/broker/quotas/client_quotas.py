"""The quotas of clients on this broker: measures what they use, and says how long they have to wait.

A client above a quota gets its response at once, with the time to wait in it, and its connection is not read
for that time (KIP-219). Handlers ask :attr:`ClientQuotas.limits_clients` first: without any quota nothing is
measured. Requests of brokers are exempt.

Request times are those on the event loop, in percent of one second (KIP-124); the throttle time for them is
at most one window, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.quotas.connection_limits import listener_of_brokers
from nilometer.broker.quotas.meters import Meters
from nilometer.broker.quotas.mutation_quota import UNLIMITED, MutationQuota
from nilometer.broker.request_context import RequestContext
from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.image import ClusterImage
from nilometer.quotas.entity import (
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Limits,
)
from nilometer.quotas.rates import TokenBucket, WindowedRate
from nilometer.runtime import Clock

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
