"""Leader epochs: which requests are fenced, and where two logs diverge.

The rules are those of fencing (KIP-320) and of truncation by leader epoch (KIP-101, KIP-279, KIP-595). The
log is only read, through :class:`ReplicaLog`: a few offsets and the epoch chain.

The *epoch chain* is the list of (leader epoch, offset of its first record), both ascending. An epoch is added
when a replica becomes leader, even if no record is ever written in it (KAFKA-7415).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from nilometer.identifiers import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset
from nilometer.wire.errors import ErrorCode


class ReplicaLog(Protocol):
    """The read-only view of the local log that the roles use."""

    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def log_end_offset(self) -> Offset:
        """The offset of the next record that will be written."""
        ...

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """The last epoch of the chain, or NO_LEADER_EPOCH for an empty chain."""
        ...

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """Return the largest epoch of the chain that is not above ``epoch``, and its end offset.

        The latest epoch ends at the log end offset. For an epoch below the whole chain the result is that
        epoch with the chain's first start offset; for one above it (NO_LEADER_EPOCH, UNKNOWN_OFFSET).
        """
        ...


class PartitionLog(ReplicaLog, Protocol):
    """The log of a partition, whose first records may be in remote storage only."""

    @property
    def local_start_offset(self) -> Offset:
        """The first offset whose record is here, or the log end offset."""
        ...


class EpochEnd(NamedTuple):
    """An epoch and the offset at which it ends in one replica's log."""

    epoch: LeaderEpoch
    end_offset: Offset


NO_DIVERGENCE = EpochEnd(NO_LEADER_EPOCH, UNKNOWN_OFFSET)
"""No divergence was detected by this fetch. Compare by identity."""


def check_leader_epoch(asked: LeaderEpoch, current: LeaderEpoch) -> ErrorCode:
    """Check the leader epoch of a request, ``asked``, against the ``current`` one (KIP-320).

    Returns ``none``, FENCED_LEADER_EPOCH (older) or UNKNOWN_LEADER_EPOCH (newer).
    """
    if asked == current:
        return ErrorCode.none
    return ErrorCode.fenced_leader_epoch if asked < current else ErrorCode.unknown_leader_epoch


def diverging_epoch(leader: ReplicaLog, fetch_offset: Offset, last_fetched_epoch: LeaderEpoch) -> EpochEnd:
    """Return where the log of a follower that fetches from ``fetch_offset`` diverges from the leader's.

    The leader's log must have all records that the follower has of ``last_fetched_epoch``, the epoch of its
    last record. Then, or if the follower has no records (NO_LEADER_EPOCH), the result is NO_DIVERGENCE
    itself. Otherwise it is the leader's largest epoch not above ``last_fetched_epoch``, with its end offset;
    or (NO_LEADER_EPOCH, UNKNOWN_OFFSET) if the leader's epochs are all below ``last_fetched_epoch``.
    """
    if last_fetched_epoch == NO_LEADER_EPOCH:
        return NO_DIVERGENCE
    epoch, end_offset = leader.end_offset_for_epoch(last_fetched_epoch)
    if epoch == last_fetched_epoch and fetch_offset <= end_offset:
        return NO_DIVERGENCE
    return EpochEnd(epoch, end_offset)


def truncation_offset(follower: ReplicaLog, diverging: EpochEnd) -> Offset:
    """Return the offset to which the follower truncates after the leader reported ``diverging``.

    If the follower has that epoch, it keeps the records that both logs have of it. If not, it truncates to
    the end of its own largest epoch below that; its next fetch finds the next divergence (KIP-279).
    """
    epoch, end_offset = follower.end_offset_for_epoch(diverging.epoch)
    if epoch == diverging.epoch:
        return min(end_offset, diverging.end_offset)
    if (
        epoch == NO_LEADER_EPOCH
    ):  # all its epochs are below the reported one: all its records may be the leader's
        return min(follower.log_end_offset, diverging.end_offset)
    return min(end_offset, follower.log_end_offset)
