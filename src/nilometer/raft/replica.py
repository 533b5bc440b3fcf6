"""One replica of the metadata quorum: its roles, and what it does with each request and response. Pure.

It is Kafka's Raft (KIP-595): followers fetch. A replica that knows no leader waits as *unattached*; after its
election time-out it asks for pre-votes as *prospective* (KIP-996), and only with a majority of them it begins
an epoch as *candidate*. Who gets a majority of votes is *leading*. A leader from which no majority fetches is
*resigned*, as is one that was restarted: it never leads the same epoch again.

Invariants:
- *one vote an epoch*: :class:`StoreElection` comes before the response or request that says so;
- *a leader has all that is committed*: who votes has no later or longer log than the candidate; a majority of
  the voters has each committed record, durable;
- *what is committed is never truncated*: a follower whose leader says so has met damage, and stops. A
  snapshot is never truncated either, and replaces only a log that has committed less;
- *one change of the voters at a time*, and none before a record of the leader's own epoch is committed: else
  two leaders' changes could leave majorities that do not meet.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from nilometer.identifiers import NO_LEADER, BrokerId, LeaderEpoch, Offset
from nilometer.invariants import check
from nilometer.raft.exchange import (
    PUBLISH_HIGH_WATERMARK,
    PUBLISH_LEADER,
    AppendFetched,
    AppendLeaderChange,
    AppendVoters,
    BeginEpochRequest,
    ChangeRefused,
    Effects,
    Election,
    ElectionCause,
    EndEpochRequest,
    EpochResponse,
    Moment,
    QuorumFetch,
    QuorumFetchResponse,
    ReadSnapshot,
    ReplaceLog,
    Send,
    SnapshotFetch,
    SnapshotFetchResponse,
    StoreElection,
    Timing,
    TrimLog,
    TruncateLog,
    VoteRequest,
    VoteResponse,
    WriteSnapshotPart,
)
from nilometer.raft.leading import Leading
from nilometer.raft.snapshots import BEGINNING, Download, Snapshot, SnapshotId, SnapshotLog
from nilometer.raft.voters import VoterHistory, VoterKey, VoterRecord, VoterSet
from nilometer.replication.epochs import (
    NO_DIVERGENCE,
    EpochEnd,
    ReplicaLog,
    diverging_epoch,
    truncation_offset,
)
from nilometer.wire.errors import NONE, ErrorCode


class Unattached:
    """Knows no leader, or has lost it, and waits until ``deadline_ms`` for another's election."""

    __slots__ = ("deadline_ms",)

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms


REFUSED_SHARE = 0.1
"""A voter whose leader refuses connections waits for so much of the election time-out, to twice as long."""


class Following:
    """Fetches from its leader, and begins an election if that does not answer until ``deadline_ms``."""

    __slots__ = ("awaited", "deadline_ms", "download", "has_fetched", "lost", "round")

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.lost = ElectionCause.SILENT
        """Why there is an election, if the deadline passes."""
        self.has_fetched = False
        """Whether the leader has answered a fetch: then no pre-vote is granted."""
        self.awaited: QuorumFetch | SnapshotFetch | None = None
        """The fetch whose response counts."""
        self.download: Download | None = None
        """The snapshot that is fetched instead of records. Another leader's is begun again: under the same id
        it may have other bytes."""
        self.round = 0
        """Of the leader's last response."""


class Electing:
    """Waits until ``deadline_ms`` for votes: as *prospective* for pre-votes, as *candidate* for votes."""

    __slots__ = ("deadline_ms", "granted", "pre_vote", "rejected")

    def __init__(self, own: VoterKey, deadline_ms: int, *, pre_vote: bool) -> None:
        self.deadline_ms = deadline_ms
        self.pre_vote = pre_vote
        self.granted = frozenset((own,))
        self.rejected: frozenset[VoterKey] = frozenset()


class Resigned:
    """Was the leader of this epoch, and waits until ``deadline_ms`` for another's election."""

    __slots__ = ("deadline_ms",)

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms


Role: TypeAlias = Unattached | Following | Electing | Leading | Resigned


