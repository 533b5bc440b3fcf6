"""What a replica of the quorum and its shell exchange, as plain values: requests, responses and effects.

The *shell* is the code that uses a :class:`~nilometer.raft.replica.RaftReplica`. It owns the log, the clock
and the connections, and executes a list of effects from first to last; durability depends on that order.
Requests and responses have the fields of Kafka's (KIP-595, KIP-853, KIP-996) without addresses.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from nilometer.identifiers import NO_LEADER, UNKNOWN_OFFSET, BrokerId, LeaderEpoch, Offset
from nilometer.raft.snapshots import SnapshotId
from nilometer.raft.voters import VoterKey, VoterRecord, VoterSet
from nilometer.replication.epochs import NO_DIVERGENCE, EpochEnd
from nilometer.wire.errors import ErrorCode


class Moment(NamedTuple):
    """When an event happens, and by chance: a core knows neither a clock nor randomness."""

    ms: int
    """Of a monotonic clock."""
    chance: float = 0.0
    """From 0 to 1, drawn again for each event: it spreads the voters' election time-outs."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Time-outs in ms: Kafka's ``controller.quorum.election.timeout.ms`` and
    ``controller.quorum.fetch.timeout.ms``, and ``resend_ms``, which no setting changes."""

    election_ms: int = 1_000
    """How long a candidate waits for votes; from that to twice as long passes before the first election."""
    fetch_ms: int = 2_000
    """How long a follower goes on without a response of its leader, and, half as long again, a leader without
    fetches of a majority."""
    resend_ms: int = 500
    """A leader tells a voter of its epoch this often until the voter fetches."""


class Election(msgspec.Struct, frozen=True):
    """What a replica must never forget of its newest epoch; Kafka's ``quorum-state``."""

    epoch: LeaderEpoch
    voted: VoterKey | None = None
    leader: BrokerId = NO_LEADER


# ── requests and responses ──────────────────────────────────────────────────────────────────────
class VoteRequest(NamedTuple):
    epoch: LeaderEpoch
    """The candidate's; of a pre-vote, the epoch that it is in, which it does not leave (KIP-996)."""
    candidate: VoterKey
    voter: VoterKey
    """Who is asked: another folder under the same id must not answer."""
    last_epoch: LeaderEpoch
    """The epoch of the last record in the candidate's log, which ends at ``end_offset``."""
    end_offset: Offset
    pre_vote: bool


class VoteResponse(NamedTuple):
    error: ErrorCode
    epoch: LeaderEpoch
    leader: BrokerId
    granted: bool = False


class BeginEpochRequest(NamedTuple):
    """A new leader tells a voter of itself."""

    epoch: LeaderEpoch
    leader: BrokerId


class EndEpochRequest(NamedTuple):
    """A leader resigns. ``successors`` have the longest logs, the best one first."""

    epoch: LeaderEpoch
    leader: BrokerId
    successors: tuple[VoterKey, ...]


class EpochResponse(NamedTuple):
    """To a :class:`BeginEpochRequest` or :class:`EndEpochRequest`."""

    error: ErrorCode
    epoch: LeaderEpoch
    leader: BrokerId


class QuorumFetch(NamedTuple):
    """A fetch from ``fetch_offset``: all below it is durable in the log of ``replica``."""

    replica: VoterKey
    epoch: LeaderEpoch
    leader: BrokerId
    fetch_offset: Offset
    last_fetched_epoch: LeaderEpoch
    number: int = 0
    """Distinguishes the fetches of one follower. Not sent."""
    round: int = 0
    """Of the leader's last response that the follower has received before it sent this."""


class QuorumFetchResponse(NamedTuple):
    """The leader's response; its records are described by the offsets where they begin and end."""

    error: ErrorCode
    epoch: LeaderEpoch
    leader: BrokerId
    diverging: EpochEnd = NO_DIVERGENCE
    end_offset: Offset = UNKNOWN_OFFSET
    """After the last record; UNKNOWN_OFFSET without records."""
    high_watermark: Offset = 0
    voters: tuple[VoterRecord, ...] = ()
    """The sets of voters among the records."""
    snapshot: SnapshotId | None = None
    """To be fetched instead of records, which the leader has no more."""
    round: int = 0
    """The leader's: see :meth:`~nilometer.raft.replica.RaftReplica.begin_read`."""

    def cut_at(self, end_offset: Offset) -> QuorumFetchResponse:
        """Return it with the records below ``end_offset`` only: as many as the leader's shell reads."""
        voters = tuple(record for record in self.voters if record.offset < end_offset)
        return self._replace(end_offset=end_offset, voters=voters)


