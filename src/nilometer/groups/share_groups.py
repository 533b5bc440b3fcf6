"""The share groups of a shard (KIP-932): turns heartbeats, timers and the share coordinator's answers into
records and results.

A partition is assigned once the share coordinator has begun a state for it. The heartbeat that brings a new
topic asks for that; a later one finds the answer, and gives the partition to a member.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from nilometer.coordinators import Token
from nilometer.groups.classic_groups import ClassicGroups
from nilometer.groups.consumer.group import LEAVE_GROUP_MEMBER_EPOCH
from nilometer.groups.consumer.heartbeat import COMPUTED_WITHIN_MS, HEARTBEAT_INTERVAL_MS_MIN
from nilometer.groups.consumer.rebalance import (
    AT_ONCE_MAX,
    NAMED_AT_ONCE_MAX,
    assignment_delay_ms,
    member_specs,
)
from nilometer.groups.group_with_epochs import Draft, GroupsOfKind, RecordTypes
from nilometer.groups.records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from nilometer.groups.requests import (
    AlterShareGroupOffsets,
    DeletedGroup,
    DeleteGroupsResult,
    DeleteShareGroupOffsets,
    DescribedShareGroup,
    DescribedShareGroupMember,
    ShareGroupHeartbeat,
    ShareGroupHeartbeatResult,
    ShareGroupOffsetsRequest,
    ShareGroupOffsetsResult,
    ShareGroupPartitions,
)
from nilometer.groups.settings import GroupConfig
from nilometer.groups.share_group import (
    ShareGroup,
    ShareMember,
    StatePartitions,
    assign_simply,
)
from nilometer.groups.topics import BY_NUMBER, Assignment, Topics, described_partitions, topic_partitions
from nilometer.groups.turn import (
    AssignmentNeeded,
    Computation,
    DeleteShareState,
    InitializeShareState,
    RebalanceNote,
    ShardState,
    ShareStateResult,
    TimerKey,
    Turn,
    UnwrittenTarget,
    partition_count,
    write_on,
)
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError

MEMBER_ID_MAX: Final = 36
"""Characters of a member id: those of a UUID."""
INITIALIZED_AT_ONCE_MAX: Final = 1_000
"""For so many partitions of a group the share coordinator is asked at once."""
STATE_BYTES_MAX: Final = 256 * 1024
"""About what the record with a group's state partitions may take: it is written as a whole with each change.
Topics for which there is no more room are not assigned."""
TOPIC_BYTES: Final = 24
"""What a topic takes in that record, beside its name and four bytes for each partition."""
ANSWERED_WITHIN_MS: Final = 30_000
"""After this time without an answer the share coordinator is asked again. (The default of Kafka's
``group.share.initialize.retry.interval.ms``.)"""
PAUSE_MS: Final = 1_000
"""After the share coordinator has failed it is not asked again for this long."""
DELETIONS_MAX: Final = 100
"""So many requests may wait for the deletion of one group."""
SOON_MS: Final = 200
"""The heartbeat interval while the share coordinator is asked, so that a member gets its partitions soon."""
TOPICS_PER_CALL_MAX: Final = 10_000
"""So many topics with a state are looked for in the image in one call, and those of one group."""
EFFORT_OF_A_CHANGE: Final = 50
"""To remove topics from a group takes as long as to look for so many."""


class ShareTimer(Enum):
    SESSION = auto()
    TOPICS = auto()
    """Topics of share groups may have been deleted."""
    TARGET = auto()
    """More of a target assignment is to be written than a turn may."""


_TOPICS = TimerKey(ShareTimer.TOPICS)


class Deletion(msgspec.Struct):
    """A DeleteGroups request that waits until the state of its share groups is deleted."""

    token: Token
    results: dict[str, ErrorCode | None]
    """By group id, in the order of the request; None: not known yet."""

    def resolve_if_known(self, turn: Turn) -> None:
        results = [(group_id, error) for group_id, error in self.results.items() if error is not None]
        if len(results) == len(self.results):
            turn.resolve(self.token, DeleteGroupsResult(tuple(DeletedGroup(*each) for each in results)))


def _assign(
    members: Mapping[str, ShareMember],
    target: Mapping[str, Assignment],
    ids: Mapping[str, UUID],
    assignable: Mapping[UUID, frozenset[int]],
) -> dict[str, Assignment]:
    """Return each member's assignment. ``target``: the last ones; ``ids``: those of the subscribed topics."""
    wanted = ((each.member_id, each.subscribed_topic_names, None) for each in members.values())
    return assign_simply(member_specs(wanted, target, ids), assignable)


