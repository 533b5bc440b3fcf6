"""A replica of the quorum: when it begins an election and gives one up, what it grants, when it resigns."""

from __future__ import annotations

from typing import TypeVar

import pytest

from nilometer.identifiers import NO_LEADER
from nilometer.invariants import InvariantBroken
from nilometer.raft.exchange import (
    AppendFetched,
    AppendLeaderChange,
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
from nilometer.raft.leading import POSITIONS_MAX, Leading
from nilometer.raft.replica import Electing, Following, RaftReplica, Resigned, Unattached
from nilometer.raft.snapshots import BEGINNING, Snapshot, SnapshotId
from nilometer.raft.voter_changes import result_of
from nilometer.raft.voters import VoterHistory, VoterKey, VoterRecord, VoterSet
from nilometer.replication.epochs import EpochEnd
from nilometer.wire.errors import NONE, ErrorCode

TIMING = Timing(election_ms=1_000, fetch_ms=2_000, resend_ms=500)
ONE, TWO, THREE = (VoterKey(number, f"folder-{number}") for number in (1, 2, 3))
OTHERS = (TWO, THREE)
T = TypeVar("T")


class FakeLog:
    """A log with records of one epoch after another; ``ends`` has the end offset of each."""

    def __init__(self, *ends: int) -> None:
        self.ends = list(ends)
        self.log_start_offset = 0

    @property
    def log_end_offset(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def latest_epoch(self) -> int:
        return len(self.ends) - 1

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return min(epoch, self.latest_epoch), self.ends[min(epoch, self.latest_epoch)]


def replica(election: Election, log: FakeLog | None = None, chance: float = 0.0) -> RaftReplica:
    voters = VoterHistory(VoterSet.of(ONE, TWO, THREE))
    return RaftReplica(log or FakeLog(), ONE, voters, election, Moment(0, chance), timing=TIMING)


def sent(effects: Effects, kind: type[T]) -> list[tuple[VoterKey, T]]:
    return [
        (one.to, one.request) for one in effects if isinstance(one, Send) and isinstance(one.request, kind)
    ]


def elected(log: FakeLog | None = None) -> tuple[RaftReplica, Effects]:
    """A replica that has been elected in epoch 1 at 1,000 ms."""
    one = replica(Election(0), log)
    effects = one.on_time(Moment(1_000))
    for _ in range(2):
        [(_, request), _] = sent(effects, VoteRequest)
        effects = one.on_vote_response(
            TWO, request, VoteResponse(NONE, one.epoch, NO_LEADER, True), Moment(1_000)
        )
    return one, effects


@pytest.mark.parametrize(("chance", "deadline_ms"), [(0.0, 1_000), (0.5, 1_500)])
def test_a_voter_without_a_leader_asks_for_pre_votes_after_its_time_out(
    chance: float, deadline_ms: int
) -> None:
    one = replica(Election(4), FakeLog(3, 7), chance)
    assert one.deadline_ms(Moment(0)) == deadline_ms
    assert one.on_time(Moment(deadline_ms - 1)) == []
    asked = sent(one.on_time(Moment(deadline_ms)), VoteRequest)
    assert asked == [(voter, VoteRequest(4, ONE, voter, 1, 7, pre_vote=True)) for voter in OTHERS]
    assert one.election == Election(4), "nothing is promised with a pre-vote"


def test_a_majority_of_pre_votes_begins_an_epoch_and_a_majority_of_votes_leads_it() -> None:
    one = replica(Election(4), FakeLog(3, 7))
    [(_, request), _] = sent(one.on_time(Moment(1_000)), VoteRequest)
    effects = one.on_vote_response(TWO, request, VoteResponse(NONE, 4, NO_LEADER, True), Moment(1_010))
    assert effects[0] == StoreElection(Election(5, voted=ONE)), "stored before it is asked for"
    [(_, vote), _] = sent(effects, VoteRequest)
    assert (vote.epoch, vote.pre_vote) == (5, False)
    assert one.on_vote_response(THREE, request, VoteResponse(NONE, 4, NO_LEADER, True), Moment(1_015)) == []
    effects = one.on_vote_response(THREE, vote, VoteResponse(NONE, 5, NO_LEADER, True), Moment(1_020))
    assert effects[:2] == [StoreElection(Election(5, ONE, 1)), AppendLeaderChange(5, (ONE, THREE))]
    assert sent(effects, BeginEpochRequest) == [(voter, BeginEpochRequest(5, 1)) for voter in OTHERS]


def test_an_election_without_a_majority_is_given_up() -> None:
    one = replica(Election(4))
    [(_, request), _] = sent(one.on_time(Moment(1_000)), VoteRequest)
    one.on_vote_response(TWO, request, VoteResponse(NONE, 4, NO_LEADER), Moment(1_010))
    assert isinstance(one.role, Electing)
    one.on_vote_response(THREE, request, VoteResponse(NONE, 4, NO_LEADER), Moment(1_020))
    assert isinstance(one.role, Unattached) and one.deadline_ms(Moment(1_020)) == 2_020
    one.on_time(Moment(2_020))
    assert isinstance(one.role, Electing)
    one.on_time(Moment(3_020))
    assert isinstance(one.role, Unattached), "no voter has answered"
    assert one.election == Election(4), "no epoch was begun: a returning voter raises none"


def test_a_voter_that_alone_has_lost_its_leader_follows_it_again() -> None:
    one = replica(Election(4, leader=2))
    [(_, request), _] = sent(one.on_time(Moment(2_000)), VoteRequest)
    one.on_vote_response(TWO, request, VoteResponse(NONE, 4, 2), Moment(2_010))
    one.on_vote_response(THREE, request, VoteResponse(NONE, 4, 2), Moment(2_020))
    assert isinstance(one.role, Following) and one.next_fetch() is not None
    one.on_time(Moment(4_020))
    one.on_time(Moment(5_020))
    assert isinstance(one.role, Following), "no voter has answered"
    restarted = replica(Election(4, voted=ONE, leader=1))
    restarted.on_time(Moment(1_000))
    restarted.on_time(Moment(2_000))
    restarted.on_epoch_response(EpochResponse(NONE, 4, 1), Moment(2_000))
    assert isinstance(restarted.role, Unattached), "it does not follow itself"


def test_a_follower_waits_for_its_leader_as_long_as_fetches_are_answered() -> None:
    one = replica(Election(4, leader=2))
    request = one.next_fetch()
    assert isinstance(request, QuorumFetch) and one.deadline_ms(Moment(0)) == 2_000
    one.on_fetch_response(request, QuorumFetchResponse(NONE, 4, 2, end_offset=0), Moment(1_500))
    assert one.on_time(Moment(3_499)) == []
    assert sent(one.on_time(Moment(3_500)), VoteRequest)


def test_no_pre_vote_is_granted_by_who_has_a_leader() -> None:
    one = replica(Election(4, leader=2))
    request = one.next_fetch()
    assert isinstance(request, QuorumFetch)
    asked = VoteRequest(4, THREE, ONE, 0, 0, pre_vote=True)
    assert one.on_vote_request(asked, Moment(10))[0].granted, "it has not heard of its leader"
    one.on_fetch_response(request, QuorumFetchResponse(NONE, 4, 2, end_offset=0), Moment(20))
    assert not one.on_vote_request(asked, Moment(30))[0].granted


def test_a_vote_is_stored_before_it_is_given_and_not_given_twice() -> None:
    one = replica(Election(4), FakeLog(7))
    response, effects = one.on_vote_request(VoteRequest(5, TWO, ONE, 0, 7, pre_vote=False), Moment(10))
    assert response == VoteResponse(NONE, 5, NO_LEADER, granted=True)
    assert StoreElection(Election(5, voted=TWO)) in effects
    assert not one.on_vote_request(VoteRequest(5, THREE, ONE, 0, 9, pre_vote=False), Moment(20))[0].granted
    assert one.on_vote_request(VoteRequest(5, TWO, ONE, 0, 7, pre_vote=False), Moment(30))[0].granted, "again"
    assert one.on_vote_request(VoteRequest(4, THREE, ONE, 0, 9, pre_vote=False), Moment(40)) == (
        VoteResponse(ErrorCode.fenced_leader_epoch, 5, NO_LEADER),
        [],
    )


@pytest.mark.parametrize(("last_epoch", "end_offset"), [(0, 9), (1, 6)])
def test_a_shorter_or_an_older_log_gets_no_vote(last_epoch: int, end_offset: int) -> None:
    one = replica(Election(4), FakeLog(3, 7))
    asked = VoteRequest(5, TWO, ONE, last_epoch, end_offset, pre_vote=False)
    assert not one.on_vote_request(asked, Moment(10))[0].granted
    assert one.election == Election(5), "the epoch is entered all the same"


def test_a_voter_whose_folder_is_another_is_not_asked() -> None:
    one = replica(Election(4))
    other = VoterKey(1, "wiped")
    response, effects = one.on_vote_request(VoteRequest(5, TWO, other, 0, 0, pre_vote=False), Moment(10))
    assert (response.error, response.granted, effects) == (ErrorCode.invalid_voter_key, False, [])


def test_a_leader_tells_the_silent_of_its_epoch_and_resigns_without_a_majority() -> None:
    one, effects = elected(FakeLog(0))
    assert [voter for voter, _ in sent(effects, BeginEpochRequest)] == list(OTHERS)
    one.on_fetch(QuorumFetch(TWO, 1, 1, 0, 0), Moment(1_200))
    assert one.deadline_ms(Moment(1_200)) == 1_500
    again = sent(one.on_time(Moment(1_500)), BeginEpochRequest)
    assert [voter for voter, _ in again] == [THREE], "the other has fetched"
    assert sent(one.on_time(Moment(4_199)), EndEpochRequest) == []
    resigned = sent(one.on_time(Moment(4_200)), EndEpochRequest)  # half as long again as fetch_ms
    assert resigned == [(voter, EndEpochRequest(1, 1, OTHERS)) for voter in OTHERS]
    assert isinstance(one.role, Resigned)
    assert (
        one.on_fetch(QuorumFetch(TWO, 1, 1, 0, 0), Moment(4_300))[0].error is ErrorCode.not_leader_or_follower
    )


def test_a_leader_that_was_restarted_waits_for_anothers_election() -> None:
    one = replica(Election(4, voted=ONE, leader=1))
    assert isinstance(one.role, Resigned)
    assert sent(one.on_time(Moment(1_000)), VoteRequest), "and then begins one itself"


def test_the_first_successor_begins_at_once_and_the_next_one_later() -> None:
    for successors, deadline_ms in (((ONE, THREE), 100), ((THREE, ONE), 600), ((), 1_100)):
        one = replica(Election(4, leader=2))
        one.on_end_epoch(EndEpochRequest(4, 2, successors), Moment(100))
        assert one.deadline_ms(Moment(100)) == deadline_ms


def test_a_record_is_committed_when_a_majority_has_it_durable() -> None:
    log = FakeLog(7)
    one, _ = elected(log)
    log.ends.append(8)  # the record of the new epoch
    one.on_fetch(QuorumFetch(TWO, 1, 1, 8, 1), Moment(1_100))
    assert one.high_watermark == 0, "the leader has not flushed it"
    assert one.on_flushed(8, Moment(1_200)) and one.high_watermark == 8


def test_voters_change_once_the_epochs_first_record_is_committed_one_at_a_time() -> None:
    log, four = FakeLog(7), VoterKey(4, "folder-4")
    one, _ = elected(log)
    log.ends.append(8)
    assert one.add_voter(four, Moment(1_050)) is ChangeRefused.EPOCH_NOT_COMMITTED
    one.high_watermark = 7  # all that earlier leaders have written
    assert one.add_voter(four, Moment(1_055)) is ChangeRefused.EPOCH_NOT_COMMITTED
    one.on_flushed(8, Moment(1_060))
    one.on_fetch(QuorumFetch(TWO, 1, 1, 8, 1), Moment(1_100))
    assert one.add_voter(four, Moment(1_110)) is ChangeRefused.NOT_CAUGHT_UP
    one.on_fetch(QuorumFetch(four, 1, 1, 8, 1), Moment(1_120))
    assert one.add_voter(TWO, Moment(1_130)) is ChangeRefused.IS_VOTER
    assert isinstance(one.add_voter(four, Moment(1_140)), list)
    assert one.voters.latest.majority == 3
    assert one.remove_voter(TWO, Moment(1_150)) is ChangeRefused.CHANGE_NOT_COMMITTED
    assert replica(Election(4)).remove_voter(TWO, Moment(0)) is ChangeRefused.NOT_LEADER


def test_a_leader_that_was_removed_leads_until_that_is_committed_and_then_looks_for_the_next() -> None:
    log = FakeLog(7)
    one, _ = elected(log)
    log.ends.append(8)
    one.on_flushed(8, Moment(1_060))
    one.on_fetch(QuorumFetch(TWO, 1, 1, 8, 1), Moment(1_100))
    assert isinstance(one.remove_voter(ONE, Moment(1_110)), list)
    log.ends[-1] = 9
    one.on_flushed(9, Moment(1_120))
    one.on_fetch(QuorumFetch(TWO, 1, 1, 9, 1), Moment(1_130))
    assert one.high_watermark == 8, "the leader itself does not count"
    effects = one.on_fetch(QuorumFetch(THREE, 1, 1, 9, 1), Moment(1_140))[1]
    assert one.high_watermark == 9
    assert [each.to for each in effects if isinstance(each, Send)] == [TWO, THREE]
    assert isinstance(one.role, Unattached), "it is told of no election"
    again = RaftReplica(log, ONE, VoterHistory(VoterSet.of(TWO, THREE)), one.election, Moment(0))
    assert isinstance(again.role, Unattached)
    one.on_fetch_response(QuorumFetch(ONE, 1, 1, 0, 0), QuorumFetchResponse(NONE, 2, 3), Moment(1_200))
    assert isinstance(one.role, Following)
    assert one.leader == 3


def test_a_follower_appends_truncates_and_never_takes_a_late_response() -> None:
    log = FakeLog(5, 9)
    one = replica(Election(4, leader=2), log)
    first, second = one.next_fetch(), one.next_fetch()
    assert isinstance(first, QuorumFetch) and isinstance(second, QuorumFetch)
    assert one.on_fetch_response(first, QuorumFetchResponse(NONE, 4, 2, end_offset=12), Moment(10)) == []
    diverging = QuorumFetchResponse(NONE, 4, 2, diverging=EpochEnd(0, 6))
    assert TruncateLog(5) in one.on_fetch_response(second, diverging, Moment(20))
    log.ends[:] = [5]
    third = one.next_fetch()
    assert isinstance(third, QuorumFetch) and third.fetch_offset == 5
    response = QuorumFetchResponse(NONE, 4, 2, end_offset=8, high_watermark=7)
    assert AppendFetched(8) in one.on_fetch_response(third, response, Moment(30))
    assert one.high_watermark == 7
    log.ends.append(8)
    assert one.next_fetch() is None, "it acknowledges only what is flushed"
    one.on_flushed(8, Moment(40))
    assert one.next_fetch() is not None


def test_an_observer_follows_and_begins_no_election() -> None:
    voters = VoterHistory(VoterSet.of(TWO, THREE))
    one = RaftReplica(FakeLog(), ONE, voters, Election(4, leader=2), Moment(0), timing=TIMING)
    assert isinstance(one.role, Following) and one.next_fetch() is not None
    assert sent(one.on_time(Moment(2_000)), VoteRequest) == []
    assert isinstance(one.role, Unattached) and one.deadline_ms(Moment(2_000)) is None
    one.on_epoch_response(EpochResponse(NONE, 4, 2), Moment(3_000))
    assert isinstance(one.role, Following), "the leader is the same, and found again"


def test_a_later_epoch_ends_a_leadership() -> None:
    one, _ = elected()
    assert isinstance(one.role, Leading)
    response, effects = one.on_begin_epoch(BeginEpochRequest(6, 3), Moment(1_300))
    assert (response.error, response.epoch, response.leader) == (NONE, 6, 3)
    assert effects[0] == StoreElection(Election(6, None, 3))
    assert isinstance(one.role, Following)


def test_a_read_is_confirmed_by_a_majority_that_has_heard_of_it() -> None:
    log = FakeLog(7)
    one, _ = elected(log)
    log.ends.append(8)
    assert one.begin_read() is None, "it does not know what earlier leaders have committed"
    one.on_flushed(8, Moment(1_010))
    one.on_fetch(QuorumFetch(TWO, 1, 1, 8, 1), Moment(1_020))
    assert (one.begin_read(), one.confirmed_round()) == (1, 0)
    response, _ = one.on_fetch(QuorumFetch(TWO, 1, 1, 8, 1), Moment(1_030))
    assert (response.round, one.confirmed_round()) == (1, 0), "it may have been sent before"
    one.on_fetch(QuorumFetch(TWO, 1, 1, 8, 1, round=response.round), Moment(1_040))
    assert one.confirmed_round() == 1
    one.resign(Moment(1_050))
    assert (one.begin_read(), one.confirmed_round()) == (None, None)


def test_a_follower_tells_the_leader_of_which_round_it_has_heard() -> None:
    one = replica(Election(4, leader=2))
    first = one.next_fetch()
    assert isinstance(first, QuorumFetch) and first.round == 0
    one.on_fetch_response(first, QuorumFetchResponse(NONE, 4, 2, end_offset=0, round=9), Moment(10))
    second = one.next_fetch()
    assert isinstance(second, QuorumFetch) and second.round == 9
    one.on_begin_epoch(BeginEpochRequest(5, 3), Moment(20))
    third = one.next_fetch()
    assert isinstance(third, QuorumFetch) and third.round == 0, "another leader's rounds are others"


def test_a_leader_knows_a_bounded_number_of_replicas_and_always_the_voters() -> None:
    one, _ = elected(log := FakeLog(7))
    log.ends.append(8)
    one.on_fetch(QuorumFetch(TWO, 1, 1, 8, 1), Moment(999))
    for number in range(POSITIONS_MAX + 5):
        one.on_fetch(QuorumFetch(VoterKey(9, f"folder-{number}"), 1, 1, 8, 1), Moment(1_000 + number))
    assert isinstance(one.role, Leading)
    known = [one.role.end_offset_of(VoterKey(9, f"folder-{number}")) for number in range(POSITIONS_MAX + 5)]
    assert known[:6] == [None] * 6 and known[6:] == [8] * (POSITIONS_MAX - 1)
    assert one.role.end_offset_of(TWO) == 8


# ── snapshots ───────────────────────────────────────────────────────────────────────────────────
VOTERS = VoterSet.of(ONE, TWO, THREE)
FIVE, EIGHT = SnapshotId(5, 0), SnapshotId(8, 1)


class LogOfSnapshot(FakeLog):
    """A log that has no record since the snapshot that took the place of all."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return -1, -1

    @property
    def latest_epoch(self) -> int:
        return -1


def test_a_log_that_is_only_a_snapshot_ends_in_its_epoch() -> None:
    voters = VoterHistory(VOTERS)
    one = RaftReplica(
        LogOfSnapshot(8),
        ONE,
        voters,
        Election(4),
        Moment(0),
        origin=EIGHT,
        snapshot=Snapshot(EIGHT, VOTERS, 10),
    )
    assert one.high_watermark == 8
    shorter = VoteRequest(4, TWO, ONE, 0, 99, pre_vote=True)
    assert not one.on_vote_request(shorter, Moment(10))[0].granted, "its last epoch is an earlier one"
    assert one.on_vote_request(shorter._replace(last_epoch=1), Moment(10))[0].granted
    [(_, asked), _] = sent(one.on_time(Moment(2_000)), VoteRequest)
    assert (asked.last_epoch, asked.end_offset) == (1, 8)


def test_a_snapshot_is_made_of_what_is_committed_and_the_log_begins_at_its_end() -> None:
    log = FakeLog(5, 9)
    one = RaftReplica(log, ONE, VoterHistory(VOTERS), Election(4, leader=2), Moment(0), high_watermark=8)
    assert one.begin_snapshot(SnapshotId(9, 1)) is None, "not all of it is committed"
    assert one.begin_snapshot(SnapshotId(8, 0)) is None, "the record before is of epoch 1"
    assert one.begin_snapshot(EIGHT) == VOTERS
    with pytest.raises(InvariantBroken, match="only what a snapshot has"):
        one.trim_to(EIGHT)
    one.on_snapshot(Snapshot(EIGHT, VOTERS, 10))
    assert one.begin_snapshot(FIVE) is None, "an older one"
    assert one.trim_to(FIVE) == [TrimLog(FIVE)], "the records after an earlier one may be kept"
    assert one.trim_to(EIGHT) == [TrimLog(EIGHT)] and one.trim_to(FIVE) == []


def test_a_leader_gives_its_snapshot_to_who_lacks_what_is_gone() -> None:
    one, _ = elected(log := FakeLog(5, 8))
    log.ends.append(9)
    one.on_fetch(QuorumFetch(TWO, 1, 1, 9, 2), Moment(1_010))
    one.on_flushed(9, Moment(1_020))
    one.on_snapshot(Snapshot(EIGHT, VOTERS, 10))
    one.trim_to(EIGHT)
    for end_offset, epoch, snapshot in (
        (7, 1, EIGHT),
        (8, 0, EIGHT),
        (9, 0, EIGHT),
        (8, 1, None),
        (9, 2, None),
    ):
        response, _ = one.on_fetch(QuorumFetch(THREE, 1, 1, end_offset, epoch), Moment(1_030))
        assert response.snapshot == snapshot, (end_offset, epoch)
    asked = SnapshotFetch(THREE, 1, 1, EIGHT, 4)
    response, _ = one.on_snapshot_fetch(asked, Moment(1_040))
    assert response == SnapshotFetchResponse(NONE, 1, 1, EIGHT, size=10, position=4, end_position=10)
    for wrong, error in (
        (asked._replace(position=10), ErrorCode.position_out_of_range),
        (asked._replace(position=-1), ErrorCode.position_out_of_range),
        (asked._replace(snapshot=FIVE), ErrorCode.snapshot_not_found),
        (asked._replace(epoch=0), ErrorCode.fenced_leader_epoch),
        (asked._replace(epoch=2), ErrorCode.unknown_leader_epoch),
    ):
        assert one.on_snapshot_fetch(wrong, Moment(1_050))[0].error is error
    one.resign(Moment(1_060))
    assert one.on_snapshot_fetch(asked, Moment(1_070))[0].error is ErrorCode.not_leader_or_follower


def downloading() -> tuple[RaftReplica, SnapshotFetch]:
    """A follower whose leader has told it of a snapshot of ten bytes."""
    one = replica(Election(4, leader=2), FakeLog(3))
    fetch = one.next_fetch()
    assert isinstance(fetch, QuorumFetch)
    one.on_fetch_response(fetch, QuorumFetchResponse(NONE, 4, 2, snapshot=EIGHT), Moment(10))
    asked = one.next_fetch()
    assert asked == SnapshotFetch(ONE, 4, 2, EIGHT, 0, number=2)
    assert isinstance(asked, SnapshotFetch)
    return one, asked


def test_a_follower_fetches_a_snapshot_in_parts_and_replaces_its_log() -> None:
    one, asked = downloading()
    part = SnapshotFetchResponse(NONE, 4, 2, EIGHT, 10, 0, 6)
    assert one.on_snapshot_response(asked, part, Moment(20)) == [WriteSnapshotPart(EIGHT, 0)]
    assert one.on_snapshot_response(asked, part, Moment(25)) == [], "twice"
    following = one.next_fetch()
    assert isinstance(following, SnapshotFetch) and following.position == 6
    effects = one.on_snapshot_response(following, part._replace(position=6, end_position=10), Moment(30))
    assert effects == [WriteSnapshotPart(EIGHT, 6), ReadSnapshot(EIGHT)]
    assert one.next_fetch() is None, "while it is read"
    four = VoterSet.of(ONE, TWO, THREE, VoterKey(4, "folder-4"))
    effects = one.on_snapshot_fetched(Snapshot(EIGHT, four, 10), Moment(40))
    assert effects[0] == ReplaceLog(EIGHT)
    assert (one.high_watermark, one.voters.latest, one.snapshot) == (8, four, Snapshot(EIGHT, four, 10))
    assert one.deadline_ms(Moment(40)) == 2_040


def test_a_snapshot_that_is_damaged_or_gone_is_fetched_again() -> None:
    one, asked = downloading()
    effects = one.on_snapshot_response(asked, SnapshotFetchResponse(NONE, 4, 2, EIGHT, 10, 0, 10), Moment(20))
    assert ReadSnapshot(EIGHT) in effects
    assert one.on_snapshot_fetched(None, Moment(30)) == []
    assert isinstance(one.next_fetch(), QuorumFetch)

    one, asked = downloading()
    gone = SnapshotFetchResponse(ErrorCode.snapshot_not_found, 4, 2)
    assert one.on_snapshot_response(asked, gone, Moment(20)) == []
    assert isinstance(one.next_fetch(), QuorumFetch)
    assert one.high_watermark == 0 and BEGINNING.end_offset == 0


def test_another_leaders_snapshot_is_fetched_from_its_beginning() -> None:
    one, asked = downloading()
    one.on_snapshot_response(asked, SnapshotFetchResponse(NONE, 4, 2, EIGHT, 10, 0, 6), Moment(20))
    one.on_begin_epoch(BeginEpochRequest(5, 3), Moment(30))
    assert isinstance(one.next_fetch(), QuorumFetch), "it says which snapshot the new leader has"


def test_a_truncation_below_a_snapshot_is_damage() -> None:
    snapshot = Snapshot(EIGHT, VOTERS, 10)
    one = RaftReplica(
        FakeLog(5, 9),
        ONE,
        VoterHistory(VOTERS),
        Election(4, leader=2),
        Moment(0),
        origin=FIVE,
        snapshot=snapshot,
    )
    fetch = one.next_fetch()
    assert isinstance(fetch, QuorumFetch)
    with pytest.raises(InvariantBroken, match="never truncated"):
        one.on_fetch_response(fetch, QuorumFetchResponse(NONE, 4, 2, diverging=EpochEnd(1, 7)), Moment(10))


def test_a_leader_that_refuses_connections_is_soon_replaced_if_the_others_do_not_hear_it() -> None:
    one = replica(Election(4, leader=2))
    request = one.next_fetch()
    assert request is not None
    one.on_fetch_response(request, QuorumFetchResponse(NONE, 4, 2), Moment(100))
    assert one.deadline_ms(Moment(100)) == 2_100
    request = one.next_fetch()
    assert request is not None
    asked = VoteRequest(4, THREE, ONE, 9, 9, pre_vote=True)
    assert not one.on_vote_request(asked, Moment(110))[0].granted, "it has heard its leader"
    one.on_leader_refused(request, Moment(120, 0.5))
    assert one.deadline_ms(Moment(120)) == 120 + 150
    assert one.on_vote_request(asked, Moment(130))[0].granted
    one.on_leader_refused(request, Moment(260))
    assert one.deadline_ms(Moment(260)) == 270, "of a fetch that is not awaited, or later than known"


KAFKAS: dict[ChangeRefused, tuple[ErrorCode, str]] = {
    ChangeRefused.NOT_LEADER: (ErrorCode.not_leader_or_follower, "None"),
    ChangeRefused.EPOCH_NOT_COMMITTED: (ErrorCode.request_timed_out, "to establish HWM and fence previous"),
    ChangeRefused.CHANGE_NOT_COMMITTED: (
        ErrorCode.request_timed_out,
        "to commit the latest voter change at 4 with HWM 3",
    ),
    ChangeRefused.IS_VOTER: (ErrorCode.duplicate_voter, "is already part of the set of voters [ReplicaKey("),
    ChangeRefused.NO_VOTER: (ErrorCode.voter_not_found, "Cannot remove voter ReplicaKey(id=2, directoryId="),
    ChangeRefused.LAST_VOTER: (ErrorCode.invalid_request, "it is the last one"),
    ChangeRefused.NOT_CAUGHT_UP: (ErrorCode.request_timed_out, "since it is lagging behind"),
}


@pytest.mark.parametrize("refused", ChangeRefused)
def test_a_refusal_has_kafkas_error_and_text(refused: ChangeRefused) -> None:
    voters = VoterHistory(VoterSet.of(ONE), (VoterRecord(4, VoterSet.of(ONE, TWO)),))
    core = RaftReplica(FakeLog(3), ONE, voters, Election(1), Moment(0), high_watermark=3)
    result, (error, text) = result_of(refused, TWO, core), KAFKAS[refused]
    assert result.error is error
    assert text in str(result.message)


def test_an_election_has_a_cause() -> None:
    alone = replica(Election(4))
    alone.on_time(Moment(5_000))
    assert alone.cause is ElectionCause.UNKNOWN
    silent = replica(Election(4, leader=2))
    silent.on_time(Moment(5_000))
    assert silent.cause is ElectionCause.SILENT
    resigned = replica(Election(4, leader=2))
    resigned.on_end_epoch(EndEpochRequest(4, 2, (ONE,)), Moment(100))
    resigned.on_time(Moment(100))
    assert resigned.cause is ElectionCause.RESIGNATION
    refused = replica(Election(4, leader=2))
    fetch = refused.next_fetch()
    assert isinstance(fetch, QuorumFetch)
    refused.on_leader_refused(fetch, Moment(100))
    refused.on_time(Moment(5_000))
    assert refused.cause is ElectionCause.REFUSED
    former = replica(Election(4, leader=1))
    former.on_time(Moment(5_000))
    assert former.cause is ElectionCause.OWN_RESIGNATION


def test_a_response_of_the_leader_takes_back_why_it_was_given_up() -> None:
    one = replica(Election(4, leader=2), FakeLog(5, 9))
    fetch = one.next_fetch()
    assert isinstance(fetch, QuorumFetch)
    one.on_leader_refused(fetch, Moment(100))
    fetch = one.next_fetch()
    assert isinstance(fetch, QuorumFetch)
    one.on_fetch_response(fetch, QuorumFetchResponse(NONE, 4, 2, end_offset=9), Moment(110))
    one.on_time(Moment(9_000))
    assert one.cause is ElectionCause.SILENT