class RaftReplica:
    """A voter, or an observer, which fetches and does not vote."""

    __slots__ = (
        "_fetches",
        "_log",
        "_timing",
        "cause",
        "election",
        "flushed_end",
        "high_watermark",
        "key",
        "role",
        "voters",
    )

    def __init__(
        self,
        log: ReplicaLog,
        key: VoterKey,
        voters: VoterHistory,
        election: Election,
        now: Moment,
        *,
        origin: SnapshotId = BEGINNING,
        snapshot: Snapshot | None = None,
        high_watermark: Offset = 0,
        timing: Timing = Timing(),  # noqa: B008  # frozen
    ) -> None:
        """``election``: as stored. ``voters``: from the newest snapshot and the log. ``log`` begins at
        ``origin``, and all of it is durable. ``high_watermark``: one that was known before, or 0."""
        self._log = SnapshotLog(log, origin, snapshot)
        self._timing = timing
        self._fetches = 0
        self.key = key
        self.voters = voters
        self.election = election
        self.cause = ElectionCause.UNKNOWN
        """Why this replica has asked for votes last."""
        self.flushed_end = log.log_end_offset
        """The log is durable up to here: :meth:`on_flushed`."""
        self.high_watermark = max(high_watermark, self._log.snapshot_end)
        self.role: Role = self._first_role(now)

    def _first_role(self, now: Moment) -> Role:
        if self.election.leader == self.key.node_id and self.is_voter:
            return Resigned(self._election_deadline(now))
        if self.election.leader not in (NO_LEADER, self.key.node_id):
            return Following(now.ms + self._timing.fetch_ms)
        return Unattached(self._election_deadline(now))

    # ── what it is ──────────────────────────────────────────────────────────────────────────────
    @property
    def epoch(self) -> LeaderEpoch:
        return self.election.epoch

    @property
    def leader(self) -> BrokerId:
        """The leader of this epoch, or NO_LEADER; of a resigned leader, itself."""
        return self.election.leader

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The epoch of the last record."""
        return self._log.latest_epoch

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest one."""
        return self._log.snapshot

    @property
    def is_voter(self) -> bool:
        return self.key in self.voters.latest

    @property
    def may_stand(self) -> bool:
        """Whether it asks for votes: a voter; and who was removed by a record that is not known to be
        committed (Ongaro's dissertation, 4.2.2). It may be the only one that has that record: then it grants
        no vote to the others, whose logs are shorter, and they may need it."""
        removal = self.voters.latest_offset
        return self.is_voter or (removal >= self.high_watermark and self.key in self.voters.at(removal))

    def deadline_ms(self, now: Moment) -> int | None:
        """Return when to call :meth:`on_time`; None if there is nothing to wait for."""
        role = self.role
        if isinstance(role, Leading):
            resigns = role.resigns_at_ms(self.voters.latest, now)
            return min(resigns, role.resend_ms) if role.silent(self.voters.latest) else resigns
        return role.deadline_ms if self.may_stand or isinstance(role, Following) else None

    # ── time ────────────────────────────────────────────────────────────────────────────────────
    def on_time(self, now: Moment) -> Effects:
        deadline_ms = self.deadline_ms(now)
        if deadline_ms is None or now.ms < deadline_ms:
            return []
        role = self.role
        if isinstance(role, Leading):
            if now.ms >= role.resigns_at_ms(self.voters.latest, now):
                return self.resign(now)
            role.resend_ms = now.ms + self._timing.resend_ms
            return self._begin_epoch_requests(role)
        if isinstance(role, Electing):
            return self._give_up(now)
        if not self.may_stand:
            return self._become(Unattached(self._election_deadline(now)))
        self.cause = self._cause_of_election()
        return self._become_prospective(now)

    def _cause_of_election(self) -> ElectionCause:
        role = self.role
        if isinstance(role, Following):
            return role.lost
        return ElectionCause.OWN_RESIGNATION if isinstance(role, Resigned) else ElectionCause.UNKNOWN

    def _election_deadline(self, now: Moment) -> int:
        return now.ms + int(self._timing.election_ms * (1 + now.chance))

    # ── elections: as a candidate ───────────────────────────────────────────────────────────────
    def _become_prospective(self, now: Moment) -> Effects:
        return self._ask_for_votes(now, pre_vote=True)

    def _become_candidate(self, now: Moment) -> Effects:
        stored = self._store(Election(LeaderEpoch(self.epoch + 1), self.key))
        return [stored, *self._ask_for_votes(now, pre_vote=False)]

    def _ask_for_votes(self, now: Moment, *, pre_vote: bool) -> Effects:
        role = Electing(self.key, now.ms + self._timing.election_ms, pre_vote=pre_vote)
        effects = self._become(role)
        for voter in self._others():
            request = VoteRequest(
                self.epoch, self.key, voter, self._log.latest_epoch, self._log.log_end_offset, pre_vote
            )
            effects.append(Send(voter, request))
        return effects + self._maybe_elected(role, now)

    def on_vote_response(
        self, voter: VoterKey, request: VoteRequest, response: VoteResponse, now: Moment
    ) -> Effects:
        effects = self._learn(response.epoch, response.leader, now)
        role = self.role
        if not isinstance(role, Electing) or (request.epoch, request.pre_vote) != (self.epoch, role.pre_vote):
            return effects  # it is about another election
        if response.granted:
            role.granted |= {voter}
        else:
            role.rejected |= {voter}
        return effects + self._maybe_elected(role, now)

    def _maybe_elected(self, role: Electing, now: Moment) -> Effects:
        voters = self.voters.latest
        if len(role.granted.intersection(voters.voters)) >= voters.majority:
            return self._become_candidate(now) if role.pre_vote else self._become_leader(role, now)
        if len(voters.voters) - len(role.rejected.intersection(voters.voters)) < voters.majority:
            return self._give_up(now)
        return []

    def _give_up(self, now: Moment) -> Effects:
        """End an election that is not won. Without a majority of pre-votes the leader may still be there, and
        only this replica have lost it: it is followed again."""
        if self.leader not in (NO_LEADER, self.key.node_id):
            return self._become(Following(now.ms + self._timing.fetch_ms))
        return self._become(Unattached(self._election_deadline(now)))

    def _become_leader(self, elected: Electing, now: Moment) -> Effects:
        stored = self._store(replace(self.election, leader=self.key.node_id))
        role = Leading(self.key, self._log.log_end_offset, now, self._timing)
        effects = self._become(role)
        append = AppendLeaderChange(self.epoch, tuple(sorted(elected.granted)))
        return [stored, append, *effects, *self._begin_epoch_requests(role)]

    # ── elections: as a voter ───────────────────────────────────────────────────────────────────
    def on_vote_request(self, request: VoteRequest, now: Moment) -> tuple[VoteResponse, Effects]:
        """A voter that is not known to this replica is answered, too: the candidate may know of a change of
        the voters that this replica has not fetched yet."""
        if request.epoch < self.epoch:
            return self._vote(ErrorCode.fenced_leader_epoch), []
        if request.voter != self.key:
            return self._vote(ErrorCode.invalid_voter_key), []
        effects = self._learn(request.epoch, NO_LEADER, now)
        if not self._may_grant(request):
            return self._vote(NONE), effects
        if not request.pre_vote and self.election.voted is None:
            effects.append(self._store(replace(self.election, voted=request.candidate)))
            effects += self._become(Unattached(self._election_deadline(now)))
        return self._vote(NONE, granted=True), effects

    def _may_grant(self, request: VoteRequest) -> bool:
        is_complete = (request.last_epoch, request.end_offset) >= (
            self._log.latest_epoch,
            self._log.log_end_offset,
        )
        if request.pre_vote:
            has_leader = isinstance(self.role, Leading) or (
                isinstance(self.role, Following) and self.role.has_fetched
            )
            return is_complete and not has_leader
        if self.election.voted is not None:
            return self.election.voted == request.candidate
        return is_complete and self.election.leader == NO_LEADER

    def _vote(self, error: ErrorCode, *, granted: bool = False) -> VoteResponse:
        return VoteResponse(error, self.epoch, self.leader, granted)

    # ── epochs ──────────────────────────────────────────────────────────────────────────────────
    def on_begin_epoch(self, request: BeginEpochRequest, now: Moment) -> tuple[EpochResponse, Effects]:
        if request.epoch < self.epoch:
            return EpochResponse(ErrorCode.fenced_leader_epoch, self.epoch, self.leader), []
        effects = self._learn(request.epoch, request.leader, now)
        return EpochResponse(NONE, self.epoch, self.leader), effects

    def on_end_epoch(self, request: EndEpochRequest, now: Moment) -> tuple[EpochResponse, Effects]:
        """The leader resigned: its first successor begins an election at once, the others later, one after
        another."""
        if request.epoch < self.epoch:
            return EpochResponse(ErrorCode.fenced_leader_epoch, self.epoch, self.leader), []
        effects = self._learn(request.epoch, request.leader, now)
        if isinstance(self.role, Following):
            self.role.has_fetched = False
            self.role.lost = ElectionCause.RESIGNATION
            self.role.deadline_ms = self._election_deadline(now)
            if self.key in request.successors:
                place = request.successors.index(self.key)
                self.role.deadline_ms = now.ms + place * self._timing.resend_ms
        return EpochResponse(NONE, self.epoch, self.leader), effects

    def on_epoch_response(self, response: EpochResponse, now: Moment) -> Effects:
        return self._learn(response.epoch, response.leader, now)

    def _learn(self, epoch: LeaderEpoch, leader: BrokerId, now: Moment) -> Effects:
        """Follow a later epoch, or the leader of this one, if it was not known, or was lost."""
        own = self.key.node_id
        if leader == own != self.leader:
            leader = NO_LEADER  # another folder has led under this id, before this one was begun
        is_lost = isinstance(self.role, Unattached) and leader not in (NO_LEADER, own)
        if is_lost and (epoch, leader) == (self.epoch, self.leader):
            return self._become(Following(now.ms + self._timing.fetch_ms))
        if epoch < self.epoch or (epoch == self.epoch and leader in (NO_LEADER, self.leader)):
            return []
        if epoch == self.epoch:
            check(self.leader == NO_LEADER, "an epoch has one leader", epoch, self.leader, leader)
            stored = self._store(replace(self.election, leader=leader))
        else:
            stored = self._store(Election(epoch, None, leader))
        if leader == NO_LEADER:
            return [stored, *self._become(Unattached(self._election_deadline(now)))]
        return [stored, *self._become(Following(now.ms + self._timing.fetch_ms))]

    # ── the leader ──────────────────────────────────────────────────────────────────────────────
    def on_fetch(self, request: QuorumFetch, now: Moment) -> tuple[QuorumFetchResponse, Effects]:
        role = self.role
        if request.epoch < self.epoch:
            return self._refuse_fetch(ErrorCode.fenced_leader_epoch), []
        if request.epoch > self.epoch:
            return self._refuse_fetch(ErrorCode.unknown_leader_epoch), []
        if not isinstance(role, Leading):
            return self._refuse_fetch(ErrorCode.not_leader_or_follower), []
        if self._log.needs_snapshot(request.fetch_offset, request.last_fetched_epoch):
            role.on_snapshot_fetch(request.replica, self.voters.latest, now)
            assert self._log.snapshot is not None, "a log that begins later has one"
            return self._refuse_fetch(NONE)._replace(snapshot=self._log.snapshot.id), []
        diverging = self._divergence(request)
        if diverging is not NO_DIVERGENCE:
            return self._refuse_fetch(NONE)._replace(diverging=diverging), []
        role.on_fetch(request.replica, self.voters.latest, request.fetch_offset, request.round, now)
        effects = self._advance(role, now)
        end = self._log.log_end_offset
        voters = self.voters.between(request.fetch_offset, end)
        return (
            QuorumFetchResponse(
                NONE,
                self.epoch,
                self.leader,
                end_offset=end,
                high_watermark=self.high_watermark,
                voters=voters,
                round=role.round,
            ),
            effects,
        )

    def _refuse_fetch(self, error: ErrorCode) -> QuorumFetchResponse:
        return QuorumFetchResponse(error, self.epoch, self.leader)

    def _divergence(self, request: QuorumFetch) -> EpochEnd:
        if request.fetch_offset == self._log.log_start_offset:
            return NO_DIVERGENCE  # it continues the origin
        diverging = diverging_epoch(self._log, request.fetch_offset, request.last_fetched_epoch)
        if diverging is NO_DIVERGENCE and request.fetch_offset > self._log.log_end_offset:
            return EpochEnd(self._log.latest_epoch, self._log.log_end_offset)
        return diverging

    def on_snapshot_fetch(self, request: SnapshotFetch, now: Moment) -> tuple[SnapshotFetchResponse, Effects]:
        """Only the newest snapshot is given; a follower that wants an earlier one learns of it by a fetch."""
        role, snapshot = self.role, self._log.snapshot
        if request.epoch < self.epoch:
            return self._refuse_snapshot(ErrorCode.fenced_leader_epoch), []
        if request.epoch > self.epoch:
            return self._refuse_snapshot(ErrorCode.unknown_leader_epoch), []
        if not isinstance(role, Leading):
            return self._refuse_snapshot(ErrorCode.not_leader_or_follower), []
        role.on_snapshot_fetch(request.replica, self.voters.latest, now)
        if snapshot is None or snapshot.id != request.snapshot:
            return self._refuse_snapshot(ErrorCode.snapshot_not_found), []
        if not 0 <= request.position < snapshot.size:
            return self._refuse_snapshot(ErrorCode.position_out_of_range), []
        part = SnapshotFetchResponse(
            NONE, self.epoch, self.leader, snapshot.id, snapshot.size, request.position, snapshot.size
        )
        return part, []

    def _refuse_snapshot(self, error: ErrorCode) -> SnapshotFetchResponse:
        return SnapshotFetchResponse(error, self.epoch, self.leader)

    def on_flushed(self, end_offset: Offset, now: Moment) -> Effects:
        """The log is durable up to ``end_offset``."""
        self.flushed_end = end_offset
        return self._advance(self.role, now) if isinstance(self.role, Leading) else []

    def _advance(self, role: Leading, now: Moment) -> Effects:
        committable = role.committable(self.voters.latest, self.flushed_end)
        if committable <= self.high_watermark:
            return []
        self.high_watermark = committable
        if not self.is_voter and not self._is_changing():
            return [PUBLISH_HIGH_WATERMARK, *self.resign(now)]
        return [PUBLISH_HIGH_WATERMARK]

    def resign(self, now: Moment) -> Effects:
        """End the leadership of this epoch: who has no majority, or no disk, may not lead. A leader that was
        removed is told of no election any more: it looks for the next leader."""
        role = self.role
        if not isinstance(role, Leading):
            return []
        successors = role.by_length(self.voters.latest)
        request = EndEpochRequest(self.epoch, self.key.node_id, successors)
        deadline_ms = self._election_deadline(now)
        effects = self._become(Resigned(deadline_ms) if self.is_voter else Unattached(deadline_ms))
        return effects + [Send(voter, request) for voter in successors]

    # ── reads (ReadIndex: Ongaro's dissertation, 6.4) ───────────────────────────────────────────
    def begin_read(self) -> int | None:
        """Return the number of a round; None if this replica does not lead, or has not committed a record of
        its epoch yet, so that it may not know all that is committed.

        Once :meth:`confirmed_round` has reached the number, this replica was still the leader when the round
        began, and what is below the high watermark of that moment is all that was committed then. A majority
        confirms by two fetches each; fetches that wait for records should be answered at once. No clock is
        asked: there are no leases.
        """
        role = self.role
        if not isinstance(role, Leading) or self.high_watermark <= role.epoch_start:
            return None
        role.round += 1
        return role.round

    def confirmed_round(self) -> int | None:
        """Return the last round that is confirmed; None if this replica does not lead: none will be."""
        role = self.role
        return role.confirmed_round(self.voters.latest) if isinstance(role, Leading) else None

    def _begin_epoch_requests(self, role: Leading) -> Effects:
        request = BeginEpochRequest(self.epoch, self.key.node_id)
        return [Send(voter, request) for voter in role.silent(self.voters.latest)]

    # ── changes of the voters (KIP-853) ─────────────────────────────────────────────────────────
    def add_voter(self, voter: VoterKey, now: Moment) -> ChangeRefused | Effects:
        if (refused := self.why_not_added(voter)) is not None:
            return refused
        assert isinstance(self.role, Leading)
        return self._change(self.role, self.voters.latest.with_voter(voter), now)

    def why_not_added(self, voter: VoterKey) -> ChangeRefused | None:
        """Return why :meth:`add_voter` would refuse a voter now."""
        if (refused := self._may_change()) is not None:
            return refused
        assert isinstance(self.role, Leading)
        if self.voters.latest.key_of(voter.node_id) is not None:
            return ChangeRefused.IS_VOTER
        end_offset = self.role.end_offset_of(voter)
        is_caught_up = end_offset is not None and end_offset >= self.high_watermark
        return None if is_caught_up else ChangeRefused.NOT_CAUGHT_UP

    def remove_voter(self, voter: VoterKey, now: Moment) -> ChangeRefused | Effects:
        """A leader that removes itself leads until that is committed, and does not count itself."""
        role = self.role
        if (refused := self._may_change()) is not None:
            return refused
        assert isinstance(role, Leading)
        if voter not in self.voters.latest:
            return ChangeRefused.NO_VOTER
        if len(self.voters.latest.voters) == 1:
            return ChangeRefused.LAST_VOTER
        return self._change(role, self.voters.latest.without(voter), now)

    def update_voter(self, voter: VoterKey, now: Moment) -> ChangeRefused | Effects:
        """Append the same voters again: the record says where they listen, which ``voter`` has changed."""
        role = self.role
        if (refused := self._may_change()) is not None:
            return refused
        assert isinstance(role, Leading)
        if voter not in self.voters.latest:
            return ChangeRefused.NO_VOTER
        return self._change(role, self.voters.latest, now)

    def _may_change(self) -> ChangeRefused | None:
        if not isinstance(self.role, Leading):
            return ChangeRefused.NOT_LEADER
        if self.high_watermark <= self.role.epoch_start:
            return ChangeRefused.EPOCH_NOT_COMMITTED
        return ChangeRefused.CHANGE_NOT_COMMITTED if self._is_changing() else None

    def _is_changing(self) -> bool:
        return self.voters.latest_offset >= self.high_watermark

    def _change(self, role: Leading, voters: VoterSet, now: Moment) -> Effects:
        self.voters.add(VoterRecord(self._log.log_end_offset, voters))
        return [AppendVoters(self.epoch, voters), *self._begin_epoch_requests(role)]

    # ── snapshots ───────────────────────────────────────────────────────────────────────────────
    def begin_snapshot(self, snapshot: SnapshotId) -> VoterSet | None:
        """Return the voters to write into a snapshot of the log below ``snapshot``'s end; None if not all of
        that is committed, or one is known that is as new."""
        if not self._may_be_snapshot(snapshot):
            return None
        return self.voters.at(snapshot.end_offset)

    def _may_be_snapshot(self, snapshot: SnapshotId) -> bool:
        is_committed = snapshot.end_offset <= self.high_watermark and self._log.has(*snapshot)
        return is_committed and snapshot.end_offset > self._log.snapshot_end

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """A snapshot that was begun is durable. A newer one may have come from the leader meanwhile."""
        if snapshot.id.end_offset > self._log.snapshot_end:
            self._log.snapshot = snapshot

    def trim_to(self, origin: SnapshotId) -> Effects:
        """Let the log begin at ``origin``, the end of the newest snapshot or of an earlier one."""
        check(origin.end_offset <= self._log.snapshot_end, "only what a snapshot has is trimmed", origin)
        if origin.end_offset <= self._log.origin.end_offset:
            return []
        self._log.origin = origin
        self.voters.trim_to(origin.end_offset)
        return [TrimLog(origin)]

    # ── the follower ────────────────────────────────────────────────────────────────────────────
    def next_fetch(self) -> QuorumFetch | SnapshotFetch | None:
        """Return the fetch to send to the leader now; None without one, before all is flushed, and while a
        snapshot is read. It takes the place of one whose response has not come."""
        role = self.role
        if not isinstance(role, Following) or self.flushed_end < self._log.log_end_offset:
            return None
        download = role.download
        if download is not None and download.is_complete:
            return None
        self._fetches += 1
        if download is not None:
            role.awaited = SnapshotFetch(
                self.key, self.epoch, self.leader, download.id, download.position, self._fetches
            )
            return role.awaited
        end_offset, epoch = self._log.log_end_offset, self._log.latest_epoch
        role.awaited = QuorumFetch(
            self.key, self.epoch, self.leader, end_offset, epoch, self._fetches, role.round
        )
        return role.awaited

    def on_fetch_response(self, request: QuorumFetch, response: QuorumFetchResponse, now: Moment) -> Effects:
        effects = self._learn(response.epoch, response.leader, now)
        role = self._answered(request)
        if role is None or response.error is not NONE or response.epoch != self.epoch:
            return effects
        role.has_fetched = True
        role.lost = ElectionCause.SILENT
        role.round = response.round
        role.deadline_ms = now.ms + self._timing.fetch_ms
        if response.snapshot is not None:
            role.download = Download(response.snapshot)
            return effects
        if response.diverging is not NO_DIVERGENCE:
            return effects + self._truncate(response.diverging)
        for record in response.voters:
            self.voters.add(record)
        if response.end_offset > request.fetch_offset:
            effects.append(AppendFetched(response.end_offset))
        if response.high_watermark > self.high_watermark:
            self.high_watermark = min(response.high_watermark, response.end_offset)
            effects.append(PUBLISH_HIGH_WATERMARK)
        return effects

    def on_leader_refused(self, request: QuorumFetch | SnapshotFetch, now: Moment) -> Effects:
        """The leader's machine has refused the connection by which ``request`` was to be sent: no process
        listens there. A voter soon asks for an election; pre-votes keep it from one if the others still hear
        the leader."""
        role = self._answered(request)
        if role is not None and self.is_voter:
            role.has_fetched = False
            role.lost = ElectionCause.REFUSED
            hint_ms = int(self._timing.election_ms * REFUSED_SHARE * (1 + now.chance))
            role.deadline_ms = min(role.deadline_ms, now.ms + hint_ms)
        return []

    def _answered(self, request: QuorumFetch | SnapshotFetch) -> Following | None:
        """Return the role that awaits the response to ``request``; None if it is late."""
        role = self.role
        if not isinstance(role, Following) or role.awaited != request:
            return None
        role.awaited = None
        return role

    def on_snapshot_response(
        self, request: SnapshotFetch, response: SnapshotFetchResponse, now: Moment
    ) -> Effects:
        effects = self._learn(response.epoch, response.leader, now)
        role = self._answered(request)
        if role is None or role.download is None or response.epoch != self.epoch:
            return effects
        download = role.download
        if response.error is not NONE:
            role.download = None  # the next fetch says which snapshot there is now
            return effects
        if response.snapshot != download.id or response.position != download.position:
            return effects
        role.deadline_ms = now.ms + self._timing.fetch_ms
        effects.append(WriteSnapshotPart(download.id, download.position))
        download.position = response.end_position
        if download.position >= response.size:
            download.is_complete = True
            effects.append(ReadSnapshot(download.id))
        return effects

    def on_snapshot_fetched(self, snapshot: Snapshot | None, now: Moment) -> Effects:
        """The fetched snapshot is durable and read; None if it is damaged, or another one: it is fetched
        again."""
        role = self.role
        if not isinstance(role, Following) or role.download is None or not role.download.is_complete:
            return []  # the leader is another one; it has this snapshot or a newer one
        asked, role.download = role.download, None
        role.deadline_ms = now.ms + self._timing.fetch_ms
        if snapshot is None or snapshot.id != asked.id or not self._is_newer(snapshot):
            return []
        return self._replace_log(snapshot)

    def _is_newer(self, snapshot: Snapshot) -> bool:
        """Whether it has more than this replica has committed. Else the log may have more than it."""
        return snapshot.id.end_offset > self.high_watermark

    def _replace_log(self, snapshot: Snapshot) -> Effects:
        self._log.snapshot, self._log.origin = snapshot, snapshot.id
        self.voters.replace(snapshot.voters)
        self.flushed_end = self.high_watermark = snapshot.id.end_offset
        return [ReplaceLog(snapshot.id), PUBLISH_HIGH_WATERMARK]

    def _truncate(self, diverging: EpochEnd) -> Effects:
        offset = truncation_offset(self._log, diverging)
        check(
            offset >= self.high_watermark, "what is committed is never truncated", offset, self.high_watermark
        )
        check(offset >= self._log.snapshot_end, "a snapshot is never truncated", offset, self._log.snapshot)
        self.voters.truncate_to(offset)
        self.flushed_end = min(self.flushed_end, offset)
        return [TruncateLog(offset)]

    # ── helpers ─────────────────────────────────────────────────────────────────────────────────
    def _others(self) -> list[VoterKey]:
        return [voter for voter in self.voters.latest.voters if voter != self.key]

    def _store(self, election: Election) -> StoreElection:
        check(election.epoch >= self.election.epoch, "an epoch never goes back", election, self.election)
        self.election = election
        return StoreElection(election)

    def _become(self, role: Role) -> Effects:
        self.role = role
        return [PUBLISH_LEADER]
