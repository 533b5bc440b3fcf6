"""Every state of a small quorum whose leaders and voters change, whose processes crash or are wiped, and
whose logs begin with snapshots, keeps every property; and what is planted in the code is found, by a shortest
path.

``PLANTED`` is the table of faults: each with the world that finds it, and the property that it violates.
``test_quorum_histories`` has those that need a longer path."""

from __future__ import annotations

from typing import Any

import pytest

from nilometer.identifiers import NO_LEADER
from nilometer.raft import replica as replica_module
from nilometer.raft.exchange import PUBLISH_LEADER, ChangeRefused, QuorumFetch, SnapshotFetch
from nilometer.raft.leading import Leading
from nilometer.raft.replica import Electing, Following, RaftReplica
from nilometer.raft.snapshots import Download, SnapshotLog
from nilometer.raft.voters import VoterHistory, VoterSet
from nilometer.replication.epochs import NO_DIVERGENCE
from nilometer.simulation.model_check.explorer import Exploration
from nilometer.simulation.model_check.quorum import (
    LEADER_COMPLETE,
    LOGS_MATCH,
    NEVER_CHANGED,
    ONE_CHANGE,
    ONE_LEADER,
    ONE_SNAPSHOT,
    ONLY_COMMITTED,
    OVER_LESS,
    READS_ALL,
    VOTE_KEPT,
    VOTERS_OF_LOG,
    QuorumBounds,
    QuorumWorld,
    quorum_violation,
)
from support.simulation.model_check_tally import explore

SMALL = (
    QuorumBounds(epochs=1, timeouts=2, values=0),
    QuorumBounds(epochs=1, timeouts=1, values=0, losses=1),
    QuorumBounds(begins_led=True, timeouts=1),
    QuorumBounds(begins_led=True, timeouts=1, values=0, wipes=1),
    QuorumBounds(begins_led=True, timeouts=0, values=0, observers=1, changes=1),
    QuorumBounds(begins_led=True, timeouts=1, values=0, voters=2, observers=1, changes=1),
    QuorumBounds(begins_led=True, timeouts=0, snapshots=2),
    QuorumBounds(begins_led=True, timeouts=1, snapshots=1),
    QuorumBounds(begins_led=True, timeouts=0, is_behind=True, snapshots=1, late=1),
    QuorumBounds(begins_led=True, timeouts=1, is_behind=True, snapshots=1, values=0),
    QuorumBounds(begins_led=True, timeouts=1, is_behind=True, reads=1, values=0),
)
LARGER = (
    QuorumBounds(begins_led=True, timeouts=1, crashes=1),
    QuorumBounds(begins_led=True, timeouts=2, values=0, crashes=1),
    QuorumBounds(begins_led=True, timeouts=0, values=0, observers=1, changes=2),
    QuorumBounds(begins_led=True, timeouts=1, is_behind=True, values=0, crashes=1),
    QuorumBounds(begins_led=True, timeouts=1, is_behind=True, values=0, wipes=1),
    QuorumBounds(begins_led=True, timeouts=0, is_behind=True, values=0, observers=1, changes=1, snapshots=1),
    QuorumBounds(begins_led=True, timeouts=2, is_behind=True, values=0, snapshots=1),
)
LARGEST = (
    QuorumBounds(begins_led=True, timeouts=2),
    QuorumBounds(begins_led=True, timeouts=1, values=2, late=1),
    QuorumBounds(begins_led=True, timeouts=3),
    QuorumBounds(begins_led=True, timeouts=2, losses=1),
    QuorumBounds(begins_led=True, timeouts=1, wipes=1, crashes=1),
    QuorumBounds(begins_led=True, timeouts=1, values=0, observers=1, changes=1),
    QuorumBounds(begins_led=True, timeouts=1, is_behind=True, values=0, reads=1, late=1),
    QuorumBounds(begins_led=True, timeouts=2, is_behind=True, snapshots=1),
)
"""Some 8,000 states, 58,000, and millions; of the last one 763,000, in 150 s."""


def check(bounds: QuorumBounds) -> Exploration:
    return explore(QuorumWorld(bounds), judge=quorum_violation)


def assert_complete(bounds: QuorumBounds) -> None:
    seen = check(bounds)
    assert seen.violation is None, (seen.violation, [step for step, _ in seen.counterexample])
    assert seen.is_complete


@pytest.mark.parametrize("bounds", SMALL)
def test_every_state_keeps_every_property(bounds: QuorumBounds) -> None:
    assert_complete(bounds)


@pytest.mark.thorough
@pytest.mark.parametrize("bounds", LARGER)
def test_every_state_of_a_larger_quorum_keeps_every_property(bounds: QuorumBounds) -> None:
    assert_complete(bounds)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("bounds", LARGEST)
