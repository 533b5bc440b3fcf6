"""The classic groups of a shard: what their members' requests, their records and their timers do to them.

A JoinGroup decides whether the member may join, and with which id. A rebalance has the phases prepare, join
and sync, each with a time-out that ends it. Members leave, or an operator removes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto

from msgspec.structs import replace

from nilometer.coordinators import Token
from nilometer.groups.classic_group import (
    NO_ASSIGNMENT,
    ClassicGroup,
    ClassicGroupState,
    ClassicMember,
    RebalanceCause,
)
from nilometer.groups.records import GroupMetadataKey, GroupMetadataValue
from nilometer.groups.requests import (
    NO_MEMBER_ID,
    RECORD_BYTES_MAX,
    DescribedGroup,
    Heartbeat,
    HeartbeatResult,
    JoinGroup,
    JoinGroupResult,
    LeaveGroup,
    LeaveGroupMember,
    LeaveGroupMemberResult,
    LeaveGroupResult,
    OffsetCommit,
    SyncGroup,
    SyncGroupResult,
)
from nilometer.groups.turn import Group, RebalanceNote, ShardState, TimerKey, Turn
from nilometer.wire.errors import ErrorCode

PENDING_MAX = 10_000
"""So many ids may be given in a group to clients that have not joined with them. They are not members, and
``group.max.size`` does not count them, as in Kafka, where they have no bound."""
CANCELLED_AT_ONCE = 256
"""When a group is removed, so many session timers of clients that have not joined are cancelled in a call."""
NAMED_MAX = 20
"""So many members are named in the reason of a rebalance."""


class ClassicTimer(Enum):
    HEARTBEAT = auto()
    """The session timeout of a member, or of one that has an id but has not joined yet."""
    JOIN = auto()
    """The end of the join phase: members that have not rejoined are removed."""
    INITIAL_JOIN = auto()
    """The end of the initial rebalance delay, which may then be extended."""
    SYNC = auto()
    """The end of the sync phase: members that have sent no SyncGroup are removed."""
    REMOVED = auto()
    """Groups were removed, and timers of clients that had not joined them are still to be cancelled."""


_REMOVED = TimerKey(ClassicTimer.REMOVED)


_STABLE_OR_COMPLETING = (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE)


class ClassicRebalance:
    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._timers = state.timers
        self._removed: list[ClassicGroup] = []
        """Removed groups of which some timers are still to be cancelled."""

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
        turn.act(RebalanceNote(group.group_id, group.generation, str(cause.cut())))
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
        """GroupResult REBALANCE_IN_PROGRESS to all waiting SyncGroups, and drop the assignments."""
        for member in group.members.values():
            group.assign(member, NO_ASSIGNMENT)
            if self.answer_sync(turn, member, SyncGroupResult(ErrorCode.rebalance_in_progress)):
                self.expect_heartbeat(turn, group, member)

    def _begin_initial_delay(self, turn: Turn, group: ClassicGroup) -> None:
        """Delay an empty group's first rebalance, so that members that start together share it."""
        delay_ms = self._state.config.group_initial_rebalance_delay_ms
        group.initial_delay_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        group.new_member_added = False
        self._timers.schedule(TimerKey(ClassicTimer.INITIAL_JOIN, group.group_id), turn.now_ms + delay_ms)

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
        self._timers.schedule(TimerKey(ClassicTimer.INITIAL_JOIN, group.group_id), turn.now_ms + delay_ms)

    # -- join ------------------------------------------------------------------------------------------

    def _schedule_join(self, turn: Turn, group: ClassicGroup) -> None:
        self._timers.schedule(
            TimerKey(ClassicTimer.JOIN, group.group_id), turn.now_ms + group.rebalance_timeout_ms
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
            TimerKey(ClassicTimer.SYNC, group.group_id), turn.now_ms + group.rebalance_timeout_ms
        )

    def joined(self, group: ClassicGroup, member_id: str) -> JoinGroupResult:
        """Return the result that makes the member part of the current generation."""
        return JoinGroupResult(
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
            self._timers.cancel(TimerKey(ClassicTimer.SYNC, group.group_id))

    def become_stable(self, turn: Turn, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
        """End the sync phase with the leader's assignments; a member without one gets an empty assignment."""
        for member in group.members.values():
            group.assign(member, assignments.get(member.member_id, NO_ASSIGNMENT))
        group.become(ClassicGroupState.STABLE, turn.wall_ms)
        turn.write(group.to_record())
        for member in group.members.values():
            if self.answer_sync(turn, member, self.assigned(group, member)):
                self.expect_heartbeat(turn, group, member)

    def assigned(self, group: ClassicGroup, member: ClassicMember) -> SyncGroupResult:
        return SyncGroupResult(ErrorCode.none, group.protocol_type, group.protocol_name, member.assignment)

    def on_sync_timeout(self, turn: Turn, group: ClassicGroup) -> None:
        """Remove the members that have sent no SyncGroup, since their partitions would not be read; then
        rebalance."""
        if group.state not in _STABLE_OR_COMPLETING or not group.pending_sync:
            return
        silent = [member_id for member_id in group.members if member_id in group.pending_sync]
        member_at_fault = group.members[silent[0]]
        for member_id in silent:
            self._forget_member(group, member_id)
        more = f" and {len(silent) - NAMED_MAX} more" if len(silent) > NAMED_MAX else ""
        named = ", ".join(silent[:NAMED_MAX]) + more
        reason = f"removing {named}: no SyncGroup within the rebalance timeout"
        self.prepare(turn, group, RebalanceCause.by(member_at_fault, reason))

    def _end_sync_phase(self, group: ClassicGroup) -> None:
        group.pending_sync.clear()
        self._timers.cancel(TimerKey(ClassicTimer.SYNC, group.group_id))

    # -- heartbeats and departures ---------------------------------------------------------------------

    def expect_heartbeat(
        self, turn: Turn, group: ClassicGroup, member: ClassicMember, timeout_ms: int | None = None
    ) -> None:
        """Restart the member's session timer: ``timeout_ms``, by default its session timeout."""
        within_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        self.expect_sign_of(turn, group, member.member_id, within_ms)

    def expect_sign_of(self, turn: Turn, group: ClassicGroup, member_id: str, within_ms: int) -> None:
        """Set the session timer of a member, or of a pending one, to expire in ``within_ms``."""
        key = TimerKey(ClassicTimer.HEARTBEAT, group.group_id, member_id)
        self._timers.schedule(key, turn.now_ms + within_ms)

    def on_heartbeat_timeout(self, turn: Turn, group: ClassicGroup, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is None:
            group.discard_pending(member_id)
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
        self.answer_join(turn, member, JoinGroupResult(ErrorCode.unknown_member_id))
        self.answer_sync(turn, member, SyncGroupResult(ErrorCode.unknown_member_id))
        self._forget_member(group, member.member_id)

    def remove_pending(self, group: ClassicGroup, member_id: str) -> None:
        self._forget_member(group, member_id)

    def _forget_member(self, group: ClassicGroup, member_id: str) -> None:
        group.remove(member_id)
        self.cancel_heartbeat(group, member_id)

    def cancel_heartbeat(self, group: ClassicGroup, member_id: str) -> None:
        self._timers.cancel(TimerKey(ClassicTimer.HEARTBEAT, group.group_id, member_id))

    # -- waiting requests and their results ------------------------------------------------------------

    def wait_for_join(self, turn: Turn, member: ClassicMember, token: Token) -> None:
        """Make the JoinGroup ``token`` wait; an earlier waiting one of the member gets an error."""
        if member.awaiting_join is not None:
            superseded = JoinGroupResult(ErrorCode.rebalance_in_progress, member.member_id)
            turn.resolve(member.awaiting_join, superseded)
        member.awaiting_join = token

    def wait_for_sync(self, turn: Turn, member: ClassicMember, token: Token) -> None:
        self.answer_sync(turn, member, SyncGroupResult(ErrorCode.rebalance_in_progress))
        member.awaiting_sync = token

    def answer_join(self, turn: Turn, member: ClassicMember, result: JoinGroupResult) -> None:
        """Send ``result`` to the member's waiting JoinGroup, if there is one."""
        token, member.awaiting_join = member.awaiting_join, None
        if token is not None:
            turn.resolve(token, result)

    def answer_sync(self, turn: Turn, member: ClassicMember, result: SyncGroupResult) -> bool:
        """Send ``result`` to the member's waiting SyncGroup; false if there is none."""
        token, member.awaiting_sync = member.awaiting_sync, None
        if token is not None:
            turn.resolve(token, result)
        return token is not None

    def _cancel_join_timers(self, group: ClassicGroup) -> None:
        for kind in (ClassicTimer.JOIN, ClassicTimer.INITIAL_JOIN):
            self._timers.cancel(TimerKey(kind, group.group_id))

    def cancel_timers(self, turn: Turn, group: ClassicGroup) -> None:
        """Cancel all timers of a group that is removed; those of many clients that have not joined, which are
        ignored when they are due, in later calls."""
        self._cancel_join_timers(group)
        self._end_sync_phase(group)
        for member_id in group.members:
            self.cancel_heartbeat(group, member_id)
        self._removed.append(group)
        self.cancel_removed(turn)

    def cancel_removed(self, turn: Turn) -> None:
        left = CANCELLED_AT_ONCE
        while self._removed and left:
            group = self._removed[-1]
            if not group.pending_members:
                self._removed.pop()
                continue
            member_id, _ = group.pending_members.popitem()
            self.cancel_heartbeat(group, member_id)
            left -= 1
        if self._removed:
            self._timers.schedule(_REMOVED, turn.now_ms + 1)


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
        """Process a JoinGroup to ``group``: result at once, or make the member wait for the others."""
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
            if len(group.pending_members) >= PENDING_MAX:
                self._refuse(turn, token, NO_MEMBER_ID, ErrorCode.group_max_size_reached)
                return
            group.add_pending(member_id)
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
        self._rebalance.answer_join(turn, former, JoinGroupResult(ErrorCode.fenced_instance_id, former_id))
        self._rebalance.answer_sync(turn, former, SyncGroupResult(ErrorCode.fenced_instance_id))
        former_leader = group.leader
        self._rebalance.cancel_heartbeat(group, former_id)
        member = group.replace_static_member(former_id, member_id, request.client_id, request.client_host)
        group.update(member, request)
        self._rebalance.expect_heartbeat(turn, group, member)
        if group.state is ClassicGroupState.STABLE and group.choose_protocol() == group.protocol_name:
            turn.write(group.to_record())
            turn.resolve(token, self._kept(group, request, member_id, former_leader or NO_MEMBER_ID))
            return
        self._rebalance.wait_for_join(turn, member, token)
        why = f"static member {request.group_instance_id} came back as {member_id} in {group.state.value}"
        self._begin(turn, group, member, why, request)

    def _kept(
        self, group: ClassicGroup, request: JoinGroup, member_id: str, former_leader: str
    ) -> JoinGroupResult:
        """Return the result of a static member whose return does not change the generation.

        The leader must not assign again. Versions without ``skip_assignment`` get the leader's former member
        id, so that the member does not take itself for the leader.
        """
        result = self._rebalance.joined(group, member_id)
        if request.supports_skipping_assignment:
            return replace(result, skip_assignment=group.is_leader(member_id))
        return replace(result, leader=former_leader, members=())

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
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            self._refuse(turn, token, request.member_id, error)
            return
        member = group.members[request.member_id]
        why = self._why_rebalance(group, member, request)
        if why is None:
            turn.resolve(token, self._rebalance.joined(group, member.member_id))
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
        turn.resolve(token, JoinGroupResult(error_code, member_id))


class ClassicLeave:
    def __init__(self, rebalance: ClassicRebalance) -> None:
        self._rebalance = rebalance

    def leave(self, turn: Turn, token: Token, group: ClassicGroup, request: LeaveGroup) -> None:
        answers: list[LeaveGroupMemberResult] = []
        causes: list[RebalanceCause] = []
        pending_left = False
        for leaver in request.members:
            member_id, error = self._find(group, leaver)
            if error is ErrorCode.none and member_id in group.pending_members:
                self._rebalance.remove_pending(group, member_id)
                pending_left = True
            elif error is ErrorCode.none:
                causes.append(self._remove_member(turn, group, member_id, leaver))
            answers.append(LeaveGroupMemberResult(leaver.member_id, leaver.group_instance_id, error))
        turn.resolve(token, LeaveGroupResult(ErrorCode.none, tuple(answers)))
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

    def on_loaded(self, turn: Turn) -> Iterator[int]:
        """Start a full session timeout for every member; rebalance groups that are too large."""
        size_max = self._state.config.group_max_size
        for group in list(self._state.groups.values()):
            yield 1
            if not isinstance(group, ClassicGroup):
                continue
            for member in group.members.values():
                self._rebalance.expect_heartbeat(turn, group, member)
                yield 1
            if len(group.members) > size_max:
                reason = f"loaded with {len(group.members)} members, group.max.size is {size_max}"
                self._rebalance.prepare(turn, group, RebalanceCause(reason))

    # -- requests of members ---------------------------------------------------------------------------

    def join(self, turn: Turn, token: Token, request: JoinGroup) -> None:
        """Process a JoinGroup to a classic group, a new group, or one of another kind, which it replaces or
        is rejected for."""
        refusal = self._join.refusal(request)
        if refusal is not ErrorCode.none:
            turn.resolve(token, JoinGroupResult(refusal, request.member_id))
            return
        found = self._state.groups.get(request.group_id)
        if isinstance(found, ClassicGroup):
            self._join.join(turn, token, found, request)
        elif found is not None and not found.is_replaceable:
            turn.resolve(token, JoinGroupResult(ErrorCode.inconsistent_group_protocol))
        elif request.member_id != NO_MEMBER_ID:
            turn.resolve(token, JoinGroupResult(ErrorCode.unknown_member_id, request.member_id))
        else:
            self._join_first(turn, token, request, found)

    def _join_first(self, turn: Turn, token: Token, request: JoinGroup, replaced: Group | None) -> None:
        """Create the group with its first member, if the request is valid; it replaces the
        group that had its id."""
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
        error = self._check_sync(group, request)
        if error is not ErrorCode.none:
            turn.resolve(token, SyncGroupResult(error))
            return
        member = group.members[request.member_id]
        assignments = {each.member_id: each.assignment for each in request.assignments}
        is_stable = group.state is ClassicGroupState.STABLE
        assigns = not is_stable and group.is_leader(member.member_id)
        if assigns and group.record_bytes(assignments.values()) > RECORD_BYTES_MAX:
            # What Kafka answers if the record is too large for its topic.
            turn.resolve(token, SyncGroupResult(ErrorCode.unknown_server_error))
            return
        self._rebalance.on_synced(group, member.member_id)
        if is_stable:
            turn.resolve(token, self._rebalance.assigned(group, member))
            return
        self._rebalance.wait_for_sync(turn, member, token)
        if assigns:
            self._rebalance.become_stable(turn, group, assignments)

    def _check_sync(self, group: ClassicGroup, request: SyncGroup) -> ErrorCode:
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            return error
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
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is ErrorCode.none and request.generation_id != group.generation:
            error = ErrorCode.illegal_generation
        if error is ErrorCode.none:
            self._rebalance.expect_heartbeat(turn, group, group.members[request.member_id])
            if group.state is ClassicGroupState.PREPARING_REBALANCE:
                error = ErrorCode.rebalance_in_progress
        turn.resolve(token, HeartbeatResult(error))

    def leave(self, turn: Turn, token: Token, group: ClassicGroup, request: LeaveGroup) -> None:
        self._leave.leave(turn, token, group, request)

    def on_offsets_committed(self, turn: Turn, group: ClassicGroup, request: OffsetCommit) -> None:
        """Restart the session timeout of a member that has committed offsets, as a heartbeat does."""
        member = group.members.get(request.member_id)
        if member is not None and group.state in _KEPT_ALIVE_BY_COMMITS:
            self._rebalance.expect_heartbeat(turn, group, member)

    # -- time ------------------------------------------------------------------------------------------

    def on_timer(self, turn: Turn, key: TimerKey) -> None:
        if key == _REMOVED:
            self._rebalance.cancel_removed(turn)
            return
        group = self.find(key.group_id)
        if group is None:
            return
        if key.kind is ClassicTimer.HEARTBEAT:
            self._rebalance.on_heartbeat_timeout(turn, group, key.member_id)
        elif key.kind is ClassicTimer.INITIAL_JOIN:
            self._rebalance.on_initial_delay_over(turn, group)
        elif key.kind is ClassicTimer.JOIN:
            self._rebalance.on_join_timeout(turn, group)
        elif key.kind is ClassicTimer.SYNC:
            self._rebalance.on_sync_timeout(turn, group)

    # -- the end of a group, and changes between the protocols -------------------------------------------

    def remove(self, turn: Turn, group: Group) -> None:
        """Remove a group, of any type: write its tombstones and cancel its timers."""
        turn.write_all(group.tombstones())
        del self._state.groups[group.group_id]
        self._state.count(group.group_id)
        if isinstance(group, ClassicGroup):
            self._rebalance.cancel_timers(turn, group)

    def give_up(self, turn: Turn, group: ClassicGroup) -> None:
        """Remove a group that becomes a consumer group: waiting members get an error on which they join
        again.

        Kafka returns REBALANCE_IN_PROGRESS to waiting JoinGroups. Not every client handles that error of a
        JoinGroup (aiokafka fails); on COORDINATOR_LOAD_IN_PROGRESS every client tries again with its member
        id.
        """
        for member in group.members.values():
            again = JoinGroupResult(ErrorCode.coordinator_load_in_progress, member.member_id)
            self._rebalance.answer_join(turn, member, again)
            self._rebalance.answer_sync(turn, member, SyncGroupResult(ErrorCode.rebalance_in_progress))
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
