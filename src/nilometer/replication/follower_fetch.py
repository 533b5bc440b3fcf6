"""A follower's fetch, as the follower sends it and the leader receives it."""

from __future__ import annotations

from typing import NamedTuple

from nilometer.identifiers import NO_LEADER, BrokerEpoch, BrokerId, LeaderEpoch, Offset


class FollowerFetch(NamedTuple):
    """A fetch from ``fetch_offset``, which acknowledges all records below it.

    The follower keeps it, and passes it with its response to ``on_fetch_answer``. The last two fields are its
    own and not sent.
    """

    replica: BrokerId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    fetch_offset: Offset
    last_fetched_epoch: LeaderEpoch
    log_start_offset: Offset
    leader: BrokerId = NO_LEADER
    number: int = 0
    """Distinguishes the fetches of one role."""

    def is_sent_like(self, other: FollowerFetch) -> bool:
        """Whether a leader that has ``other`` in its fetch session need not be sent this fetch."""
        return (
            self.fetch_offset == other.fetch_offset
            and self.leader_epoch == other.leader_epoch
            and self.last_fetched_epoch == other.last_fetched_epoch
            and self.log_start_offset == other.log_start_offset
        )