class _Draft(Draft[ShareGroup]):
    __slots__ = ()
    types = RecordTypes(
        ShareGroupMemberMetadataKey,
        ShareGroupCurrentMemberAssignmentKey,
        ShareGroupTargetAssignmentMemberKey,
        ShareGroupTargetAssignmentMetadataKey,
        ShareGroupTargetAssignmentMetadataValue,
    )

    def group_epoch(self, topics: Topics, cause: str) -> None:
        """Raise the group epoch. ``cause``: for the log."""
        group = self.group
        value = ShareGroupMetadataValue(group.group_epoch + 1, _hash_of(group, topics))
        self._write(ShareGroupMetadataKey(group.group_id), value)
        self.turn.act(RebalanceNote(group.group_id, group.group_epoch, cause))

    def target(self, member_id: str, assignment: Assignment) -> None:
        self._write(
            ShareGroupTargetAssignmentMemberKey(self.group.group_id, member_id),
            ShareGroupTargetAssignmentMemberValue(topic_partitions(assignment)),
        )

    def partitions(self, partitions: StatePartitions) -> None:
        key = ShareGroupStatePartitionMetadataKey(self.group.group_id)
        self._write(key, partitions.to_record())


class ShareGroups(GroupsOfKind[ShareGroup]):
    def __init__(self, state: ShardState, classic_groups: ClassicGroups) -> None:
        super().__init__(state, ShareGroup, ShareGroupMetadataKey)
        self._classic_groups = classic_groups
        self._deletions: dict[str, list[Deletion]] = {}
        """By group id, those that wait for the group's state to be deleted."""
        self._offset_waits: dict[str, tuple[Token, Assignment]] = {}
        """By group id, the request about its offsets that waits for the share coordinator, and which
        partitions had a state before."""
        self._round: list[ShareGroup] = []
        """The groups whose topics are still to be looked for in the image."""

    @property
    def _topics(self) -> Topics:
        return self._state.topics

    # ── loading ─────────────────────────────────────────────────────────────────────────────────
    def on_loaded(self, turn: Turn) -> Iterator[int]:
        """Start every member's session; look for topics that were deleted meanwhile."""
        for group in self.all():
            for member_id in group.members:
                self._expect_heartbeat(turn, group, member_id)
                yield 1
        self.on_image(turn)

    def on_image(self, turn: Turn) -> None:
        """Begin to look for topics that were deleted: each partition of ``__consumer_offsets`` has a call of
        its own, since it may have thousands of groups."""
        self._round = [group for group in self.all() if group.partitions.names]
        if self._round:
            self._state.timers.schedule(_TOPICS, turn.now_ms)

    # ── time ────────────────────────────────────────────────────────────────────────────────────
    def on_timer(self, turn: Turn, key: TimerKey) -> None:
        if key.kind is ShareTimer.TOPICS:
            self._forget_deleted_topics(turn)
            return
        group = self.find(key.group_id)
        if group is not None and key.kind is ShareTimer.TARGET:
            self._write_on(_Draft(group, turn))
        elif group is not None and key.member_id in group.members:
            why = f"member {key.member_id} was fenced: its session timed out"
            self._remove(turn, group, key.member_id, why)

    def _expect_heartbeat(self, turn: Turn, group: ShareGroup, member_id: str) -> None:
        timeout_ms = self._state.config_of(group.group_id).group_share_session_timeout_ms
        key = TimerKey(ShareTimer.SESSION, group.group_id, member_id)
        self._state.timers.schedule(key, turn.now_ms + timeout_ms)

    def _forget_deleted_topics(self, turn: Turn) -> None:
        """Remove topics that do not exist any more from groups; the share coordinator deletes their state."""
        looked_at = 0
        while self._round and looked_at < TOPICS_PER_CALL_MAX:
            group = self._round.pop()
            if self._state.groups.get(group.group_id) is not group:
                continue
            looked_at += len(group.partitions.names)
            gone = [each for each in group.partitions.topic_ids if self._topics.name_of(each) is None]
            if gone:
                looked_at += EFFORT_OF_A_CHANGE
                _Draft(group, turn).partitions(group.partitions.deleted_with(gone))
        if self._round:
            self._state.timers.schedule(_TOPICS, turn.now_ms + 1)

    # ── heartbeats ──────────────────────────────────────────────────────────────────────────────
    def heartbeat(self, turn: Turn, token: Token, request: ShareGroupHeartbeat) -> None:
        try:
            result = self._heartbeat(turn, request)
        except KafkaError as refusal:
            result = ShareGroupHeartbeatResult(refusal.code, refusal.message or None)
        turn.resolve(token, result)

    def _heartbeat(self, turn: Turn, request: ShareGroupHeartbeat) -> ShareGroupHeartbeatResult:
        """Process a heartbeat. Raises KafkaError only before the first record.

        A member that has not got the last result, and so sends its previous epoch, gets its assignment again,
        though Kafka's coordinator sends it only to those that name their topics.
        """
        check_request(request)
        if request.member_epoch == LEAVE_GROUP_MEMBER_EPOCH:
            return self._leave(turn, request)
        group = self._group_of(request)
        config = self._state.config_of(group.group_id)
        before = _sender_of(group, request, config)
        draft = _Draft(group, turn)
        after = self._advance(draft, before, request, config)
        self._initialize(turn, group)
        self._expect_heartbeat(turn, group, after.member_id)
        tell = (
            request.member_epoch != before.member_epoch  # it joins, or has not got the last result
            or request.subscribed_topic_names is not None
            or after.assigned != before.assigned
        )
        return ShareGroupHeartbeatResult(
            member_id=after.member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=_heartbeat_interval_ms(group, config, turn),
            assignment=topic_partitions(after.assigned) if tell or request.member_epoch == 0 else None,
        )

    def _group_of(self, request: ShareGroupHeartbeat) -> ShareGroup:
        """Return the group of a valid request; a member that joins creates it."""
        if request.member_epoch == 0 and request.group_id not in self._state.groups:
            group = self._state.groups[request.group_id] = ShareGroup(request.group_id)
            return group
        return self.get(request.group_id)

    def _advance(
        self, draft: _Draft, before: ShareMember, request: ShareGroupHeartbeat, config: GroupConfig
    ) -> ShareMember:
        """Write what the heartbeat changes, the target assignment if one is due, and the member's next
        assignment; return the member after it."""
        group, topics = draft.group, self._topics
        wanted = _with_wishes(before, request)
        if wanted != before or wanted.member_id not in group.members:
            draft.member_metadata(wanted)
        cause = None
        if wanted.subscribed_topic_names != before.subscribed_topic_names:
            cause = _subscription_cause(wanted)
        elif group.assignment_epoch >= group.group_epoch and _has_unassigned(group, topics):
            cause = "partitions have a state since, and may be assigned"
        elif group.metadata_version_seen != topics.version and _hash_of(group, topics) != group.metadata_hash:
            cause = "the subscribed topics changed"
        if cause is not None:
            draft.group_epoch(topics, cause)
        group.metadata_version_seen = topics.version
        self._assign_if_due(draft, config)
        return _reconciled(draft, topics, group.members[wanted.member_id], epoch_was_raised=cause is not None)

    def _leave(self, turn: Turn, request: ShareGroupHeartbeat) -> ShareGroupHeartbeatResult:
        group = self.get(request.group_id)
        if request.member_id not in group.members:
            raise _unknown_member(request)
        self._remove(turn, group, request.member_id, f"member {request.member_id} left")
        return ShareGroupHeartbeatResult(member_id=request.member_id, member_epoch=request.member_epoch)

    def _remove(self, turn: Turn, group: ShareGroup, member_id: str, cause: str) -> None:
        """Remove a member; the others get its partitions with their next heartbeats."""
        self._state.timers.cancel(TimerKey(ShareTimer.SESSION, group.group_id, member_id))
        draft = _Draft(group, turn)
        draft.remove_member(member_id)
        draft.group_epoch(self._topics, cause)
        if not group.members:
            draft.assignment_epoch(group.group_epoch, 0)  # nothing is to be assigned

    # ── target assignments ──────────────────────────────────────────────────────────────────────
    def _assign_if_due(self, draft: _Draft, config: GroupConfig) -> None:
        """Compute a target assignment for the group epoch and write it, or have it computed."""
        group, topics, turn = draft.group, self._topics, draft.turn
        if assignment_delay_ms(group, config.group_share_assignment_interval_ms, turn.wall_ms) != 0:
            return
        assignable = {
            topic_id: found
            for topic_id, found in group.partitions.initialized.items()
            if topics.name_of(topic_id) in group.subscribers
        }
        ids = topics.ids_by_name(topics.names() & group.subscribers.keys())
        compute = functools.partial(_assign, dict(group.members), dict(group.target), ids, assignable)
        group.assigning_epoch = group.group_epoch
        size = len(group.members) + sum(map(len, assignable.values()))
        named = group.subscribers.total()
        if size <= AT_ONCE_MAX and named <= NAMED_AT_ONCE_MAX:
            self._write_target(draft, UnwrittenTarget(group.group_epoch, compute(), partition_count))
        else:
            turn.act(AssignmentNeeded(group.group_id, group.group_epoch, compute, size + named))

    def on_computed(self, turn: Turn, group: ShareGroup, needed: Computation, result: Any) -> None:
        """Write the target assignment that was computed outside."""
        if isinstance(needed, AssignmentNeeded) and group.assigning_epoch == needed.epoch:
            # Otherwise the group was deleted and created again.
            self._write_target(_Draft(group, turn), UnwrittenTarget(needed.epoch, result, partition_count))

    def _write_target(self, draft: _Draft, target: UnwrittenTarget[Assignment]) -> None:
        draft.group.unwritten = target
        self._write_on(draft)

    def _write_on(self, draft: _Draft) -> None:
        if write_on(draft):
            key = TimerKey(ShareTimer.TARGET, draft.group.group_id)
            self._state.timers.schedule(key, draft.turn.now_ms + 1)

    # ── the state of share partitions ───────────────────────────────────────────────────────────
    def _initialize(self, turn: Turn, group: ShareGroup, after: StatePartitions | None = None) -> None:
        """Ask the share coordinator to begin a state for the subscribed partitions that have none, unless it
        is being asked already. Write these partitions, and ``after``: what is new of the others."""
        versions = group.version, self._topics.version
        partitions, may_ask = after or group.partitions, turn.now_ms >= group.next_request_ms
        topics: dict[UUID, dict[int, int]] = {}
        if group.members and may_ask and (after is not None or group.all_begun_in != versions):
            topics = _without_state(group, partitions, self._topics)
        if topics:
            names = {topic_id: self._topics.name_of(topic_id) or "" for topic_id in topics}
            asked = {topic_id: frozenset(found) for topic_id, found in topics.items()}
            partitions = partitions.begun(asked, names)
            self._ask(turn, group, InitializeShareState(group.group_id, group.group_epoch, topics))
        if partitions is not group.partitions:
            _Draft(group, turn).partitions(partitions)
        if not topics and may_ask:
            group.all_begun_in = group.version, self._topics.version

    def _ask(self, turn: Turn, group: ShareGroup, action: InitializeShareState | DeleteShareState) -> None:
        group.asked = action
        group.next_request_ms = turn.now_ms + ANSWERED_WITHIN_MS
        turn.act(action)

    def on_share_state(self, turn: Turn, result: ShareStateResult) -> None:
        """Process the share coordinator's answer to an action of this shard."""
        action = result.action
        group = self.find(action.group_id)
        if group is None or group.asked is not action:
            return
        group.asked = None
        group.next_request_ms = turn.now_ms + PAUSE_MS if any(result.errors.values()) else turn.now_ms
        if isinstance(action, InitializeShareState):
            self._on_initialized(turn, group, action, result)
        elif group.group_id in self._offset_waits:
            self._on_offsets_deleted(turn, group, action, result)
        else:
            self._on_deleted(turn, group, action, result)
        self._resolve_about_offsets(turn, result)

    def _on_initialized(
        self, turn: Turn, group: ShareGroup, action: InitializeShareState, result: ShareStateResult
    ) -> None:
        """Write which partitions have a state now. The others are asked for again with a later heartbeat."""
        partitions = group.partitions
        asked = {topic_id: frozenset(found) for topic_id, found in action.topics.items()}
        begun: dict[UUID, frozenset[int]] = {}
        for topic_id, found in asked.items():
            succeeded = found.difference(result.errors.get(topic_id, ()))
            # Otherwise the topic was deleted meanwhile.
            if succeeded and topic_id in partitions.initializing:
                begun[topic_id] = succeeded
        after = partitions.ended(asked, begun)
        if group.group_id in self._deletions:
            _Draft(group, turn).partitions(after)
            self._delete_state(turn, group)
        else:
            self._initialize(turn, group, after)

    # ── deletion ────────────────────────────────────────────────────────────────────────────────
    def delete(self, turn: Turn, group: ShareGroup, deletion: Deletion) -> ErrorCode | None:
        """Delete an empty group; return the error, or None if ``deletion`` has to wait until its state is
        deleted."""
        error = group.check_delete()
        if error is not ErrorCode.none:
            return error
        if not _state_to_delete(group, self._topics):
            self._classic_groups.remove(turn, group)
            return ErrorCode.none
        waiting = self._deletions.setdefault(group.group_id, [])
        if len(waiting) >= DELETIONS_MAX:
            return ErrorCode.coordinator_not_available
        waiting.append(deletion)
        if group.asked is None or turn.now_ms >= group.next_request_ms:
            self._delete_state(turn, group)
        return None

    def _delete_state(self, turn: Turn, group: ShareGroup) -> None:
        """Ask the share coordinator to delete the group's state, if there is any and the group is empty."""
        topics = _state_to_delete(group, self._topics)
        if group.members or not topics:
            self._end_deletions(turn, group, ErrorCode.none)
            return
        names = {topic_id: group.partitions.names[topic_id] for topic_id in topics}
        _Draft(group, turn).partitions(StatePartitions(deleting=frozenset(topics), names=names))
        self._ask(turn, group, DeleteShareState(group.group_id, topics))

    def _on_deleted(
        self, turn: Turn, group: ShareGroup, action: DeleteShareState, result: ShareStateResult
    ) -> None:
        errors = [error for found in result.errors.values() for error in found.values()]
        if errors:
            self._end_deletions(turn, group, errors[0])
            return
        if group.members:
            self._initialize(turn, group, group.partitions.deleted_with(action.topics))
        self._end_deletions(turn, group, ErrorCode.none)

    def _on_offsets_deleted(
        self, turn: Turn, group: ShareGroup, action: DeleteShareState, result: ShareStateResult
    ) -> None:
        """The topics have no state any more, but for those that failed: they may be deleted again."""
        gone = [topic_id for topic_id in action.topics if not result.errors.get(topic_id)]
        if gone:
            _Draft(group, turn).partitions(group.partitions.deleted_with(gone))
        if group.group_id in self._deletions:
            self._delete_state(turn, group)
        else:
            self._initialize(turn, group)

    def _end_deletions(self, turn: Turn, group: ShareGroup, error: ErrorCode) -> None:
        """Remove the group, unless there was an ``error`` or it has members again; then all who wait
        get their result."""
        if error is ErrorCode.none:
            error = group.check_delete()
        if error is ErrorCode.none:
            self._classic_groups.remove(turn, group)
        for deletion in self._deletions.pop(group.group_id, ()):
            deletion.results[group.group_id] = error
            deletion.resolve_if_known(turn)

    # ── offsets ─────────────────────────────────────────────────────────────────────────────────
    def offsets(self, turn: Turn, token: Token, request: ShareGroupOffsetsRequest) -> None:
        """Say which partitions have a state, or have the share coordinator begin it again, or delete it; then
        the result waits for its answer."""
        try:
            group = self._group_with_offsets(turn, request)
        except KafkaError as refusal:
            turn.resolve(
                token, ShareGroupOffsetsResult(request.group_id, refusal.code, refusal.message or None)
            )
            return
        before = group.partitions.initialized
        action: InitializeShareState | DeleteShareState | None = None
        if isinstance(request, AlterShareGroupOffsets):
            action = self._begin_again(turn, group, request.topics)
        elif isinstance(request, DeleteShareGroupOffsets):
            topics = _state_to_delete(group, self._topics)
            action = DeleteShareState(
                group.group_id, {each: topics[each] for each in request.topics if each in topics}
            )
        if action is None or not action.topics:
            turn.resolve(token, ShareGroupOffsetsResult(group.group_id, initialized=before))
            return
        if group.asked is not None:  # its answer has not come in time, and will be ignored
            late = ShareStateResult.failed(group.asked, ErrorCode.coordinator_not_available)
            self._resolve_about_offsets(turn, late)
        self._offset_waits[group.group_id] = (token, before)
        self._ask(turn, group, action)

    def _group_with_offsets(self, turn: Turn, request: ShareGroupOffsetsRequest) -> ShareGroup:
        """Return the group of the request. Raises KafkaError if it may not do what is asked for."""
        if isinstance(request, AlterShareGroupOffsets) and request.group_id not in self._state.groups:
            group = self._state.groups[request.group_id] = ShareGroup(request.group_id)
            return group
        group = self.get(request.group_id)
        if isinstance(request, ShareGroupPartitions):
            return group
        if group.members:
            raise KafkaError(ErrorCode.non_empty_group, f"Group {group.group_id} is not empty.")
        if group.asked is not None and turn.now_ms < group.next_request_ms:
            raise KafkaError(
                ErrorCode.coordinator_load_in_progress,
                f"The state of group {group.group_id} is being changed.",
            )
        return group

    def _begin_again(
        self, turn: Turn, group: ShareGroup, topics: Mapping[UUID, Mapping[int, int]]
    ) -> InitializeShareState:
        """Raise the group epoch, which fences those that still write the earlier state."""
        draft = _Draft(group, turn)
        draft.group_epoch(self._topics, "its offsets are altered")
        draft.assignment_epoch(group.group_epoch, 0)
        names = {topic_id: self._topics.name_of(topic_id) or "" for topic_id in topics}
        partitions = {topic_id: frozenset(found) for topic_id, found in topics.items()}
        draft.partitions(group.partitions.begun(partitions, names))
        return InitializeShareState(group.group_id, group.group_epoch, topics)

    def _resolve_about_offsets(self, turn: Turn, result: ShareStateResult) -> None:
        waiting = self._offset_waits.pop(result.action.group_id, None)
        if waiting is not None:
            token, before = waiting
            turn.resolve(
                token,
                ShareGroupOffsetsResult(result.action.group_id, initialized=before, errors=result.errors),
            )

    # ── describing ──────────────────────────────────────────────────────────────────────────────
    def describe(self, group_id: str) -> DescribedShareGroup:
        try:
            group = self.get(group_id)
        except KafkaError as refusal:
            return DescribedShareGroup(group_id, refusal.code, refusal.message)
        return DescribedShareGroup(
            group_id,
            group_state=group.state,
            group_epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=self._state.config.group_share_assignors[0],
            members=LazySequence(functools.partial(_described, self._topics), tuple(group.members.values())),
        )


