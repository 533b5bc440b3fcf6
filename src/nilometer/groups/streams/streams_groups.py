"""The streams groups of a shard (KIP-1071): turns heartbeats and timers into records and results.

The first member brings the topology. Until all topics are there and fit together, members have no tasks and
are told why; internal topics are created with the rights of the member that is told. Members also learn where
the tasks of those with an endpoint can be queried, whenever that has changed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from itertools import chain
from typing import Any, Final

from msgspec.structs import replace

from nilometer.coordinators import Token
from nilometer.groups.classic_group import ClassicGroup
from nilometer.groups.classic_groups import ClassicGroups
from nilometer.groups.consumer.group import LEAVE_GROUP_STATIC_MEMBER_EPOCH
from nilometer.groups.consumer.heartbeat import COMPUTED_WITHIN_MS, HEARTBEAT_INTERVAL_MS_MIN
from nilometer.groups.consumer.rebalance import AT_ONCE_MAX, assignment_delay_ms
from nilometer.groups.group_with_epochs import Draft, GroupsOfKind, RecordTypes
from nilometer.groups.records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
)
from nilometer.groups.requests import (
    DescribedStreamsGroup,
    DescribedStreamsMember,
    EndpointPartitions,
    GroupStatus,
    StreamsAssignment,
    StreamsGroupHeartbeat,
    StreamsGroupHeartbeatResult,
    TaskOffset,
)
from nilometer.groups.settings import GroupConfig
from nilometer.groups.streams.group import (
    NOT_VALIDATED,
    TASK_BYTES,
    StreamsGroup,
    StreamsMember,
)
from nilometer.groups.streams.heartbeat import (
    Sender,
    check_request,
    check_state,
    check_tasks,
    claimed_tasks,
    leaver_of,
    matters,
    note_offsets,
    sender_of,
    topology_of,
    with_wishes,
)
from nilometer.groups.streams.tasks import (
    NO_TASKS,
    NOTHING_OWNED,
    MemberSpec,
    MemberState,
    Owned,
    Tasks,
    assign_sticky,
    next_step,
    task_ids,
)
from nilometer.groups.streams_topology import (
    Configured,
    KeyValue,
    Status,
    Task,
    Topology,
    configure,
)
from nilometer.groups.topics import Topics
from nilometer.groups.turn import (
    AssignmentNeeded,
    Computation,
    RebalanceNote,
    ShardState,
    TimerKey,
    Turn,
    UnwrittenTarget,
    write_on,
)
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError

SOON_MS: Final = 500
"""The heartbeat interval while internal topics are being created, so that a member gets its tasks soon."""
SOURCES_AT_ONCE = 10_000
"""So many source topics of tasks are looked at in one heartbeat, to find where tasks can be queried: 3 ms."""


class StreamsTimer(Enum):
    SESSION = auto()
    REBALANCE = auto()
    """Until when a member must confirm that it has revoked tasks."""
    INITIAL_DELAY = auto()
    """Until when a new group waits for more members before its first assignment."""
    TARGET = auto()
    """When the next part of a target assignment is written."""


_REASONS: Mapping[Enum, str] = {
    StreamsTimer.SESSION: "its session timed out",
    StreamsTimer.REBALANCE: "it did not revoke tasks within its rebalance timeout",
}


class _Draft(Draft[StreamsGroup]):
    __slots__ = ()
    types = RecordTypes(
        StreamsGroupMemberMetadataKey,
        StreamsGroupCurrentMemberAssignmentKey,
        StreamsGroupTargetAssignmentMemberKey,
        StreamsGroupTargetAssignmentMetadataKey,
        StreamsGroupTargetAssignmentMetadataValue,
    )

    def topology(self, topology: Topology) -> None:
        self._write(StreamsGroupTopologyKey(self.group.group_id), topology)

    def group_epoch(self, cause: str, configs: Mapping[str, str] | None = None) -> None:
        """Raise the group epoch. ``cause``: for the log; ``configs``: the settings in force, if they may have
        changed."""
        group = self.group
        metadata_hash, validated = group.metadata_hash, group.validated_topology_epoch
        if group.configured is not None:
            metadata_hash = group.configured.metadata_hash
            validated = group.configured.epoch if group.configured.is_ready else NOT_VALIDATED
        used = group.assignment_configs if configs is None else configs
        stored, failed = group.description_epochs
        value = StreamsGroupMetadataValue(
            group.group_epoch + 1,
            metadata_hash,
            validated,
            tuple(KeyValue(key, used[key]) for key in sorted(used)),
            stored,
            failed,
        )
        self._write(StreamsGroupMetadataKey(group.group_id), value)
        self.turn.act(RebalanceNote(group.group_id, group.group_epoch, cause))

    def target(self, member_id: str, tasks: Tasks) -> None:
        self._write(
            StreamsGroupTargetAssignmentMemberKey(self.group.group_id, member_id),
            StreamsGroupTargetAssignmentMemberValue(
                task_ids(tasks.active), task_ids(tasks.standby), task_ids(tasks.warmup)
            ),
        )


class StreamsGroups(GroupsOfKind[StreamsGroup]):
    def __init__(self, state: ShardState, classic_groups: ClassicGroups) -> None:
        super().__init__(state, StreamsGroup, StreamsGroupMetadataKey)
        self._classic_groups = classic_groups

    @property
    def _topics(self) -> Topics:
        return self._state.topics

    # ── loading ─────────────────────────────────────────────────────────────────────────────────
    def on_loaded(self, turn: Turn) -> Iterator[int]:
        """Start every member's timers with full timeouts: session, and revocation if it must revoke."""
        for group in self.all():
            for member in group.members.values():
                self._expect_heartbeat(turn, group, member.member_id)
                self._expect_revocation(turn, group, None, member)
                yield 1

    # ── time ────────────────────────────────────────────────────────────────────────────────────
    def on_timer(self, turn: Turn, key: TimerKey) -> None:
        group = self.find(key.group_id)
        if group is None:
            return
        if key.kind is StreamsTimer.INITIAL_DELAY:
            self._assign_if_due(_Draft(group, turn), self._state.config_of(group.group_id))
            return
        if key.kind is StreamsTimer.TARGET:
            self._write_on(_Draft(group, turn))
            return
        member = group.members.get(key.member_id)
        if member is None:
            return
        if key.kind is StreamsTimer.REBALANCE and member.state is not MemberState.UNREVOKED_TASKS:
            return
        self._remove(turn, group, member, f"member {member.member_id} was fenced: {_REASONS[key.kind]}")

    def _expect_heartbeat(self, turn: Turn, group: StreamsGroup, member_id: str) -> None:
        timeout_ms = self._state.config_of(group.group_id).group_streams_session_timeout_ms
        key = TimerKey(StreamsTimer.SESSION, group.group_id, member_id)
        self._state.timers.schedule(key, turn.now_ms + timeout_ms)

    def _expect_revocation(
        self, turn: Turn, group: StreamsGroup, before: StreamsMember | None, after: StreamsMember
    ) -> None:
        """Start the timer for the revocation of tasks if ``after`` must revoke some and is another than
        ``before``; cancel it if it need not."""
        key = TimerKey(StreamsTimer.REBALANCE, group.group_id, after.member_id)
        if after.state is not MemberState.UNREVOKED_TASKS:
            self._state.timers.cancel(key)
        elif before is not after:
            self._state.timers.schedule(key, turn.now_ms + after.rebalance_timeout_ms)

    def _forget_member(self, group: StreamsGroup, member_id: str) -> None:
        for kind in _REASONS:
            self._state.timers.cancel(TimerKey(kind, group.group_id, member_id))

    def _initial_delay_ms(self, turn: Turn, group: StreamsGroup) -> int | None:
        """Return how long the first assignment of the group waits for more members; None if it does not."""
        key = TimerKey(StreamsTimer.INITIAL_DELAY, group.group_id)
        deadline_ms = self._state.timers.deadline(key)
        return None if deadline_ms is None else max(0, deadline_ms - turn.now_ms)

    # ── heartbeats ──────────────────────────────────────────────────────────────────────────────
    def heartbeat(self, turn: Turn, token: Token, request: StreamsGroupHeartbeat) -> None:
        try:
            result = self._heartbeat(turn, request)
        except KafkaError as refusal:
            result = StreamsGroupHeartbeatResult(refusal.code, refusal.message or None)
        turn.resolve(token, result)

    def _heartbeat(self, turn: Turn, request: StreamsGroupHeartbeat) -> StreamsGroupHeartbeatResult:
        """Process a heartbeat. Raises KafkaError only before the first record."""
        check_request(request)
        if request.member_epoch < 0:
            return self._leave(turn, request)
        found = self._state.groups.get(request.group_id)
        group = self._group_of(request)
        config = self._state.config_of(group.group_id)
        sender = sender_of(group, request, config)
        topology = topology_of(group, request)
        configured = self._configured(group, topology)
        check_tasks(configured, request)
        claimed = claimed_tasks(request)
        check_state(sender.member, claimed)
        self._take_room(group, configured, config, joins=request.member_epoch == 0)

        was_empty = group.is_empty
        if found is not group:
            if found is not None:
                self._classic_groups.remove(turn, found)
            self._state.groups[group.group_id] = group
        draft = _Draft(group, turn)
        if sender.replaces is not None:
            self._forget_member(group, sender.replaces.member_id)
            _replace_member(draft, sender.replaces, sender.member)
        self._write_changes(draft, sender.member, request, topology, configured, config)
        note_offsets(group, request)
        if was_empty and config.group_streams_initial_rebalance_delay_ms > 0:
            key = TimerKey(StreamsTimer.INITIAL_DELAY, group.group_id)
            if self._state.timers.deadline(key) is None:
                delay_ms = config.group_streams_initial_rebalance_delay_ms
                self._state.timers.schedule(key, turn.now_ms + delay_ms)
        self._assign_if_due(draft, config)
        before = group.members[sender.member.member_id]
        after = self._reconciled(draft, before, claimed)
        self._expect_heartbeat(turn, group, after.member_id)
        self._expect_revocation(turn, group, before, after)
        return self._result(turn, group, sender, after, request, config)

    def _group_of(self, request: StreamsGroupHeartbeat) -> StreamsGroup:
        """Return the group of a valid request. For a member that joins it may be a new one, which is not
        among the groups yet, and replaces an empty classic group."""
        found = self._state.groups.get(request.group_id)
        is_replaced = found is None or (isinstance(found, ClassicGroup) and found.is_empty)
        if request.member_epoch == 0 and is_replaced:
            return StreamsGroup(request.group_id)
        return self.get(request.group_id)

    def _configured(self, group: StreamsGroup, topology: Topology) -> Configured:
        """Return the topology with the topics as they are now. Raises KafkaError (STREAMS_INVALID_TOPOLOGY)
        if it can never run."""
        version = self._topics.version
        if group.configured is not None and group.metadata_version_seen == version:
            return group.configured
        metadata_hash = self._topics.hash_of(topology.required_topics())
        if group.configured is not None and group.configured.metadata_hash == metadata_hash:
            group.metadata_version_seen = version
            return group.configured
        return configure(topology, metadata_hash, self._topics.size_of)

    def _take_room(
        self, group: StreamsGroup, configured: Configured, config: GroupConfig, *, joins: bool
    ) -> None:
        """Have the tasks counted that the group may get, before it gets them: a topology of a few kilobytes
        has thousands. Raises KafkaError (GROUP_MAX_SIZE_REACHED) if the member joins and there is no room."""
        tasks = sum(each.tasks for each in configured.subtopologies.values())
        tasks *= 1 + config.group_streams_num_standby_replicas
        more = tasks - group.tasks_with_room
        if more > 0:
            if not self._state.has_room(TASK_BYTES * more) and joins:
                raise KafkaError(
                    ErrorCode.group_max_size_reached,
                    f"The coordinator has no memory for {more} tasks of the topology more.",
                )
            group.tasks_with_room = tasks

    def _write_changes(
        self,
        draft: _Draft,
        before: StreamsMember,
        request: StreamsGroupHeartbeat,
        topology: Topology,
        configured: Configured,
        config: GroupConfig,
    ) -> None:
        """Write what the heartbeat and the topics change, and raise the group epoch if anything has."""
        group = draft.group
        wanted = with_wishes(before, request)
        is_new = wanted.member_id not in group.members
        cause = None
        if is_new or wanted != before:
            draft.member_metadata(wanted)
            if is_new or wanted.instance_id is None or matters(before, wanted):
                cause = f"member {wanted.member_id} joined or changed, client {wanted.client_id!r} at "
                cause += wanted.client_host
        if group.topology is None:
            draft.topology(topology)
        if configured is not group.configured:
            group.configured, group.metadata_version_seen = configured, self._topics.version
        validated = configured.epoch if configured.is_ready else NOT_VALIDATED
        if configured.metadata_hash != group.metadata_hash or validated != group.validated_topology_epoch:
            cause = cause or "the topics of the topology changed"
        configs = assignment_configs(config)
        if configs != group.assignment_configs:
            cause = cause or "the settings of the group changed"
        if cause is not None:
            draft.group_epoch(cause, configs)

    def _reconciled(self, draft: _Draft, member: StreamsMember, claimed: Tasks | None) -> StreamsMember:
        """Take the member's next step towards its target assignment; return the member after it."""
        group = draft.group
        target = group.target_of(member.member_id)
        step = next_step(member, group.assignment_epoch, target, group.others_than(member), claimed)
        if step is None:
            return member
        draft.member_assignment(member.stepped(step))
        return group.members[member.member_id]

    def _result(
        self,
        turn: Turn,
        group: StreamsGroup,
        sender: Sender,
        after: StreamsMember,
        request: StreamsGroupHeartbeat,
        config: GroupConfig,
    ) -> StreamsGroupHeartbeatResult:
        before = sender.member
        changed = after.assigned != before.assigned
        # A member that joins, or has not got the last result, needs its assignment.
        tell = changed or request.member_epoch != before.member_epoch or request.member_epoch == 0
        if after.user_endpoint != before.user_endpoint or (changed and after.user_endpoint is not None):
            group.endpoint_epoch += 1
        if request.shutdown_application and group.shutdown_requested_by is None:
            group.shutdown_requested_by = after.member_id
        endpoints, endpoint_epoch = None, group.endpoint_epoch
        if endpoint_epoch != request.endpoint_information_epoch:
            endpoints = _endpoints(group, self._topics)
            if endpoints is None:  # the member keeps what it has, and asks again
                endpoint_epoch = request.endpoint_information_epoch
        mine = after.assigned if tell else None
        configured = group.configured
        return StreamsGroupHeartbeatResult(
            member_id=after.member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=self._heartbeat_interval_ms(turn, group, config),
            acceptable_recovery_lag=config.group_streams_acceptable_recovery_lag,
            task_offset_interval_ms=config.group_streams_task_offset_interval_ms,
            status=tuple(self._status(turn, group, after, request, config)),
            active_tasks=None if mine is None else task_ids(mine.active),
            standby_tasks=None if mine is None else task_ids(mine.standby),
            warmup_tasks=None if mine is None else task_ids(mine.warmup),
            endpoint_information_epoch=endpoint_epoch,
            partitions_by_user_endpoint=endpoints,
            missing_topics=() if configured is None else configured.missing,
        )

    def _status(
        self,
        turn: Turn,
        group: StreamsGroup,
        member: StreamsMember,
        request: StreamsGroupHeartbeat,
        config: GroupConfig,
    ) -> Iterable[GroupStatus]:
        if group.topology is not None and member.topology_epoch < group.topology.epoch:
            yield GroupStatus(
                Status.STALE_TOPOLOGY,
                f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
                f"{group.topology.epoch}.",
            )
        if self._initial_delay_ms(turn, group) is not None:
            yield GroupStatus(
                Status.ASSIGNMENT_DELAYED,
                "Assignment delayed due to the configured initial rebalance delay.",
            )
        elif group.group_epoch > group.assignment_epoch:
            yield GroupStatus(
                Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured assignment interval."
            )
        configured = group.configured
        if configured is not None and configured.status is not None:
            yield GroupStatus(configured.status, configured.detail)
        if group.shutdown_requested_by is not None:
            yield GroupStatus(
                Status.SHUTDOWN_APPLICATION,
                f"Streams group member {group.shutdown_requested_by} encountered a fatal error and requested "
                "a shutdown for the entire application.",
            )
        has = {tag.key for tag in member.client_tags}
        tags = [tag for tag in config.group_streams_rack_aware_assignment_tags if tag not in has]
        if tags and request.knows_missing_tags:
            yield GroupStatus(
                Status.MISSING_CLIENT_TAGS,
                f"Missing required client tags for rack-aware standby assignment: [{', '.join(tags)}]. "
                "Configure them via 'client.tag.<tagKey>' in your Streams config.",
            )

    def _heartbeat_interval_ms(self, turn: Turn, group: StreamsGroup, config: GroupConfig) -> int:
        """Return the heartbeat interval: shorter than usual while a member may soon get other tasks."""
        usual = config.group_streams_heartbeat_interval_ms
        delay_ms = self._initial_delay_ms(turn, group)
        if delay_ms is None:
            interval_ms = config.group_streams_assignment_interval_ms
            delay_ms = assignment_delay_ms(group, interval_ms, turn.wall_ms)
        if delay_ms is not None:
            return min(usual, max(HEARTBEAT_INTERVAL_MS_MIN, delay_ms))
        if group.assigning_epoch is not None:
            return min(usual, COMPUTED_WITHIN_MS)
        configured = group.configured
        creates = configured is not None and configured.status is Status.MISSING_INTERNAL_TOPICS
        return min(usual, SOON_MS) if creates else usual

    # ── departures ──────────────────────────────────────────────────────────────────────────────
    def _leave(self, turn: Turn, request: StreamsGroupHeartbeat) -> StreamsGroupHeartbeatResult:
        group = self.get(request.group_id)
        member = leaver_of(group, request)
        if request.shutdown_application and group.shutdown_requested_by is None:
            group.shutdown_requested_by = member.member_id
        if request.instance_id is not None and request.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
            # It keeps its place and its tasks until its session ends, which is not extended.
            active = dict.fromkeys(member.assigned.active, 0)
            kept = Owned(active, member.assigned.standby, member.assigned.warmup)
            away = replace(member, member_epoch=request.member_epoch, assigned=kept)
            _Draft(group, turn).member_assignment(replace(away, pending_revocation=NOTHING_OWNED))
            self._state.timers.cancel(TimerKey(StreamsTimer.REBALANCE, group.group_id, member.member_id))
        else:
            self._remove(turn, group, member, f"member {member.member_id} left")
        return StreamsGroupHeartbeatResult(member_id=member.member_id, member_epoch=request.member_epoch)

    def _remove(self, turn: Turn, group: StreamsGroup, member: StreamsMember, cause: str) -> None:
        """Remove a member; the others get its tasks with their next heartbeats."""
        self._forget_member(group, member.member_id)
        draft = _Draft(group, turn)
        draft.remove_member(member.member_id)
        draft.group_epoch(cause)
        if not group.members:
            draft.assignment_epoch(group.group_epoch, 0)  # nothing is to be assigned
            self._state.timers.cancel(TimerKey(StreamsTimer.INITIAL_DELAY, group.group_id))

    # ── target assignments ──────────────────────────────────────────────────────────────────────
    def _assign_if_due(self, draft: _Draft, config: GroupConfig) -> None:
        """Compute a target assignment for the group epoch and write it, or have it computed."""
        group, turn, configured = draft.group, draft.turn, draft.group.configured
        if configured is None or self._initial_delay_ms(turn, group) is not None:
            return
        if assignment_delay_ms(group, config.group_streams_assignment_interval_ms, turn.wall_ms) != 0:
            return
        if not configured.is_ready:
            self._write_target(draft, group.group_epoch, dict.fromkeys(group.members, NO_TASKS))
            return
        members = {
            member_id: MemberSpec(
                member.process_id,
                member.assigned.tasks(),
                group.offsets.get(member_id, ({}, {}))[0],
            )
            for member_id, member in group.members.items()
        }
        standbys = int(group.assignment_configs.get(STANDBYS, "0"))
        compute = functools.partial(assign_sticky, members, configured.subtopologies, standbys)
        tasks = sum(each.tasks for each in configured.subtopologies.values())
        size = len(members) + tasks * (1 + standbys)
        if size <= AT_ONCE_MAX:
            self._write_target(draft, group.group_epoch, compute())
        else:
            group.assigning_epoch = group.group_epoch
            turn.act(AssignmentNeeded(group.group_id, group.group_epoch, compute, size))

    def on_computed(self, turn: Turn, group: StreamsGroup, needed: Computation, result: Any) -> None:
        """Write the target assignment that was computed outside."""
        if isinstance(needed, AssignmentNeeded) and group.assigning_epoch == needed.epoch:
            # Otherwise the group was deleted and created again.
            self._write_target(_Draft(group, turn), needed.epoch, result)

    def _write_target(self, draft: _Draft, epoch: int, assigned: Mapping[str, Tasks]) -> None:
        group = draft.group
        group.assigning_epoch, group.unwritten = epoch, UnwrittenTarget(epoch, assigned, Tasks.__len__)
        self._write_on(draft)

    def _write_on(self, draft: _Draft) -> None:
        if write_on(draft):
            key = TimerKey(StreamsTimer.TARGET, draft.group.group_id)
            self._state.timers.schedule(key, draft.turn.now_ms + 1)

    # ── description ─────────────────────────────────────────────────────────────────────────────
    def describe(self, group_id: str) -> DescribedStreamsGroup:
        try:
            group = self.get(group_id)
        except KafkaError as refusal:
            return DescribedStreamsGroup(group_id, refusal.code, refusal.message)
        configured = group.configured
        if configured is None and group.topology is not None:
            try:
                configured = self._configured(group, group.topology)
            except KafkaError:
                configured = None  # with the topics of now it can never run, as each heartbeat is told
        is_ready = configured is not None and configured.is_ready
        return DescribedStreamsGroup(
            group_id,
            group_state=group.state,
            group_epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
            topology=group.topology,
            configured=configured.subtopologies if configured is not None and is_ready else None,
            members=LazySequence(
                functools.partial(_described, dict(group.offsets), dict(group.target)),
                tuple(group.members.values()),
            ),
            assignor_name=self._state.config_of(group_id).group_streams_assignors[0],
        )


