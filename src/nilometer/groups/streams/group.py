"""A streams group and its members, whose state is computed from their records.

Who may commit and fetch offsets is decided here: a member, with its current epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from nilometer.groups.consumer.group import LEAVE_GROUP_MEMBER_EPOCH
from nilometer.groups.group_with_epochs import DELETED_EPOCH, GroupWithEpochs
from nilometer.groups.records import (
    CoordinatorRecord,
    RecordKey,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
)
from nilometer.groups.requests import (
    EndpointPartitions,
    HeldBytes,
    OffsetCommit,
    OffsetFetch,
    subscription_bytes,
)
from nilometer.groups.streams.tasks import (
    NO_TASKS,
    NOTHING_OWNED,
    MemberState,
    Owned,
    Step,
    Tasks,
    active_in_record,
    active_of_record,
    in_record,
    tasks_of,
)
from nilometer.groups.streams_topology import NAME_BYTES, Configured, Endpoint, KeyValue, Task, Topology
from nilometer.groups.turn import SINCE_COMMIT, RetentionStart, UnwrittenTarget
from nilometer.wire.errors import ErrorCode

TASK_BYTES: Final = 300
"""About so much memory a task takes: in the target, as its member has it, and by who has it."""
NOT_VALIDATED: Final = -1
"""In place of the validated topology's epoch."""
Told: TypeAlias = tuple[Mapping[Task, int], Mapping[Task, int]]
_STATES = {state.value: state for state in MemberState}


class StreamsMember(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topology_epoch: int = -1
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: tuple[KeyValue, ...] = ()
    """By key, in order."""
    assigned: Owned = NOTHING_OWNED
    pending_revocation: Owned = NOTHING_OWNED

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def with_metadata(self, value: StreamsGroupMemberMetadataValue) -> StreamsMember:
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            client_id=value.client_id,
            client_host=value.client_host,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            user_endpoint=value.user_endpoint,
            client_tags=value.client_tags,
        )

    def metadata_value(self) -> StreamsGroupMemberMetadataValue:
        return StreamsGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            topology_epoch=self.topology_epoch,
            process_id=self.process_id,
            user_endpoint=self.user_endpoint,
            client_tags=self.client_tags,
        )

    def with_assignment(self, value: StreamsGroupCurrentMemberAssignmentValue) -> StreamsMember:
        epoch = value.member_epoch
        return replace(
            self,
            member_epoch=epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=_STATES.get(value.state, MemberState.UNKNOWN),
            assigned=Owned(
                active_of_record(value.active_tasks, epoch),
                tasks_of(value.standby_tasks),
                tasks_of(value.warmup_tasks),
            ),
            pending_revocation=Owned(
                active_of_record(value.active_tasks_pending_revocation, epoch),
                tasks_of(value.standby_tasks_pending_revocation),
                tasks_of(value.warmup_tasks_pending_revocation),
            ),
        )

    def assignment_value(self) -> StreamsGroupCurrentMemberAssignmentValue:
        mine, pending = self.assigned, self.pending_revocation
        return StreamsGroupCurrentMemberAssignmentValue(
            self.member_epoch,
            self.previous_member_epoch,
            self.state.value,
            active_in_record(mine.active),
            in_record(mine.standby),
            in_record(mine.warmup),
            active_in_record(pending.active),
            in_record(pending.standby),
            in_record(pending.warmup),
        )

    def stepped(self, step: Step) -> StreamsMember:
        return replace(
            self,
            state=step.state,
            previous_member_epoch=self.member_epoch,
            member_epoch=step.member_epoch,
            assigned=step.assigned,
            pending_revocation=step.pending_revocation,
        )

    def bytes(self) -> int:
        """Return about how much memory it takes."""
        names = (self.instance_id, self.rack_id, self.client_id, self.process_id)
        tags = (text for tag in self.client_tags for text in (tag.key, tag.value))
        host = self.user_endpoint.host if self.user_endpoint is not None else ""
        return subscription_bytes(tags, self.member_id, host, *names)


