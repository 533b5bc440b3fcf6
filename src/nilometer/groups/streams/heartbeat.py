"""A heartbeat of a member of a streams group: who sent it, what is wrong with it, and what it says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from nilometer.groups.consumer.group import LEAVE_GROUP_STATIC_MEMBER_EPOCH
from nilometer.groups.requests import StreamsGroupHeartbeat, TaskOffset
from nilometer.groups.settings import GroupConfig
from nilometer.groups.streams.group import StreamsGroup, StreamsMember
from nilometer.groups.streams.tasks import MemberState, Tasks, tasks_of
from nilometer.groups.streams_topology import (
    TOPOLOGY_NAMES_MAX,
    Configured,
    KeyValue,
    Task,
    Topology,
    invalid,
)
from nilometer.wire.errors import ErrorCode, KafkaError


class Sender(msgspec.Struct, frozen=True):
    """The member that sent a heartbeat, as it is before it."""

    member: StreamsMember
    """A new member has epoch 0."""
    replaces: StreamsMember | None = None
    """The static member that it replaces, if any."""


# ── checks of requests ──────────────────────────────────────────────────────────────────────────
def check_request(request: StreamsGroupHeartbeat) -> None:
    """Check the fields of the request, without its group. Raises KafkaError."""
    topology = request.topology
    if topology is not None and any(each.source_topic_regex for each in topology.subtopologies):
        _refuse("Regular expressions for source topics are not supported yet.")
    for name, value in (
        ("MemberId", request.member_id),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and not value.strip():
            _refuse(f"{name} can't be empty.")
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if request.member_epoch == 0:
        if request.rebalance_timeout_ms == -1:
            _refuse("RebalanceTimeoutMs must be provided in first request.")
        for name, found in zip(("ActiveTasks", "StandbyTasks", "WarmupTasks"), tasks, strict=True):
            if found is None or found:
                _refuse(f"{name} must be empty when (re-)joining.")
        if topology is None:
            _refuse("Topology must be non-null when (re-)joining.")
        else:
            _check_topology(topology)
    elif request.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        if request.instance_id is None:
            _refuse("InstanceId can't be null.")
    elif request.member_epoch < LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        _refuse(f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2.")
    if any(found is not None for found in tasks) and any(found is None for found in tasks):
        _refuse("If one task-type is non-null, all must be non-null.")
    if request.member_epoch != 0 and topology is not None:
        _refuse("Topology can only be provided when (re-)joining.")


def _refuse(message: str) -> None:
    raise KafkaError(ErrorCode.invalid_request, message)


def _check_topology(topology: Topology) -> None:
    if topology.epoch < 0:
        _refuse("Topology epoch must be non-negative.")
    ids = [each.subtopology_id for each in topology.subtopologies]
    if len(set(ids)) < len(ids):
        raise invalid("A subtopology id is given twice.")
    if topology.size() > TOPOLOGY_NAMES_MAX:
        raise invalid(f"The topology names more than {TOPOLOGY_NAMES_MAX} topics and settings.")
    for each in topology.subtopologies:
        for topic in each.state_changelog_topics:
            if topic.partitions:
                raise invalid(
                    f"Changelog topic {topic.name} must have an undefined partition count, "
                    f"but it is set to {topic.partitions}."
                )
        for topic in each.repartition_source_topics:
            if topic.partitions < 0:
                raise invalid(
                    f"Repartition topic {topic.name} has a negative partition count, {topic.partitions}."
                )


def topology_of(group: StreamsGroup, request: StreamsGroupHeartbeat) -> Topology:
    """Return the topology in force: the group's, or the first one. Raises KafkaError (INVALID_REQUEST) if the
    request has another one."""
    sent, known = request.topology, group.topology
    if known is None:
        assert sent is not None, "only a member that joins finds no topology"
        return sent
    if sent is None or sent.epoch < known.epoch or _is_same(sent, known):
        return known
    raise KafkaError(ErrorCode.invalid_request, "Topology updates are not supported yet.")


def _is_same(one: Topology, other: Topology) -> bool:
    by_id = [{each.subtopology_id: each for each in it.subtopologies} for it in (one, other)]
    return one.epoch == other.epoch and by_id[0] == by_id[1]


def check_tasks(configured: Configured, request: StreamsGroupHeartbeat) -> None:
    """Raise KafkaError (INVALID_REQUEST) if the request names a task that does not exist, or an offset
    twice."""
    if configured.is_ready:
        for found in (request.active_tasks, request.standby_tasks, request.warmup_tasks):
            for each in found or ():
                subtopology = configured.subtopologies.get(each.subtopology_id)
                if subtopology is None:
                    _refuse(f"Subtopology {each.subtopology_id} does not exist in the topology.")
                    continue
                for partition in each.partitions:
                    if not 0 <= partition < subtopology.tasks:
                        _refuse(
                            f"Task {partition} for subtopology {each.subtopology_id} is invalid. "
                            f"Number of tasks for this subtopology: {subtopology.tasks}"
                        )
    for offsets in (request.task_offsets, request.task_end_offsets):
        seen: set[Task] = set()
        for each in offsets or ():
            task = each.subtopology_id, each.partition
            if task in seen:
                _refuse(
                    f"Task offsets contain a duplicate entry for subtopology {each.subtopology_id} "
                    f"and partition {each.partition}."
                )
            seen.add(task)


def claimed_tasks(request: StreamsGroupHeartbeat) -> Tasks | None:
    """Return the tasks that the member says it has; None if it does not say."""
    active, standby, warmup = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if active is None or standby is None or warmup is None:
        return None
    return Tasks(tasks_of(active), tasks_of(standby), tasks_of(warmup))


def check_state(member: StreamsMember, claimed: Tasks | None) -> None:
    """Raise KafkaError (FENCED_MEMBER_EPOCH) for a member whose state is not known here and that claims
    tasks, or does not say which: it must join again."""
    if member.state is MemberState.UNKNOWN and (claimed is None or claimed):
        raise KafkaError(
            ErrorCode.fenced_member_epoch,
            "The streams group member is in an unknown state. "
            "The member must abandon all its tasks and rejoin.",
        )


def note_offsets(group: StreamsGroup, request: StreamsGroupHeartbeat) -> None:
    """Keep what the member says of the state that it has, as far as the tasks exist."""
    if request.task_offsets is None and request.task_end_offsets is None:
        return
    before = group.offsets.get(request.member_id, ({}, {}))
    told = (request.task_offsets, request.task_end_offsets)
    first, second = (
        old if new is None else _offsets_of(group, new) for old, new in zip(before, told, strict=True)
    )
    group.note_offsets(request.member_id, (first, second))


def _offsets_of(group: StreamsGroup, told: Sequence[TaskOffset]) -> Mapping[Task, int]:
    found = {(each.subtopology_id, each.partition): each.offset for each in told}
    configured = group.configured
    return {task: found[task] for task in found if configured is not None and configured.has_task(task)}


# ── members ─────────────────────────────────────────────────────────────────────────────────────
def sender_of(group: StreamsGroup, request: StreamsGroupHeartbeat, config: GroupConfig) -> Sender:
    """Find the sender of a heartbeat. Raises KafkaError if the group is full, or it is unknown or fenced."""
    holder = None if request.instance_id is None else group.static_member(request.instance_id)
    if request.member_epoch == 0:
        is_known = holder is not None or request.member_id in group.members
        if not is_known and len(group.members) >= config.group_streams_max_size:
            raise KafkaError(
                ErrorCode.group_max_size_reached,
                "The streams group has reached its maximum capacity of "
                f"{config.group_streams_max_size} members.",
            )
        return _joining(group, holder, request)
    if request.instance_id is None:
        member = group.members.get(request.member_id)
        if member is None:
            raise _unknown_member(group, request.member_id)
    else:
        member = _holder_of(holder, request)
    _check_epoch(member, request)
    return Sender(member)


def _joining(group: StreamsGroup, holder: StreamsMember | None, request: StreamsGroupHeartbeat) -> Sender:
    if holder is None or holder.member_id == request.member_id:
        return Sender(holder or group.members.get(request.member_id) or StreamsMember(request.member_id))
    if holder.member_epoch != LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        raise KafkaError(
            ErrorCode.unreleased_instance_id,
            f"Static member {request.member_id} with instance id {request.instance_id} cannot join the group "
            f"because the instance id is owned by {holder.member_id} member.",
        )
    if request.member_id in group.members:
        raise _unknown_member(group, request.member_id)  # it is another member already
    successor = replace(holder, member_id=request.member_id, member_epoch=0, previous_member_epoch=0)
    return Sender(successor, holder)


def _holder_of(holder: StreamsMember | None, request: StreamsGroupHeartbeat) -> StreamsMember:
    """Return the member that has the request's instance id. Raises KafkaError unless it is the sender."""
    if holder is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {request.instance_id} is unknown.")
    if holder.member_id != request.member_id:
        raise KafkaError(
            ErrorCode.fenced_instance_id,
            f"Static member {request.member_id} with instance id {request.instance_id} was fenced by member "
            f"{holder.member_id}.",
        )
    return holder


