"""Describe-, Alter- and DeleteShareGroupOffsets (KIP-932): where a share group reads its partitions from.

The group coordinator knows which partitions have a state, the share coordinators have the state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from uuid import UUID

import msgspec

from nilometer.broker.api.access import Rights
from nilometer.broker.api.listings import Listings
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.control.broker_peers import PeerConnections
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.groups.group_coordinator import GroupCoordinator
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.responses import Response
from nilometer.broker.sharing.persister import SharePersister
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import Topic
from nilometer.groups.requests import (
    AlterShareGroupOffsets,
    DeleteShareGroupOffsets,
    ShareGroupOffsetsRequest,
    ShareGroupOffsetsResult,
    ShareGroupPartitions,
)
from nilometer.identifiers import uuid_from_text
from nilometer.runtime.gathering import gather
from nilometer.share.state_records import NO_START_OFFSET, UNKNOWN_COUNT, SharePartitionKey
from nilometer.share.state_shard import ReadSummary, StateResult
from nilometer.storage.names import TopicPartition
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import NONE, ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated

# Where the records of partitions end, asked of their leaders: for the lag of share groups (KIP-1226).

logger = logging.getLogger("nilometer.broker.sharing")

LATEST = -1
NO_REPLICA = -1
PER_REQUEST_MAX = 60
"""Partitions in a request: brokers handle so many as a whole."""
VERSION_MAX = 10


class EndOffsets:
    def __init__(
        self, broker_id: int, metadata: MetadataLog, replicas: ReplicaManager, connections: PeerConnections
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._replicas = replicas
        self._connections = connections

    async def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition whose leader responds."""
        found: dict[TopicPartition, int] = {}
        elsewhere: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            topic = self._metadata.image.topic(partition.topic)
            state = None if topic is None else topic.partition(partition.partition)
            if state is None or not state.has_leader:
                continue
            if state.leader != self._broker_id:
                elsewhere.setdefault(int(state.leader), []).append(partition)
                continue
            try:
                hosted = self._replicas.partition(partition.topic, partition.partition)
                found[partition] = hosted.latest_offset(read_committed=False)
            except KafkaError as refused:
                logger.info("The end of %s is not known: %s", partition, refused)
        asked = [
            (broker_id, some[first : first + PER_REQUEST_MAX])
            for broker_id, some in elsewhere.items()
            for first in range(0, len(some), PER_REQUEST_MAX)
        ]
        for answers in await gather(*(self._ask(*each) for each in asked)):
            found |= answers
        return found

    async def _ask(self, broker_id: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        try:
            connection = await self._connections.to(broker_id)
            response = await connection.request(
                ApiKey.LIST_OFFSETS, lambda api: _request(api, partitions), at_most=VERSION_MAX
            )
        except KafkaError as refused:
            logger.info("Broker %d did not say where partitions end: %s", broker_id, refused)
            return {}
        return {
            TopicPartition(topic.name, part.partition_index): part.offset
            for topic in response.topics
            for part in topic.partitions
            if part.error_code == ErrorCode.none
        }


def _request(api: Api, partitions: Sequence[TopicPartition]) -> Message:
    by_topic: dict[str, list[Message]] = {}
    for one in partitions:
        part = api.make_request("ListOffsetsPartition", partition_index=one.partition, timestamp=LATEST)
        by_topic.setdefault(one.topic, []).append(part)
    topics = (
        api.make_request("ListOffsetsTopic", name=name, partitions=tuple(parts))
        for name, parts in by_topic.items()
    )
    return api.request(replica_id=NO_REPLICA, isolation_level=0, topics=tuple(topics))


class Parts(msgspec.Struct, frozen=True):
    tasks: Tasks
    turns: Turns
    listings: Listings
    metadata: MetadataLog
    groups: GroupCoordinator
    persister: SharePersister
    end_offsets: EndOffsets
    rights: Rights


UNKNOWN_LAG = -1
LAG_SINCE = 1
ASKED_AT_ONCE = 100
"""So many share partitions are asked for together."""


async def _ask(parts: Parts, request: ShareGroupOffsetsRequest) -> ShareGroupOffsetsResult:
    response = await parts.groups.answer(request.group_id, request)
    assert isinstance(response, ShareGroupOffsetsResult)
    return response


def _why_not(parts: Parts, request: Request, operation: Operation, group_id: str) -> ErrorCode:
    """Return why the client may not do this to the group; NONE if it may."""
    if not parts.groups.serves("share"):
        return ErrorCode.unsupported_version
    if not group_id:
        return ErrorCode.invalid_group_id
    allowed = parts.rights.access(request).allows(operation, ResourceType.GROUP, group_id)
    return NONE if allowed else ErrorCode.group_authorization_failed


def _may_use(parts: Parts, request: Request, operation: Operation, topic: str) -> bool:
    return parts.rights.access(request).allows(operation, ResourceType.TOPIC, topic)


# ── DescribeShareGroupOffsets ───────────────────────────────────────────────────────────────────
def handle_describe(parts: Parts, request: Request) -> asyncio.Future[Response]:
    if any(group.topics is None for group in request.body.groups):
        # Those of one origin wait for each other, also while other brokers are asked for their states.
        return parts.listings.answer(request, partial(_describe, parts))
    work = LongWork(parts.turns)
    return parts.tasks.spawn(_describe(parts, request, work), kind="DescribeShareGroupOffsets")


async def _describe(parts: Parts, request: Request, work: LongWork) -> Response:
    groups = [await _describe_group(parts, request, group, work) for group in request.body.groups]
    return request.respond(groups=tuple(groups))


async def _describe_group(parts: Parts, request: Request, asked: Message, work: LongWork) -> Message:
    error, message = _why_not(parts, request, Operation.DESCRIBE, asked.group_id), None
    topics: tuple[Message, ...] = ()
    if error is NONE:
        response = await _ask(parts, ShareGroupPartitions(asked.group_id))
        error, message = response.error_code, response.error_message
        if error is ErrorCode.group_id_not_found:
            error, message = NONE, None  # as Kafka: a group without a state
        if error is NONE:
            wanted = _wanted(parts, asked, response.initialized)
            topics = await _describe_topics(
                parts, request, asked.group_id, wanted, response.initialized, work
            )
    return request.make(
        "DescribeShareGroupOffsetsResponseGroup",
        group_id=asked.group_id,
        topics=topics,
        error_code=error,
        error_message=message,
    )


def _wanted(
    parts: Parts, asked: Message, initialized: Mapping[UUID, frozenset[int]]
) -> list[tuple[str, tuple[int, ...]]]:
    """Return the topics' names and partitions that are described: those named, or all that have a state."""
    if asked.topics is not None:
        return [(topic.topic_name, topic.partitions) for topic in asked.topics]
    found: list[tuple[str, tuple[int, ...]]] = []
    for topic_id, partitions in initialized.items():
        topic = parts.metadata.image.topic_by_uuid(topic_id)
        if topic is not None:
            found.append((topic.name, tuple(sorted(partitions))))
    return sorted(found)


async def _describe_topics(
    parts: Parts,
    request: Request,
    group_id: str,
    wanted: Iterable[tuple[str, Sequence[int]]],
    initialized: Mapping[UUID, frozenset[int]],
    work: LongWork,
) -> tuple[Message, ...]:
    described: list[Message] = []
    for name, partitions in wanted:
        topic = parts.metadata.image.topic(name)
        if not _may_use(parts, request, Operation.DESCRIBE, name):
            if topic is not None and not partitions:
                continue
            denied = ErrorCode.topic_authorization_failed
            found: Sequence[Message] = LazySequence(partial(_failed_with, request, denied), partitions)
        elif topic is None:
            found = LazySequence(partial(_without_state, request), partitions)
        else:
            known = initialized.get(uuid_from_text(topic.id), frozenset())
            found = await _describe_partitions(parts, request, group_id, topic, partitions, known)
        await work.step(1 + len(partitions))
        described.append(
            request.make(
                "DescribeShareGroupOffsetsResponseTopic",
                topic_name=name,
                topic_id=None if topic is None else uuid_from_text(topic.id),
                partitions=found,
            )
        )
    return tuple(described)


async def _describe_partitions(
    parts: Parts,
    request: Request,
    group_id: str,
    topic: Topic,
    partitions: Sequence[int],
    known: frozenset[int],
) -> Sequence[Message]:
    """Return the partitions of the response, which are made when they are encoded."""
    responses: dict[int, StateResult] = {}
    with_state = [index for index in partitions if index in known]
    for first in range(0, len(with_state), ASKED_AT_ONCE):
        keys = [
            SharePartitionKey(group_id, topic.id, index)
            for index in with_state[first : first + ASKED_AT_ONCE]
        ]
        asked = (parts.persister.ask(ReadSummary(key, 0)) for key in keys)
        for response in await gather(*asked):
            responses[response.key.partition] = response
    ends: Mapping[TopicPartition, int] = {}
    if request.version >= LAG_SINCE:
        ends = await parts.end_offsets.of(TopicPartition(topic.name, index) for index in with_state)
    return LazySequence(partial(_state_of, request, topic.name, responses, ends), partitions)


def _state_of(
    request: Request,
    topic: str,
    responses: Mapping[int, StateResult],
    ends: Mapping[TopicPartition, int],
    index: int,
) -> Message:
    response = responses.get(index)
    if response is None:
        return _without_state(request, index)
    if response.error is not NONE or response.state is None:
        return _failed(request, index, response.error, response.message)
    state, lag, end = response.state, UNKNOWN_LAG, ends.get(TopicPartition(topic, index))
    is_known = state.start_offset != NO_START_OFFSET and state.delivery_complete_count != UNKNOWN_COUNT
    if end is not None and is_known:
        lag = max(0, end - state.start_offset - state.delivery_complete_count)
    return _described(request, index, state.start_offset, state.leader_epoch, lag)


def _without_state(request: Request, index: int) -> Message:
    return _described(request, index, NO_START_OFFSET, 0, UNKNOWN_LAG)


def _described(request: Request, index: int, start_offset: int, leader_epoch: int, lag: int) -> Message:
    more = {"lag": lag} if request.version >= LAG_SINCE else {}
    return request.make(
        "DescribeShareGroupOffsetsResponsePartition",
        partition_index=index,
        start_offset=start_offset,
        leader_epoch=leader_epoch,
        error_code=NONE,
        error_message=None,
        **more,
    )


def _failed(request: Request, index: int, error: ErrorCode, message: str | None = None) -> Message:
    return request.make(
        "DescribeShareGroupOffsetsResponsePartition",
        partition_index=index,
        start_offset=NO_START_OFFSET,
        leader_epoch=0,
        error_code=error,
        error_message=message,
    )


def _failed_with(request: Request, error: ErrorCode, index: int) -> Message:
    return _failed(request, index, error)


# ── AlterShareGroupOffsets ──────────────────────────────────────────────────────────────────────
def handle_alter(parts: Parts, request: Request) -> asyncio.Future[Response]:
    return parts.tasks.spawn(_alter(parts, request), kind="AlterShareGroupOffsets")


async def _alter(parts: Parts, request: Request) -> Response:
    body = request.body
    error, message = _why_not(parts, request, Operation.READ, body.group_id), None
    errors: dict[tuple[str, int], ErrorCode] = {}
    offsets: dict[UUID, dict[int, int]] = {}
    work = LongWork(parts.turns)
    if error is NONE:
        for topic in body.topics:
            found = parts.metadata.image.topic(topic.topic_name)
            readable = _may_use(parts, request, Operation.READ, topic.topic_name)
            for part in topic.partitions:
                place = (topic.topic_name, part.partition_index)
                if not readable:
                    errors[place] = ErrorCode.topic_authorization_failed
                elif found is None or found.partition(part.partition_index) is None:
                    errors[place] = ErrorCode.unknown_topic_or_partition
                else:
                    of_topic = offsets.setdefault(uuid_from_text(found.id), {})
                    of_topic[part.partition_index] = part.start_offset
                await work.step(1)
        if offsets:
            response = await _ask(parts, AlterShareGroupOffsets(body.group_id, offsets))
            error, message = response.error_code, response.error_message
            errors |= _by_place(parts, response)
            if error is NONE:
                parts.rights.audit_own_change(request, group_id=body.group_id)
    topics = ()
    if error is NONE:
        topics = tuple(_altered(parts, request, topic, errors) for topic in body.topics)
    return request.respond(error_code=error, error_message=message, responses=topics)


def _by_place(parts: Parts, response: ShareGroupOffsetsResult) -> dict[tuple[str, int], ErrorCode]:
    errors: dict[tuple[str, int], ErrorCode] = {}
    for topic_id, of_topic in response.errors.items():
        topic = parts.metadata.image.topic_by_uuid(topic_id)
        for index, error in of_topic.items():
            errors["" if topic is None else topic.name, index] = error
    return errors


def _altered(
    parts: Parts, request: Request, topic: Message, errors: Mapping[tuple[str, int], ErrorCode]
) -> Message:
    found = parts.metadata.image.topic(topic.topic_name)
    return request.make(
        "AlterShareGroupOffsetsResponseTopic",
        topic_name=topic.topic_name,
        topic_id=None if found is None else uuid_from_text(found.id),
        partitions=LazySequence(partial(_altered_one, request, topic.topic_name, errors), topic.partitions),
    )


def _altered_one(
    request: Request, topic: str, errors: Mapping[tuple[str, int], ErrorCode], part: Message
) -> Message:
    return request.make(
        "AlterShareGroupOffsetsResponsePartition",
        partition_index=part.partition_index,
        error_code=errors.get((topic, part.partition_index), NONE),
        error_message=None,
    )


# ── DeleteShareGroupOffsets ─────────────────────────────────────────────────────────────────────
def handle_delete(parts: Parts, request: Request) -> asyncio.Future[Response]:
    return parts.tasks.spawn(_delete(parts, request), kind="DeleteShareGroupOffsets")


async def _delete(parts: Parts, request: Request) -> Response:
    body = request.body
    error, message = _why_not(parts, request, Operation.DELETE, body.group_id), None
    errors: dict[str, ErrorCode] = {}
    found_ids: dict[str, UUID] = {}
    if error is NONE:
        ids: dict[UUID, str] = {}
        for topic in body.topics:
            found = parts.metadata.image.topic(topic.topic_name)
            if not _may_use(parts, request, Operation.READ, topic.topic_name):
                errors[topic.topic_name] = ErrorCode.topic_authorization_failed
            elif found is None:
                errors[topic.topic_name] = ErrorCode.unknown_topic_or_partition
            else:
                ids[uuid_from_text(found.id)] = topic.topic_name
        response = await _ask(parts, DeleteShareGroupOffsets(body.group_id, frozenset(ids)))
        error, message = response.error_code, response.error_message
        for topic_id, name in ids.items():
            if topic_id in response.initialized:
                found_ids[name] = topic_id
            else:
                errors[name] = ErrorCode.unknown_topic_or_partition
        for topic_id, of_topic in response.errors.items():
            for failed in of_topic.values():
                errors[ids[topic_id]] = failed
        if error is NONE:
            parts.rights.audit_own_change(request, group_id=body.group_id)
    topics = ()
    if error is NONE:
        topics = tuple(_deleted(request, topic.topic_name, found_ids, errors) for topic in body.topics)
    return request.respond(error_code=error, error_message=message, responses=topics)


def _deleted(
    request: Request, name: str, ids: Mapping[str, UUID], errors: Mapping[str, ErrorCode]
) -> Message:
    return request.make(
        "DeleteShareGroupOffsetsResponseTopic",
        topic_name=name,
        topic_id=ids.get(name),
        error_code=errors.get(name, NONE),
        error_message=None,
    )


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            versions=(0, 1),
            handle=partial(handle_describe, parts),
            rights=(
                Right(Operation.DESCRIBE, ResourceType.GROUP),
                Right(Operation.DESCRIBE, ResourceType.TOPIC),
            ),
            divisions=(Division(("groups",), ("groups",), repeated=Repeated.AT_MOST_TWICE, elements_max=1),),
        ),
        ApiSpec(
            key=ApiKey.ALTER_SHARE_GROUP_OFFSETS,
            versions=(0, 0),
            handle=partial(handle_alter, parts),
            rights=(Right(Operation.READ, ResourceType.GROUP), Right(Operation.READ, ResourceType.TOPIC)),
        ),
        ApiSpec(
            key=ApiKey.DELETE_SHARE_GROUP_OFFSETS,
            versions=(0, 0),
            handle=partial(handle_delete, parts),
            rights=(Right(Operation.DELETE, ResourceType.GROUP), Right(Operation.READ, ResourceType.TOPIC)),
        ),
    )
