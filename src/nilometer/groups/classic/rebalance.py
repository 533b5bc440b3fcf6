"""The phases of a classic group's rebalance: prepare, join, sync; and the time-outs that end them.

::

    prepare ──▶ all members join (again) ──▶ complete_join ──▶ all members send SyncGroup ──▶ stable
                 or the timeout expires                         or the timeout expires: prepare

Invariants:
- a group that is preparing has a join timer; one that waits for SyncGroups has a sync timer: no phase lasts
  longer than the longest rebalance timeout of its members (or the initial delay, extended up to that);
- after the removal of a member, or of a pending one, it is checked again whether all have joined: no member
  waits for one that has left;
- a member that is removed while its request waits gets the reply first.
"""

from __future__ import annotations

from nilometer.coordinators.effects import Token
from nilometer.groups.classic.group import ClassicGroup
from nilometer.groups.classic.member import NO_ASSIGNMENT, ClassicMember
from nilometer.groups.classic.rebalance_causes import RebalanceCause
from nilometer.groups.classic.state import ClassicGroupState
from nilometer.groups.requests import JoinGroupReply, SyncGroupReply
from nilometer.groups.shard_state import ShardState
from nilometer.groups.timers import TimerKey, TimerKind
from nilometer.groups.turn import RebalanceNote, Turn
from nilometer.wire.errors import ErrorCode

_STABLE_OR_COMPLETING = (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE)


