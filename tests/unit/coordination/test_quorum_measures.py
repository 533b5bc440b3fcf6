"""Averages, maxima and rates of a node of the quorum are those of what its replica did in the last minute."""

from __future__ import annotations

import math
import uuid

from nilometer.coordination.quorum.measures import OPEN_MAX, QuorumMeasures, Samples, state_of
from nilometer.identifiers import NO_LEADER, uuid_to_text
from nilometer.raft.exchange import (
    Election,
    Moment,
    QuorumFetch,
    QuorumFetchResponse,
    Send,
    VoteRequest,
    VoteResponse,
)
from nilometer.raft.replica import RaftReplica
from nilometer.raft.voters import VoterHistory, VoterKey, VoterSet
from nilometer.wire.errors import NONE

ONE, TWO, THREE = (VoterKey(node, uuid_to_text(uuid.UUID(int=node << 64))) for node in (1, 2, 3))


class FakeLog:
    """The log of a new quorum, whose epoch 1 begins at offset 0."""

    log_start_offset = 0

    def __init__(self) -> None:
        self.log_end_offset = 0

    @property
    def latest_epoch(self) -> int:
        return 1 if self.log_end_offset else 0

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return epoch, self.log_end_offset


def test_samples_are_of_the_last_half_to_whole_minute() -> None:
    samples = Samples(0)
    assert math.isnan(samples.reading(0).average)
    samples.observe(4, 1_000)
    samples.observe(8, 10_000)
    assert samples.reading(20_000) == (6.0, 8, 0.6)
    samples.observe(2, 31_000)
    assert samples.reading(40_000) == (14 / 3, 8, 14 / 40)
    assert samples.reading(61_000)[:2] == (2.0, 2)
    assert math.isnan(samples.reading(91_000).average)
    assert samples.reading(91_000).rate == 0


def elected() -> tuple[RaftReplica, FakeLog, QuorumMeasures]:
    log = FakeLog()
    voters = VoterHistory(VoterSet.of(ONE, TWO, THREE))
    core = RaftReplica(log, ONE, voters, Election(0), Moment(0))
    measures = QuorumMeasures(core, 0)
    assert state_of(core) == "unattached"
    effects = core.on_time(Moment(2_000))
    for expected in ("prospective", "candidate"):
        assert state_of(core) == expected
        measures.look(core, log.log_end_offset, 2_000)
        (request,) = [one.request for one in effects if isinstance(one, Send) and one.to == TWO]
        assert isinstance(request, VoteRequest)
        granted = VoteResponse(NONE, core.epoch, NO_LEADER, granted=True)
        effects = core.on_vote_response(TWO, request, granted, Moment(2_030))
    assert state_of(core) == "leader"
    measures.look(core, log.log_end_offset, 2_030)
    return core, log, measures


def test_an_election_is_measured_from_the_first_request_for_votes_to_the_leader() -> None:
    _, _, measures = elected()
    assert measures.election_ms.reading(3_000)[:2] == (30.0, 30)


def test_a_commit_is_measured_from_the_append_on_and_the_open_ones_are_bounded() -> None:
    core, log, measures = elected()
    log.log_end_offset = 3
    measures.look(core, 3, 2_100)
    core.on_flushed(3, Moment(2_110))
    core.on_fetch(QuorumFetch(TWO, 1, 1, 3, 1), Moment(2_140))
    measures.look(core, 3, 2_140)
    assert measures.commit_ms.reading(3_000)[:2] == (40.0, 40)
    assert measures.appended.reading(3_000).rate == 1.0
    assert measures.fetched.reading(3_000).rate == 0
    for end in range(4, 2 * OPEN_MAX):
        measures.look(core, end, 2_200)
    assert len(measures._open) == OPEN_MAX


def test_what_a_follower_takes_is_fetched() -> None:
    log = FakeLog()
    core = RaftReplica(log, ONE, VoterHistory(VoterSet.of(TWO)), Election(1, leader=2), Moment(0))
    measures = QuorumMeasures(core, 0)
    assert state_of(core) == "observer"
    measures.look(core, 5, 1_000)
    measures.look(core, 2, 1_100)
    assert measures.fetched.reading(2_000).rate == 2.5
    assert measures.appended.reading(2_000).rate == 0
    request = core.next_fetch()
    assert isinstance(request, QuorumFetch)
    core.on_fetch_response(request, QuorumFetchResponse(NONE, 1, 2, end_offset=0), Moment(1_200))
    assert math.isnan(measures.election_ms.reading(2_000).average)