class _Holders:
    """Which members have each task in some roles, also those that must still revoke it."""

    def __init__(self) -> None:
        self._members: dict[Task, tuple[str, ...]] = {}

    def of(self, task: Task) -> tuple[str, ...]:
        return self._members.get(task, ())

    def among(self, tasks: Set[Task]) -> Set[Task]:
        """Return those of the tasks that a member has."""
        return tasks & self._members.keys()

    def add(self, tasks: Iterator[Task], member_id: str) -> None:
        alone = (member_id,)
        for task in tasks:
            members = self._members.setdefault(task, alone)
            if member_id not in members:
                self._members[task] = (*members, member_id)

    def remove(self, tasks: Iterator[Task], member_id: str) -> None:
        for task in tasks:
            members = self._members.get(task, ())
            if members == (member_id,):
                del self._members[task]
            elif member_id in members:
                self._members[task] = tuple(each for each in members if each != member_id)


def _active_of(member: StreamsMember) -> Iterator[Task]:
    yield from member.assigned.active
    yield from member.pending_revocation.active


def _replicas_of(member: StreamsMember) -> Iterator[Task]:
    for owned in (member.assigned, member.pending_revocation):
        yield from owned.standby
        yield from owned.warmup


class _Others:
    """The members of a group other than one of them. Implements ``tasks.Others``."""

    def __init__(self, group: StreamsGroup, member: StreamsMember) -> None:
        self._group = group
        self._member = member

    def held(self, tasks: Set[Task]) -> Set[Task]:
        return self._group.runners.among(tasks) | self._group.replicas.among(tasks)

    def run(self, task: Task) -> bool:
        return any(True for _ in self._among(self._group.runners.of(task)))

    def run_here(self, task: Task) -> bool:
        return self._is_here(self._group.runners.of(task))

    def have_replica_here(self, task: Task) -> bool:
        return self._is_here(self._group.replicas.of(task))

    def _among(self, member_ids: tuple[str, ...]) -> Iterator[str]:
        return (member_id for member_id in member_ids if member_id != self._member.member_id)

    def _is_here(self, member_ids: tuple[str, ...]) -> bool:
        members = self._group.members
        process_id = self._member.process_id
        return any(members[each].process_id == process_id for each in self._among(member_ids))


