"""A shard that serves the classic protocol alone (``group.coordinator.rebalance.protocols=classic``)."""

from __future__ import annotations

from nilometer.groups.effects import Token
from nilometer.groups.records import CoordinatorRecord
from nilometer.groups.refusals import refusal
from nilometer.groups.requests import (
    ConsumerGroupHeartbeat,
    DescribedConsumerGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)
from nilometer.groups.timers import TimerKey
from nilometer.groups.turn import Turn
from nilometer.wire.errors import ErrorCode


class DisabledConsumerGroups:
    """Records of consumer groups are passed over and stay in the log; nobody is in such a group."""

    def replay(self, record: CoordinatorRecord) -> None:
        pass

    def on_loaded(self, turn: Turn) -> None:
        pass

    def on_image(self, turn: Turn) -> None:
        pass

    def on_timer(self, turn: Turn, key: TimerKey) -> None:
        pass

    def heartbeat(self, turn: Turn, token: Token, request: ConsumerGroupHeartbeat) -> None:
        turn.reply(token, refusal(request, ErrorCode.unsupported_version))

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        return DescribedConsumerGroup(group_id, ErrorCode.unsupported_version)

    def classic_join(self, turn: Turn, token: Token, request: JoinGroup) -> None:
        turn.reply(token, refusal(request, ErrorCode.inconsistent_group_protocol))

    def classic_sync(self, turn: Turn, token: Token, request: SyncGroup) -> None:
        turn.reply(token, refusal(request, ErrorCode.unknown_member_id))

    def classic_heartbeat(self, turn: Turn, token: Token, request: Heartbeat) -> None:
        turn.reply(token, refusal(request, ErrorCode.unknown_member_id))

    def classic_leave(self, turn: Turn, token: Token, request: LeaveGroup) -> None:
        turn.reply(token, refusal(request, ErrorCode.unknown_member_id))