def _described(
    told: Mapping[str, tuple[Mapping[Task, int], Mapping[Task, int]]],
    target: Mapping[str, Tasks],
    member: StreamsMember,
) -> DescribedStreamsMember:
    offsets, end_offsets = told.get(member.member_id, ({}, {}))
    return DescribedStreamsMember(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=member.user_endpoint,
        client_tags=member.client_tags,
        task_offsets=_described_offsets(offsets),
        task_end_offsets=_described_offsets(end_offsets),
        assignment=_assignment(member.assigned.tasks()),
        target_assignment=_assignment(target.get(member.member_id, Tasks())),
    )


def _described_offsets(offsets: Mapping[Task, int]) -> Sequence[TaskOffset]:
    return LazySequence(lambda each: TaskOffset(*each[0], each[1]), tuple(offsets.items()))


def _assignment(tasks: Tasks) -> StreamsAssignment:
    return StreamsAssignment(task_ids(tasks.active), task_ids(tasks.standby), task_ids(tasks.warmup))


STANDBYS: Final = "num.standby.replicas"
TAGS: Final = "rack.aware.assignment.tags"


def assignment_configs(config: GroupConfig) -> dict[str, str]:
    """Return the settings on which a target assignment depends, as the group's record has them."""
    configs = {STANDBYS: str(config.group_streams_num_standby_replicas)}
    if config.group_streams_rack_aware_assignment_tags:
        configs[TAGS] = ",".join(config.group_streams_rack_aware_assignment_tags)
    return configs


