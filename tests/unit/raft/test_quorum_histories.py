"""Histories of a quorum that a search of all states does not reach, step by step; each shows a rule, and what
happens without it."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest

from nilometer.raft.exchange import ChangeRefused
from nilometer.raft.leading import Leading
from nilometer.raft.replica import RaftReplica
from nilometer.raft.snapshots import SnapshotLog
from nilometer.simulation.model_check.quorum import (
    LEADER_COMPLETE,
    NEVER_CHANGED,
    READS_ALL,
    QuorumBounds,
    QuorumState,
    QuorumWorld,
)

Taken: TypeAlias = tuple[str, int] | tuple[str, int, int]


def take(world: QuorumWorld, steps: list[Taken]) -> QuorumState:
    """Take the steps with these names, nodes and details, until one violates a property; the detail of
    ``deliver`` is the node that sent the message."""
    state = world.first_state()
    for wanted in steps:
        state = next(after for found, after in world.steps(state) if _is(state, found, wanted))
        if state.violation is not None:
            break
    return state


def _is(state: QuorumState, found: tuple[str, int, int], wanted: Taken) -> bool:
    name, node, detail = found
    if name == "deliver":
        detail = sorted(state.messages, key=repr)[detail].source
    return (name, node, detail) == wanted or (name, node) == wanted


def elect(node: int, *voters: int) -> list[Taken]:
    """The steps by which ``voters`` give ``node`` their pre-votes, then their votes."""
    return [("time out", node), *(("deliver", voter, node) for _ in range(2) for voter in voters)]


# Raft's figure 8: a record of epoch 1 is on a majority in epoch 3, and replaced in epoch 4.
FIGURE_8: list[Taken] = [
    ("append", 0, 1),
    ("flush", 0),
    ("time out", 2),  # it has lost its leader, so it grants pre-votes
    *elect(1, 2),
    ("flush", 1),
    ("deliver", 2, 1),
    ("deliver", 0, 1),  # it leads no longer
    *elect(0, 2),  # its log is longer than that of node 2
    ("flush", 0),
    ("deliver", 2, 0),
    ("fetch one record", 2),
    ("flush", 2),
    ("fetch, and lose the response", 2),  # the leader knows that node 2 has the record of epoch 1
    ("time out", 2),
    ("deliver", 1, 0),
    *elect(1, 2),  # whose log ends in epoch 2
]


FIGURE_8_BOUNDS = QuorumBounds(begins_led=True, in_order=False, epochs=4, timeouts=5, losses=1)


def test_a_record_of_an_earlier_epoch_is_not_committed_by_counting() -> None:
    state = take(QuorumWorld(FIGURE_8_BOUNDS), FIGURE_8)
    assert state.violation is None
    assert state.committed == ((1, 0),)
    assert state.leaders == ((1, 0), (2, 1), (3, 0), (4, 1))


def test_figure_8_without_the_rule_loses_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(self: Leading, voters: Any, flushed_end: int) -> int:
        ends = (self._end_of(voter, flushed_end) for voter in voters.voters)  # pyright: ignore[reportPrivateUsage]
        return sorted(ends, reverse=True)[voters.majority - 1]

    monkeypatch.setattr(Leading, "committable", count)
    state = take(QuorumWorld(FIGURE_8_BOUNDS), FIGURE_8)
    assert state.violation is not None
    assert state.violation.sentence == LEADER_COMPLETE


# The voters are 0 to 3. Node 0 adds node 4, which only the two know. In the next epoch node 0 is removed by a
# majority of the first voters; then it is elected by a majority of its own, which does not meet that one.
TWO_MAJORITIES: list[Taken] = [
    ("fetch", 4),
    ("add_voter", 0, 4),
    ("fetch", 4),
    ("flush", 4),
    ("time out", 2),
    ("time out", 3),
    *elect(1, 2, 3),
    ("remove_voter", 1, 0),
    ("flush", 1),
    ("deliver", 2, 1),
    ("fetch", 2),
    ("flush", 2),
    ("fetch", 2),  # nodes 1 and 2 are a majority of 1, 2 and 3
    ("time out", 4),
    ("time out", 0),
    ("deliver", 0, 1),
    *elect(0, 3, 4),  # with node 0 a majority of 0 to 4
]
BOUNDS = QuorumBounds(
    voters=4, observers=1, begins_led=True, in_order=False, epochs=3, timeouts=6, changes=2, values=0
)


def test_voters_do_not_change_before_the_leaders_epoch_is_committed() -> None:
    with pytest.raises(StopIteration):  # node 1 cannot remove one yet
        take(QuorumWorld(BOUNDS), TWO_MAJORITIES)


def test_a_change_that_comes_too_early_loses_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(self: RaftReplica) -> ChangeRefused | None:
        return None if isinstance(self.role, Leading) else ChangeRefused.NOT_LEADER

    monkeypatch.setattr(RaftReplica, "_may_change", change)
    state = take(QuorumWorld(BOUNDS), TWO_MAJORITIES)
    assert state.violation is not None
    assert state.violation.sentence == LEADER_COMPLETE


# Node 0 has a record of epoch 1 where node 1, the leader of epoch 2, has one that it commits with node 2. It
# replaces its records by a snapshot: then its log begins where the log of node 0 ends.
DIVERGES_BEFORE_THE_LOG: list[Taken] = [
    ("append", 0, 1),
    ("flush", 0),
    *elect(1, 2),
    ("flush", 1),
    ("deliver", 0, 1),  # it leads no longer
    ("deliver", 2, 1),
    ("fetch", 2),  # which gets the snapshot of the first record, in two parts
    ("fetch", 2),
    ("fetch", 2),
    ("fetch", 2),
    ("flush", 2),
    ("fetch", 2),
    ("snapshot", 1, 2),
    ("fetch", 0),
]
BEHIND = QuorumBounds(begins_led=True, is_behind=True, timeouts=1, snapshots=1)


def test_a_log_that_differs_before_the_leaders_begins_gets_a_snapshot() -> None:
    world = QuorumWorld(BEHIND)
    state = take(world, [*DIVERGES_BEFORE_THE_LOG, ("fetch", 0), ("fetch", 0)])
    assert state.violation is None
    file = world.process(state, 0).file
    assert file is not None and file.records == state.committed == ((1, 0), (2, 0))


def test_a_leader_that_does_not_compare_the_epoch_before_its_log_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def by_offset_alone(self: SnapshotLog, end_offset: int, last_epoch: int) -> bool:
        return end_offset < self.origin.end_offset

    monkeypatch.setattr(SnapshotLog, "needs_snapshot", by_offset_alone)
    state = take(QuorumWorld(BEHIND), DIVERGES_BEFORE_THE_LOG)
    assert state.violation is not None
    assert state.violation.sentence == NEVER_CHANGED


# Node 2 sends a fetch to node 0, and then elects node 1, which commits a record with it. Node 0 does not know
# that yet when it begins a read; then the fetch arrives.
A_FETCH_OF_BEFORE: list[Taken] = [
    ("time out", 1),
    ("deliver", 2, 1),
    ("fetch", 2),  # which gets the snapshot of node 0, in two parts
    ("fetch", 2),
    ("fetch", 2),
    ("send a fetch", 2),
    ("deliver", 2, 1),
    ("flush", 1),
    ("deliver", 2, 1),
    ("fetch", 2),
    ("flush", 2),
    ("fetch", 2),
    ("read", 0),
    ("deliver", 2, 2),
]
READING = QuorumBounds(begins_led=True, timeouts=1, is_behind=True, values=0, reads=1, late=1)


def test_a_fetch_that_was_sent_before_a_read_began_does_not_confirm_it() -> None:
    world = QuorumWorld(READING)
    state = take(world, A_FETCH_OF_BEFORE)
    assert state.violation is None and len(state.committed) == 2
    reader = world.process(state, 0)
    assert reader.read == (1, 1, 2) and reader.replica.confirmed_round() == 0, "it waits, and will be deposed"


def test_a_read_that_counts_fetches_when_they_arrive_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    note = Leading.on_fetch

    def count(
        self: Leading, replica: Any, voters: Any, fetch_offset: int, round_known: int, now: Any
    ) -> None:
        note(self, replica, voters, fetch_offset, self.round, now)

    monkeypatch.setattr(Leading, "on_fetch", count)
    state = take(QuorumWorld(READING), A_FETCH_OF_BEFORE)
    assert state.violation is not None
    assert state.violation.sentence == READS_ALL
