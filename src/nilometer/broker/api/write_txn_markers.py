"""WriteTxnMarkers: writes the control records that end a transaction to partitions led here.

Sent by transaction coordinators, and by tools that abort a transaction whose coordinator has lost it. The
response comes once the markers are committed. Version 2 has the ``transaction.version``: with 2 the epoch of
a marker is above that of the transaction's records, so that a repeated marker of an earlier transaction does
not end a later one (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from nilometer.broker.api.access import Rights
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.coordinators.markers import Marker, MarkerWriter
from nilometer.broker.replicas.delayed_requests import DelayedReply, ProduceOutcome
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division
from nilometer.wire.messages import Message


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    runtime: Runtime
    marker_writer: MarkerWriter
    rights: Rights


TIMEOUT_MS = 30_000
"""How long markers may wait for the high watermark: Kafka's ``request.timeout.ms``."""


class _TopicOutcomes(NamedTuple):
    name: str
    partitions: Sequence[ProduceOutcome]


class _MarkerOutcomes(NamedTuple):
    producer_id: int
    topics: Sequence[_TopicOutcomes]


def handle(parts: Parts, request: Request) -> Reply | asyncio.Future[Reply]:
    access, markers = parts.rights.access(request), list[_MarkerOutcomes]()
    denied = not (
        access.on_cluster(Operation.ALTER, report=False) or access.on_cluster(Operation.CLUSTER_ACTION)
    )
    waiting = DelayedReply(lambda: _respond(request, markers))
    for asked in request.body.markers:
        marker = _marker(parts, asked)
        topics = [
            _TopicOutcomes(topic.name, [ProduceOutcome(index) for index in topic.partition_indexes])
            for topic in asked.topics
        ]
        markers.append(_MarkerOutcomes(asked.producer_id, topics))
        if not denied:
            ended = {topic.name: list(topic.partition_indexes) for topic in asked.topics}
            parts.rights.audit_own_change(request, producer_id=asked.producer_id, partitions=ended)
        for topic in topics:
            for outcome in topic.partitions:
                if denied:
                    outcome.fail(ErrorCode.cluster_authorization_failed)
                    continue
                parts.marker_writer.begin(topic.name, marker, outcome, waiting.delayed)
    return waiting.reply(TIMEOUT_MS)


def _marker(parts: Parts, asked: Message) -> Marker:
    return Marker(
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        committed=asked.transaction_result,
        coordinator_epoch=asked.coordinator_epoch,
        version=getattr(asked, "transaction_version", 0),
        timestamp_ms=parts.runtime.clock.wall_ms(),
    )


def _respond(request: Request, markers: Sequence[_MarkerOutcomes]) -> Reply:
    return request.respond(
        markers=tuple(
            request.make(
                "WritableTxnMarkerResult",
                producer_id=marker.producer_id,
                topics=tuple(_topic(request, topic) for topic in marker.topics),
            )
            for marker in markers
        )
    )


def _topic(request: Request, topic: _TopicOutcomes) -> Message:
    return request.make(
        "WritableTxnMarkerTopicResult",
        name=topic.name,
        partitions=tuple(
            request.make(
                "WritableTxnMarkerPartitionResult", partition_index=outcome.index, error_code=outcome.error
            )
            for outcome in topic.partitions
        ),
    )


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.WRITE_TXN_MARKERS,
            versions=(1, 2),
            handle=partial(handle, parts),
            exempt_from_quotas=True,
            divisions=(
                Division(
                    ("markers", "topics", "partition_indexes"),
                    ("markers", "topics", "partitions"),
                    elements_max=16,  # the first append to a partition opens its files
                ),
            ),
            rights=(
                Right(Operation.ALTER, ResourceType.CLUSTER),
                Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
            ),
        ),
    )
