"""Metrics of the broker's process: its requests and connections, and what its structure makes worth watching,
the event loop, the threads for blocking work, group commits and the log cleaner.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

from nilometer import compiled
from nilometer.broker.api.dispatcher import RequestDispatcher
from nilometer.broker.cleaning import CleanerReport
from nilometer.broker.quotas import ClientQuotas
from nilometer.broker.replicas.file_work import GroupCommit
from nilometer.broker.replicas.log_directories import LogDirectories
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import Turns
from nilometer.metrics import Distribution, Family, Kind, Measured
from nilometer.quotas import ADDRESS_KEYS, CLIENT_KEYS
from nilometer.runtime import Clock, Runtime
from nilometer.version import __version__

# Metrics of requests and connections.

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

REQUEST_FAMILIES = (
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


# Metrics of what a broker's own structure makes worth watching: the event loop, the threads for blocking
# work, group commits and the log cleaner.

# Measures how late the event loop runs what is due: the time that other work made it wait.
#
# A timer is set, and its delay beyond the time it was set for is counted. All requests of a broker share one
# event loop, so each waits about as long.

INTERVAL_MS = 100


class LoopProbe:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lag = Distribution()

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due_us = self._clock.monotonic_us() + INTERVAL_MS * 1000
            await asyncio.sleep(INTERVAL_MS / 1000)
            now_us = self._clock.monotonic_us()
            self.lag.observe(max(0, now_us - due_us), now_us)


LOOP_LAG = Family(
    "nilometer_event_loop_lag_seconds",
    Kind.HISTOGRAM,
    "How late the event loop ran a timer, ten times a second: how long all requests had to wait.",
)
TURNS = Family(
    "nilometer_event_loop_turn_seconds",
    Kind.HISTOGRAM,
    "Processor time of the event loop's turns of a millisecond and more: other clients waited for each.",
)
LONGEST_TURN = Family(
    "nilometer_event_loop_longest_turn_seconds",
    Kind.GAUGE,
    "Processor time of the longest turn of the event loop since the start, by the API or the task that ran.",
    ("work",),
)
OFFLOADED = Family(
    "nilometer_offloaded_work",
    Kind.GAUGE,
    "Blocking work (flushes, reads from the device, deletions) that runs, or waits for a thread.",
)
SERVICE_FAILURES = Family(
    "nilometer_service_failures_total",
    Kind.COUNTER,
    "Failed rounds of a background service; each is in the log.",
    ("service",),
)
DIRECTORIES_OFFLINE = Family(
    "kafka_log_logmanager_offlinelogdirectorycount", Kind.GAUGE, "Log directories that failed."
)
DIRECTORY_OFFLINE = Family(
    "kafka_log_logmanager_logdirectoryoffline",
    Kind.GAUGE,
    "1 if the log directory failed.",
    ("logdirectory",),
)
BUILD = Family(
    "nilometer_build_info",
    Kind.GAUGE,
    "Always 1; the labels are the broker's version and its form, compiled or interpreted.",
    ("version", "form"),
)

FAMILIES = (
    LOOP_LAG,
    TURNS,
    LONGEST_TURN,
    OFFLOADED,
    SERVICE_FAILURES,
    DIRECTORIES_OFFLINE,
    DIRECTORY_OFFLINE,
    BUILD,
)


class RuntimeMetrics:
    def __init__(
        self, runtime: Runtime, probe: LoopProbe, tasks: Tasks, turns: Turns, directories: LogDirectories
    ) -> None:
        self._turns = turns
        self._runtime = runtime
        self._probe = probe
        self._tasks = tasks
        self._directories = directories

    def collect(self) -> Iterator[Measured]:
        yield Measured(LOOP_LAG, [((), self._probe.lag.reading(self._runtime.clock.monotonic_us()))])
        yield Measured(TURNS, [((), self._turns.durations.reading(self._runtime.clock.monotonic_us()))])
        longest = sorted(self._turns.longest_of.items())
        yield Measured(LONGEST_TURN, (((kind,), cpu_us / 1_000_000) for kind, cpu_us in longest))
        yield Measured(OFFLOADED, [((), self._runtime.disk.offloaded)])
        services = sorted(self._tasks.services.values(), key=lambda service: service.name)
        yield Measured(SERVICE_FAILURES, (((one.name,), one.failures) for one in services if one.interval_ms))
        yield Measured(DIRECTORIES_OFFLINE, [((), self._directories.failed_count)])
        directories = self._directories.logs.directories
        yield Measured(
            DIRECTORY_OFFLINE, (((one.path,), int(one.failure is not None)) for one in directories)
        )
        yield Measured(BUILD, [((__version__, compiled.form()), 1)])


FLUSH_TIME = Family(
    "kafka_log_logflushstats_logflushrateandtimems",
    Kind.SUMMARY,
    "Milliseconds of a group commit, which flushes all logs that need it at that time.",
)
LOGS_FLUSHED = Family("nilometer_logs_flushed_total", Kind.COUNTER, "Logs flushed by group commits.")
CLEANER_ROUNDS = Family(
    "nilometer_cleaner_rounds_total",
    Kind.COUNTER,
    "Compactions of a log that ended: completed, or stopped before their end.",
    ("outcome",),
)
CLEANER_ACTIVE = Family("nilometer_cleaner_active", Kind.GAUGE, "Logs that are being compacted.")
RECORDS_REMOVED = Family(
    "nilometer_cleaner_records_removed_total", Kind.COUNTER, "Records removed by compaction."
)
BYTES_REMOVED = Family("nilometer_cleaner_bytes_removed_total", Kind.COUNTER, "Bytes removed by compaction.")
STORAGE_FAMILIES = (FLUSH_TIME, LOGS_FLUSHED, CLEANER_ROUNDS, CLEANER_ACTIVE, RECORDS_REMOVED, BYTES_REMOVED)


class StorageMetrics:
    def __init__(self, commit: GroupCommit, cleaner: CleanerReport, clock: Clock) -> None:
        self._commit = commit
        self._cleaner = cleaner
        self._clock = clock

    def collect(self) -> Iterator[Measured]:
        commit, cleaner = self._commit, self._cleaner
        yield Measured(FLUSH_TIME, [((), commit.durations.reading(self._clock.monotonic_us()))])
        yield Measured(LOGS_FLUSHED, [((), commit.logs_flushed)])
        rounds = [(("completed",), cleaner.rounds), (("stopped",), cleaner.rounds_stopped)]
        yield Measured(CLEANER_ROUNDS, rounds)
        yield Measured(CLEANER_ACTIVE, [((), len(cleaner.current))])
        yield Measured(RECORDS_REMOVED, [((), cleaner.records_removed)])
        yield Measured(BYTES_REMOVED, [((), cleaner.bytes_removed)])
