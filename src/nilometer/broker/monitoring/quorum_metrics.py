"""Metrics of this broker's node of the metadata quorum: Kafka's ``raft-metrics`` (KIP-595). Without a quorum
there are none.

There is no ``poll-idle-ratio-avg``: no thread of the quorum polls. How busy the broker's event loop is,
``nilometer_event_loop_turn_seconds`` says.
"""

from __future__ import annotations

from collections.abc import Iterator

from nilometer.coordination.quorum.measures import state_of
from nilometer.coordination.quorum.node import QuorumNode
from nilometer.coordination.quorum.store import QuorumStore
from nilometer.coordination.store import CoordinationStore
from nilometer.metrics import Family, Kind, Measured
from nilometer.raft.leading import Leading
from nilometer.runtime import Clock

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
FAMILIES = (
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
            yield from (Measured(family, []) for family in FAMILIES)
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
