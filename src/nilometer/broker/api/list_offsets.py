"""ListOffsets: the offset for a timestamp.

Timestamps: -1 latest (the bound for the reader's isolation level), -2 earliest, -3 the record with the
largest timestamp (version 7), -4 earliest local (8; the same as earliest, nothing is tiered), -5 last tiered
(9; none), -6 not tiered yet (11; none), or milliseconds since the epoch: the first record not older. For
*latest* and for points in time a new leader returns OFFSET_NOT_AVAILABLE until its high watermark has reached
the start of its epoch (KIP-207).

With replica id -2 (which Kafka keeps for debugging), uncommitted records count too: *latest* is the log end
offset. Clients use it to learn up to which offset records may still become readable.
"""

from __future__ import annotations

import asyncio
import logging

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right, spawn
from nilometer.broker.connection import Reply
from nilometer.broker.replicas.readable_partition import MAX_TIMESTAMP
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.storage import CorruptRecordFound
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message

logger = logging.getLogger("nilometer.broker.api")


LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -4, -5, -6
_VERSION_OF_SPECIAL = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_UNKNOWN = (-1, -1, -1)
DEBUGGING_REPLICA_ID = -2


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    return spawn(services, _answer(services, request))


async def _answer(services: Services, request: Request) -> Reply:
    topics: list[object] = []
    access = access_of(services, request)
    for topic in request.body.topics:
        seen: set[int] = set()
        repeated = {
            p.partition_index
            for p in topic.partitions
            if p.partition_index in seen or seen.add(p.partition_index)
        }
        denied = not access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        partitions: list[object] = []
        for asked in topic.partitions:
            error, found = ErrorCode.invalid_request, _UNKNOWN
            if denied:
                error = ErrorCode.topic_authorization_failed
            elif asked.partition_index not in repeated:
                error, found = await _look_up(services, request, topic.name, asked)
            timestamp, offset, epoch = found
            partitions.append(
                request.make(
                    "ListOffsetsPartitionResponse",
                    partition_index=asked.partition_index,
                    error_code=error,
                    timestamp=timestamp,
                    offset=offset,
                    leader_epoch=epoch,
                )
            )
        topics.append(request.make("ListOffsetsTopicResponse", name=topic.name, partitions=tuple(partitions)))
    return request.respond(throttle_time_ms=0, topics=tuple(topics))


async def _look_up(
    services: Services, request: Request, name: str, asked: Message
) -> tuple[ErrorCode, tuple[int, int, int]]:
    timestamp: int = asked.timestamp
    if request.version < _VERSION_OF_SPECIAL.get(timestamp, 0) or timestamp < EARLIEST_PENDING_UPLOAD:
        return ErrorCode.unsupported_version, _UNKNOWN
    try:
        partition = services.replicas.partition(name, asked.partition_index)
        partition.check_reader(getattr(asked, "current_leader_epoch", NO_LEADER_EPOCH))
        read_committed = request.field("isolation_level", 0) == 1
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            start = partition.log.log_start_offset
            return ErrorCode.none, (-1, start, partition.log.epochs.epoch_for_offset(start))
        if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return ErrorCode.none, _UNKNOWN
        if request.field("replica_id", -1) == DEBUGGING_REPLICA_ID:
            bound = partition.log.log_end_offset
        else:
            bound = partition.latest_offset(read_committed=read_committed)
        leader_epoch = partition.leader_epoch
        if timestamp == LATEST:
            return ErrorCode.none, (-1, bound, leader_epoch)
        try:
            found = await services.record_reading.run(partition.find_by_time(timestamp, bound))
        except OSError as error:
            raise partition.on_read_error(error) from error
        # It may have found damage meanwhile, and truncated its log: then another replica leads.
        partition.check_reader(getattr(asked, "current_leader_epoch", NO_LEADER_EPOCH))
        if partition.leader_epoch != leader_epoch:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        return ErrorCode.none, found or _UNKNOWN
    except KafkaError as error:
        if isinstance(error, CorruptRecordFound):  # or batches that their producer made unreadable
            logger.warning("ListOffsets found unreadable records: %s", error.message)
        code = error.code
        if code is ErrorCode.offset_not_available and request.version < 5:
            code = ErrorCode.leader_not_available  # the code on which readers before KIP-207 retry
        return code, _UNKNOWN


API = ApiSpec(
    key=ApiKey.LIST_OFFSETS,
    versions=(1, 11),
    handle=handle,
    divisions=(
        Division(
            ("topics", "partitions"),
            ("topics", "partitions"),
            repeated=Repeated.TOGETHER,
            key=("partition_index",),
        ),
    ),
    rights=(Right(Operation.DESCRIBE, ResourceType.TOPIC),),
)
