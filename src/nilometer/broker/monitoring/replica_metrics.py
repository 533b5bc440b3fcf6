"""Metrics of the replicas on this broker: their health, traffic and logs.

One pass over the hosted partitions makes the sums of which they consist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from nilometer.broker.api.dispatcher import RequestStatistics
from nilometer.broker.assembly import ReplicaParts
from nilometer.broker.control.cluster_changes import ClusterChanges
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.traffic import BrokerTraffic, TrafficTotals
from nilometer.identifiers import UNKNOWN_OFFSET
from nilometer.metrics import PAUSE, Family, Kind, Measured, Pause, Series
from nilometer.replication.followers import RemoteReplica
from nilometer.replication.leader import LeaderRole


class TopicSums:
    """The sums of one topic's hosted partitions."""

    __slots__ = ("log_bytes", "partitions", "traffic")

    def __init__(self, traffic: TrafficTotals) -> None:
        self.traffic = traffic
        self.log_bytes = 0
        self.partitions = 0


class ReplicaSurvey:
    def __init__(self, traffic: BrokerTraffic) -> None:
        self.all_topics = TopicSums(traffic.departed.copy())
        self.by_topic = {
            topic: TopicSums(totals.copy()) for topic, totals in traffic.departed_by_topic.items()
        }
        self.leaders = self.under_replicated = self.under_min_isr = self.at_min_isr = self.reassigning = 0
        self.produce_waits = 0
        """Acknowledgements of single partitions that Produce requests wait for."""
        self.lag_of_followers: dict[int, int] = {}
        """By the follower's broker id: the most records that it is behind, of all partitions led here."""

    def add(self, partition: Partition) -> None:
        log, traffic = partition.log, partition.traffic
        of_topic = self.by_topic.get(partition.topic)
        if of_topic is None:
            of_topic = self.by_topic[partition.topic] = TopicSums(TrafficTotals())
        log_bytes = log.size
        for sums in (self.all_topics, of_topic):
            sums.traffic.add_partition(traffic, log.log_end_offset)
            sums.log_bytes += log_bytes
            sums.partitions += 1
        self.produce_waits += partition.waiting_produces
        role = partition.replica.role
        if isinstance(role, LeaderRole):
            self._add_led(partition, role)

    def _add_led(self, partition: Partition, role: LeaderRole) -> None:
        in_sync = len(role.isr)
        self.leaders += 1
        self.under_replicated += is_under_replicated(partition)
        self.under_min_isr += in_sync < role.needed_in_sync
        self.at_min_isr += in_sync == role.needed_in_sync
        self.reassigning += partition.state.is_reassigning
        for remote in role.remote_replicas:
            known = self.lag_of_followers.get(remote.broker_id, 0)
            self.lag_of_followers[remote.broker_id] = max(known, records_behind(role, remote))


def is_under_replicated(partition: Partition) -> bool:
    """Whether fewer replicas are in sync than assigned; those that a reassignment adds do not count."""
    state = partition.state
    wanted = len(state.original_replicas) if state.is_reassigning else len(state.replicas)
    return len(state.isr) < wanted


def records_behind(role: LeaderRole, remote: RemoteReplica) -> int:
    """Return how many records of the leader's log a follower has not fetched: all that are above the high
    watermark at least, if it has not fetched since the leader was elected."""
    fetched = role.high_watermark if remote.log_end_offset == UNKNOWN_OFFSET else remote.log_end_offset
    return max(0, role.log_end_offset - fetched)


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
MOVE_LAG = Family(
    "kafka_server_replicaalterlogdirsmanager_maxlag",
    Kind.GAUGE,
    "How many records the copy of a replica that moves to another log directory is behind, at most.",
    ("clientid",),
)
MOVES = Family(
    "nilometer_log_directory_moves_total",
    Kind.COUNTER,
    "Replicas that have moved to another log directory of this broker.",
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
    MOVE_LAG,
    MOVES,
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
        lambda partition: partition.log.size,
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
        lag = max((move.offset_lag for move in parts.moves), default=0)
        yield Measured(MOVE_LAG, [(("ReplicaAlterLogDirs",), lag)])
        yield _one(MOVES, parts.moves.moved)
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
