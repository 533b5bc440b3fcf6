"""The classic groups of a shard: processes their members' requests, their records and timers.

A group begins with the JoinGroup of a member without an id, or with the first offset that a client commits
without joining. Its record is written when a member creates it, when a generation becomes stable, when a
static member changes its id, and when the group becomes empty. Other changes are soft state: a coordinator
that loads the group has its last stable generation, and members that were joining must join again.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.coordinators.effects import Token
from nilometer.groups.classic.group import ClassicGroup
from nilometer.groups.classic.join import ClassicJoin
from nilometer.groups.classic.leave import ClassicLeave
from nilometer.groups.classic.member import ClassicMember
from nilometer.groups.classic.rebalance import ClassicRebalance
from nilometer.groups.classic.rebalance_causes import RebalanceCause
from nilometer.groups.classic.state import ClassicGroupState
from nilometer.groups.group import Group
from nilometer.groups.records import GroupMetadataKey, GroupMetadataValue
from nilometer.groups.requests import (
    NO_MEMBER_ID,
    DescribedGroup,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    OffsetCommit,
    SyncGroup,
    SyncGroupReply,
)
from nilometer.groups.shard_state import ShardState
from nilometer.groups.timers import TimerKey, TimerKind
from nilometer.groups.turn import Turn
from nilometer.wire.errors import ErrorCode

_KEPT_ALIVE_BY_COMMITS = (ClassicGroupState.STABLE, ClassicGroupState.PREPARING_REBALANCE)


class ClassicGroups:
    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._rebalance = ClassicRebalance(state)
        self._join = ClassicJoin(state, self._rebalance)
        self._leave = ClassicLeave(self._rebalance)

    def find(self, group_id: str) -> ClassicGroup | None:
        group = self._state.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    # -- loading ---------------------------------------------------------------------------------------

    def replay(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        """Apply a classic group's record while loading; a tombstone removes only a classic group."""
        if value is not None:
            self._state.groups[key.group] = ClassicGroup.from_record(key.group, value)
        elif self.find(key.group) is not None:
            del self._state.groups[key.group]

    def on_loaded(self, turn: Turn) -> None:
        """Start a full session timeout for every member; rebalance groups that are too large."""
        size_max = self._state.config.group_max_size
        for group in list(self._state.groups.values()):
            if not isinstance(group, ClassicGroup):
                continue
            for member in group.members.values():
                self._rebalance.expect_heartbeat(turn, group, member)
            if len(group.members) > size_max:
                reason = f"loaded with {len(group.members)} members, group.max.size is {size_max}"
                self._rebalance.prepare(turn, group, RebalanceCause(reason))

    # -- requests of members ---------------------------------------------------------------------------

    def join(self, turn: Turn, token: Token, request: JoinGroup) -> None:
        """Process a JoinGroup to a classic group, an empty consumer group, or a group that does not exist."""
        refusal = self._join.refusal(request)
        if refusal is not ErrorCode.none:
            turn.reply(token, JoinGroupReply(refusal, request.member_id))
            return
        found = self._state.groups.get(request.group_id)
        if isinstance(found, ClassicGroup):
            self._join.join(turn, token, found, request)
        elif request.member_id != NO_MEMBER_ID:
            turn.reply(token, JoinGroupReply(ErrorCode.unknown_member_id, request.member_id))
        else:
            self._join_first(turn, token, request, found)

    def _join_first(self, turn: Turn, token: Token, request: JoinGroup, replaced: Group | None) -> None:
        """Create the group with its first member, if the request is valid; it replaces an empty consumer
        group."""
        group = ClassicGroup(request.group_id)
        if not group.supports_protocols_of(request):
            self._join.join(turn, token, group, request)
            return
        if replaced is not None:
            self.remove(turn, replaced)
        group.state_wall_ms = turn.wall_ms
        self._state.groups[request.group_id] = group
        turn.write(group.to_record())
        self._join.join(turn, token, group, request)

    def sync(self, turn: Turn, token: Token, group: ClassicGroup, request: SyncGroup) -> None:
        verdict = self._check_sync(group, request)
        if verdict is not ErrorCode.none:
            turn.reply(token, SyncGroupReply(verdict))
            return
        member = group.members[request.member_id]
        self._rebalance.on_synced(group, member.member_id)
        if group.state is ClassicGroupState.STABLE:
            turn.reply(token, self._rebalance.assigned(group, member))
            return
        self._rebalance.wait_for_sync(turn, member, token)
        if group.is_leader(member.member_id):
            assignments = {each.member_id: each.assignment for each in request.assignments}
            self._rebalance.become_stable(turn, group, assignments)

    def _check_sync(self, group: ClassicGroup, request: SyncGroup) -> ErrorCode:
        verdict = group.check_member(request.member_id, request.group_instance_id)
        if verdict is not ErrorCode.none:
            return verdict
        if request.generation_id != group.generation:
            return ErrorCode.illegal_generation
        if request.protocol_type not in (None, group.protocol_type):
            return ErrorCode.inconsistent_group_protocol
        if group.protocol_name is not None and request.protocol_name not in (None, group.protocol_name):
            return ErrorCode.inconsistent_group_protocol
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def heartbeat(self, turn: Turn, token: Token, group: ClassicGroup, request: Heartbeat) -> None:
        verdict = group.check_member(request.member_id, request.group_instance_id)
        if verdict is ErrorCode.none and request.generation_id != group.generation:
            verdict = ErrorCode.illegal_generation
        if verdict is ErrorCode.none:
            self._rebalance.expect_heartbeat(turn, group, group.members[request.member_id])
            if group.state is ClassicGroupState.PREPARING_REBALANCE:
                verdict = ErrorCode.rebalance_in_progress
        turn.reply(token, HeartbeatReply(verdict))

    def leave(self, turn: Turn, token: Token, group: ClassicGroup, request: LeaveGroup) -> None:
        self._leave.leave(turn, token, group, request)

    def on_offsets_committed(self, turn: Turn, group: ClassicGroup, request: OffsetCommit) -> None:
        """Restart the session timeout of a member that has committed offsets, as a heartbeat does."""
        member = group.members.get(request.member_id)
        if member is not None and group.state in _KEPT_ALIVE_BY_COMMITS:
            self._rebalance.expect_heartbeat(turn, group, member)

    # -- time ------------------------------------------------------------------------------------------

    def on_timer(self, turn: Turn, key: TimerKey) -> None:
        group = self.find(key.group_id)
        if group is None:
            return
        if key.kind is TimerKind.CLASSIC_HEARTBEAT:
            self._rebalance.on_heartbeat_timeout(turn, group, key.member_id)
        elif key.kind is TimerKind.CLASSIC_INITIAL_JOIN:
            self._rebalance.on_initial_delay_over(turn, group)
        elif key.kind is TimerKind.CLASSIC_JOIN:
            self._rebalance.on_join_timeout(turn, group)
        elif key.kind is TimerKind.CLASSIC_SYNC:
            self._rebalance.on_sync_timeout(turn, group)

    # -- the end of a group, and changes between the protocols -------------------------------------------

    def remove(self, turn: Turn, group: Group) -> None:
        """Remove a group, of either type: write its tombstones and cancel its timers."""
        turn.write_all(group.tombstones())
        del self._state.groups[group.group_id]
        if isinstance(group, ClassicGroup):
            self._rebalance.cancel_timers(group)

    def give_up(self, turn: Turn, group: ClassicGroup) -> None:
        """Remove a group that becomes a consumer group: waiting members get an error on which they join
        again.

        Kafka returns REBALANCE_IN_PROGRESS to waiting JoinGroups. Not every client handles that error of a
        JoinGroup (aiokafka fails); on COORDINATOR_LOAD_IN_PROGRESS every client tries again with its member
        id.
        """
        for member in group.members.values():
            again = JoinGroupReply(ErrorCode.coordinator_load_in_progress, member.member_id)
            self._rebalance.answer_join(turn, member, again)
            self._rebalance.answer_sync(turn, member, SyncGroupReply(ErrorCode.rebalance_in_progress))
        self.remove(turn, group)

    def take_over(
        self,
        turn: Turn,
        group_id: str,
        generation: int,
        members: Sequence[ClassicMember],
        cause: RebalanceCause | None = None,
    ) -> ClassicGroup:
        """Create a stable classic group in place of a consumer group; members keep their assignments.

        With a ``cause``, the group rebalances at once. The consumer group's records and timers must have been
        removed before; there must be at least one member, and a protocol that all support.
        """
        group = ClassicGroup.stable(group_id, generation, members, turn.wall_ms)
        self._state.groups[group_id] = group
        turn.write(group.to_record())
        for member in group.members.values():
            self._rebalance.expect_heartbeat(turn, group, member)
        if cause is not None:
            self._rebalance.prepare(turn, group, cause)
        return group

    def describe(self, group_id: str) -> DescribedGroup:
        """Describe a group; one that is not classic or does not exist with GROUP_ID_NOT_FOUND and state Dead,
        since versions before 6 have no such error."""
        group = self._state.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return group.described()
        error = f"Group {group_id} {'not found' if group is None else 'is not a classic group'}."
        return DescribedGroup(group_id, ErrorCode.group_id_not_found, error, ClassicGroupState.DEAD.value)