def test_every_state_of_the_largest_quorums_keeps_every_property(bounds: QuorumBounds) -> None:
    assert_complete(bounds)


# ── planted faults ──────────────────────────────────────────────────────────────────────────────
def store_nothing(self: RaftReplica, election: Any) -> Any:
    self.election = election
    return PUBLISH_LEADER


def count_the_unflushed(self: RaftReplica, role: Leading, now: Any) -> Any:
    flushed, self.flushed_end = self.flushed_end, self._log.log_end_offset  # pyright: ignore[reportPrivateUsage]
    effects = _advance(self, role, now)
    self.flushed_end = flushed
    return effects


_advance = RaftReplica._advance  # pyright: ignore[reportPrivateUsage]


def acknowledge_the_unflushed(self: RaftReplica) -> QuorumFetch | SnapshotFetch | None:
    flushed, self.flushed_end = self.flushed_end, self._log.log_end_offset  # pyright: ignore[reportPrivateUsage]
    fetch = _next_fetch(self)
    self.flushed_end = flushed
    return fetch


_next_fetch = RaftReplica.next_fetch


def grant_to_shorter_logs(self: RaftReplica, request: Any) -> bool:
    if request.pre_vote:
        return True
    return self.election.voted in (None, request.candidate) and self.election.leader == NO_LEADER


def grant_to_everyone(self: RaftReplica, request: Any) -> bool:
    return (request.last_epoch, request.end_offset) >= (
        self._log.latest_epoch,  # pyright: ignore[reportPrivateUsage]
        self._log.log_end_offset,  # pyright: ignore[reportPrivateUsage]
    )


def vote_for_an_earlier_folder(self: RaftReplica, request: Any, now: Any) -> Any:
    return _on_vote_request(self, request._replace(voter=self.key), now)


_on_vote_request = RaftReplica.on_vote_request


def count_votes_of_other_elections(
    self: RaftReplica, voter: Any, request: Any, response: Any, now: Any
) -> Any:
    effects = self._learn(response.epoch, response.leader, now)  # pyright: ignore[reportPrivateUsage]
    if not isinstance(self.role, Electing):
        return effects
    if response.granted:
        self.role.granted |= {voter}
    return effects + self._maybe_elected(self.role, now)  # pyright: ignore[reportPrivateUsage]


def take_late_responses(self: RaftReplica, request: Any, response: Any, now: Any) -> Any:
    if isinstance(self.role, Following):
        self.role.awaited = request
    return _on_fetch_response(self, request, response, now)


_on_fetch_response = RaftReplica.on_fetch_response


def lead_on_after_a_restart(self: RaftReplica, now: Any) -> Any:
    if self.election.leader == self.key.node_id:
        return Leading(self.key, self._log.log_end_offset, now, self._timing)  # pyright: ignore[reportPrivateUsage]
    return _first_role(self, now)


_first_role = RaftReplica._first_role  # pyright: ignore[reportPrivateUsage]


def change_at_any_time(self: RaftReplica) -> ChangeRefused | None:
    return None if isinstance(self.role, Leading) else ChangeRefused.NOT_LEADER


def keep_the_download(self: RaftReplica, role: Any) -> Any:
    if isinstance(self.role, Following) and isinstance(role, Following):
        role.download = self.role.download
    return _become(self, role)


_become = RaftReplica._become  # pyright: ignore[reportPrivateUsage]


def take_late_snapshots(self: RaftReplica, request: Any, response: Any, now: Any) -> Any:
    if isinstance(self.role, Following):
        self.role.awaited = request
        self.role.download = self.role.download or Download(request.snapshot)
        self.role.download.position = request.position
    return _on_snapshot_response(self, request, response, now)


_on_snapshot_response = RaftReplica.on_snapshot_response