def _replace_member(draft: _Draft, old: StreamsMember, new: StreamsMember) -> None:
    """Replace a static member ``old`` by ``new``, which gets its target assignment and tasks."""
    target = draft.group.target_of(old.member_id)
    draft.remove_member(old.member_id)
    draft.member_metadata(new)
    draft.target(new.member_id, target)
    draft.member_assignment(new)


def _endpoints(group: StreamsGroup, topics: Topics) -> tuple[EndpointPartitions, ...] | None:
    """Return where the tasks of each member with an endpoint can be queried; None if that takes more than one
    heartbeat to find: the next ones go on with it."""
    configured = group.configured
    if configured is None:
        return ()
    version, looked_at, all_found = topics.version, 0, list[EndpointPartitions]()
    for member in group.members.values():
        if member.user_endpoint is not None:
            known = group.endpoints.get(member.member_id)
            if known is None or known[0] is not member or known[1] is not configured or known[2] != version:
                if looked_at >= SOURCES_AT_ONCE:
                    return None
                mine = member.assigned
                looked_at += 1 + _sources_of(mine, configured)
                found = EndpointPartitions(
                    member.user_endpoint,
                    _partitions_of(mine.active, configured, topics),
                    _partitions_of(mine.standby | mine.warmup, configured, topics),
                )
                known = group.endpoints[member.member_id] = member, configured, version, found
            all_found.append(known[3])
    return tuple(all_found)


def _sources_of(mine: Owned, configured: Configured) -> int:
    """Return how many source topics there are, counted once for each task."""
    found = (configured.subtopologies.get(name) for name, _ in chain(mine.active, mine.standby, mine.warmup))
    return sum(len(each.source_topics) for each in found if each is not None)


def _partitions_of(
    tasks: Iterable[Task], configured: Configured, topics: Topics
) -> dict[str, tuple[int, ...]]:
    """Return the partitions of source topics that these tasks read."""
    found: dict[str, tuple[int, ...]] = {}
    for each in task_ids(tasks):
        subtopology = configured.subtopologies.get(each.subtopology_id)
        for name in () if subtopology is None else subtopology.source_topics:
            size = topics.size_of(name)
            partitions = tuple(partition for partition in each.partitions if partition < size)
            if partitions:
                found[name] = found.get(name, ()) + partitions
    return found