def _described(topics: Topics, member: ShareMember) -> DescribedShareGroupMember:
    return DescribedShareGroupMember(
        member.member_id,
        member.rack_id,
        member.member_epoch,
        member.client_id,
        member.client_host,
        tuple(sorted(member.subscribed_topic_names)),
        described_partitions(member.assigned, topics),
    )


def check_request(request: ShareGroupHeartbeat) -> None:
    """Check the fields of the request, without its group. Raises KafkaError (INVALID_REQUEST)."""
    if not 0 < len(request.member_id) <= MEMBER_ID_MAX:
        _invalid("Invalid member id in the request.")
    named = (("MemberId", request.member_id), ("GroupId", request.group_id), ("RackId", request.rack_id))
    for name, value in named:
        if value is not None and not value.strip():
            _invalid(f"{name} can't be empty.")
    if request.member_epoch == 0 and not request.subscribed_topic_names:
        _invalid("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_GROUP_MEMBER_EPOCH:
        _invalid("MemberEpoch is invalid.")


def _invalid(message: str) -> None:
    raise KafkaError(ErrorCode.invalid_request, message)


def _sender_of(group: ShareGroup, request: ShareGroupHeartbeat, config: GroupConfig) -> ShareMember:
    """Return the member that sent the request, as it is before it; a new one has epoch 0.

    The previous epoch is accepted, too: the last result may have been lost. Raises KafkaError if the group is
    full, or the member is unknown or fenced.
    """
    member = group.members.get(request.member_id)
    if member is None:
        if len(group.members) >= config.group_share_max_size:
            raise KafkaError(
                ErrorCode.group_max_size_reached,
                f"The share group has reached its maximum capacity of {config.group_share_max_size} members.",
            )
        if request.member_epoch != 0:
            raise _unknown_member(request)
        return ShareMember(request.member_id)
    if request.member_epoch not in (0, member.member_epoch, member.previous_member_epoch):
        raise _fenced(request.member_epoch, member)
    return member


def _unknown_member(request: ShareGroupHeartbeat) -> KafkaError:
    return KafkaError(
        ErrorCode.unknown_member_id,
        f"Member {request.member_id} is not a member of group {request.group_id}.",
    )


def _fenced(epoch: int, member: ShareMember) -> KafkaError:
    how = "greater" if epoch > member.member_epoch else "smaller"
    return KafkaError(
        ErrorCode.fenced_member_epoch,
        f"The share group member has a {how} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.member_epoch}), and not the previous one ({member.previous_member_epoch}). "
        "The member must abandon all its partitions and rejoin.",
    )


def _with_wishes(member: ShareMember, request: ShareGroupHeartbeat) -> ShareMember:
    names = request.subscribed_topic_names
    return replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
    )


