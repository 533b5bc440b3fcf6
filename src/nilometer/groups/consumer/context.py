"""The state that the modules of this package share in one shard: groups, topics, and the members' timers."""

from __future__ import annotations

from enum import Enum, auto

from nilometer.groups.consumer.group import ConsumerGroup, Member, MemberState
from nilometer.groups.consumer.rebalance import assignment_delay_ms
from nilometer.groups.group_with_epochs import GroupsOfKind
from nilometer.groups.records import ConsumerGroupMetadataKey
from nilometer.groups.settings import GroupConfig
from nilometer.groups.turn import ShardState, TimerKey, Turn


class ConsumerTimer(Enum):
    SESSION = auto()
    REBALANCE = auto()
    """Until when a member must confirm that it has revoked partitions."""
    JOIN = auto()
    """Until when a member of the classic protocol must rejoin."""
    SYNC = auto()
    """Until when a member of the classic protocol that has joined must send SyncGroup."""
    ASSIGNMENT = auto()
    """When the next target assignment is due, or the next part of one."""


_OF_MEMBERS = (
    ConsumerTimer.SESSION,
    ConsumerTimer.REBALANCE,
    ConsumerTimer.JOIN,
    ConsumerTimer.SYNC,
)


class Context(GroupsOfKind[ConsumerGroup]):
    def __init__(self, state: ShardState) -> None:
        super().__init__(state, ConsumerGroup, ConsumerGroupMetadataKey)
        self.state = state
        self.topics = state.topics

    @property
    def config(self) -> GroupConfig:
        """The broker's settings; `config_of` has those in force for one group."""
        return self.state.config

    def config_of(self, group: ConsumerGroup) -> GroupConfig:
        return self.state.config_of(group.group_id)

    # ── timers ──────────────────────────────────────────────────────────────────────────────────
    def set_timer(
        self, turn: Turn, kind: ConsumerTimer, group: ConsumerGroup, member_id: str, within_ms: int
    ) -> None:
        """Set the member's timer of this kind, to expire in ``within_ms``."""
        self.state.timers.schedule(TimerKey(kind, group.group_id, member_id), turn.now_ms + within_ms)

    def set_timer_unless_set(
        self, turn: Turn, kind: ConsumerTimer, group: ConsumerGroup, member: Member
    ) -> None:
        """Set the member's timer of this kind to its rebalance timeout, unless the timer is set already."""
        if self.state.timers.deadline(TimerKey(kind, group.group_id, member.member_id)) is None:
            self.set_timer(turn, kind, group, member.member_id, member.rebalance_timeout_ms)

    def cancel_timer(self, kind: ConsumerTimer, group: ConsumerGroup, member_id: str) -> None:
        """Cancel the member's timer of this kind."""
        self.state.timers.cancel(TimerKey(kind, group.group_id, member_id))

    def expect_heartbeat(self, turn: Turn, group: ConsumerGroup, member: Member) -> None:
        """Restart the member's session timer."""
        classic = member.classic
        timeout_ms = (
            self.config_of(group).group_consumer_session_timeout_ms
            if classic is None
            else classic.session_timeout_ms
        )
        self.set_timer(turn, ConsumerTimer.SESSION, group, member.member_id, timeout_ms)

    def expect_revocation(
        self, turn: Turn, group: ConsumerGroup, before: Member | None, after: Member
    ) -> None:
        """Start the timer for the revocation of partitions if ``after`` must revoke some, or cancel it.

        It restarts whenever the member has changed (``before`` is not ``after``). Members of the classic
        protocol have the timer for their JoinGroup instead.
        """
        if after.state is not MemberState.UNREVOKED_PARTITIONS or after.uses_classic_protocol:
            self.cancel_timer(ConsumerTimer.REBALANCE, group, after.member_id)
        elif before is not after:
            self.set_timer(turn, ConsumerTimer.REBALANCE, group, after.member_id, after.rebalance_timeout_ms)

    def expect_assignment(self, turn: Turn, group: ConsumerGroup) -> None:
        """Schedule the next target assignment if one is due, or the next part of one; else cancel its
        timer."""
        key = TimerKey(ConsumerTimer.ASSIGNMENT, group.group_id)
        interval_ms = self.config_of(group).group_consumer_assignment_interval_ms
        delay_ms = assignment_delay_ms(group, interval_ms, turn.wall_ms)
        if group.unwritten is not None:
            delay_ms = 1
        if delay_ms is None:
            self.state.timers.cancel(key)
        else:
            self.state.timers.schedule(key, turn.now_ms + delay_ms)

    def forget_member(self, group: ConsumerGroup, member_id: str) -> None:
        """Cancel all timers of the member."""
        for kind in _OF_MEMBERS:
            self.cancel_timer(kind, group, member_id)

    def forget_group(self, group: ConsumerGroup) -> None:
        """Cancel all timers of the group and its members."""
        for member_id in group.members:
            self.forget_member(group, member_id)
        self.state.timers.cancel(TimerKey(ConsumerTimer.ASSIGNMENT, group.group_id))
