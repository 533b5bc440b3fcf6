"""Metrics of requests and connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from nilometer.broker.api.dispatcher import RequestDispatcher
from nilometer.broker.quotas import ClientQuotas
from nilometer.metrics import Family, Kind, Measured
from nilometer.quotas import ADDRESS_KEYS, CLIENT_KEYS
from nilometer.runtime import Clock

_API = ("request",)
REQUESTS = Family(
    "kafka_network_requestmetrics_requests_total",
    Kind.COUNTER,
    "Requests, by API and version. Fetches of consumers are FetchConsumer, those of followers FetchFollower.",
    ("request", "version"),
)
TOTAL_TIME = Family(
    "kafka_network_requestmetrics_totaltimems",
    Kind.SUMMARY,
    "Milliseconds from the arrival of a request until its response is ready, waits included; "
    "quantiles of the last one to two minutes.",
    _API,
)
REQUEST_SECONDS = Family(
    "nilometer_request_seconds",
    Kind.HISTOGRAM,
    "Time from the arrival of a request until its response is ready, waits included.",
    _API,
)
FAILED = Family(
    "nilometer_requests_failed_total",
    Kind.COUNTER,
    "Requests without a response: the client had gone, or the request could not be answered "
    "and its connection was closed.",
    _API,
)
IN_FLIGHT = Family("nilometer_requests_in_flight", Kind.GAUGE, "Requests that wait for their response.", _API)
CONNECTIONS = Family(
    "kafka_server_socket_server_metrics_connection_count",
    Kind.UNTYPED,
    "Open connections of clients and brokers.",
    ("listener", "networkprocessor"),
)
ACCEPTED = Family("nilometer_connections_accepted_total", Kind.COUNTER, "Connections accepted.")
_QUOTA = ("quota",)
THROTTLED = Family(
    "nilometer_quota_throttled_total",
    Kind.COUNTER,
    "How often clients and connections had to wait, by the key of the quota that they exceeded.",
    _QUOTA,
)
THROTTLED_SECONDS = Family(
    "nilometer_quota_throttle_seconds_total",
    Kind.COUNTER,
    "The sum of the times that they had to wait, by the key of the quota.",
    _QUOTA,
)

FAMILIES = (
    REQUESTS,
    TOTAL_TIME,
    REQUEST_SECONDS,
    FAILED,
    IN_FLIGHT,
    CONNECTIONS,
    ACCEPTED,
    THROTTLED,
    THROTTLED_SECONDS,
)


class RequestMetrics:
    def __init__(
        self, dispatcher: RequestDispatcher, quotas: ClientQuotas, listeners: Sequence[str], clock: Clock
    ) -> None:
        self._dispatcher = dispatcher
        self._quotas = quotas
        self._listeners = listeners
        self._clock = clock

    def collect(self) -> Iterator[Measured]:
        now_us = self._clock.monotonic_us()
        used = [one for one in self._dispatcher.statistics.all() if one.by_version]
        yield Measured(
            REQUESTS,
            (
                ((one.name, str(version)), count)
                for one in used
                for version, count in sorted(one.by_version.items())
            ),
        )
        yield Measured(TOTAL_TIME, (((one.name,), one.durations.reading(now_us)) for one in used))
        yield Measured(REQUEST_SECONDS, (((one.name,), one.durations.reading(now_us)) for one in used))
        yield Measured(FAILED, (((one.name,), one.failed) for one in used))
        yield Measured(IN_FLIGHT, (((one.name,), one.in_flight) for one in used))
        open_by_listener = Counter(one.context.listener for one in self._dispatcher.connections)
        yield Measured(CONNECTIONS, (((name, "0"), open_by_listener[name]) for name in self._listeners))
        yield Measured(ACCEPTED, [((), self._dispatcher.connections_accepted)])
        quotas, keys = self._quotas, (*CLIENT_KEYS, *ADDRESS_KEYS)
        yield Measured(THROTTLED, [((key,), quotas.throttled[key]) for key in keys])
        yield Measured(THROTTLED_SECONDS, [((key,), quotas.throttled_ms[key] / 1000) for key in keys])
