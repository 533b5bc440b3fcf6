"""Metrics of what makes the brokers one cluster: its controller, the coordinators on this broker, and this
broker's node of the metadata quorum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from nilometer.broker.assembly import ControlParts, CoordinatorParts
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.quorum.measures import state_of
from nilometer.coordination.quorum.node import QuorumNode
from nilometer.coordination.quorum.store import QuorumStore
from nilometer.coordination.store import CoordinationStore
from nilometer.metrics import PAUSE, Family, Kind, Measured, Pause
from nilometer.raft.leading import Leading
from nilometer.runtime import Clock

# Metrics of the cluster, which the controller reports, and of the coordinators on this broker.
#
# Every other broker reports 0 for the cluster's, as in Kafka.

PARTITIONS_PER_PART = 64

_CONTROLLER = "kafka_controller_kafkacontroller_"
ACTIVE = Family(f"{_CONTROLLER}activecontrollercount", Kind.GAUGE, "1 on the controller, 0 on other brokers.")
OFFLINE = Family(
    f"{_CONTROLLER}offlinepartitionscount",
    Kind.GAUGE,
    "Partitions without a leader; 0 but on the controller.",
)
TOPICS = Family(
    f"{_CONTROLLER}globaltopiccount", Kind.GAUGE, "Topics of the cluster; 0 but on the controller."
)
PARTITIONS = Family(
    f"{_CONTROLLER}globalpartitioncount", Kind.GAUGE, "Partitions of the cluster; 0 but on the controller."
)
IMBALANCE = Family(
    f"{_CONTROLLER}preferredreplicaimbalancecount",
    Kind.GAUGE,
    "Partitions whose leader is not their first replica; 0 but on the controller.",
)
ACTIVE_BROKERS = Family(
    f"{_CONTROLLER}activebrokercount", Kind.GAUGE, "Brokers that are not fenced; 0 but on the controller."
)
FENCED_BROKERS = Family(
    f"{_CONTROLLER}fencedbrokercount", Kind.GAUGE, "Brokers that are fenced; 0 but on the controller."
)
UNCLEAN = Family(
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    Kind.COUNTER,
    "Elections of a replica that may lack committed records, decided by this broker.",
)
ELECTIONS = Family(
    "nilometer_leader_elections_total",
    Kind.COUNTER,
    "Leader elections decided by this broker: of an in-sync or eligible replica (clean), of another one "
    "(unclean), or of the last known leader (last_known).",
    ("election",),
)
ELECTION_TIME = Family(
    "kafka_controller_controllerstats_leaderelectionrateandtimems",
    Kind.SUMMARY,
    "Milliseconds from the beginning of a decision of this broker that elected leaders until it took effect.",
)
METADATA_ENTRY = Family(
    "nilometer_metadata_entry", Kind.GAUGE, "The last entry of the metadata log that this broker has applied."
)
REGISTERED = Family(
    "nilometer_broker_registered", Kind.GAUGE, "1 if this broker is registered and its session has not ended."
)
FAMILIES = (
    ACTIVE,
    OFFLINE,
    TOPICS,
    PARTITIONS,
    IMBALANCE,
    ACTIVE_BROKERS,
    FENCED_BROKERS,
    UNCLEAN,
    ELECTIONS,
    ELECTION_TIME,
    METADATA_ENTRY,
    REGISTERED,
)


class ControllerMetrics:
    def __init__(self, parts: ControlParts, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock

    def collect(self) -> Iterator[Measured | Literal[Pause.PAUSE]]:
        parts = self._parts
        image = parts.metadata.image
        is_active = parts.controller.is_active
        imbalance = 0
        if is_active:
            for number, is_imbalanced in enumerate(_imbalanced(image)):
                imbalance += is_imbalanced
                if number % PARTITIONS_PER_PART == 0:
                    yield PAUSE
        for family, value in (
            (OFFLINE, image.leaderless_count),
            (TOPICS, image.topics_count),
            (PARTITIONS, image.partitions_count),
            (IMBALANCE, imbalance),
            (ACTIVE_BROKERS, len(image.live_brokers())),
            (FENCED_BROKERS, len(image.brokers()) - len(image.live_brokers())),
        ):
            yield _one(family, value if is_active else 0)
        yield _one(ACTIVE, int(is_active))
        yield from self._elections()
        yield _one(METADATA_ENTRY, image.number)
        yield _one(REGISTERED, int(parts.session.is_registered))

    def _elections(self) -> Iterator[Measured]:
        changes = self._parts.changes
        yield _one(UNCLEAN, changes.unclean_elections)
        yield Measured(
            ELECTIONS,
            [
                (("clean",), changes.elections),
                (("unclean",), changes.unclean_elections),
                (("last_known",), changes.last_known_elections),
            ],
        )
        times = changes.election_times.reading(self._clock.monotonic_us())
        yield Measured(ELECTION_TIME, [((), times)])


def _imbalanced(image: ClusterImage) -> Iterator[bool]:
    """Yield, for each partition, whether it is led by another replica than its first one."""
    for _, state in image.partitions():
        yield state.has_leader and not state.has_preferred_leader


def _one(family: Family, value: int) -> Measured:
    return Measured(family, [((), value)])


GROUPS = Family(
    "nilometer_groups", Kind.GAUGE, "Consumer groups that this broker coordinates, by state.", ("state",)
)
TRANSACTIONS = Family(
    "nilometer_transactional_ids",
    Kind.GAUGE,
    "Transactional ids that this broker coordinates, by the state of their transaction.",
    ("state",),
)
COORDINATOR_FAMILIES = (GROUPS, TRANSACTIONS)


class CoordinatorMetrics:
    def __init__(self, parts: CoordinatorParts) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Measured | Literal[Pause.PAUSE]]:
        yield from _by_state(GROUPS, self._parts.groups.states())
        yield from _by_state(TRANSACTIONS, self._parts.transactions.states())


def _by_state(
    family: Family, of_shards: Iterable[Iterable[str]]
) -> Iterator[Measured | Literal[Pause.PAUSE]]:
    """Count the states of all shards."""
    counts: Counter[str] = Counter()
    for states in of_shards:
        for state in states:
            counts[state] += 1
            yield PAUSE
    yield Measured(family, [((state,), count) for state, count in sorted(counts.items())])


# Metrics of this broker's node of the metadata quorum: Kafka's ``raft-metrics`` (KIP-595). Without a quorum
# there are none.
#
# There is no ``poll-idle-ratio-avg``: no thread of the quorum polls. How busy the broker's event loop is,
# ``nilometer_event_loop_turn_seconds`` says.

_RAFT = "kafka_server_raftmetrics_"
STATE = Family(
    f"{_RAFT}current_state",
    Kind.UNTYPED,
    "1 for what this node of the metadata quorum is: leader, candidate, prospective, follower, observer, "
    "unattached, unattached-voted or resigned.",
    ("current_state",),
)
LEADER = Family(f"{_RAFT}current_leader", Kind.GAUGE, "The id of the leader that this node knows; -1: none.")
VOTE = Family(
    f"{_RAFT}current_vote", Kind.GAUGE, "The node that has this one's vote in this epoch; -1: none."
)
EPOCH = Family(f"{_RAFT}current_epoch", Kind.GAUGE, "The epoch of the metadata quorum that this node knows.")
COMMITTED = Family(
    f"{_RAFT}high_watermark",
    Kind.GAUGE,
    "The metadata log is committed below it, as this node knows.",
)
END = Family(f"{_RAFT}log_end_offset", Kind.GAUGE, "Where this node's metadata log ends.")
END_EPOCH = Family(f"{_RAFT}log_end_epoch", Kind.GAUGE, "The epoch of the last record of this node's log.")
VOTERS = Family(f"{_RAFT}number_of_voters", Kind.GAUGE, "Voters of the quorum, as this node knows them.")
OBSERVERS = Family(
    f"{_RAFT}number_of_observers",
    Kind.GAUGE,
    "Nodes that fetch and do not vote; at the leader, else 0.",
)
UNKNOWN_VOTERS = Family(
    f"{_RAFT}number_unknown_voter_connections",
    Kind.GAUGE,
    "Voters of which this node does not know where they listen.",
)
COMMIT_AVG, COMMIT_MAX = (
    Family(
        f"{_RAFT}commit_latency_{name}",
        Kind.GAUGE,
        f"Milliseconds from an append at the leader until it was committed: {what} of the last minute.",
    )
    for name, what in (("avg", "average"), ("max", "maximum"))
)
ELECTION_AVG, ELECTION_MAX = (
    Family(
        f"{_RAFT}election_latency_{name}",
        Kind.GAUGE,
        "Milliseconds from when this node asked for votes until it knew the next leader: "
        f"{what} of the last minute.",
    )
    for name, what in (("avg", "average"), ("max", "maximum"))
)
APPENDED = Family(
    f"{_RAFT}append_records_rate", Kind.GAUGE, "Records that this node appends as leader, per second."
)
FETCHED = Family(f"{_RAFT}fetch_records_rate", Kind.GAUGE, "Records that this node fetches, per second.")
QUORUM_FAMILIES = (
    STATE,
    LEADER,
    VOTE,
    EPOCH,
    COMMITTED,
    END,
    END_EPOCH,
    VOTERS,
    OBSERVERS,
    UNKNOWN_VOTERS,
    COMMIT_AVG,
    COMMIT_MAX,
    ELECTION_AVG,
    ELECTION_MAX,
    APPENDED,
    FETCHED,
)


class QuorumMetrics:
    def __init__(self, store: CoordinationStore, clock: Clock) -> None:
        self._node: QuorumNode | None = store.node if isinstance(store, QuorumStore) else None
        self._clock = clock

    def collect(self) -> Iterator[Measured]:
        node = self._node
        if node is None:
            yield from (Measured(family, []) for family in QUORUM_FAMILIES)
            return
        core, measures, now_ms = node.replica.core, node.measures, self._clock.monotonic_ms()
        leader, voted, role = node.leader(), core.election.voted, core.role
        voters = core.voters.latest.voters
        observers = 0
        if isinstance(role, Leading):
            observers = sum(key not in core.voters.latest for key in role.positions)
        unknown = sum(not node.replica.entry_of(voter).endpoints for voter in voters)
        commit, election = measures.commit_ms.reading(now_ms), measures.election_ms.reading(now_ms)
        yield Measured(STATE, [((state_of(core),), 1)])
        for family, value in (
            (LEADER, -1 if leader is None else leader.key.node_id),
            (VOTE, -1 if voted is None else voted.node_id),
            (EPOCH, core.epoch),
            (COMMITTED, core.high_watermark),
            (END, node.replica.log_end_offset),
            (END_EPOCH, core.last_epoch),
            (VOTERS, len(voters)),
            (OBSERVERS, observers),
            (UNKNOWN_VOTERS, unknown),
            (COMMIT_AVG, commit.average),
            (COMMIT_MAX, commit.largest),
            (ELECTION_AVG, election.average),
            (ELECTION_MAX, election.largest),
            (APPENDED, measures.appended.reading(now_ms).rate),
            (FETCHED, measures.fetched.reading(now_ms).rate),
        ):
            yield Measured(family, [((), value)])
