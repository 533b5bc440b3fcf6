"""Streams groups (KIP-1071): StreamsGroupHeartbeat and StreamsGroupDescribe, and the creation of the internal
topics that a topology needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, replace

from nilometer.broker.api.access import Rights
from nilometer.broker.api.metadata import OPERATIONS_NOT_ASKED
from nilometer.broker.api.spec import ApiSpec, Request, Right, of_message
from nilometer.broker.control.controller_link import ControllerLink, RequestingClient
from nilometer.broker.groups.group_coordinator import GroupCoordinator, client_host, client_id
from nilometer.broker.quotas import ClientQuotas
from nilometer.broker.responses import Response
from nilometer.broker.tasks import Tasks
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.topics import NewTopic
from nilometer.cluster.states import INTERNAL_TOPICS, why_invalid_name
from nilometer.coordination.store import CoordinationError
from nilometer.groups.requests import (
    DescribedStreamsGroup,
    DescribedStreamsMember,
    EndpointPartitions,
    GroupResult,
    GroupStatus,
    StreamsGroupDescribe,
    StreamsGroupDescribeResult,
    StreamsGroupHeartbeat,
    StreamsGroupHeartbeatResult,
    TaskOffset,
)
from nilometer.groups.streams_topology import (
    Endpoint,
    InternalTopic,
    KeyValue,
    Status,
    TaskIds,
    TopicInfo,
    Topology,
    listed,
)
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message, milliseconds
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated

# Creates the internal topics of streams groups (KIP-1071), in the name of the client whose heartbeat needs
# them. No heartbeat waits for it: a later one finds the topics, or is told why they are not there.

logger = logging.getLogger("nilometer.broker.groups")

DEFAULT_REPLICATION_FACTORS: Final = (0, -1)
"""Those of a topology that leaves it to the broker. Kafka Streams sends its setting ``replication.factor``,
which is -1 if the application does not set it."""
KNOWN_MAX: Final = 10_000
"""So many topics may be in creation, or have failed a short time ago."""
TOLD_FOR_MS: Final = 10_000
"""Members are told for this long why a topic could not be created; then it is tried again."""
CREATED_AT_ONCE: Final = 64
PARTITIONS_AT_ONCE: Final = 1_000
"""So many topics with so many partitions, or one, are created by one decision of the controller."""
_CREATED_OR_EXISTS = (ErrorCode.none, ErrorCode.topic_already_exists)


class _Attempt(msgspec.Struct):
    began_ms: int
    why: str = ""
    """Why it has failed; empty: it has not."""
    is_over: bool = False


class StreamsTopics:
    def __init__(self, runtime: Runtime, tasks: Tasks, link: ControllerLink, replication_factor: int) -> None:
        """``replication_factor``: that of topics whose topology gives none."""
        self._runtime = runtime
        self._tasks = tasks
        self._link = link
        self._replication_factor = replication_factor
        self._attempts: dict[str, _Attempt] = {}
        """By topic name."""

    def create(self, topics: Sequence[InternalTopic], client: RequestingClient) -> list[tuple[str, str]]:
        """Begin to create those topics that are not being created; return the others' failures: (name,
        reason)."""
        now_ms = self._runtime.clock.monotonic_ms()
        due: list[InternalTopic] = []
        failed: list[tuple[str, str]] = []
        for topic in topics:
            attempt = self._attempts.get(topic.name)
            if attempt is not None and attempt.is_over and now_ms >= attempt.began_ms + TOLD_FOR_MS:
                del self._attempts[topic.name]
                attempt = None
            if attempt is None:
                due.append(topic)
            elif attempt.why:
                failed.append((topic.name, attempt.why))
        if due and self._has_room(len(due)):
            self._attempts |= {topic.name: _Attempt(now_ms) for topic in due}
            self._tasks.spawn(self._create(due, client), name="creating topics of streams groups")
        return failed

    def _has_room(self, count: int) -> bool:
        """Return whether so many more may be in creation. What is over makes room for it, outdated or not, so
        that no client's failures keep the topics of others from being created."""
        if len(self._attempts) + count > KNOWN_MAX:
            over = [name for name, attempt in self._attempts.items() if attempt.is_over]
            for name in over:
                del self._attempts[name]
        return len(self._attempts) + count <= KNOWN_MAX

    async def _create(self, topics: Sequence[InternalTopic], client: RequestingClient) -> None:
        """Create the topics, some after the others: each decision of the controller is one turn."""
        try:
            for some in _portions(topics):
                await self._create_some(some, client)
        finally:
            for topic in topics:  # a topic that stays in creation is never created
                if not self._attempts[topic.name].is_over:
                    del self._attempts[topic.name]

    async def _create_some(self, topics: Sequence[InternalTopic], client: RequestingClient) -> None:
        errors = {topic.name: ErrorCode.unknown_server_error.name.upper() for topic in topics}
        try:
            codes = await self._link.create_topics(
                [self._new(topic) for topic in topics], self._runtime.entropy, client
            )
            errors = {
                name: code.name.upper() for name, code in codes.items() if code not in _CREATED_OR_EXISTS
            }
        except KafkaError as error:
            errors = {topic.name: error.message or error.code.name.upper() for topic in topics}
        except CoordinationError as error:
            errors = {topic.name: str(error) for topic in topics}
        finally:  # whatever has failed
            self._note(topics, errors)

    def _note(self, topics: Sequence[InternalTopic], errors: Mapping[str, str]) -> None:
        for topic in topics:
            why = errors.get(topic.name, "")
            self._attempts[topic.name] = _Attempt(self._runtime.clock.monotonic_ms(), why, is_over=True)
        failed = [topic.name for topic in topics if topic.name in errors]
        if failed:
            why = errors[failed[0]]
            logger.warning("Topics of a streams group could not be created: %s: %s", listed(failed), why)

    def _new(self, topic: InternalTopic) -> NewTopic:
        factor = topic.replication_factor
        return NewTopic(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=self._replication_factor if factor in DEFAULT_REPLICATION_FACTORS else factor,
            configs={each.key: each.value for each in topic.topic_configs},
        )