class StreamsGroup(GroupWithEpochs[StreamsMember, Tasks]):
    """One streams group; see the module."""

    kind = "streams"
    noun = "Streams group"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.validated_topology_epoch = NOT_VALIDATED
        """The topology's epoch, if all its topics were there and fit together at that time."""
        self.assignment_configs: Mapping[str, str] = {}
        """The settings with which the last target assignment was made."""
        self.unwritten: UnwrittenTarget[Tasks] | None = None
        """Soft state: the target assignment that is being written."""
        self.description_epochs = (-1, -1)
        """Of a plugin of Kafka that this coordinator does not have: they are kept as they were read."""
        self.topology: Topology | None = None
        self.runners, self.replicas = _Holders(), _Holders()
        """Which members have each active task, and each standby or warm-up task."""
        self._static: dict[str, str] = {}
        self._sources: frozenset[str] = frozenset()
        """The topics that the topology reads."""
        self.configured: Configured | None = None
        """Soft state: the topology with the cluster's topics."""
        self.offsets: dict[str, Told] = {}
        """Soft state: how far each member says that it has the state of its tasks, and up to where there is
        any: sums of changelog offsets."""
        self._told = HeldBytes()
        self._topology_bytes = 0
        self.shutdown_requested_by: str | None = None
        """Soft state: the member that asked for the end of the whole application."""
        self.tasks_with_room = 0
        """Soft state: for so many tasks there is memory, those of standby tasks included."""
        self.endpoints: dict[str, tuple[StreamsMember, Configured, int, EndpointPartitions]] = {}
        """Soft state: where the tasks of each member with an endpoint can be queried, and for which member,
        topology and ``Topics.version`` that was found."""
        self.endpoint_epoch = 0
        """Soft state: rises when it changes where a task can be queried."""

    # ── reading ─────────────────────────────────────────────────────────────────────────────────
    @property
    def state(self) -> str:
        """Kafka's name of the state."""
        if not self.members:
            return "Empty"
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return "NotReady"
        if self.group_epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def static_member(self, instance_id: str) -> StreamsMember | None:
        member_id = self._static.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target_of(self, member_id: str) -> Tasks:
        return self.target.get(member_id, NO_TASKS)

    def others_than(self, member: StreamsMember) -> _Others:
        return _Others(self, member)

    # ── the interface of any group ──────────────────────────────────────────────────────────────
    def check_offset_commit(self, request: OffsetCommit) -> ErrorCode:
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and not self.members:
            return ErrorCode.none
        if request.is_transactional and not request.names_member:
            return ErrorCode.none
        member = self.members.get(request.member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if not request.is_transactional and not request.knows_member_epochs:
            return ErrorCode.unsupported_version
        if epoch == member.member_epoch:
            return ErrorCode.none
        if epoch > member.member_epoch or not self._had_since(member, request, epoch):
            return ErrorCode.stale_member_epoch
        return ErrorCode.none

    def _had_since(self, member: StreamsMember, request: OffsetCommit, epoch: int) -> bool:
        """Whether the member has all tasks that read the request's partitions, since ``epoch`` or before."""
        readers = self._readers()
        for topic in request.topics:
            subtopology_id = readers.get(topic.name)
            if subtopology_id is None:
                return False
            for partition in topic.partitions:
                task = subtopology_id, partition.partition_index
                since = member.assigned.active.get(task, member.pending_revocation.active.get(task))
                if since is None or since > epoch:
                    return False
        return True

    def _readers(self) -> dict[str, str]:
        """Return the subtopology that reads each source topic."""
        if self.topology is None:
            return {}
        return {name: each.subtopology_id for each in self.topology.subtopologies for name in each.sources()}

    def check_offset_fetch(self, request: OffsetFetch) -> ErrorCode:
        if request.member_id is None and request.member_epoch < 0:
            return ErrorCode.none
        member = self.members.get(request.member_id or "")
        if member is None:
            return ErrorCode.unknown_member_id
        same = request.member_epoch == member.member_epoch
        return ErrorCode.none if same else ErrorCode.stale_member_epoch

    def check_offset_delete(self) -> ErrorCode:
        return ErrorCode.none

    def is_subscribed_to(self, topic: str) -> bool:
        return bool(self.members) and topic in self._sources

    def retention_start(self) -> RetentionStart | None:
        return SINCE_COMMIT

    def metadata_bytes(self) -> int:
        return self._held.total + self._told.total + TASK_BYTES * self.tasks_with_room + self._topology_bytes

    def note_offsets(self, member_id: str, told: Told) -> None:
        self.offsets[member_id] = told
        self._told.note(member_id, NAME_BYTES * sum(map(len, told)))

    def _keys(self) -> Iterator[RecordKey]:
        for member_id in sorted(self.members):
            yield StreamsGroupCurrentMemberAssignmentKey(self.group_id, member_id)
        for member_id in sorted(self.target):
            yield StreamsGroupTargetAssignmentMemberKey(self.group_id, member_id)
        yield StreamsGroupTargetAssignmentMetadataKey(self.group_id)
        for member_id in sorted(self.members):
            yield StreamsGroupMemberMetadataKey(self.group_id, member_id)
        yield StreamsGroupMetadataKey(self.group_id)
        yield StreamsGroupTopologyKey(self.group_id)

    # ── applying records ────────────────────────────────────────────────────────────────────────
    def apply(self, record: CoordinatorRecord) -> None:
        key, value = record.key, record.value
        match key:
            case StreamsGroupCurrentMemberAssignmentKey():
                assert value is None or isinstance(value, StreamsGroupCurrentMemberAssignmentValue)
                self._apply_assignment(key.member_id, value)
            case StreamsGroupMemberMetadataKey():
                assert value is None or isinstance(value, StreamsGroupMemberMetadataValue)
                self._apply_metadata(key.member_id, value)
            case StreamsGroupTargetAssignmentMemberKey():
                if value is None:
                    self.target.pop(key.member_id, None)
                else:
                    assert isinstance(value, StreamsGroupTargetAssignmentMemberValue)
                    self.target[key.member_id] = Tasks(
                        tasks_of(value.active_tasks),
                        tasks_of(value.standby_tasks),
                        tasks_of(value.warmup_tasks),
                    )
            case StreamsGroupTargetAssignmentMetadataKey():
                assert value is None or isinstance(value, StreamsGroupTargetAssignmentMetadataValue)
                self._apply_assignment_epoch(value)
            case StreamsGroupTopologyKey():
                assert value is None or isinstance(value, Topology)
                self.topology = value
                self._topology_bytes = 0 if value is None else value.bytes()
                subtopologies = () if value is None else value.subtopologies
                self._sources = frozenset(name for each in subtopologies for name in each.sources())
            case StreamsGroupMetadataKey():
                assert value is None or isinstance(value, StreamsGroupMetadataValue)
                self._apply_group(value or StreamsGroupMetadataValue(DELETED_EPOCH, 0))
            case _:
                raise AssertionError(f"not a record of a streams group: {record}")

    def _apply_group(self, value: StreamsGroupMetadataValue) -> None:
        self.group_epoch = value.epoch
        self.metadata_hash = value.metadata_hash
        self.validated_topology_epoch = value.validated_topology_epoch
        self.assignment_configs = {each.key: each.value for each in value.last_assignment_configs}
        self.description_epochs = (
            value.stored_description_topology_epoch,
            value.failed_description_topology_epoch,
        )

    def _apply_metadata(self, member_id: str, value: StreamsGroupMemberMetadataValue | None) -> None:
        before = self.members.get(member_id)
        if before is not None and before.instance_id is not None:
            self._static.pop(before.instance_id, None)
        if value is not None:
            after = (before or StreamsMember(member_id)).with_metadata(value)
            self._put(before, after)
            self._held.note(member_id, after.bytes())
            if after.instance_id is not None:
                self._static[after.instance_id] = member_id
        elif before is not None:
            self._forget_tasks(before)
            del self.members[member_id]
            self._held.forget(member_id)
            self.offsets.pop(member_id, None)
            self._told.forget(member_id)
            self.endpoints.pop(member_id, None)
            if not self.members:
                self.shutdown_requested_by = None
                self.tasks_with_room = 0

    def _apply_assignment(
        self, member_id: str, value: StreamsGroupCurrentMemberAssignmentValue | None
    ) -> None:
        before = self.members.get(member_id)
        if value is not None:
            self._put(before, (before or StreamsMember(member_id)).with_assignment(value))
        elif before is not None:
            left = LEAVE_GROUP_MEMBER_EPOCH
            after = replace(before, member_epoch=left, previous_member_epoch=left, assigned=NOTHING_OWNED)
            self._put(before, replace(after, pending_revocation=NOTHING_OWNED))

    def _put(self, before: StreamsMember | None, after: StreamsMember) -> None:
        if before is not None:
            self._forget_tasks(before)
        self.members[after.member_id] = after
        self.runners.add(_active_of(after), after.member_id)
        self.replicas.add(_replicas_of(after), after.member_id)

    def _forget_tasks(self, member: StreamsMember) -> None:
        self.runners.remove(_active_of(member), member.member_id)
        self.replicas.remove(_replicas_of(member), member.member_id)

    # ── comparing ───────────────────────────────────────────────────────────────────────────────
    def hard_state(self) -> tuple[object, ...]:
        """Return all state that comes from records, for comparison: equal after the same records."""
        return (
            self.group_epoch,
            self.metadata_hash,
            self.validated_topology_epoch,
            self.assignment_configs,
            self.description_epochs,
            self.topology,
            self.members,
            self.target,
            self.assignment_epoch,
            self.assignment_timestamp,
        )
