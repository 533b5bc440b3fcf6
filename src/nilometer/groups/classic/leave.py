"""LeaveGroup to a classic group: members that leave, or that an operator removes.

A member is named by its id, by member id and instance id, or (by operators) by its instance id alone. After
the last of them, the group rebalances, or completes the join phase if it waited only for them.
"""

from __future__ import annotations

from nilometer.coordinators.effects import Token
from nilometer.groups.classic.group import ClassicGroup
from nilometer.groups.classic.rebalance import ClassicRebalance
from nilometer.groups.classic.rebalance_causes import RebalanceCause
from nilometer.groups.requests import (
    NO_MEMBER_ID,
    LeaveGroup,
    LeaveGroupMember,
    LeaveGroupMemberReply,
    LeaveGroupReply,
)
from nilometer.groups.turn import Turn
from nilometer.wire.errors import ErrorCode


class ClassicLeave:
    def __init__(self, rebalance: ClassicRebalance) -> None:
        self._rebalance = rebalance

    def leave(self, turn: Turn, token: Token, group: ClassicGroup, request: LeaveGroup) -> None:
        answers: list[LeaveGroupMemberReply] = []
        causes: list[RebalanceCause] = []
        pending_left = False
        for leaver in request.members:
            member_id, verdict = self._find(group, leaver)
            if verdict is ErrorCode.none and member_id in group.pending_members:
                self._rebalance.remove_pending(group, member_id)
                pending_left = True
            elif verdict is ErrorCode.none:
                causes.append(self._remove_member(turn, group, member_id, leaver))
            answers.append(LeaveGroupMemberReply(leaver.member_id, leaver.group_instance_id, verdict))
        turn.reply(token, LeaveGroupReply(ErrorCode.none, tuple(answers)))
        if causes and not group.is_empty:
            self._rebalance.maybe_prepare(turn, group, causes[0])
        elif pending_left:
            self._rebalance.maybe_complete_join(turn, group)

    def _find(self, group: ClassicGroup, leaver: LeaveGroupMember) -> tuple[str, ErrorCode]:
        """Return the id of the member that ``leaver`` names, and the error if it may not leave by that
        name."""
        if leaver.member_id == NO_MEMBER_ID:
            known = group.static_members.get(leaver.group_instance_id or "")
            return (NO_MEMBER_ID, ErrorCode.unknown_member_id) if known is None else (known, ErrorCode.none)
        if leaver.member_id in group.pending_members:
            return leaver.member_id, ErrorCode.none
        return leaver.member_id, group.check_member(leaver.member_id, leaver.group_instance_id)

    def _remove_member(
        self, turn: Turn, group: ClassicGroup, member_id: str, leaver: LeaveGroupMember
    ) -> RebalanceCause:
        member = group.members[member_id]
        reason = f"member {member_id} left; client reason: {leaver.reason or 'not provided'}"
        self._rebalance.remove_member(turn, group, member)
        return RebalanceCause.by(member, reason)
