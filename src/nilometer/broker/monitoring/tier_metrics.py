"""Metrics of remote storage, under Kafka's names: what was copied and read, what waits, what is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal

from nilometer.broker.tiering.remote_logs import RemoteLogs
from nilometer.broker.tiering.remote_partition import RemotePartition, RemoteTraffic
from nilometer.metrics import PAUSE, Family, Kind, Measured, Pause

_TOPIC = ("topic",)
_PREFIX = "kafka_server_brokertopicmetrics_remote"
PARTITIONS_PER_PART = 64


def _counter(name: str, help_text: str) -> Family:
    return Family(f"{_PREFIX}{name}_total", Kind.COUNTER, help_text, _TOPIC)


def _gauge(name: str, help_text: str) -> Family:
    return Family(f"{_PREFIX}{name}", Kind.GAUGE, help_text, _TOPIC)


_COUNTERS: tuple[tuple[Family, Callable[[RemoteTraffic], int]], ...] = (
    (
        _counter("copybytes", 'Bytes copied to remote storage. The series with topic="" has all topics.'),
        lambda traffic: traffic.copied_bytes,
    ),
    (_counter("copyrequests", "Segments copied to remote storage."), lambda traffic: traffic.copied_segments),
    (
        _counter("copyerrors", "Rounds that ended because remote storage failed; they are repeated."),
        lambda traffic: traffic.copy_errors,
    ),
    (
        _counter("fetchbytes", "Bytes of record batches that requests have read from remote storage."),
        lambda traffic: traffic.fetched_bytes,
    ),
    (
        _counter("fetchrequests", "Reads from remote storage for requests."),
        lambda traffic: traffic.fetch_requests,
    ),
    (
        _counter("fetcherrors", "Reads from remote storage that failed."),
        lambda traffic: traffic.fetch_errors,
    ),
    (
        _counter("deleterequests", "Segments removed from remote storage."),
        lambda traffic: traffic.deleted_segments,
    ),
    (
        _counter("deleteerrors", "Removals from remote storage that failed; they are repeated."),
        lambda traffic: traffic.delete_errors,
    ),
)
_GAUGES: tuple[tuple[Family, Callable[[RemotePartition], int]], ...] = (
    (
        _gauge("copylagbytes", "Bytes of sealed segments that are not in remote storage yet."),
        lambda remote: remote.lag.sealed_bytes,
    ),
    (
        _gauge("copylagsegments", "Sealed segments that are not in remote storage yet."),
        lambda remote: remote.lag.sealed,
    ),
    (
        _gauge("logsizebytes", "Bytes of log files in remote storage, of the partitions led here."),
        lambda remote: remote.remote_bytes,
    ),
    (
        Family(
            "nilometer_tier_missing_records",
            Kind.GAUGE,
            "Committed records that are not in remote storage yet: lost, if all disks of brokers were.",
            _TOPIC,
        ),
        lambda remote: remote.lag.records,
    ),
)
FAILING = Family(
    "nilometer_tier_failing_partitions",
    Kind.GAUGE,
    "Partitions whose remote storage cannot be used now: nothing that is not there is deleted.",
    _TOPIC,
)
FAMILIES = (*(family for family, _ in _COUNTERS), *(family for family, _ in _GAUGES), FAILING)


class TierMetrics:
    def __init__(self, logs: RemoteLogs | None) -> None:
        self._logs = logs

    def collect(self) -> Iterator[Measured | Literal[Pause.PAUSE]]:
        logs = self._logs
        if logs is None:
            return
        for family, count in _COUNTERS:
            yield _measured(family, {topic: count(traffic) for topic, traffic in logs.traffic.items()})
        sums = [Counter[str]() for _ in _GAUGES]
        failing = Counter[str]()
        for number, remote in enumerate(list(logs)):
            topic = remote.partition.topic
            for of_topic, (_, amount) in zip(sums, _GAUGES, strict=True):
                of_topic[topic] += amount(remote) if remote.partition.is_led_here else 0
            failing[topic] += remote.error is not None
            if number % PARTITIONS_PER_PART == 0:
                yield PAUSE
        for of_topic, (family, _) in zip(sums, _GAUGES, strict=True):
            yield _measured(family, of_topic)
        yield _measured(FAILING, failing)


def _measured(family: Family, by_topic: dict[str, int]) -> Measured:
    series = [((topic,), amount) for topic, amount in sorted(by_topic.items())]
    return Measured(family, [(("",), sum(by_topic.values())), *series])
