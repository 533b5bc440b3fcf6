"""JoinGroup to a classic group: whether the member may join, with which id, and whether the group rebalances.

Rules by KIP: 394 (a member without an id gets one and must join again with it), 345 (a static member that
joins without an id replaces its previous member id), 389 (group.max.size), 814 (the leader of an unchanged
group is instructed to keep the assignment).
"""

from __future__ import annotations

from msgspec.structs import replace

from nilometer.coordinators.effects import Token
from nilometer.groups.classic.group import ClassicGroup
from nilometer.groups.classic.member import ClassicMember
from nilometer.groups.classic.rebalance import ClassicRebalance
from nilometer.groups.classic.rebalance_causes import RebalanceCause
from nilometer.groups.classic.state import ClassicGroupState
from nilometer.groups.requests import NO_MEMBER_ID, JoinGroup, JoinGroupReply, SyncGroupReply
from nilometer.groups.shard_state import ShardState
from nilometer.groups.turn import Turn
from nilometer.wire.errors import ErrorCode


class ClassicJoin:
    def __init__(self, state: ShardState, rebalance: ClassicRebalance) -> None:
        self._state = state
        self._rebalance = rebalance

    def refusal(self, request: JoinGroup) -> ErrorCode:
        """Return the error of a request that no group could accept; ``none`` if it is valid."""
        if not request.group_id:
            return ErrorCode.invalid_group_id
        low = self._state.config.group_min_session_timeout_ms
        high = self._state.config.group_max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            return ErrorCode.invalid_session_timeout
        return ErrorCode.none

    def join(self, turn: Turn, token: Token, group: ClassicGroup, request: JoinGroup) -> None:
        """Process a JoinGroup to ``group``: reply at once, or make the member wait for the others."""
        if not self._has_room_for(group, request.member_id):
            self._reject(turn, token, group, request)
        elif not group.supports_protocols_of(request):
            self._refuse(turn, token, request.member_id, ErrorCode.inconsistent_group_protocol)
        elif request.member_id == NO_MEMBER_ID:
            self._join_as_new(turn, token, group, request)
        elif request.member_id in group.pending_members:
            self._join_as_pending(turn, token, group, request)
        else:
            self._join_again(turn, token, group, request)

    # -- room ------------------------------------------------------------------------------------------

    def _has_room_for(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether the group may have this member too. During a rebalance only members that have joined in it
        count, so that the last ones to join are rejected."""
        size_max = self._state.config.group_max_size
        member = group.members.get(member_id)
        if group.is_empty or len(group.members) < size_max:
            return True
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            return (
                member is not None and member.awaiting_join is not None
            ) or group.awaiting_join_count < size_max
        return member is not None

    def _reject(self, turn: Turn, token: Token, group: ClassicGroup, request: JoinGroup) -> None:
        self._refuse(turn, token, NO_MEMBER_ID, ErrorCode.group_max_size_reached)
        member = group.members.get(request.member_id)
        if member is not None:
            self._rebalance.remove_member(turn, group, member)
        elif request.member_id in group.pending_members:
            self._rebalance.remove_pending(group, request.member_id)
        self._rebalance.maybe_complete_join(turn, group)

    # -- without an id ---------------------------------------------------------------------------------

    def _join_as_new(self, turn: Turn, token: Token, group: ClassicGroup, request: JoinGroup) -> None:
        instance_id = request.group_instance_id
        member_id = self._state.new_member_id(request.client_id if instance_id is None else instance_id)
        former_id = None if instance_id is None else group.static_members.get(instance_id)
        if former_id is not None:
            self._replace_static(turn, token, group, request, former_id, member_id)
        elif instance_id is None and request.requires_known_member_id:
            group.pending_members.add(member_id)
            self._rebalance.expect_sign_of(turn, group, member_id, request.session_timeout_ms)
            self._refuse(turn, token, member_id, ErrorCode.member_id_required)
        else:
            self._add(turn, token, group, request, member_id)

    def _add(self, turn: Turn, token: Token, group: ClassicGroup, request: JoinGroup, member_id: str) -> None:
        member = ClassicMember.joining(request, member_id)
        group.add(member)
        self._rebalance.wait_for_join(turn, member, token)
        if (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            and group.previous_state is ClassicGroupState.EMPTY
        ):
            group.new_member_added = True
        # The member cannot send heartbeats before it knows its id, and its connection may have been lost.
        self._rebalance.expect_heartbeat(
            turn, group, member, self._state.config.group_new_member_join_timeout_ms
        )
        self._begin(turn, group, member, f"adding new member {member_id}", request)

    def _replace_static(
        self,
        turn: Turn,
        token: Token,
        group: ClassicGroup,
        request: JoinGroup,
        former_id: str,
        member_id: str,
    ) -> None:
        former = group.members[former_id]
        self._rebalance.answer_join(turn, former, JoinGroupReply(ErrorCode.fenced_instance_id, former_id))
        self._rebalance.answer_sync(turn, former, SyncGroupReply(ErrorCode.fenced_instance_id))
        former_leader = group.leader
        self._rebalance.cancel_heartbeat(group, former_id)
        member = group.replace_static_member(former_id, member_id)
        member.client_id, member.client_host = request.client_id, request.client_host
        group.update(member, request)
        self._rebalance.expect_heartbeat(turn, group, member)
        if group.state is ClassicGroupState.STABLE and group.choose_protocol() == group.protocol_name:
            turn.write(group.to_record())
            turn.reply(token, self._kept(group, request, member_id, former_leader or NO_MEMBER_ID))
            return
        self._rebalance.wait_for_join(turn, member, token)
        why = f"static member {request.group_instance_id} came back as {member_id} in {group.state.value}"
        self._begin(turn, group, member, why, request)

    def _kept(
        self, group: ClassicGroup, request: JoinGroup, member_id: str, former_leader: str
    ) -> JoinGroupReply:
        """Return the reply to a static member whose return does not change the generation.

        The leader must not assign again. Versions without ``skip_assignment`` get the leader's former member
        id, so that the member does not take itself for the leader.
        """
        reply = self._rebalance.joined(group, member_id)
        if request.supports_skipping_assignment:
            return replace(reply, skip_assignment=group.is_leader(member_id))
        return replace(reply, leader=former_leader, members=())

    # -- with an id ------------------------------------------------------------------------------------

    def _join_as_pending(self, turn: Turn, token: Token, group: ClassicGroup, request: JoinGroup) -> None:
        """Add a member that joins again with the id from its MEMBER_ID_REQUIRED response (KIP-394).

        A request with a group instance id is rejected with UNKNOWN_MEMBER_ID: a static member is added by its
        first JoinGroup and never gets such an id.
        """
        if request.group_instance_id is not None:
            self._refuse(turn, token, request.member_id, ErrorCode.unknown_member_id)
            return
        self._add(turn, token, group, request, request.member_id)

    def _join_again(self, turn: Turn, token: Token, group: ClassicGroup, request: JoinGroup) -> None:
        verdict = group.check_member(request.member_id, request.group_instance_id)
        if verdict is not ErrorCode.none:
            self._refuse(turn, token, request.member_id, verdict)
            return
        member = group.members[request.member_id]
        why = self._why_rebalance(group, member, request)
        if why is None:
            turn.reply(token, self._rebalance.joined(group, member.member_id))
            return
        group.update(member, request)
        self._rebalance.wait_for_join(turn, member, token)
        self._begin(turn, group, member, why, request)

    def _why_rebalance(self, group: ClassicGroup, member: ClassicMember, request: JoinGroup) -> str | None:
        """Return why a member that joins again makes the group rebalance; None if only the response to its
        JoinGroup was lost."""
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            return f"member {member.member_id} is joining"
        if group.state is ClassicGroupState.STABLE and group.is_leader(member.member_id):
            # A leader that joins again requests a rebalance, for example because topics have changed.
            return f"leader {member.member_id} re-joining in {group.state.value}"
        if member.protocols != request.protocols:
            return f"member {member.member_id} changed its metadata in {group.state.value}"
        return None

    def _begin(
        self, turn: Turn, group: ClassicGroup, member: ClassicMember, why: str, request: JoinGroup
    ) -> None:
        reason = f"{why}; client reason: {request.reason or 'not provided'}"
        self._rebalance.maybe_prepare(turn, group, RebalanceCause.by(member, reason))

    def _refuse(self, turn: Turn, token: Token, member_id: str, error_code: ErrorCode) -> None:
        turn.reply(token, JoinGroupReply(error_code, member_id))