def _portions(topics: Sequence[InternalTopic]) -> Iterator[list[InternalTopic]]:
    portion: list[InternalTopic] = []
    partitions = 0
    for topic in topics:
        partitions += topic.partitions
        if portion and (len(portion) >= CREATED_AT_ONCE or partitions > PARTITIONS_AT_ONCE):
            yield portion
            portion, partitions = [], topic.partitions
        portion.append(topic)
    yield portion


# Streams groups (KIP-1071): StreamsGroupHeartbeat, with which a member joins, stays in and leaves one, and
# StreamsGroupDescribe.


class Parts(msgspec.Struct, frozen=True):
    groups: GroupCoordinator
    streams_topics: StreamsTopics
    client_quotas: ClientQuotas
    rights: Rights


FIRST_WITH_MISSING_TAGS = FIRST_WITH_RECOVERY_LAG = 1
SHOWN_ERRORS_MAX = 3
NOT_REQUESTED, NOT_STORED = 0, 1
"""Why there is no description of a topology: a plugin of Kafka would keep it."""

# StreamsGroupHeartbeat: with it a member joins, stays in and leaves a streams group.
#
# Versions: 1 has the status MISSING_CLIENT_TAGS, and the acceptable recovery lag.


def handle_heartbeat(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if not parts.groups.serves("streams"):
        return _respond_heartbeat(request, StreamsGroupHeartbeatResult(ErrorCode.unsupported_version))
    body = request.body
    asked = of_message(
        StreamsGroupHeartbeat,
        body,
        rebalance_timeout_ms=milliseconds(body.rebalance_timeout),
        topology=_read(Topology | None, body.topology),
        active_tasks=_read(tuple[TaskIds, ...] | None, body.active_tasks),
        standby_tasks=_read(tuple[TaskIds, ...] | None, body.standby_tasks),
        warmup_tasks=_read(tuple[TaskIds, ...] | None, body.warmup_tasks),
        user_endpoint=_read(Endpoint | None, body.user_endpoint),
        client_tags=_read(tuple[KeyValue, ...] | None, body.client_tags),
        task_offsets=_read(tuple[TaskOffset, ...] | None, body.task_offsets),
        task_end_offsets=_read(tuple[TaskOffset, ...] | None, body.task_end_offsets),
        client_id=client_id(request),
        client_host=client_host(request),
        knows_missing_tags=request.version >= FIRST_WITH_MISSING_TAGS,
    )
    if asked.topology is not None:
        refused = _why_refused(parts, request, asked.group_id, asked.topology)
        if refused is not None:
            return _respond_heartbeat(request, refused)
    return parts.groups.ask_group(
        request,
        Operation.READ,
        asked,
        StreamsGroupHeartbeatResult,
        partial(_respond_after_creating, parts, request),
    )


def _read(kind: Any, message: Any) -> Any:
    """Return a part of a message as a ``kind``, whose fields have the same names."""
    return msgspec.convert(message, kind, from_attributes=True)


def _why_refused(
    parts: Parts, request: Request, group_id: str, topology: Topology
) -> StreamsGroupHeartbeatResult | None:
    """Return an error if a topology has topics that it may not have, or that its client may not describe."""
    access = parts.rights.access(request)
    if not (access.is_full or access.allows(Operation.READ, ResourceType.GROUP, group_id, report=False)):
        return None  # the group itself is denied, which the coordinator reports
    names = dict.fromkeys(topology.names())
    internal = [name for name in names if name in INTERNAL_TOPICS]
    if internal:
        why = f"Use of Kafka internal topics {_shown(internal)} in a Kafka Streams topology is prohibited."
        return StreamsGroupHeartbeatResult(ErrorCode.streams_invalid_topology, why)
    bad = [name for name in names if why_invalid_name(name) is not None]
    if bad:
        why = f"Topic names {_shown(bad)} are not valid topic names."
        return StreamsGroupHeartbeatResult(ErrorCode.streams_invalid_topology, why)
    if access.allowed(Operation.DESCRIBE, ResourceType.TOPIC, list(names)) != set(names):
        return StreamsGroupHeartbeatResult(ErrorCode.topic_authorization_failed)
    return None


def _shown(names: Sequence[str]) -> str:
    return ",".join(names[:SHOWN_ERRORS_MAX]) + (",…" if len(names) > SHOWN_ERRORS_MAX else "")


def _respond_after_creating(parts: Parts, request: Request, result: StreamsGroupHeartbeatResult) -> Response:
    """Have missing internal topics created, with the client's rights, and respond without waiting for it: the
    next heartbeat finds them, or is told why they are not there."""
    missing = result.missing_topics
    if not missing:
        return _respond_heartbeat(request, result)
    names = [topic.name for topic in missing]
    access = parts.rights.access(request)
    may_create = set(names)
    if not access.on_cluster(Operation.CREATE, report=False):
        may_create = access.allowed(Operation.CREATE, ResourceType.TOPIC, names)
    denied = [name for name in names if name not in may_create]
    if denied:
        result = _with_detail(result, f"; Unauthorized to CREATE on topics {listed(denied)}.")
    else:
        client_id, context = request.header.client_id, request.context
        quota = parts.client_quotas.mutations(context, client_id, strict=True)
        failed = parts.streams_topics.create(missing, RequestingClient(client_id, context, quota))
        if failed:
            shown = [f"{name} ({why})" for name, why in failed[:SHOWN_ERRORS_MAX]]
            more = f" and {len(failed) - len(shown)} more" if len(failed) > len(shown) else ""
            result = _with_detail(result, f"; Creation failed: {', '.join(shown)}{more}.")
    return _respond_heartbeat(request, result)


def _with_detail(result: StreamsGroupHeartbeatResult, more: str) -> StreamsGroupHeartbeatResult:
    """Return ``result`` with more to say of the missing internal topics."""
    status = tuple(
        GroupStatus(each.status_code, each.status_detail + more)
        if each.status_code is Status.MISSING_INTERNAL_TOPICS
        else each
        for each in result.status
    )
    return replace(result, status=status)


def _respond_heartbeat(request: Request, result: StreamsGroupHeartbeatResult) -> Response:
    endpoints = result.partitions_by_user_endpoint
    fields = asdict(result)
    del fields["missing_topics"]
    if request.version < FIRST_WITH_RECOVERY_LAG:
        fields["acceptable_recovery_lag"] = 0  # as Kafka
    return request.respond(
        **fields
        | {
            "status": tuple(request.make("Status", **asdict(each)) for each in result.status),
            "active_tasks": _tasks(request, result.active_tasks),
            "standby_tasks": _tasks(request, result.standby_tasks),
            "warmup_tasks": _tasks(request, result.warmup_tasks),
            "partitions_by_user_endpoint": None
            if endpoints is None
            else LazySequence(partial(_endpoint_partitions, request), endpoints),
        }
    )


def _tasks(request: Request, tasks: Iterable[TaskIds] | None) -> tuple[Message, ...] | None:
    return None if tasks is None else tuple(request.make("TaskIds", **asdict(each)) for each in tasks)


def _endpoint_partitions(request: Request, found: EndpointPartitions) -> Message:
    return request.make(
        "EndpointToPartitions",
        user_endpoint=request.make("Endpoint", **asdict(found.user_endpoint)),
        active_partitions=_topic_partitions(request, found.active),
        standby_partitions=_topic_partitions(request, found.standby),
    )


def _topic_partitions(request: Request, found: Mapping[str, tuple[int, ...]]) -> tuple[Message, ...]:
    return tuple(request.make("TopicPartition", topic=name, partitions=found[name]) for name in sorted(found))


# StreamsGroupDescribe: epochs, topology, members and assignments of streams groups.


def handle_describe(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    groups = request.body.group_ids
    if not parts.groups.serves("streams"):
        unsupported = ErrorCode.unsupported_version
        refused = tuple(DescribedStreamsGroup(group, unsupported) for group in groups)
        return _respond_describe(parts, request, [StreamsGroupDescribeResult(refused)])
    return parts.groups.ask_groups(
        request,
        Operation.DESCRIBE,
        [(group, StreamsGroupDescribe((group,))) for group in groups],
        lambda results: _respond_describe(parts, request, results),
    )


def _respond_describe(parts: Parts, request: Request, results: Sequence[GroupResult]) -> Response:
    described = [
        group
        for result in results
        if isinstance(result, StreamsGroupDescribeResult)
        for group in result.groups
    ]
    groups = tuple(_group(parts, request, _visible(parts, request, group)) for group in described)
    return request.respond(groups=groups)


def _visible(parts: Parts, request: Request, group: DescribedStreamsGroup) -> DescribedStreamsGroup:
    """Return ``group``, or an error if it uses a topic that the client may not describe."""
    access = parts.rights.access(request)
    if access.is_full or group.topology is None:
        return group
    names = set(group.topology.names())
    if access.allowed(Operation.DESCRIBE, ResourceType.TOPIC, sorted(names)) == names:
        return group
    why = "The described group uses topics that the client is not authorized to describe."
    return DescribedStreamsGroup(group.group_id, ErrorCode.topic_authorization_failed, why)


def _group(parts: Parts, request: Request, group: DescribedStreamsGroup) -> Message:
    is_found = group.error_code is ErrorCode.none
    operations = OPERATIONS_NOT_ASKED
    if request.body.include_authorized_operations and is_found:
        operations = parts.rights.access(request).operations(ResourceType.GROUP, group.group_id)
    asks = request.field("include_topology_description", False)
    fields = asdict(group)
    del fields["configured"]
    return request.make(
        "DescribedGroup",
        **fields
        | {
            "topology": None if group.topology is None else _topology(request, group, group.topology),
            "members": LazySequence(partial(_member, request), group.members),
        },
        authorized_operations=operations,
        topology_description=None,
        topology_description_status=NOT_STORED if asks and is_found else NOT_REQUESTED,
    )


def _topology(request: Request, group: DescribedStreamsGroup, topology: Topology) -> Message:
    configured = group.configured or {}
    subtopologies: list[Message] = []
    for each in sorted(topology.subtopologies, key=lambda one: one.subtopology_id):
        found = configured.get(each.subtopology_id)
        repartition: Iterable[TopicInfo | InternalTopic] = each.repartition_source_topics
        changelog: Iterable[TopicInfo | InternalTopic] = each.state_changelog_topics
        if found is not None:
            repartition, changelog = found.repartition_source_topics, found.state_changelog_topics
        subtopologies.append(
            request.make(
                "Subtopology",
                subtopology_id=each.subtopology_id,
                source_topics=tuple(sorted(each.source_topics)),
                repartition_sink_topics=tuple(sorted(each.repartition_sink_topics)),
                state_changelog_topics=_topic_infos(request, changelog),
                repartition_source_topics=_topic_infos(request, repartition),
            )
        )
    return request.make("Topology", epoch=topology.epoch, subtopologies=tuple(subtopologies))


def _topic_infos(request: Request, topics: Iterable[TopicInfo | InternalTopic]) -> tuple[Message, ...]:
    return tuple(
        request.make(
            "TopicInfo",
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=_key_values(request, topic.topic_configs),
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    )


def _key_values(request: Request, pairs: Iterable[KeyValue]) -> tuple[Message, ...]:
    return tuple(request.make("KeyValue", key=each.key, value=each.value) for each in pairs)


def _member(request: Request, member: DescribedStreamsMember) -> Message:
    endpoint = member.user_endpoint
    return request.make(
        "Member",
        **asdict(member)
        | {
            "user_endpoint": None if endpoint is None else request.make("Endpoint", **asdict(endpoint)),
            "client_tags": _key_values(request, member.client_tags),
            "task_offsets": _offsets(request, member.task_offsets),
            "task_end_offsets": _offsets(request, member.task_end_offsets),
            "assignment": _assignment(request, member.assignment),
            "target_assignment": _assignment(request, member.target_assignment),
        },
        is_classic=False,
    )


def _offsets(request: Request, offsets: Sequence[TaskOffset]) -> Sequence[Message]:
    return LazySequence(lambda each: request.make("TaskOffset", **asdict(each)), offsets)


def _assignment(request: Request, assignment: msgspec.Struct) -> Message:
    tasks = asdict(assignment)
    return request.make("Assignment", **{role: _tasks(request, tasks[role]) for role in tasks})


# StreamsGroupTopologyDescriptionUpdate (KIP-1331): a member describes its topology, for a plugin of Kafka.


def handle_description(parts: Parts, request: Request) -> Response:
    body = request.body
    if not parts.groups.serves("streams"):
        return request.respond(error_code=ErrorCode.unsupported_version)
    if not parts.rights.access(request).allows(Operation.READ, ResourceType.GROUP, body.group_id):
        return request.respond(error_code=ErrorCode.group_authorization_failed)
    return request.respond(
        error_code=ErrorCode.unsupported_version,
        error_message="The broker has no streams group topology description plugin configured.",
    )


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.STREAMS_GROUP_HEARTBEAT,
            versions=(0, 1),
            handle=partial(handle_heartbeat, parts),
            rights=(
                Right(Operation.READ, ResourceType.GROUP),
                Right(Operation.DESCRIBE, ResourceType.TOPIC),
                Right(Operation.CREATE, ResourceType.TOPIC),
                Right(Operation.CREATE, ResourceType.CLUSTER),
            ),
        ),
        ApiSpec(
            key=ApiKey.STREAMS_GROUP_DESCRIBE,
            versions=(0, 1),
            handle=partial(handle_describe, parts),
            divisions=(
                Division(("group_ids",), ("groups",), repeated=Repeated.AT_MOST_TWICE, elements_max=1),
            ),
            rights=(
                Right(Operation.DESCRIBE, ResourceType.GROUP),
                Right(Operation.DESCRIBE, ResourceType.TOPIC),
            ),
        ),
        ApiSpec(
            key=ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
            versions=(0, 0),
            handle=partial(handle_description, parts),
            rights=(Right(Operation.READ, ResourceType.GROUP),),
        ),
    )