def leaver_of(group: StreamsGroup, request: StreamsGroupHeartbeat) -> StreamsMember:
    """Return the member that leaves; its epoch is not checked. Raises KafkaError if there is no such
    member."""
    if request.instance_id is not None:
        return _holder_of(group.static_member(request.instance_id), request)
    member = group.members.get(request.member_id)
    if member is None:
        raise _unknown_member(group, request.member_id)
    return member


def _check_epoch(member: StreamsMember, request: StreamsGroupHeartbeat) -> None:
    """Raise KafkaError (FENCED_MEMBER_EPOCH) if the request's epoch is not the member's. The previous epoch
    is accepted if the member claims only tasks that are assigned to it."""
    epoch = request.member_epoch
    if epoch == member.member_epoch:
        return
    claimed = claimed_tasks(request)
    how = "greater" if epoch > member.member_epoch else "smaller"
    is_last = how == "smaller" and epoch == member.previous_member_epoch
    if is_last and claimed is not None and member.assigned.covers(claimed):
        return
    raise KafkaError(
        ErrorCode.fenced_member_epoch,
        f"The streams group member has a {how} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def _unknown_member(group: StreamsGroup, member_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group.group_id}."
    )


def with_wishes(member: StreamsMember, request: StreamsGroupHeartbeat) -> StreamsMember:
    """Return the member with what the request says of it."""
    joins, tags = request.member_epoch == 0, request.client_tags
    rebalance_timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if rebalance_timeout_ms == -1 else rebalance_timeout_ms
        ),
        client_id=request.client_id,
        client_host=request.client_host,
        topology_epoch=member.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=member.process_id if request.process_id is None else request.process_id,
        user_endpoint=(
            member.user_endpoint if request.user_endpoint is None and not joins else request.user_endpoint
        ),
        client_tags=member.client_tags if tags is None else _tags(tags),
    )


def _tags(tags: Iterable[KeyValue]) -> tuple[KeyValue, ...]:
    found = {tag.key: tag for tag in tags}
    return tuple(found[key] for key in sorted(found))


def matters(before: StreamsMember, after: StreamsMember) -> bool:
    """Whether a static member has changed in a way that may change assignments."""
    return (
        before.topology_epoch != after.topology_epoch
        or before.rack_id != after.rack_id
        or before.client_tags != after.client_tags
        or before.process_id != after.process_id
    )
