"""Leader epochs: which requests are fenced, and where two logs diverge.

Knows the rules of fencing (KIP-320) and of truncation by leader epoch (KIP-101, KIP-279, KIP-595). Never
touches a log: it asks a :class:`ReplicaLog`, a read-only view of a few numbers and of the epoch chain.

The *epoch chain* lists (leader epoch, offset of the first record written in it), both rising. An epoch is
entered when a replica becomes leader, even if nothing is ever written in it (KAFKA-7415).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from nilometer.replication.partition import NO_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset
from nilometer.wire.errors import ErrorCode


class ReplicaLog(Protocol):
    """What the roles may know of the local log."""

    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def log_end_offset(self) -> Offset:
        """The offset of the next record that will be written."""
        ...

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """The last epoch of the chain, or NO_EPOCH for an empty chain."""
        ...

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch of the chain that is not above ``epoch``, and the offset at which it ends.

        The latest epoch ends at the log end offset. For an epoch below the whole chain: that epoch itself
        with the chain's first start offset. For one above the whole chain: (NO_EPOCH, UNKNOWN_OFFSET).
        """
        ...


class EpochEnd(NamedTuple):
    """An epoch and the offset at which it ends in one replica's log."""

    epoch: LeaderEpoch
    end_offset: Offset


NO_DIVERGENCE = EpochEnd(NO_EPOCH, UNKNOWN_OFFSET)
"""The two logs do not diverge, as far as one fetch can tell. Compared by identity."""


def fence(asked: LeaderEpoch, current: LeaderEpoch) -> ErrorCode:
    """Whether a request made under epoch ``asked`` may be served under ``current`` (KIP-320)."""
    if asked == current:
        return ErrorCode.none
    return ErrorCode.fenced_leader_epoch if asked < current else ErrorCode.unknown_leader_epoch


def diverging_epoch(leader: ReplicaLog, fetch_offset: Offset, last_fetched_epoch: LeaderEpoch) -> EpochEnd:
    """Where the log of a follower that fetches from ``fetch_offset`` diverges from the leader's.

    Returns NO_DIVERGENCE itself if they do not diverge. A follower without records (NO_EPOCH) never diverges.
    What the follower has of its last epoch must be in the leader's log in full; if not, the answer names the
    largest epoch not above it and where that epoch ends in the leader's log. If that log's chain ends below
    ``last_fetched_epoch``, the answer is (NO_EPOCH, UNKNOWN_OFFSET): unknown.
    """
    if last_fetched_epoch == NO_EPOCH:
        return NO_DIVERGENCE
    epoch, end_offset = leader.end_offset_for_epoch(last_fetched_epoch)
    if epoch == last_fetched_epoch and fetch_offset <= end_offset:
        return NO_DIVERGENCE
    return EpochEnd(epoch, end_offset)


def truncation_offset(follower: ReplicaLog, diverging: EpochEnd) -> Offset:
    """How much the follower keeps: all of its log that can still agree with the leader's.

    If the follower knows the epoch that the leader named, it keeps what both have of it. If not, it truncates
    to the end of its own largest epoch below that; its next fetch finds the next divergence (KIP-279).
    """
    epoch, end_offset = follower.end_offset_for_epoch(diverging.epoch)
    if epoch == diverging.epoch:
        return min(end_offset, diverging.end_offset)
    if epoch == NO_EPOCH:  # its own chain lies below the epoch named: all of it may still agree
        return min(follower.log_end_offset, diverging.end_offset)
    return min(end_offset, follower.log_end_offset)