class ClassicRebalance:
    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._timers = state.timers

    # -- prepare ---------------------------------------------------------------------------------------

    def maybe_prepare(self, turn: Turn, group: ClassicGroup, cause: RebalanceCause) -> None:
        """Start a rebalance; if the group is preparing one already, complete the join phase if all members
        have joined."""
        if group.can_prepare_rebalance:
            self.prepare(turn, group, cause)
        else:
            self.maybe_complete_join(turn, group)

    def prepare(self, turn: Turn, group: ClassicGroup, cause: RebalanceCause) -> None:
        """Start a rebalance: end the sync phase, if there is one, and begin the join phase."""
        group.note_cause(cause, turn.wall_ms)
        turn.act(RebalanceNote(group.group_id, group.generation, str(cause)))
        if group.state is ClassicGroupState.COMPLETING_REBALANCE:
            self._cancel_syncs(turn, group)
        self._end_sync_phase(group)
        is_initial = group.is_empty
        group.become(ClassicGroupState.PREPARING_REBALANCE, turn.wall_ms)
        if is_initial:
            self._begin_initial_delay(turn, group)
        elif group.has_all_members_joined:
            self.complete_join(turn, group)
        else:
            self._schedule_join(turn, group)

    def _cancel_syncs(self, turn: Turn, group: ClassicGroup) -> None:
        """Reply REBALANCE_IN_PROGRESS to all waiting SyncGroups, and drop the assignments."""
        for member in group.members.values():
            member.assignment = NO_ASSIGNMENT
            if self.answer_sync(turn, member, SyncGroupReply(ErrorCode.rebalance_in_progress)):
                self.expect_heartbeat(turn, group, member)

    def _begin_initial_delay(self, turn: Turn, group: ClassicGroup) -> None:
        """Delay an empty group's first rebalance, so that members that start together share it."""
        delay_ms = self._state.config.group_initial_rebalance_delay_ms
        group.initial_delay_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        group.new_member_added = False
        self._timers.schedule(
            TimerKey(TimerKind.CLASSIC_INITIAL_JOIN, group.group_id), turn.now_ms + delay_ms
        )

    def on_initial_delay_over(self, turn: Turn, group: ClassicGroup) -> None:
        if group.state is not ClassicGroupState.PREPARING_REBALANCE:
            return
        remaining_ms = group.initial_delay_remaining_ms
        if not group.members or not group.new_member_added or remaining_ms == 0:
            self.complete_join(turn, group)
            return
        delay_ms = min(self._state.config.group_initial_rebalance_delay_ms, remaining_ms)
        group.new_member_added = False
        group.initial_delay_remaining_ms = remaining_ms - delay_ms
        self._timers.schedule(
            TimerKey(TimerKind.CLASSIC_INITIAL_JOIN, group.group_id), turn.now_ms + delay_ms
        )

    # -- join ------------------------------------------------------------------------------------------

    def _schedule_join(self, turn: Turn, group: ClassicGroup) -> None:
        self._timers.schedule(
            TimerKey(TimerKind.CLASSIC_JOIN, group.group_id), turn.now_ms + group.rebalance_timeout_ms
        )

    def maybe_complete_join(self, turn: Turn, group: ClassicGroup) -> None:
        """Complete the join phase if all members have joined; but not during the initial delay, which is for
        members that have not joined yet."""
        if (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            and group.previous_state is not ClassicGroupState.EMPTY
            and group.has_all_members_joined
        ):
            self.complete_join(turn, group)

    def on_join_timeout(self, turn: Turn, group: ClassicGroup) -> None:
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            self.complete_join(turn, group)

    def complete_join(self, turn: Turn, group: ClassicGroup) -> None:
        """End the join phase: begin a generation with the members that have joined, and with all static
        members; the others are removed. If only static members are left and none has joined, wait again."""
        self._cancel_join_timers(group)
        for member in list(group.members.values()):
            if member.awaiting_join is None and not member.is_static:
                self._forget_member(group, member.member_id)
        if group.members and not group.elect_joined_leader():
            self._schedule_join(turn, group)
            return
        group.become_next_generation(turn.wall_ms)
        if group.is_empty:
            turn.write(group.to_record())
            return
        for member in group.members.values():
            member.is_new = False
            self.answer_join(turn, member, self.joined(group, member.member_id))
            self.expect_heartbeat(turn, group, member)
        group.pending_sync.update(group.members)
        self._timers.schedule(
            TimerKey(TimerKind.CLASSIC_SYNC, group.group_id), turn.now_ms + group.rebalance_timeout_ms
        )

    def joined(self, group: ClassicGroup, member_id: str) -> JoinGroupReply:
        """Return the reply that makes the member part of the current generation."""
        return JoinGroupReply(
            ErrorCode.none,
            member_id,
            group.generation,
            group.protocol_type,
            group.protocol_name,
            group.leader or "",
            members=group.joined_members() if group.is_leader(member_id) else (),
        )

    # -- sync ------------------------------------------------------------------------------------------

    def on_synced(self, group: ClassicGroup, member_id: str) -> None:
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            self._timers.cancel(TimerKey(TimerKind.CLASSIC_SYNC, group.group_id))

    def become_stable(self, turn: Turn, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
        """End the sync phase with the leader's assignments; a member without one gets an empty assignment."""
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, NO_ASSIGNMENT)
        group.become(ClassicGroupState.STABLE, turn.wall_ms)
        turn.write(group.to_record())
        for member in group.members.values():
            if self.answer_sync(turn, member, self.assigned(group, member)):
                self.expect_heartbeat(turn, group, member)

    def assigned(self, group: ClassicGroup, member: ClassicMember) -> SyncGroupReply:
        return SyncGroupReply(ErrorCode.none, group.protocol_type, group.protocol_name, member.assignment)

    def on_sync_timeout(self, turn: Turn, group: ClassicGroup) -> None:
        """Remove the members that have sent no SyncGroup, since their partitions would not be read; then
        rebalance."""
        if group.state not in _STABLE_OR_COMPLETING or not group.pending_sync:
            return
        silent = [member_id for member_id in group.members if member_id in group.pending_sync]
        member_at_fault = group.members[silent[0]]
        for member_id in silent:
            self._forget_member(group, member_id)
        reason = f"removing {', '.join(silent)}: no SyncGroup within the rebalance timeout"
        self.prepare(turn, group, RebalanceCause.by(member_at_fault, reason))

    def _end_sync_phase(self, group: ClassicGroup) -> None:
        group.pending_sync.clear()
        self._timers.cancel(TimerKey(TimerKind.CLASSIC_SYNC, group.group_id))

    # -- heartbeats and departures ---------------------------------------------------------------------

    def expect_heartbeat(
        self, turn: Turn, group: ClassicGroup, member: ClassicMember, timeout_ms: int | None = None
    ) -> None:
        """Restart the member's session timer: ``timeout_ms``, by default its session timeout."""
        within_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        self.expect_sign_of(turn, group, member.member_id, within_ms)

    def expect_sign_of(self, turn: Turn, group: ClassicGroup, member_id: str, within_ms: int) -> None:
        """Set the session timer of a member, or of a pending one, to expire in ``within_ms``."""
        key = TimerKey(TimerKind.CLASSIC_HEARTBEAT, group.group_id, member_id)
        self._timers.schedule(key, turn.now_ms + within_ms)

    def on_heartbeat_timeout(self, turn: Turn, group: ClassicGroup, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is None:
            group.pending_members.discard(member_id)
        elif member.is_excused:
            return
        else:
            cause = RebalanceCause.by(
                member, f"removing member {member_id}: no heartbeat for {member.session_timeout_ms} ms"
            )
            self.remove_member(turn, group, member)
            if group.state in _STABLE_OR_COMPLETING:
                self.prepare(turn, group, cause)
                return
        if group.state is ClassicGroupState.PREPARING_REBALANCE and group.has_all_members_joined:
            self._complete_unless_initial(turn, group)

    def _complete_unless_initial(self, turn: Turn, group: ClassicGroup) -> None:
        """Complete the join phase, unless the initial delay runs and members are left: more may join."""
        if group.previous_state is not ClassicGroupState.EMPTY or not group.members:
            self.complete_join(turn, group)

    def remove_member(self, turn: Turn, group: ClassicGroup, member: ClassicMember) -> None:
        """Remove a member; its waiting request gets UNKNOWN_MEMBER_ID, so that its client may join as a new
        member."""
        self.answer_join(turn, member, JoinGroupReply(ErrorCode.unknown_member_id))
        self.answer_sync(turn, member, SyncGroupReply(ErrorCode.unknown_member_id))
        self._forget_member(group, member.member_id)

    def remove_pending(self, group: ClassicGroup, member_id: str) -> None:
        self._forget_member(group, member_id)

    def _forget_member(self, group: ClassicGroup, member_id: str) -> None:
        group.remove(member_id)
        self.cancel_heartbeat(group, member_id)

    def cancel_heartbeat(self, group: ClassicGroup, member_id: str) -> None:
        self._timers.cancel(TimerKey(TimerKind.CLASSIC_HEARTBEAT, group.group_id, member_id))

    # -- waiting requests and their replies ------------------------------------------------------------

    def wait_for_join(self, turn: Turn, member: ClassicMember, token: Token) -> None:
        """Make the JoinGroup ``token`` wait; an earlier waiting one of the member gets an error."""
        if member.awaiting_join is not None:
            superseded = JoinGroupReply(ErrorCode.rebalance_in_progress, member.member_id)
            turn.reply(member.awaiting_join, superseded)
        member.awaiting_join = token

    def wait_for_sync(self, turn: Turn, member: ClassicMember, token: Token) -> None:
        self.answer_sync(turn, member, SyncGroupReply(ErrorCode.rebalance_in_progress))
        member.awaiting_sync = token

    def answer_join(self, turn: Turn, member: ClassicMember, reply: JoinGroupReply) -> None:
        """Send ``reply`` to the member's waiting JoinGroup, if there is one."""
        token, member.awaiting_join = member.awaiting_join, None
        if token is not None:
            turn.reply(token, reply)

    def answer_sync(self, turn: Turn, member: ClassicMember, reply: SyncGroupReply) -> bool:
        """Send ``reply`` to the member's waiting SyncGroup; false if there is none."""
        token, member.awaiting_sync = member.awaiting_sync, None
        if token is not None:
            turn.reply(token, reply)
        return token is not None

    def _cancel_join_timers(self, group: ClassicGroup) -> None:
        for kind in (TimerKind.CLASSIC_JOIN, TimerKind.CLASSIC_INITIAL_JOIN):
            self._timers.cancel(TimerKey(kind, group.group_id))

    def cancel_timers(self, group: ClassicGroup) -> None:
        """Cancel all timers of a group that is removed."""
        self._cancel_join_timers(group)
        self._end_sync_phase(group)
        for member_id in (*group.members, *sorted(group.pending_members)):
            self.cancel_heartbeat(group, member_id)
