"""DescribeTopicPartitions and DescribeCluster: partitions with their eligible leader replicas, in pages, and
the brokers.

Metadata, which every client sends, is in a module of its own.
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from nilometer.broker.api.access import Rights
from nilometer.broker.api.listings import Listings
from nilometer.broker.api.metadata import OPERATIONS_NOT_ASKED, offline_replicas
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.authorizer import Access
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.responses import Response
from nilometer.broker.turns import LongWork
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import Topic, why_invalid_name
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode


class Parts(msgspec.Struct, frozen=True):
    listings: Listings
    metadata: MetadataLog
    cluster_id: str
    rights: Rights


# DescribeTopicPartitions (KIP-966): partitions with their eligible leader replicas, in pages.
#
# A response with a ``next_cursor`` is not the last page: the client sends the cursor with its next request.

PARTITIONS_PER_PAGE_MAX = 2000


def handle_topic_partitions(parts: Parts, request: Request) -> asyncio.Future[Response]:
    return parts.listings.answer(request, partial(_page, parts))


async def _page(parts: Parts, request: Request, work: LongWork) -> Response:
    cursor = request.body.cursor
    image, access = parts.metadata.image, parts.rights.access(request)
    wanted = sorted({topic.name for topic in request.body.topics})
    if cursor is not None and (cursor.partition_index < 0 or (wanted and cursor.topic_name not in wanted)):
        refused = tuple(_refused(request, name, ErrorCode.invalid_request) for name in wanted)
        return request.respond(topics=refused, next_cursor=None)
    names = wanted or [topic.name for topic in image.topics()]
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    described: list[str] = []
    denied: list[str] = []
    for name in names:
        may = access.allows(Operation.DESCRIBE, ResourceType.TOPIC, name, report=bool(wanted))
        (described if may else denied).append(name)
        await work.step(1)
    room = max(1, min(request.body.response_partition_limit, PARTITIONS_PER_PAGE_MAX))
    answers = list[object]()
    next_cursor = None
    for name in described:
        await work.step(1)
        topic = image.topic(name)
        if topic is None:
            if wanted:
                answers.append(_unknown(request, access, name))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if room == 0:
            next_cursor = request.make("Cursor", topic_name=name, partition_index=first)
            break
        first = min(first, len(topic.partitions))
        last = min(len(topic.partitions), first + room)
        answers.append(_topic(parts, request, topic, range(first, last)))
        room -= last - first
        if last < len(topic.partitions):
            next_cursor = request.make("Cursor", topic_name=name, partition_index=last)
            break
    if wanted:
        answers += (_refused(request, name, ErrorCode.topic_authorization_failed) for name in denied)
    return request.respond(topics=tuple(answers), next_cursor=next_cursor)


def _unknown(request: Request, access: Access, name: str) -> object:
    invalid = why_invalid_name(name) is not None
    error = ErrorCode.invalid_topic_exception if invalid else ErrorCode.unknown_topic_or_partition
    return _refused(request, name, error, access.operations(ResourceType.TOPIC, name))


def _refused(request: Request, name: str, error: ErrorCode, operations: int = OPERATIONS_NOT_ASKED) -> object:
    return request.make(
        "DescribeTopicPartitionsResponseTopic",
        error_code=error,
        name=name,
        topic_id=None,
        is_internal=False,
        partitions=(),
        topic_authorized_operations=operations,
    )


def _topic(parts: Parts, request: Request, topic: Topic, indexes: range) -> object:
    return request.make(
        "DescribeTopicPartitionsResponseTopic",
        name=topic.name,
        topic_id=topic.uuid,
        is_internal=topic.is_internal,
        partitions=LazySequence(partial(_partition, parts, request, topic), indexes),
        topic_authorized_operations=parts.rights.access(request).operations(ResourceType.TOPIC, topic.name),
    )


def _partition(parts: Parts, request: Request, topic: Topic, index: int) -> object:
    state = topic.partitions[index]
    return request.make(
        "DescribeTopicPartitionsResponsePartition",
        error_code=ErrorCode.none if state.has_leader else ErrorCode.leader_not_available,
        partition_index=index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
        eligible_leader_replicas=state.elr,
        last_known_elr=() if state.last_known_leader < 0 else (state.last_known_leader,),
        offline_replicas=offline_replicas(parts.metadata.image, state),
    )


# DescribeCluster: the brokers, the controller, the cluster's id.
#
# Version 2 lists fenced brokers too if the request wants them.

ENDPOINT_TYPE_BROKERS, ENDPOINT_TYPE_CONTROLLERS = 1, 2


def handle_cluster(parts: Parts, request: Request) -> Response:
    endpoint_type = request.field("endpoint_type", ENDPOINT_TYPE_BROKERS)
    if endpoint_type != ENDPOINT_TYPE_BROKERS:
        known = endpoint_type == ENDPOINT_TYPE_CONTROLLERS
        return request.respond(
            error_code=ErrorCode.mismatched_endpoint_type if known else ErrorCode.unsupported_endpoint_type,
            error_message="The controller is one of the brokers; there are no separate controller endpoints.",
            cluster_id=parts.cluster_id,
            brokers=(),
        )
    fenced_too = request.field("include_fenced_brokers", False)
    brokers = tuple(
        request.make(
            "DescribeClusterBroker",
            broker_id=broker.id,
            host=endpoint.host,
            port=endpoint.port,
            rack=broker.rack,
            is_fenced=broker.fenced,
        )
        for broker in parts.metadata.image.brokers()
        if (fenced_too or not broker.fenced)
        and (endpoint := broker.endpoint(request.context.listener)) is not None
    )
    operations = OPERATIONS_NOT_ASKED
    if request.body.include_cluster_authorized_operations:
        operations = parts.rights.access(request).cluster_operations()
    return request.respond(
        error_message=None,
        endpoint_type=ENDPOINT_TYPE_BROKERS,
        cluster_id=parts.cluster_id,
        controller_id=parts.metadata.image.controller_id,
        brokers=brokers,
        cluster_authorized_operations=operations,
    )


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            versions=(0, 0),
            handle=partial(handle_topic_partitions, parts),
            rights=(Right(Operation.DESCRIBE, ResourceType.TOPIC),),
        ),
        ApiSpec(
            key=ApiKey.DESCRIBE_CLUSTER,
            versions=(0, 2),
            handle=partial(handle_cluster, parts),
            rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
        ),
    )
