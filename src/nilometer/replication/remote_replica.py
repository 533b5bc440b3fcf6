"""A leader's state of one follower: its log end offset, and when it was last caught up.

The follower's log end offset is its last fetch offset; it is unknown until the follower has fetched in the
leader's epoch. A follower's high watermark is not kept (R-3), only the one last sent to it.
"""

from __future__ import annotations

from nilometer.identifiers import NO_BROKER_EPOCH, UNKNOWN_OFFSET, BrokerEpoch, BrokerId, Offset

NEVER_MS = -(1 << 62)
"""Earlier than any time: the replica was not caught up since this leader epoch started."""


class RemoteReplica:
    """One follower. Invariant: ``last_caught_up_ms`` never decreases, except by :meth:`mark_lagging`."""

    __slots__ = (
        "assigned",
        "broker_epoch",
        "broker_id",
        "is_silent",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "last_sent_high_watermark",
        "log_end_offset",
        "log_start_offset",
        "refused_broker_epoch",
    )

    def __init__(self, broker_id: BrokerId, *, assigned: bool, last_caught_up_ms: int) -> None:
        self.broker_id = broker_id
        self.assigned = assigned
        """Whether the replica is assigned. If not, it may still be in the ISR, but is never added again."""
        self.broker_epoch = NO_BROKER_EPOCH
        """The broker epoch of the last fetch."""
        self.refused_broker_epoch = NO_BROKER_EPOCH
        """The broker epoch that the controller rejected as ineligible."""
        self.is_silent = False
        """True from the proposal to remove it from the ISR for lagging until its next fetch."""
        self.log_start_offset = UNKNOWN_OFFSET
        self.log_end_offset = UNKNOWN_OFFSET
        self.last_caught_up_ms = last_caught_up_ms
        self.last_fetch_ms = NEVER_MS
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
        self.last_sent_high_watermark = UNKNOWN_OFFSET

    def on_fetch(
        self,
        broker_epoch: BrokerEpoch,
        fetch_offset: Offset,
        log_start_offset: Offset,
        leader_end_offset: Offset,
        now_ms: int,
    ) -> None:
        """Record a fetch, which shows that the follower has all records below ``fetch_offset``.

        It is caught up now if ``fetch_offset`` is the leader's log end offset. It was caught up at its
        previous fetch if it now has all records that the leader had then.
        """
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif (
            self.last_fetch_leader_end_offset != UNKNOWN_OFFSET
            and fetch_offset >= self.last_fetch_leader_end_offset
        ):
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        if broker_epoch != self.broker_epoch:
            self.broker_epoch = broker_epoch
            self.last_sent_high_watermark = UNKNOWN_OFFSET
        self.is_silent = False
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms

    def is_caught_up(self, leader_end_offset: Offset, now_ms: int, lag_time_max_ms: int) -> bool:
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_time_max_ms

    def mark_lagging(self) -> None:
        """Make the follower count as lagging for longer than ``replica.lag.time.max.ms``."""
        self.last_caught_up_ms = self.last_fetch_ms = NEVER_MS

    def __repr__(self) -> str:
        return f"RemoteReplica({self.broker_id}, log_end_offset={self.log_end_offset})"
