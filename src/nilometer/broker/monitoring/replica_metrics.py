"""Metrics of the replicas on this broker: their health, traffic and logs.

All are read from the hosted partitions at a scrape, in one pass (:mod:`.replica_survey`). Series of single
topics and, if wanted, of single partitions follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from nilometer.broker.assembly import ReplicaParts
from nilometer.broker.control.cluster_changes import ClusterChanges
from nilometer.broker.monitoring.replica_survey import (
    ReplicaSurvey,
    TopicSums,
    is_under_replicated,
    records_behind,
)
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.traffic import TrafficTotals
from nilometer.broker.request_statistics import RequestStatistics
from nilometer.metrics import PAUSE, Family, Kind, Measured, Pause, Series
from nilometer.replication import LeaderRole

PARTITIONS_PER_PART = 8
"""The survey pauses after so many partitions."""
PARTITION_SERIES_MAX = 200_000

_MANAGER = "kafka_server_replicamanager_"
PARTITIONS = Family(f"{_MANAGER}partitioncount", Kind.GAUGE, "Replicas on this broker.")
LEADERS = Family(f"{_MANAGER}leadercount", Kind.GAUGE, "Partitions that this broker leads.")
UNDER_REPLICATED = Family(
    f"{_MANAGER}underreplicatedpartitions",
    Kind.GAUGE,
    "Partitions led here with fewer replicas in sync than assigned.",
)
UNDER_MIN_ISR = Family(
    f"{_MANAGER}underminisrpartitioncount",
    Kind.GAUGE,
    "Partitions led here with fewer replicas in sync than min.insync.replicas: acks=all is rejected.",
)
AT_MIN_ISR = Family(
    f"{_MANAGER}atminisrpartitioncount",
    Kind.GAUGE,
    "Partitions led here with exactly min.insync.replicas in sync: none may be lost.",
)
REASSIGNING = Family(
    f"{_MANAGER}reassigningpartitions", Kind.GAUGE, "Partitions led here whose replicas are being moved."
)
OFFLINE = Family(
    f"{_MANAGER}offlinereplicacount",
    Kind.GAUGE,
    "Replicas of this broker that cannot be used: their log directory failed, or they were fenced.",
)
ISR_SHRINKS = Family(
    f"{_MANAGER}isrshrinks_total",
    Kind.COUNTER,
    "Changes that removed a replica from the ISR of a partition led here.",
)
ISR_EXPANDS = Family(
    f"{_MANAGER}isrexpands_total",
    Kind.COUNTER,
    "Changes that added a replica to the ISR of a partition led here.",
)
FAILED_ISR_UPDATES = Family(
    f"{_MANAGER}failedisrupdates_total",
    Kind.COUNTER,
    "Changes of an ISR that the controller rejected or did not answer; the leader tries again.",
)
FOLLOWER_LAG = Family(
    "nilometer_follower_lag_records",
    Kind.GAUGE,
    "The most records that a follower is behind this broker, of all partitions led here; 0 if it has all.",
    ("follower",),
)
PURGATORY = Family(
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    Kind.GAUGE,
    "Produce: appended batches whose acknowledgement waits for followers or for a flush. "
    "Fetch: requests that wait for records.",
    ("delayedoperation",),
)
LOG_BYTES = Family("nilometer_log_size_bytes", Kind.GAUGE, "Size of the segments on this broker.", ("topic",))

_TOPIC = ("topic",)
_TRAFFIC: tuple[tuple[Family, Callable[[TrafficTotals], int]], ...] = (
    (
        Family(
            "kafka_server_brokertopicmetrics_messagesin_total",
            Kind.COUNTER,
            'Records appended by this broker as leader. The series with topic="" has all topics.',
            _TOPIC,
        ),
        lambda totals: totals.messages_in,
    ),
    (
        Family(
            "kafka_server_brokertopicmetrics_bytesin_total",
            Kind.COUNTER,
            "Bytes of record batches appended by this broker as leader.",
            _TOPIC,
        ),
        lambda totals: totals.bytes_in,
    ),
    (
        Family(
            "kafka_server_brokertopicmetrics_bytesout_total",
            Kind.COUNTER,
            "Bytes of record batches sent to consumers.",
            _TOPIC,
        ),
        lambda totals: totals.bytes_out,
    ),
    (
        Family(
            "kafka_server_brokertopicmetrics_replicationbytesin_total",
            Kind.COUNTER,
            "Bytes of record batches fetched from leaders.",
            _TOPIC,
        ),
        lambda totals: totals.replication_bytes_in,
    ),
    (
        Family(
            "kafka_server_brokertopicmetrics_replicationbytesout_total",
            Kind.COUNTER,
            "Bytes of record batches sent to followers.",
            _TOPIC,
        ),
        lambda totals: totals.replication_bytes_out,
    ),
)
FAILED_PRODUCES = Family(
    "kafka_server_brokertopicmetrics_failedproducerequests_total",
    Kind.COUNTER,
    "Partitions of Produce requests that got an error.",
)
FAILED_FETCHES = Family(
    "kafka_server_brokertopicmetrics_failedfetchrequests_total",
    Kind.COUNTER,
    "Partitions of Fetch requests that got an error.",
)
FAMILIES = (
    PARTITIONS,
    LEADERS,
    UNDER_REPLICATED,
    UNDER_MIN_ISR,
    AT_MIN_ISR,
    REASSIGNING,
    OFFLINE,
    ISR_SHRINKS,
    ISR_EXPANDS,
    FAILED_ISR_UPDATES,
    FOLLOWER_LAG,
    PURGATORY,
    LOG_BYTES,
    *(family for family, _ in _TRAFFIC),
    FAILED_PRODUCES,
    FAILED_FETCHES,
)


def _of_partition(name: str, help_text: str) -> Family:
    return Family(name, Kind.GAUGE, help_text, ("topic", "partition"), PARTITION_SERIES_MAX)


_PER_PARTITION: tuple[tuple[Family, Callable[[Partition], int]], ...] = (
    (
        _of_partition("kafka_log_log_size", "Bytes of the partition's segments."),
        lambda partition: partition.log.state.size,
    ),
    (
        _of_partition("kafka_log_log_logstartoffset", "The log start offset."),
        lambda partition: partition.log.log_start_offset,
    ),
    (
        _of_partition("kafka_log_log_logendoffset", "The log end offset (LEO)."),
        lambda partition: partition.log.log_end_offset,
    ),
    (
        _of_partition("kafka_log_log_numlogsegments", "The number of segments."),
        lambda partition: len(partition.log.segments),
    ),
    (
        _of_partition("nilometer_partition_high_watermark", "The high watermark that this replica knows."),
        lambda partition: partition.replica.high_watermark,
    ),
)
_PER_LED_PARTITION: tuple[tuple[Family, Callable[[Partition, LeaderRole], int]], ...] = (
    (
        _of_partition("kafka_cluster_partition_replicascount", "Assigned replicas of a partition led here."),
        lambda partition, _: len(partition.state.replicas),
    ),
    (
        _of_partition(
            "kafka_cluster_partition_insyncreplicascount", "The size of the ISR, for a partition led here."
        ),
        lambda _, role: len(role.isr),
    ),
    (
        _of_partition(
            "kafka_cluster_partition_underreplicated", "1 if fewer replicas are in sync than assigned."
        ),
        lambda partition, _: int(is_under_replicated(partition)),
    ),
    (
        _of_partition(
            "kafka_cluster_partition_underminisr", "1 if fewer than min.insync.replicas are in sync."
        ),
        lambda _, role: int(role.is_under_min_isr),
    ),
)
PARTITION_FOLLOWER_LAG = Family(
    "nilometer_partition_follower_lag_records",
    Kind.GAUGE,
    "How many records a follower is behind, for a partition led here.",
    ("topic", "partition", "follower"),
    PARTITION_SERIES_MAX,
)
PARTITION_FAMILIES = (
    *(family for family, _ in _PER_PARTITION),
    *(family for family, _ in _PER_LED_PARTITION),
    PARTITION_FOLLOWER_LAG,
)
"""With ``metrics.per.partition.enable`` only."""


class ReplicaMetrics:
    def __init__(self, parts: ReplicaParts, changes: ClusterChanges, requests: RequestStatistics) -> None:
        self._requests = requests
        self._parts = parts
        self._changes = changes

    def collect(self) -> Iterator[Measured | Literal[Pause.PAUSE]]:
        parts, traffic = self._parts, self._parts.replicas.traffic
        survey = ReplicaSurvey(traffic)
        for number, partition in enumerate(list(parts.partitions)):
            survey.add(partition)
            if number % PARTITIONS_PER_PART == 0:
                yield PAUSE
        yield _one(PARTITIONS, survey.all_topics.partitions)
        yield _one(LEADERS, survey.leaders)
        yield _one(UNDER_REPLICATED, survey.under_replicated)
        yield _one(UNDER_MIN_ISR, survey.under_min_isr)
        yield _one(AT_MIN_ISR, survey.at_min_isr)
        yield _one(REASSIGNING, survey.reassigning)
        yield _one(OFFLINE, len(parts.offline))
        yield _one(ISR_SHRINKS, self._changes.isr_shrinks)
        yield _one(ISR_EXPANDS, self._changes.isr_expands)
        yield _one(FAILED_ISR_UPDATES, parts.isr_requests.failed)
        lags = sorted(survey.lag_of_followers.items())
        yield Measured(FOLLOWER_LAG, [((str(follower),), lag) for follower, lag in lags])
        waits = [(("Produce",), survey.produce_waits), (("Fetch",), self._requests.waiting_fetches)]
        yield Measured(PURGATORY, waits)
        yield _one(FAILED_PRODUCES, traffic.failed_produces)
        yield _one(FAILED_FETCHES, traffic.failed_fetches)
        yield from _of_topics(survey)

    def collect_partitions(self) -> Iterator[Measured]:
        """Yield the families of single partitions."""
        partitions = list(self._parts.partitions)
        for family, value in _PER_PARTITION:
            yield Measured(family, ((_labels(one), value(one)) for one in partitions))
        for family, value_of_led in _PER_LED_PARTITION:
            yield Measured(family, _of_led(partitions, value_of_led))
        yield Measured(PARTITION_FOLLOWER_LAG, _lags(partitions))


def _one(family: Family, value: int) -> Measured:
    return Measured(family, [((), value)])


def _of_topics(survey: ReplicaSurvey) -> Iterator[Measured]:
    """Yield the families with a series for each topic, after one for all topics: the topics hosted first come
    first, so that the same ones have series while there are too many."""
    sums: list[tuple[str, TopicSums]] = [("", survey.all_topics), *survey.by_topic.items()]
    yield Measured(LOG_BYTES, (((topic,), one.log_bytes) for topic, one in sums))
    for family, value in _TRAFFIC:
        yield Measured(family, _traffic(sums, value))


def _traffic(
    sums: Sequence[tuple[str, TopicSums]], value: Callable[[TrafficTotals], int]
) -> Iterator[Series]:
    for topic, one in sums:
        yield (topic,), value(one.traffic)


def _labels(partition: Partition) -> tuple[str, str]:
    return partition.topic, str(partition.key.partition)


def _of_led(
    partitions: Sequence[Partition], value: Callable[[Partition, LeaderRole], int]
) -> Iterator[Series | Literal[Pause.PAUSE]]:
    for partition in partitions:
        role = partition.replica.role
        if isinstance(role, LeaderRole):
            yield _labels(partition), value(partition, role)
        else:
            yield PAUSE


def _lags(partitions: Sequence[Partition]) -> Iterator[Series | Literal[Pause.PAUSE]]:
    for partition in partitions:
        yield PAUSE
        role = partition.replica.role
        if isinstance(role, LeaderRole):
            for remote in role.remote_replicas:
                yield (*_labels(partition), str(remote.broker_id)), records_behind(role, remote)