class SnapshotFetch(NamedTuple):
    """A fetch of the bytes of a snapshot from ``position`` on (KIP-630)."""

    replica: VoterKey
    epoch: LeaderEpoch
    leader: BrokerId
    snapshot: SnapshotId
    position: int
    number: int = 0
    """As in :class:`QuorumFetch`. Not sent."""


class SnapshotFetchResponse(NamedTuple):
    error: ErrorCode
    epoch: LeaderEpoch
    leader: BrokerId
    snapshot: SnapshotId | None = None
    size: int = 0
    """Of the whole snapshot, in bytes."""
    position: int = 0
    end_position: int = 0
    """After the last byte of the response."""

    def cut_at(self, end_position: int) -> SnapshotFetchResponse:
        """Return it with the bytes below ``end_position`` only: as many as the leader's shell reads."""
        return self._replace(end_position=end_position)


# ── effects ─────────────────────────────────────────────────────────────────────────────────────
class StoreElection(msgspec.Struct, frozen=True):
    """Make it durable before the next effect: a vote that is sent is never taken back."""

    election: Election


class Send(msgspec.Struct, frozen=True):
    """Send the request; the response goes to the event of its type. No response is as good as a lost one."""

    to: VoterKey
    request: VoteRequest | BeginEpochRequest | EndEpochRequest


class AppendLeaderChange(msgspec.Struct, frozen=True):
    """Append the first record of the leader's epoch: those of earlier ones are committed with it."""

    epoch: LeaderEpoch
    granting: tuple[VoterKey, ...]
    """Those who voted for the leader."""


class AppendVoters(msgspec.Struct, frozen=True):
    """Append a control record with the new voters."""

    epoch: LeaderEpoch
    voters: VoterSet


class AppendFetched(msgspec.Struct, frozen=True):
    """Append the records of the fetch response: the log ends at ``end_offset`` then."""

    end_offset: Offset


class TruncateLog(msgspec.Struct, frozen=True):
    """Remove all records at or above ``offset``, and the epochs that begin there or later."""

    offset: Offset


class TrimLog(msgspec.Struct, frozen=True):
    """Remove the records below ``origin``'s end: a snapshot has them. It may happen later."""

    origin: SnapshotId


class WriteSnapshotPart(msgspec.Struct, frozen=True):
    """Write the bytes of the response into the file of the fetched snapshot, from ``position`` on. Position 0
    begins the file again."""

    snapshot: SnapshotId
    position: int


class ReadSnapshot(msgspec.Struct, frozen=True):
    """The fetched snapshot is complete: read it, make it durable, and pass it, or that it is damaged, to
    :meth:`~nilometer.raft.replica.RaftReplica.on_snapshot_fetched`."""

    snapshot: SnapshotId


class ReplaceLog(msgspec.Struct, frozen=True):
    """Remove all records, durably before the next effect: the log begins and ends where ``snapshot`` ends."""

    snapshot: SnapshotId


class PublishHighWatermark(msgspec.Struct, frozen=True):
    """``high_watermark`` has advanced: what is below it is committed."""


class PublishLeader(msgspec.Struct, frozen=True):
    """The replica has another role, epoch or leader."""


Effect: TypeAlias = (
    StoreElection
    | Send
    | AppendLeaderChange
    | AppendVoters
    | AppendFetched
    | TruncateLog
    | TrimLog
    | WriteSnapshotPart
    | ReadSnapshot
    | ReplaceLog
    | PublishHighWatermark
    | PublishLeader
)
Effects: TypeAlias = list[Effect]

PUBLISH_LEADER: Final = PublishLeader()
PUBLISH_HIGH_WATERMARK: Final = PublishHighWatermark()


class ElectionCause(enum.Enum):
    """Why a voter asks for votes."""

    UNKNOWN = "no leader of the epoch is known"
    SILENT = "the leader has not answered for longer than controller.quorum.fetch.timeout.ms"
    REFUSED = "no process listens where the leader did"
    RESIGNATION = "the leader has resigned"
    OWN_RESIGNATION = "this node has led the epoch, and leads no more"


class ChangeRefused(enum.Enum):
    """Why a voter is not added or removed now."""

    NOT_LEADER = "this replica does not lead the quorum"
    EPOCH_NOT_COMMITTED = "no record of this leader's epoch is committed yet"
    CHANGE_NOT_COMMITTED = "the last change of the voters is not committed yet"
    IS_VOTER = "it is a voter, or another one has its id"
    NO_VOTER = "it is no voter"
    LAST_VOTER = "it is the last voter"
    NOT_CAUGHT_UP = "its log does not reach the high watermark yet"
