"""Offsets of a partition's log: ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

import msgspec

from nilometer.broker.api.access import Rights
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.replicas.delayed_requests import DelayedRequest, DelayedResponse, DeleteOutcome
from nilometer.broker.replicas.readable_partition import MAX_TIMESTAMP, ReadablePartition
from nilometer.broker.replicas.record_reading import RecordReading
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.replicas.time_lookup import find_by_time
from nilometer.broker.responses import Response
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import Turns
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import INTERNAL_TOPICS
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.runtime.gathering import gather
from nilometer.storage.errors import CorruptRecordFound
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message, milliseconds
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated


class Parts(msgspec.Struct, frozen=True):
    tasks: Tasks
    turns: Turns
    replicas: ReplicaManager
    record_reading: RecordReading
    rights: Rights


# ListOffsets: the offset for a timestamp.
#
# Timestamps: -1 latest (the bound for the reader's isolation level), -2 earliest, -3 the record with the
# largest timestamp of those that are here (version 7), -4 earliest that is here (8), -5 last in remote
# storage (9), -6 first that is not there yet (11), or milliseconds since the epoch: the first record not
# older, wherever it is.
# For *latest* and for points in time a new leader returns OFFSET_NOT_AVAILABLE until its high watermark has
# reached the start of its epoch (KIP-207).
#
# With replica id -2 (which Kafka keeps for debugging), uncommitted records count too: *latest* is the log end
# offset. Clients use it to learn up to which offset records may still become readable.

logger = logging.getLogger("nilometer.broker.records")


LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -4, -5, -6
_VERSION_OF_SPECIAL = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
FIRST_WITH_TIMEOUT = 10
"""The first version that says how long remote storage may take."""
AT_ONCE = 8
"""How many partitions of a request are looked up by time at once."""
_Found = tuple[ErrorCode, tuple[int, int, int]]
"""An error, timestamp, offset and leader epoch."""
_WHERE_IT_IS = (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
_UNKNOWN = (-1, -1, -1)
CONSUMER = -1
DEBUGGING_REPLICA_ID = -2


def handle_list(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    return parts.tasks.spawn(_answer(parts, request))


def _ends_s(parts: Parts, request: Request) -> float:
    """Return until when (time of the event loop) the request may wait for remote storage."""
    wait_ms = milliseconds(request.body.timeout) if request.version >= FIRST_WITH_TIMEOUT else 0
    if wait_ms <= 0:
        wait_ms = parts.replicas.remote.search_wait_ms
    return asyncio.get_running_loop().time() + wait_ms / 1000


async def _answer(parts: Parts, request: Request) -> Response:
    topics: list[object] = []
    ends_s = _ends_s(parts, request)
    access = parts.rights.access(request)
    replica_id: int = request.field("replica_id", CONSUMER)
    is_broker = replica_id >= 0 and parts.rights.why_not_broker(request, replica_id) is None
    for topic in request.body.topics:
        seen: set[int] = set()
        repeated = {
            p.partition_index
            for p in topic.partitions
            if p.partition_index in seen or seen.add(p.partition_index)
        }
        denied = not is_broker and not access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        wanted = [p for p in topic.partitions if not denied and p.partition_index not in repeated]
        looked_up = await _look_up_all(parts, request, topic.name, wanted, ends_s, is_broker=is_broker)
        partitions: list[object] = []
        for asked in topic.partitions:
            error = ErrorCode.topic_authorization_failed if denied else ErrorCode.invalid_request
            error, (timestamp, offset, epoch) = looked_up.get(asked.partition_index, (error, _UNKNOWN))
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
    return request.respond(topics=tuple(topics))


async def _look_up_all(
    parts: Parts, request: Request, name: str, wanted: Sequence[Message], ends_s: float, *, is_broker: bool
) -> dict[int, _Found]:
    """Return what is found for each partition, by index. Those by time, which may have to wait for remote
    storage, are looked up some at once."""
    found: dict[int, _Found] = {}
    at_once = AT_ONCE if any(asked.timestamp >= 0 for asked in wanted) else 1
    for first in range(0, len(wanted), at_once):
        some = wanted[first : first + at_once]
        work = [_look_up(parts, request, name, asked, ends_s, is_broker=is_broker) for asked in some]
        results = [await work[0]] if len(work) == 1 else await gather(*work)
        for asked, result in zip(some, results, strict=True):
            found[asked.partition_index] = result
    return found


async def _look_up(
    parts: Parts, request: Request, name: str, asked: Message, ends_s: float, *, is_broker: bool = False
) -> _Found:
    timestamp: int = asked.timestamp
    if request.version < _VERSION_OF_SPECIAL.get(timestamp, 0) or timestamp < EARLIEST_PENDING_UPLOAD:
        return ErrorCode.unsupported_version, _UNKNOWN
    try:
        partition = parts.replicas.partition(name, asked.partition_index)
        partition.check_reader(getattr(asked, "current_leader_epoch", NO_LEADER_EPOCH))
        read_committed = request.field("isolation_level", 0) == 1
        if timestamp == EARLIEST_LOCAL and is_broker:  # it begins its log behind what remote storage has
            await parts.replicas.remote.check_own(partition, ends_s)
            partition.check_reader(getattr(asked, "current_leader_epoch", NO_LEADER_EPOCH))
        if timestamp in _WHERE_IT_IS:
            return ErrorCode.none, _place(partition, timestamp)
        if request.field("replica_id", -1) == DEBUGGING_REPLICA_ID:
            bound = partition.log.log_end_offset
        else:
            bound = partition.latest_offset(read_committed=read_committed)
        leader_epoch = partition.leader_epoch
        if timestamp == LATEST:
            return ErrorCode.none, (-1, bound, leader_epoch)
        try:
            remote, reading, origin = parts.replicas.remote, parts.record_reading, request.connection.origin
            found = await find_by_time(remote, reading, origin, partition, timestamp, bound, ends_s)
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


def _place(partition: ReadablePartition, asked: int) -> tuple[int, int, int]:
    """Return the offset that is asked for by where records are, with its leader epoch."""
    log = partition.log
    is_tiered = log.begins_in_tier or log.config.remote_storage_enable
    if asked == EARLIEST:
        offset = log.log_start_offset
    elif asked == EARLIEST_LOCAL:
        offset = log.local_start_offset
    elif not is_tiered:
        return _UNKNOWN
    elif asked == LATEST_TIERED:
        if log.tiered_offset <= log.log_start_offset:
            return _UNKNOWN
        offset = log.tiered_offset - 1
    elif log.tiered_offset:
        offset = max(log.tiered_offset, log.log_start_offset)
    elif log.local_start_offset == log.log_start_offset:
        offset = log.log_start_offset  # nothing was copied yet
    else:
        return _UNKNOWN  # this leader has not read yet what is in remote storage
    return -1, offset, log.epochs.epoch_for_offset(offset)


# OffsetForLeaderEpoch: the end offset of an epoch in the leader's log, so that consumers and followers can
# find where they diverge from it (KIP-101, KIP-320).


def handle_for_leader_epoch(parts: Parts, request: Request) -> Response:
    replica_id: int = request.field("replica_id", CONSUMER)
    refused = replica_id >= 0 and parts.rights.why_not_broker(request, replica_id) is not None
    access, topics = parts.rights.access(request), list[object]()
    sees_all = access.on_cluster(Operation.CLUSTER_ACTION, report=False)
    for topic in request.body.topics:
        error = ErrorCode.cluster_authorization_failed if refused else ErrorCode.none
        if not refused and not sees_all:
            may = access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic)
            error = ErrorCode.none if may else ErrorCode.topic_authorization_failed
        ends = tuple(
            _refuse(request, asked, error) if error else _end_offset(parts, request, topic.topic, asked)
            for asked in topic.partitions
        )
        topics.append(request.make("OffsetForLeaderTopicResult", topic=topic.topic, partitions=ends))
    return request.respond(topics=tuple(topics))


def _refuse(request: Request, asked: Message, error: ErrorCode) -> object:
    return request.make(
        "EpochEndOffset",
        error_code=error,
        partition=asked.partition,
        leader_epoch=-1,
        end_offset=-1,
    )


def _end_offset(parts: Parts, request: Request, name: str, asked: Message) -> object:
    code, epoch, end_offset = ErrorCode.none, -1, -1
    index: int = asked.partition
    try:
        partition = parts.replicas.partition(name, index)
        code, end = partition.end_offset_for_leader_epoch(
            getattr(asked, "current_leader_epoch", NO_LEADER_EPOCH),
            asked.leader_epoch,
        )
        epoch, end_offset = end.epoch, end.end_offset
    except KafkaError as error:
        code = error.code
    return request.make(
        "EpochEndOffset", error_code=code, partition=index, leader_epoch=epoch, end_offset=end_offset
    )


# DeleteRecords: move a partition's log start offset up; -1 means up to the high watermark.
#
# An offset above the high watermark is OFFSET_OUT_OF_RANGE. The response has the partition's low watermark
# and is sent once every live replica has moved its log start offset; a partition where that takes longer than
# ``timeout_ms`` gets REQUEST_TIMED_OUT.


class _TopicOutcomes(msgspec.Struct, frozen=True):
    name: str
    partitions: Sequence[DeleteOutcome]


def handle_delete_records(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    access, topics = parts.rights.access(request), list[_TopicOutcomes]()
    waiting = DelayedResponse(parts.turns, lambda: _respond(request, topics))
    for topic in request.body.topics:
        asked = {part.partition_index: part.offset for part in topic.partitions}
        if not access.allows(Operation.DELETE, ResourceType.TOPIC, topic.name):
            denied = [DeleteOutcome(index) for index in asked]
            for outcome in denied:
                outcome.fail(ErrorCode.topic_authorization_failed)
            topics.append(_TopicOutcomes(topic.name, denied))
            continue
        parts.rights.audit_own_change(
            request, topic=topic.name, offsets={str(index): asked[index] for index in asked}
        )
        outcomes = [
            _delete(parts, topic.name, offset, DeleteOutcome(index), waiting.delayed)
            for index, offset in asked.items()
        ]
        topics.append(_TopicOutcomes(topic.name, outcomes))
    return waiting.response(max(milliseconds(request.body.timeout), 0))


def _delete(
    parts: Parts, topic: str, offset: int, outcome: DeleteOutcome, delayed: DelayedRequest
) -> DeleteOutcome:
    try:
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.invalid_topic_exception, f"Cannot delete records of {topic}")
        parts.replicas.partition(topic, outcome.index).delete_records(offset, outcome, delayed)
    except KafkaError as error:
        outcome.fail(error.code)
    return outcome


def _respond(request: Request, topics: Sequence[_TopicOutcomes]) -> Response:
    results = tuple(
        request.make(
            "DeleteRecordsTopicResult",
            name=topic.name,
            partitions=tuple(
                request.make(
                    "DeleteRecordsPartitionResult",
                    partition_index=outcome.index,
                    low_watermark=outcome.low_watermark,
                    error_code=outcome.error,
                )
                for outcome in topic.partitions
            ),
        )
        for topic in topics
    )
    return request.respond(topics=results)


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.LIST_OFFSETS,
            versions=(1, 11),
            handle=partial(handle_list, parts),
            divisions=(
                Division(
                    ("topics", "partitions"),
                    ("topics", "partitions"),
                    repeated=Repeated.TOGETHER,
                    key=("partition_index",),
                ),
            ),
            rights=(Right(Operation.DESCRIBE, ResourceType.TOPIC),),
        ),
        ApiSpec(
            key=ApiKey.OFFSET_FOR_LEADER_EPOCH,
            versions=(2, 4),
            handle=partial(handle_for_leader_epoch, parts),
            divisions=(Division(("topics", "partitions"), ("topics", "partitions")),),
            rights=(
                Right(Operation.DESCRIBE, ResourceType.TOPIC),
                Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
            ),
        ),
        ApiSpec(
            key=ApiKey.DELETE_RECORDS,
            versions=(0, 2),
            handle=partial(handle_delete_records, parts),
            divisions=(Division(("topics", "partitions"), ("topics", "partitions")),),
            rights=(Right(Operation.DELETE, ResourceType.TOPIC),),
        ),
    )