ONE_VALUE = QuorumBounds(begins_led=True, timeouts=1, crashes=1)
PLANTED: dict[str, tuple[object, str, object, QuorumBounds, str]] = {
    "a vote is not stored": (
        RaftReplica,
        "_store",
        store_nothing,
        QuorumBounds(begins_led=True, values=0, crashes=1),
        VOTE_KEPT,
    ),
    "a voter votes for all": (
        RaftReplica,
        "_may_grant",
        grant_to_everyone,
        QuorumBounds(epochs=1, values=0),
        ONE_LEADER,
    ),
    "a leader counts what it has not flushed": (
        RaftReplica,
        "_advance",
        count_the_unflushed,
        ONE_VALUE,
        LEADER_COMPLETE,
    ),
    "a follower acknowledges what it has not flushed": (
        RaftReplica,
        "next_fetch",
        acknowledge_the_unflushed,
        ONE_VALUE,
        LEADER_COMPLETE,
    ),
    "a shorter log gets votes": (
        RaftReplica,
        "_may_grant",
        grant_to_shorter_logs,
        QuorumBounds(begins_led=True, timeouts=1),
        LEADER_COMPLETE,
    ),
    "a wiped voter votes": (
        RaftReplica,
        "on_vote_request",
        vote_for_an_earlier_folder,
        QuorumBounds(begins_led=True, timeouts=1, wipes=1),
        LEADER_COMPLETE,
    ),
    "a pre-vote counts as a vote": (
        RaftReplica,
        "on_vote_response",
        count_votes_of_other_elections,
        QuorumBounds(begins_led=True, timeouts=3, values=0, late=1),
        ONE_LEADER,
    ),
    "a late response is taken": (
        RaftReplica,
        "on_fetch_response",
        take_late_responses,
        QuorumBounds(begins_led=True, epochs=1, timeouts=0, values=2, late=1),
        LOGS_MATCH,
    ),
    "a restarted leader leads the same epoch": (
        RaftReplica,
        "_first_role",
        lead_on_after_a_restart,
        QuorumBounds(begins_led=True, epochs=1, timeouts=0, values=2, crashes=1),
        LOGS_MATCH,
    ),
    "a leader does not see that a log diverges": (
        replica_module,
        "diverging_epoch",
        lambda *_: NO_DIVERGENCE,
        QuorumBounds(begins_led=True),
        NEVER_CHANGED,
    ),
    "a leader commits what it alone has": (
        Leading,
        "committable",
        lambda self, voters, flushed_end: flushed_end,
        ONE_VALUE,
        LEADER_COMPLETE,
    ),
    "one vote is enough": (
        VoterSet,
        "majority",
        property(lambda self: 1),
        QuorumBounds(epochs=1, values=0),
        ONE_LEADER,
    ),
    "a snapshot has what is not committed": (
        RaftReplica,
        "_may_be_snapshot",
        lambda *_: True,
        QuorumBounds(begins_led=True, timeouts=0, snapshots=1),
        ONLY_COMMITTED,
    ),
    "a snapshot has the voters of later records": (
        VoterHistory,
        "at",
        lambda self, offset: self.latest,
        QuorumBounds(begins_led=True, timeouts=0, values=0, observers=1, changes=1, snapshots=1),
        VOTERS_OF_LOG,
    ),
    "the voters of a fetched snapshot are forgotten": (
        VoterHistory,
        "replace",
        lambda *_: None,
        QuorumBounds(
            begins_led=True, timeouts=0, is_behind=True, values=0, observers=1, changes=1, snapshots=1
        ),
        VOTERS_OF_LOG,
    ),
    "a leader does not see that a log ends below its own": (
        SnapshotLog,
        "needs_snapshot",
        lambda *_: False,
        QuorumBounds(begins_led=True, timeouts=0, is_behind=True),
        NEVER_CHANGED,
    ),
    "a snapshot has parts of two": (
        RaftReplica,
        "_become",
        keep_the_download,
        QuorumBounds(begins_led=True, timeouts=1, is_behind=True, values=0),
        ONE_SNAPSHOT,
    ),
    "a leader answers a read by itself": (
        Leading,
        "confirmed_round",
        lambda self, voters: self.round,
        QuorumBounds(begins_led=True, timeouts=1, is_behind=True, values=0, reads=1),
        READS_ALL,
    ),
    "two changes at a time": (
        RaftReplica,
        "_may_change",
        change_at_any_time,
        QuorumBounds(begins_led=True, timeouts=0, observers=1, changes=2),
        ONE_CHANGE,
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, fault, bounds, sentence = PLANTED[name]
    monkeypatch.setattr(owner, attribute, fault)
    seen = check(bounds)
    assert seen.violation is not None
    assert seen.violation.sentence == sentence
    assert seen.counterexample


def test_a_snapshot_over_a_log_that_has_more_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted faults are two: either one alone does no harm."""
    bounds = QuorumBounds(begins_led=True, timeouts=0, is_behind=True, values=0, late=1)
    monkeypatch.setattr(RaftReplica, "on_snapshot_response", take_late_snapshots)
    assert_complete(bounds)
    monkeypatch.setattr(RaftReplica, "_is_newer", lambda *_: True)
    seen = check(bounds)
    assert seen.violation is not None
    assert seen.violation.sentence == OVER_LESS


@pytest.mark.soak
def test_voters_of_a_truncated_record_that_stay_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VoterHistory, "truncate_to", lambda *_: None)
    seen = check(QuorumBounds(begins_led=True, values=0, observers=1, changes=2))
    assert seen.violation is not None
    assert seen.violation.sentence == "two sets of voters in a row differ in one voter"
