"""What a leader of the quorum knows of the others: how far their logs are durable, and since when they fetch.

A voter counts with the offset of its last fetch, the leader itself with the flushed end of its own log, if it
is a voter.

Invariant: *a leader commits by counting only records of its own epoch*, and all before them with the first of
these (Raft's figure 8): a record of an earlier epoch that a majority has can still be replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from nilometer.identifiers import Offset
from nilometer.raft.exchange import Moment, Timing
from nilometer.raft.voters import VoterKey, VoterSet


class Position(NamedTuple):
    end_offset: Offset
    """The replica's log is durable up to here."""
    fetched_ms: int
    round: int = 0
    """The last one that the replica has known of when it sent a fetch."""


POSITIONS_MAX: Final = 1_000
"""So many replicas are known; beyond, the observer is forgotten that has not fetched for the longest time."""


class Leading:
    """The role of a leader, from its election until it resigns or meets a later epoch."""

    __slots__ = ("_own", "_positions", "_timing", "began_ms", "epoch_start", "resend_ms", "round")

    def __init__(self, own: VoterKey, epoch_start: Offset, now: Moment, timing: Timing) -> None:
        self._own = own
        self._timing = timing
        self._positions: dict[VoterKey, Position] = {}
        self.epoch_start = epoch_start
        """Where the record is that begins this epoch."""
        self.began_ms = now.ms
        self.resend_ms = now.ms + timing.resend_ms
        """When the voters that have not fetched are told again of this epoch."""
        self.round = 0
        """How many reads have begun."""

    def on_fetch(
        self, replica: VoterKey, voters: VoterSet, fetch_offset: Offset, round_known: int, now: Moment
    ) -> None:
        """Note how far a replica's log is durable: it fetches from ``fetch_offset``.

        ``round_known``: the last round of reads that it had learned of; see :meth:`confirmed_round`.
        """
        self._note(replica, voters, Position(fetch_offset, now.ms, round_known))

    def on_snapshot_fetch(self, replica: VoterKey, voters: VoterSet, now: Moment) -> None:
        """The replica is there, though its log does not continue this one yet."""
        self._note(replica, voters, Position(self.end_offset_of(replica) or 0, now.ms))

    def _note(self, replica: VoterKey, voters: VoterSet, position: Position) -> None:
        positions = self._positions
        if replica not in positions and len(positions) >= POSITIONS_MAX:
            observers = (one for one in positions if one not in voters)
            del positions[min(observers, key=lambda one: positions[one].fetched_ms)]
        positions[replica] = position

    @property
    def positions(self) -> Mapping[VoterKey, Position]:
        """Of the replicas that have fetched in this epoch, observers too."""
        return self._positions

    def end_offset_of(self, replica: VoterKey) -> Offset | None:
        """Return how far the log of a voter or observer is durable; None if it has not fetched."""
        position = self._positions.get(replica)
        return None if position is None else position.end_offset

    def committable(self, voters: VoterSet, flushed_end: Offset) -> Offset:
        """Return the offset below which a majority has every record, or 0 if it has none of this epoch."""
        ends = (self._end_of(voter, flushed_end) for voter in voters.voters)
        found = _kth_largest(ends, voters.majority)
        return found if found > self.epoch_start else 0

    def _end_of(self, voter: VoterKey, flushed_end: Offset) -> Offset:
        if voter == self._own:
            return flushed_end
        position = self._positions.get(voter)
        return 0 if position is None else position.end_offset

    def confirmed_round(self, voters: VoterSet) -> int:
        """Return the last round that a majority had heard of, in this epoch, when it sent its newest fetches.

        A majority had not left this epoch after the round began: no later leader was elected before. That a
        fetch *arrives* after that says nothing: it may have been sent long before.
        """
        rounds = (self.round if voter == self._own else self._round_of(voter) for voter in voters.voters)
        return _kth_largest(rounds, voters.majority)

    def _round_of(self, voter: VoterKey) -> int:
        position = self._positions.get(voter)
        return 0 if position is None else position.round

    def majority_since_ms(self, voters: VoterSet, now: Moment) -> int:
        """Return a time since which a majority of the voters has fetched from this leader, in this epoch."""
        times = (now.ms if voter == self._own else self._fetched_ms(voter) for voter in voters.voters)
        return _kth_largest(times, voters.majority)

    def _fetched_ms(self, voter: VoterKey) -> int:
        position = self._positions.get(voter)
        return self.began_ms if position is None else position.fetched_ms

    def resigns_at_ms(self, voters: VoterSet, now: Moment) -> int:
        """Return when the leader resigns unless more voters fetch before (*check quorum*)."""
        return self.majority_since_ms(voters, now) + self._timing.fetch_ms * 3 // 2

    def silent(self, voters: VoterSet) -> list[VoterKey]:
        """Return the other voters that have not fetched in this epoch."""
        return [voter for voter in voters.voters if voter != self._own and voter not in self._positions]

    def by_length(self, voters: VoterSet) -> tuple[VoterKey, ...]:
        """Return the other voters, those with the longest logs first."""
        others = (voter for voter in voters.voters if voter != self._own)
        return tuple(sorted(others, key=lambda voter: (-self._end_of(voter, 0), voter)))


def _kth_largest(values: Iterable[int], k: int) -> int:
    return sorted(values, reverse=True)[k - 1]
