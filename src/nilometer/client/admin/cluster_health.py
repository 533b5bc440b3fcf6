"""The health of a cluster: a pure function of what its brokers reported.

Three grades. *Unavailable*: a part of the data cannot be read or written (a partition has no leader or fewer
in-sync replicas than ``min.insync.replicas``), or no broker responds. *Degraded*: everything is served, but
something needs attention, and the next failure may cost availability. *Healthy*: neither.

A reassignment is no problem; the replicas it adds do not count as under-replicated until it is complete.
What could not be found out is a problem too (:attr:`ClusterHealth.unknown`), never taken for healthy.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import msgspec

from nilometer.client.admin.quorum_admin import QuorumView
from nilometer.client.admin.reassignments import OngoingMove
from nilometer.client.admin.replica_survey import BrokerAnswer, ReplicaRow, Survey
from nilometer.client.admin.transaction_admin import OpenTransaction
from nilometer.client.network.cluster_metadata import ClusterMetadata, TopicPartition
from nilometer.identifiers import NO_LEADER
from nilometer.wire.own_apis import LEADER, OFFLINE, CompactionState, ReplicaState, TierState

RUNNING, FENCED, DOWN = "running", "fenced", "down"
UNREACHABLE, UNREGISTERED = "unreachable", "unregistered"


class Grade(enum.Enum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown"
    """The brokers do not tell this user what the health depends on, and nothing else is known to be wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHealth:
    id: int
    host: str
    port: int
    state: str
    """``running``: it responds and is registered. ``unregistered``: it responds, but the cluster's metadata
    does not count on it. ``unreachable``: it does not respond. Of the data folder's brokers also ``down``:
    it has no process, and ``fenced``: its process runs, but serves nothing until it is restarted."""
    reason: str | None = None
    """Why it is not running."""
    pid: int | None = None
    """The process, if it is one of the data folder's brokers and runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredNode:
    """A broker of the metadata log."""

    id: int
    host: str
    port: int
    is_fenced: bool
    """Whether its session with the coordination store has ended."""


class PartitionHealth(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One of many thousands: it refers to values only, so the collector need not visit it."""

    partition: TopicPartition
    leader: int
    """-1: none."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_responds: bool
    needed_in_sync: int | None = None
    """The size of the ISR below which no record is committed; None if its leader does not report it."""
    adding: tuple[int, ...] = ()

    @property
    def is_offline(self) -> bool:
        """Whether it can be neither read nor written now."""
        return self.leader == NO_LEADER or not self.leader_responds

    @property
    def is_under_replicated(self) -> bool:
        if not self.adding:
            return len(self.isr) < len(self.replicas)
        return len(self.isr) < len([one for one in self.replicas if one not in self.adding])

    @property
    def is_under_min_isr(self) -> bool:
        return self.needed_in_sync is not None and len(self.isr) < self.needed_in_sync


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLogDirectory:
    broker_id: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayLogs:
    """Logs that are no replica of their broker, and are kept until an operator deletes them."""

    broker_id: int
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestTurn:
    """The longest turn of a broker's event loop since its start: all its clients waited for it."""

    broker_id: int
    cpu_us: int
    work: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedReplica:
    """A replica that its broker cannot use, or one of whose tasks fails again and again."""

    partition: TopicPartition
    broker_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """The compaction of one replica's log: a round in progress, or the last one."""

    partition: TopicPartition
    broker_id: int
    state: CompactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """What remote storage has of one partition, as its leader knows it."""

    partition: TopicPartition
    broker_id: int
    state: TierState


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the brokers reported; of every part only what could be found out."""

    survey: Survey | None
    """None: no broker responds."""
    registered: Sequence[RegisteredNode] = ()
    """All brokers of the metadata log, fenced ones too; empty if not known."""
    moves: Mapping[TopicPartition, OngoingMove] = field(default_factory=dict[TopicPartition, OngoingMove])
    failed_directories: tuple[FailedLogDirectory, ...] = ()
    hanging: tuple[OpenTransaction, ...] = ()
    unknown: tuple[str, ...] = ()
    """What could not be found out, and why: a sentence each."""
    quorum: QuorumView | str | None = None
    """The metadata quorum, or why it has no leader; None if there is none, or it is not known."""
    refused: str | None = None
    """Why brokers that run do not tell this user what the health depends on; None: they do."""


@dataclass(frozen=True, kw_only=True)
class ClusterHealth:
    cluster_id: str | None
    controller_id: int
    """-1: none is known."""
    controller_epoch: int
    metadata_number: int
    """The number of the newest metadata entry that a broker has applied; -1 if none responds."""
    brokers: tuple[BrokerHealth, ...]
    partitions: tuple[PartitionHealth, ...]
    failed_directories: tuple[FailedLogDirectory, ...]
    stopped: tuple[StoppedReplica, ...]
    moves: Mapping[TopicPartition, OngoingMove]
    hanging: tuple[OpenTransaction, ...]
    unknown: tuple[str, ...]
    refused: str | None = None
    """As in :class:`Findings`."""
    compactions: tuple[Compaction, ...] = ()
    tiers: tuple[Tier, ...] = ()
    strays: tuple[StrayLogs, ...] = ()
    longest_turns: tuple[LongestTurn, ...] = ()
    """Of each broker that reports it."""
    quorum: QuorumView | str | None = None
    """As in :class:`Findings`."""

    @cached_property
    def offline(self) -> list[PartitionHealth]:
        return [one for one in self.partitions if one.is_offline]

    @cached_property
    def under_replicated(self) -> list[PartitionHealth]:
        """The partitions with replicas that are not in sync, those without a leader included."""
        return [one for one in self.partitions if one.is_under_replicated]

    @cached_property
    def under_min_isr(self) -> list[PartitionHealth]:
        """The partitions that have a leader, but reject records with acks=all."""
        return [one for one in self.partitions if one.is_under_min_isr and not one.is_offline]

    @cached_property
    def failing_tiers(self) -> list[Tier]:
        return [one for one in self.tiers if one.state.error]

    @cached_property
    def missing(self) -> list[BrokerHealth]:
        return [one for one in self.brokers if one.state != RUNNING]

    @property
    def grade(self) -> Grade:
        if self.refused is not None and not self.offline:
            return Grade.UNKNOWN
        responding = any(one.state in (RUNNING, UNREGISTERED) for one in self.brokers)
        if not responding or self.controller_id < 0 or self.offline or self.under_min_isr:
            return Grade.UNAVAILABLE
        problems = (
            self.missing,
            self.under_replicated,
            self.failed_directories,
            self.stopped,
            self.failing_tiers,
            quorum_problems(self.quorum),
        )
        return Grade.DEGRADED if any(problems) or self.hanging or self.unknown else Grade.HEALTHY


def cluster_health(found: Findings, local: Sequence[BrokerHealth] = ()) -> ClusterHealth:
    """Return the health that follows from ``found``.

    ``local``: the brokers of a data folder by the state of their processes, ``running`` if not known better.
    """
    survey = found.survey
    states = [answer.answer.broker for answer in (survey.brokers if survey else ()) if answer.answer]
    newest = max(states, key=lambda one: one.metadata_number, default=None)
    partitions = _partitions(survey, found.moves) if survey is not None else ()
    brokers = _brokers(found, local)
    listed = -1 if survey is None or found.refused is None else survey.controller_id
    controller_id = listed if newest is None else newest.controller_id
    return ClusterHealth(
        cluster_id=None if survey is None else survey.cluster_id,
        controller_id=controller_id if _runs(brokers, controller_id) else -1,
        controller_epoch=-1 if newest is None else newest.controller_epoch,
        metadata_number=-1 if newest is None else newest.metadata_number,
        brokers=brokers,
        partitions=partitions,
        failed_directories=found.failed_directories,
        stopped=tuple(_stopped(survey.rows)) if survey is not None else (),
        moves=found.moves,
        hanging=found.hanging,
        unknown=found.unknown,
        refused=found.refused,
        quorum=found.quorum,
        compactions=tuple(_compactions(survey.rows)) if survey is not None else (),
        tiers=tuple(_tiers(survey.rows)) if survey is not None else (),
        strays=tuple(
            StrayLogs(broker_id=one.broker_id, folders=one.stray_folders)
            for one in states
            if one.stray_folders
        ),
        longest_turns=tuple(
            LongestTurn(broker_id=one.broker_id, cpu_us=one.longest_turn_us, work=one.longest_turn)
            for one in states
            if one.longest_turn_us >= 0
        ),
    )


def _runs(brokers: Iterable[BrokerHealth], broker_id: int) -> bool:
    return any(one.id == broker_id and one.state == RUNNING for one in brokers)


# ── brokers ─────────────────────────────────────────────────────────────────────────────────────
def _brokers(found: Findings, local: Sequence[BrokerHealth]) -> tuple[BrokerHealth, ...]:
    answers = {one.broker_id: one for one in found.survey.brokers} if found.survey is not None else {}
    registered = {one.id: one for one in found.registered}
    of_folder = {one.id: one for one in local}
    return tuple(
        _broker(
            id_,
            answers.get(id_),
            registered.get(id_),
            of_folder.get(id_),
            known=bool(registered),
            is_refused=found.refused is not None,
        )
        for id_ in sorted({*answers, *registered, *of_folder})
    )


def _broker(
    id_: int,
    answer: BrokerAnswer | None,
    node: RegisteredNode | None,
    local: BrokerHealth | None,
    *,
    known: bool,
    is_refused: bool,
) -> BrokerHealth:
    """``known``: whether the registered brokers are known, so that ``node`` None means not registered.
    ``is_refused``: whether brokers refuse this user, so that one without an answer may well run."""
    if local is not None and local.state in (DOWN, FENCED):
        return local
    host, port = _address(answer, node, local)
    pid = None if local is None else local.pid
    if answer is None and node is None and local is not None and is_refused:
        return local
    if answer is None or (answer.answer is None and not answer.refuses):
        reason = local.reason if local is not None and local.reason else _why_unreachable(answer, node)
        return BrokerHealth(id=id_, host=host, port=port, state=UNREACHABLE, reason=reason, pid=pid)
    if known and (node is None or node.is_fenced):
        reason = "its session with the coordination store has ended, and it has not registered again"
        return BrokerHealth(id=id_, host=host, port=port, state=UNREGISTERED, reason=reason, pid=pid)
    return BrokerHealth(id=id_, host=host, port=port, state=RUNNING, pid=pid)


def _address(
    answer: BrokerAnswer | None, node: RegisteredNode | None, local: BrokerHealth | None
) -> tuple[str, int]:
    if local is not None:
        return local.host, local.port
    if node is not None:
        return node.host, node.port
    if answer is not None and answer.node is not None:
        return answer.node.host, answer.node.port
    return "", 0


def _why_unreachable(answer: BrokerAnswer | None, node: RegisteredNode | None) -> str:
    if node is not None and node.is_fenced:
        return "its session with the coordination store has ended: its process is down, hangs or is cut off"
    if answer is not None and answer.failure is not None:
        return answer.failure
    return "it does not respond"


# ── partitions ──────────────────────────────────────────────────────────────────────────────────
def _partitions(survey: Survey, moves: Mapping[TopicPartition, OngoingMove]) -> tuple[PartitionHealth, ...]:
    responding = {one.broker_id for one in survey.brokers if one.answer is not None or one.refuses}
    rows: dict[TopicPartition, list[ReplicaState]] = {}
    for row in survey.rows:
        states = rows.setdefault(TopicPartition(row.topic, row.partition), [])
        if row.state is not None:
            states.append(row.state)
    return tuple(
        _partition(key, states, survey.metadata, moves.get(key), responding) for key, states in rows.items()
    )


def _epoch_of(state: ReplicaState) -> int:
    return state.partition_epoch


def _partition(
    key: TopicPartition,
    states: Collection[ReplicaState],
    metadata: ClusterMetadata,
    move: OngoingMove | None,
    responding: Collection[int],
) -> PartitionHealth:
    adding = () if move is None else move.adding
    newest = max(states, key=_epoch_of, default=None)
    if newest is None:
        listed = metadata.partition(key)
        leader = NO_LEADER if listed is None else listed.leader_id
        replicas = () if listed is None else listed.replicas
        isr = () if listed is None else listed.in_sync_replicas
        return PartitionHealth(
            partition=key,
            leader=leader,
            replicas=replicas,
            isr=isr,
            leader_responds=leader in responding,
            adding=adding,
        )
    led = [state for state in states if state.role == LEADER and state.broker_id == newest.leader_id]
    needed = led[0].leader.needed_in_sync if led and led[0].leader is not None else None
    return PartitionHealth(
        partition=key,
        leader=newest.leader_id,
        replicas=newest.replicas,
        isr=newest.isr,
        leader_responds=newest.leader_id in responding,
        needed_in_sync=needed,
        adding=adding,
    )


def _stopped(rows: Iterable[ReplicaRow]) -> Iterable[StoppedReplica]:
    for row in rows:
        if row.state is not None and (row.state.problems or row.state.role == OFFLINE):
            partition = TopicPartition(row.topic, row.partition)
            reason = "; ".join(row.state.problems) or "its log is not open"
            yield StoppedReplica(partition=partition, broker_id=row.broker_id, reason=reason)


def _compactions(rows: Iterable[ReplicaRow]) -> Iterable[Compaction]:
    for row in rows:
        if row.state is not None and row.state.compaction is not None:
            partition = TopicPartition(row.topic, row.partition)
            yield Compaction(partition=partition, broker_id=row.broker_id, state=row.state.compaction)


def _tiers(rows: Iterable[ReplicaRow]) -> Iterable[Tier]:
    for row in rows:
        if row.state is not None and row.state.tier is not None:
            partition = TopicPartition(row.topic, row.partition)
            yield Tier(partition=partition, broker_id=row.broker_id, state=row.state.tier)


# What is not as it should be in a cluster, as sentences for people. Pure.

T = TypeVar("T")

NAMED_MAX = 10
"""How many partitions of one problem the text names."""


def problems(found: ClusterHealth) -> list[str]:
    """Return what is not as it should be, a sentence each, worst first."""
    total = len(found.partitions)
    lines: list[str] = []
    if found.refused is not None:
        lines.append(f"The brokers refuse this client, and the health is not known: {found.refused}.")
    elif found.controller_id < 0:
        lines.append("No controller responds: nothing in the cluster can be changed.")
    lines += _counted(found.offline, total, "offline (cannot be read or written)", _leader)
    lines += _counted(
        found.under_min_isr, total, "under min.insync.replicas (acks=all is rejected)", _min_isr
    )
    lines += [_missing(one) for one in found.missing]
    lines += [
        f"Log directory {one.path} of broker {one.broker_id} failed: {one.reason}"
        for one in found.failed_directories
    ]
    lines += quorum_problems(found.quorum)
    lines += _failing_tiers(found.failing_tiers)
    lines += _stopped_text(found.stopped)
    lines += _counted(found.under_replicated, total, "under-replicated", _isr)
    lines += [
        f"A transaction of producer {one.producer.producer_id} hangs in {one.partition} from offset "
        f"{one.producer.start_offset}: `nilometer transaction find-hanging` shows how to abort it."
        for one in found.hanging
    ]
    return lines + [f"{one}." for one in found.unknown]


def quorum_problems(found: QuorumView | str | None) -> list[str]:
    if found is None:
        return []
    if isinstance(found, str):
        return [f"{found[:1].upper()}{found[1:]}."]
    silent = [one for one in found.voters if not one.is_leader and not one.is_reached]
    return [
        f"Voter {one.node_id} of the metadata quorum, with the directory id {one.directory_id}, does not "
        "fetch: "
        f"{len(found.voters) - len(silent)} of {len(found.voters)} voters are there, {found.majority} are a "
        "majority."
        for one in silent
    ]


def _missing(one: BrokerHealth) -> str:
    return f"Broker {one.id} is {one.state}: {one.reason or 'the reason is not known'}"


def _counted(
    partitions: Sequence[PartitionHealth], total: int, what: str, detail: Callable[[PartitionHealth], str]
) -> list[str]:
    if not partitions:
        return []
    places = named(partitions, lambda one: f"{one.partition} ({detail(one)})")
    return [f"{len(partitions)} of {total} partitions are {what}: {places}"]


def named(found: Sequence[T], name: Callable[[T], str]) -> str:
    names = ", ".join(map(name, found[:NAMED_MAX]))
    return names if len(found) <= NAMED_MAX else f"{names} and {len(found) - NAMED_MAX} more"


def _leader(one: PartitionHealth) -> str:
    return "no leader" if one.leader < 0 else f"leader {one.leader} does not respond"


def _isr(one: PartitionHealth) -> str:
    return f"ISR {ids(one.isr)} of {ids(one.replicas)}"


def _min_isr(one: PartitionHealth) -> str:
    return f"ISR {ids(one.isr)}, needed {one.needed_in_sync}"


def ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def _failing_tiers(found: Sequence[Tier]) -> list[str]:
    """One line for each broker: the reasons name objects, so each partition has another one."""
    by_broker: dict[int, list[Tier]] = {}
    for one in found:
        by_broker.setdefault(one.broker_id, []).append(one)
    return [_failing_tier(broker_id, tiers) for broker_id, tiers in by_broker.items()]


def _failing_tier(broker_id: int, tiers: Sequence[Tier]) -> str:
    longest = max(tiers, key=lambda one: one.state.failing_ms).state
    return (
        f"Broker {broker_id} cannot use remote storage of {named(tiers, lambda one: str(one.partition))}, "
        f"for {longest.failing_ms // 1000} s: {longest.error}"
    )


def _stopped_text(found: Sequence[StoppedReplica]) -> list[str]:
    by_cause: dict[tuple[int, str], list[StoppedReplica]] = {}
    for one in found:
        by_cause.setdefault((one.broker_id, one.reason), []).append(one)
    return [
        f"Broker {broker_id} stopped {named(replicas, lambda one: str(one.partition))}: {reason}"
        for (broker_id, reason), replicas in by_cause.items()
    ]