def _subscription_cause(member: ShareMember) -> str:
    client = f"client {member.client_id!r} at {member.client_host}"
    return f"a member joined or changed its subscription: member {member.member_id}, {client}"


def _reconciled(draft: _Draft, topics: Topics, member: ShareMember, *, epoch_was_raised: bool) -> ShareMember:
    """Give the member its target assignment, as far as it subscribes to it; return the member after it."""
    group = draft.group
    if member.member_epoch == group.assignment_epoch and not epoch_was_raised:
        return member
    subscribed = topics.ids_of(member.subscribed_topic_names & topics.names())
    target = group.target_of(member.member_id)
    after = replace(member, assigned={each: target[each] for each in target if each in subscribed})
    if member.member_epoch != group.assignment_epoch:
        after = replace(after, member_epoch=group.assignment_epoch, previous_member_epoch=member.member_epoch)
    if after != member:
        draft.member_assignment(after)
    return after


def _hash_of(group: ShareGroup, topics: Topics) -> int:
    if group.hashed[:2] != (group.version, topics.version):
        found = topics.hash_of(topics.names() & group.subscribers.keys())
        group.hashed = group.version, topics.version, found
    return group.hashed[2]


_NOT_TARGETED: Final[Mapping[int, int]] = MappingProxyType({})


def _has_unassigned(group: ShareGroup, topics: Topics) -> bool:
    """Whether the target assignment lacks partitions that have a state since, or has others."""
    if group.all_assigned_in == group.version:
        return False
    for topic_id, partitions in group.partitions.initialized.items():
        is_subscribed = topics.name_of(topic_id) in group.subscribers
        if is_subscribed and group.targeted.get(topic_id, _NOT_TARGETED).keys() != partitions:
            return True
    group.all_assigned_in = group.version
    return False


def _without_state(group: ShareGroup, state: StatePartitions, topics: Topics) -> dict[UUID, dict[int, int]]:
    """Return the start offsets of subscribed partitions that have none in ``state``, up to the limits.

    A partition that a topic got after its others have a state starts at 0, so that no record of it is missed.
    """
    found: dict[UUID, dict[int, int]] = {}
    count, size = 0, sum(map(len, state.names.values()))
    size += sum(
        TOPIC_BYTES + 4 * len(each) for each in (*state.initialized.values(), *state.initializing.values())
    )
    for name in sorted(topics.names() & group.subscribers.keys()):
        topic_id = topics.id_of(name)
        assert topic_id is not None
        done, begun = state.initialized.get(topic_id, ()), state.initializing.get(topic_id, ())
        total = topics.partition_count(topic_id)
        if len(done) == total:
            continue
        room = min(INITIALIZED_AT_ONCE_MAX - count, (STATE_BYTES_MAX - size - len(name) - TOPIC_BYTES) // 4)
        if room <= 0:
            break
        missing = [partition for partition in range(total) if partition not in done][:room]
        is_later = bool(done) or bool(begun)
        found[topic_id] = {
            partition: 0 if is_later and (done or partition not in begun) else -1 for partition in missing
        }
        count += len(missing)
        size += TOPIC_BYTES + len(name) + 4 * len(missing)
    return found


def _state_to_delete(group: ShareGroup, topics: Topics) -> dict[UUID, frozenset[int]]:
    """Return the partitions that have a state, or may have one."""
    state = group.partitions
    found: dict[UUID, frozenset[int]] = {}
    for topic_id in sorted(state.topic_ids, key=BY_NUMBER):
        partitions = state.initialized.get(topic_id, frozenset[int]())
        partitions |= state.initializing.get(topic_id, frozenset[int]())
        if topic_id in state.deleting:  # an earlier deletion failed for some of them
            partitions |= frozenset(range(topics.partition_count(topic_id)))
        if partitions:
            found[topic_id] = partitions
    return found


def _heartbeat_interval_ms(group: ShareGroup, config: GroupConfig, turn: Turn) -> int:
    """Return the heartbeat interval: shorter than usual while a member may soon get other partitions."""
    usual = config.group_share_heartbeat_interval_ms
    if group.asked is not None:
        return min(usual, SOON_MS)
    if group.assigning_epoch is not None or turn.now_ms < group.next_request_ms:
        return min(usual, COMPUTED_WITHIN_MS)
    delay = assignment_delay_ms(group, config.group_share_assignment_interval_ms, turn.wall_ms)
    return usual if delay is None else min(usual, max(HEARTBEAT_INTERVAL_MS_MIN, delay))
