"""The replicas of this broker: DescribeLogDirs, AlterReplicaLogDirs, and Nilometer's own DescribeReplicas
with what holds back each of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from itertools import chain

import msgspec
from msgspec import structs

from nilometer.broker.api.access import Rights
from nilometer.broker.api.listings import Listings
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.cleaning import CleanerReport
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.replica_moves import ReplicaMoves
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.responses import Response
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.broker.tiering.remote_logs import RemoteLogs
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import PartitionState, Topic
from nilometer.identifiers import BrokerId, TopicIdPartition, uuid_from_text
from nilometer.replication.follower import FollowerRole
from nilometer.replication.followers import NEVER_MS, RemoteReplica
from nilometer.replication.isr import IsrState, PendingExpandIsr, PendingShrinkIsr
from nilometer.replication.leader import LeaderRole
from nilometer.replication.shell_interface import (
    HighWatermarkHold,
    NotHeld,
    UnderMinIsr,
    WaitingFor,
    WaitingForFlush,
)
from nilometer.runtime import Disk, Runtime
from nilometer.storage.directories.log_manager import DirectoryDescription
from nilometer.storage.names import TopicPartition
from nilometer.storage.segments.segment import LogSegment
from nilometer.wire import own_apis as wire
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError


class Parts(msgspec.Struct, frozen=True):
    config: BrokerConfig
    runtime: Runtime
    tasks: Tasks
    turns: Turns
    listings: Listings
    metadata: MetadataLog
    replicas: ReplicaManager
    replica_moves: ReplicaMoves
    compactions: CleanerReport
    cluster_id: str
    rights: Rights
    remote_logs: RemoteLogs | None


logger = logging.getLogger("nilometer.broker.api")

# The segments of a replica's log, for DescribeReplicas: what is in memory, and when the files were written.
#
# The files' times are read off the event loop, and left out if that would have to wait: a page that shows
# segments must neither hang with a disk nor take the threads that others need.

OFFLOADED_MAX = 2
"""With so much offloaded work under way the files' times are not read."""
TIMES_TIMEOUT_S = 0.5
NOT_KNOWN = -1


async def described_segments(parts: Parts, key: TopicIdPartition) -> wire.SegmentsState | None:
    """Return the segments of this broker's replica; None if its log cannot be used."""
    try:
        hosted = parts.replicas.partition_by_id(uuid_from_text(key.topic_id), key.partition)
    except KafkaError:
        return None
    segments = hosted.log.segments
    newest, count = segments.newest(wire.SEGMENTS_MAX), len(segments)
    times = await _modified_ms(parts.runtime.disk, newest)
    described = tuple(_segment(segment, time) for segment, time in zip(newest, times, strict=True))
    return wire.SegmentsState(count=count, newest=described)


async def _modified_ms(disk: Disk, segments: Sequence[LogSegment]) -> Sequence[int]:
    """Return when each segment's file was last written; -1 where that is not known."""
    unknown = [NOT_KNOWN] * len(segments)
    if disk.offloaded >= OFFLOADED_MAX:
        return unknown
    try:
        async with asyncio.timeout(TIMES_TIMEOUT_S):
            return await disk.offload(lambda: [_modified(segment) for segment in segments])
    except TimeoutError:
        return unknown


def _modified(segment: LogSegment) -> int:
    try:
        return segment.modified_ms()
    except OSError:  # deleted meanwhile; a failing disk is found by the log's own reads and writes
        return NOT_KNOWN


def _segment(segment: LogSegment, modified_ms: int) -> wire.SegmentState:
    largest = segment.known_max_timestamp
    return wire.SegmentState(
        base_offset=segment.base_offset,
        size_bytes=segment.size,
        modified_ms=modified_ms,
        largest_timestamp=NOT_KNOWN if largest is None else largest,
    )


# DescribeReplicas (Nilometer's own): the full state of this broker's replicas, and what holds back each
# leader's high watermark.
#
# The state of one replica, without its segments, is consistent. A replica that is removed while others are
# described is left out.

SEGMENT_REPLICAS_MAX = 10
"""Of how many replicas a response describes the segments."""


def handle_describe(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if not parts.rights.access(request).on_cluster(Operation.DESCRIBE):
        denied = int(ErrorCode.cluster_authorization_failed)
        return request.respond(cluster_id="", broker=wire.NO_BROKER_STATE, replicas=(), error_code=denied)
    return parts.listings.answer(request, partial(_describe, parts))


async def _describe(parts: Parts, request: Request, work: LongWork) -> Response:
    body: wire.DescribeReplicasRequest = request.body
    asked = None if body.partitions is None else frozenset(body.partitions)
    found: list[wire.ReplicaState] = []
    segments_left = SEGMENT_REPLICAS_MAX if body.segments else 0
    for topic in _asked_topics(parts, body):
        await work.step(1)
        for index in range(len(topic.partitions)):
            key = TopicIdPartition(topic.id, index)
            state = parts.metadata.image.partition_by_id(topic.id, index)
            is_here = state is not None and parts.config.node_id in state.replicas
            if state is None or not is_here or (asked is not None and index not in asked):
                continue
            found.append(_replica(parts, topic, key, state))
            if segments_left and (segments := await described_segments(parts, key)) is not None:
                found[-1] = structs.replace(found[-1], segments=segments)
                segments_left -= 1
            await work.step(1)
    return request.respond(cluster_id=parts.cluster_id, broker=_broker(parts), replicas=tuple(found))


def state_of_replica(parts: Parts, topic: str, partition: int) -> wire.ReplicaState | None:
    """Return the state of this broker's replica, as DescribeReplicas does; None if it has none."""
    found, image = parts.metadata.image.topic(topic), parts.metadata.image
    state = None if found is None else image.partition_by_id(found.id, partition)
    if found is None or state is None or parts.config.node_id not in state.replicas:
        return None
    return _replica(parts, found, TopicIdPartition(found.id, partition), state)


def _asked_topics(parts: Parts, body: wire.DescribeReplicasRequest) -> Sequence[Topic]:
    """Return the topics that the request selects, by name."""
    image = parts.metadata.image
    if body.topics is None:
        return image.topics()
    return [topic for name in sorted({*body.topics}) if (topic := image.topic(name)) is not None]


def _broker(parts: Parts) -> wire.BrokerState:
    image = parts.metadata.image
    epoch = image.broker_epoch(BrokerId(parts.config.node_id))
    return wire.BrokerState(
        broker_id=parts.config.node_id,
        broker_epoch=-1 if epoch is None else epoch,
        controller_id=image.controller_id,
        controller_epoch=image.controller_epoch,
        metadata_number=image.number,
        unclean_elections=image.unclean_elections,
        stray_folders=parts.replicas.stray_folders,
        longest_turn_us=parts.turns.longest.cpu_us,
        longest_turn=parts.turns.longest.work,
    )


def _replica(parts: Parts, topic: Topic, key: TopicIdPartition, state: PartitionState) -> wire.ReplicaState:
    try:
        hosted = parts.replicas.partition_by_id(topic.uuid, key.partition)
    except KafkaError:
        return _offline(parts, topic, key, state)
    log, high_watermark = hosted.log, hosted.replica.high_watermark
    role, leader_epoch, leader = _role(parts, hosted)
    name = log.topic_partition
    return wire.ReplicaState(
        topic=topic.name,
        topic_id=topic.id,
        partition=key.partition,
        broker_id=parts.config.node_id,
        role=role,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch if leader_epoch < 0 else leader_epoch,
        partition_epoch=state.partition_epoch,
        replicas=state.replicas,
        isr=state.isr,
        in_sync=parts.config.node_id in state.isr,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        flushed_offset=log.flushed_offset,
        high_watermark=high_watermark,
        last_stable_offset=log.last_stable_offset(high_watermark),
        size_bytes=log.segments.size,
        epoch_chain=log.epochs.entries,
        leader=leader,
        compaction=_compaction(parts, name),
        tier=None if parts.remote_logs is None else parts.remote_logs.state_of(hosted),
        problems=parts.replicas.failures.failures_of(name),
    )


def _offline(parts: Parts, topic: Topic, key: TopicIdPartition, state: PartitionState) -> wire.ReplicaState:
    reason = parts.replicas.offline.reason(key)
    return wire.ReplicaState(
        topic=topic.name,
        topic_id=topic.id,
        partition=key.partition,
        broker_id=parts.config.node_id,
        role=wire.OFFLINE,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        replicas=state.replicas,
        isr=state.isr,
        in_sync=parts.config.node_id in state.isr,
        problems=(reason,) if reason else (),
    )


def _compaction(parts: Parts, name: TopicPartition) -> wire.CompactionState | None:
    found = parts.compactions.of(name)
    if found is None:
        return None
    since_ms = found.began_ms if found.ended_ms is None else found.ended_ms
    return wire.CompactionState(
        in_progress=found.ended_ms is None,
        age_ms=parts.runtime.clock.monotonic_ms() - since_ms,
        progress=found.progress,
        bytes_total=found.bytes_total,
        bytes_written=found.statistics.bytes_written,
        records_read=found.statistics.records_read,
        records_kept=found.statistics.records_kept,
        end_offset=-1 if found.end_offset is None else found.end_offset,
        failure=found.failure,
    )


def _role(parts: Parts, partition: Partition) -> tuple[str, int, wire.LeaderState | None]:
    role = partition.replica.role
    if isinstance(role, LeaderRole):
        return wire.LEADER, role.leader_epoch, _leader(parts, role)
    if isinstance(role, FollowerRole):
        return wire.FOLLOWER, role.leader_epoch, None
    return wire.NO_ROLE, -1, None


def _leader(parts: Parts, role: LeaderRole) -> wire.LeaderState:
    now_ms = parts.runtime.clock.monotonic_ms()
    return wire.LeaderState(
        epoch_start_offset=role.epoch_start_offset,
        isr=role.isr,
        maximal_isr=tuple(sorted(role.isr_state.maximal)),
        pending_isr=_pending_isr(role.isr_state),
        needed_in_sync=role.needed_in_sync,
        hold=_hold(role.high_watermark_hold(now_ms)),
        followers=tuple(_follower(parts, role, remote, now_ms) for remote in role.remote_replicas),
    )


def _pending_isr(state: IsrState) -> tuple[int, ...] | None:
    if isinstance(state, PendingExpandIsr | PendingShrinkIsr):
        return tuple(broker_id for broker_id, _ in state.request.new_isr)
    return None


def _follower(parts: Parts, role: LeaderRole, remote: RemoteReplica, now_ms: int) -> wire.RemoteReplicaState:
    if remote.log_end_offset == role.log_end_offset:
        age_ms = 0
    else:
        age_ms = None if remote.last_caught_up_ms == NEVER_MS else max(0, now_ms - remote.last_caught_up_ms)
    broker = parts.metadata.image.broker(BrokerId(remote.broker_id))
    return wire.RemoteReplicaState(
        broker_id=remote.broker_id,
        broker_epoch=remote.broker_epoch,
        log_start_offset=remote.log_start_offset,
        log_end_offset=remote.log_end_offset,
        caught_up_age_ms=age_ms,
        is_assigned=remote.assigned,
        is_eligible=broker is not None and broker.is_active and broker.epoch == remote.broker_epoch,
    )


_HOLDS: Mapping[type[HighWatermarkHold], str] = {
    NotHeld: wire.NOT_HELD,
    UnderMinIsr: wire.UNDER_MIN_ISR,
    WaitingFor: wire.WAITING_FOR_REPLICAS,
    WaitingForFlush: wire.WAITING_FOR_FLUSH,
}


_NOT_HELD = wire.HighWatermarkHoldState(reason=wire.NOT_HELD, text=str(NotHeld()))


def _hold(hold: HighWatermarkHold) -> wire.HighWatermarkHoldState:
    if isinstance(hold, NotHeld):
        return _NOT_HELD
    replicas = hold.replicas if isinstance(hold, WaitingFor) else ()
    return wire.HighWatermarkHoldState(reason=_HOLDS[type(hold)], text=str(hold), replicas=replicas)


# DescribeLogDirs: the logs in this broker's log directories, their sizes, and the free space.
#
# A replica that moves has two logs: that in use, and its copy in the target directory (``is_future_key``).


def handle_describe_log_dirs(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if not parts.rights.access(request).on_cluster(Operation.DESCRIBE):
        denied = ErrorCode.cluster_authorization_failed
        return request.respond(error_code=denied, results=())
    return parts.listings.answer(request, partial(_describe_log_dirs, parts))


async def _describe_log_dirs(parts: Parts, request: Request, work: LongWork) -> Response:
    wanted: Mapping[str, set[int]] | None = None
    if request.body.topics is not None:
        wanted = {topic.topic: set(topic.partitions) for topic in request.body.topics}
    results = [
        await work.go_through(_directory(parts, request, found, wanted))
        for found in await work.go_through(parts.replicas.logs.describe())
    ]
    return request.respond(results=results)


def _directory(
    parts: Parts, request: Request, found: DirectoryDescription, wanted: Mapping[str, set[int]] | None
) -> Generator[int, None, Message]:
    topics: dict[str, list[tuple[TopicPartition, int, int | None]]] = {}
    logs = ((name, size, None) for name, size in found.sizes.items())
    futures = [(move.name, move.size, move.offset_lag) for move in parts.replica_moves.into(found.path)]
    for name, size, lag in chain(logs, futures):
        if wanted is None or name.partition in wanted.get(name.topic, ()):
            topics.setdefault(name.topic, []).append((name, size, lag))
        yield 1
    for partitions in topics.values():
        partitions.sort(key=_partition_number)
        yield len(partitions)

    def describe(one: tuple[TopicPartition, int, int | None]) -> Message:
        name, size, future_lag = one
        return request.make(
            "DescribeLogDirsPartition",
            partition_index=name.partition,
            partition_size=size,
            offset_lag=parts.replicas.offset_lag(name) if future_lag is None else future_lag,
            is_future_key=future_lag is not None,
        )

    return request.make(
        "DescribeLogDirsResult",
        error_code=ErrorCode.none if found.failure is None else ErrorCode.kafka_storage_error,
        log_dir=found.path,
        topics=tuple(
            request.make("DescribeLogDirsTopic", name=name, partitions=LazySequence(describe, partitions))
            for name, partitions in sorted(topics.items())
        ),
        total_bytes=found.total_bytes,
        usable_bytes=found.usable_bytes,
        is_cordoned=False,
    )


def _partition_number(one: tuple[TopicPartition, int, int | None]) -> int:
    return one[0].partition


# AlterReplicaLogDirs (KIP-113): move replicas of this broker to other log directories, or choose the
# directory of a partition that has no log here yet. The response is sent when the moves have begun.


def handle_alter_log_dirs(parts: Parts, request: Request) -> asyncio.Future[Response]:
    return parts.tasks.spawn(_alter_log_dirs(parts, request), kind="ALTER_REPLICA_LOG_DIRS")


async def _alter_log_dirs(parts: Parts, request: Request) -> Response:
    """The errors are the same as Kafka's. A partition that is named twice is moved to the last directory."""
    may_alter = parts.rights.access(request).on_cluster(Operation.ALTER)
    wanted: dict[tuple[str, int], str] = {}  # by numbers alone, a client could let all take one place
    for directory in request.body.dirs:
        for topic in directory.topics:
            wanted.update(((topic.name, index), directory.path) for index in topic.partitions)
    work = LongWork(parts.turns)
    outcomes: dict[str, list[Message]] = {}
    refused_count, first_refusal = 0, ""
    for (topic, index), path in wanted.items():
        error = ErrorCode.none if may_alter else ErrorCode.cluster_authorization_failed
        try:
            if may_alter:
                parts.replica_moves.alter(topic, index, path)
        except KafkaError as refused:
            error = refused.code
            refused_count += 1  # their texts would take more than all else: each has the names
            first_refusal = first_refusal or f"{topic}-{index} to {path}: {refused.message}"
        outcomes.setdefault(topic, []).append(
            request.make("AlterReplicaLogDirPartitionResult", partition_index=index, error_code=error)
        )
        await work.step(1)
    if refused_count:
        logger.warning("%d replicas are not moved to other log directories: %s", refused_count, first_refusal)
    results = (
        request.make("AlterReplicaLogDirTopicResult", topic_name=topic, partitions=tuple(found))
        for topic, found in outcomes.items()
    )
    return request.respond(results=tuple(results))


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=wire.DESCRIBE_REPLICAS,
            versions=(0, 0),
            handle=partial(handle_describe, parts),
            rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
        ),
        ApiSpec(
            key=ApiKey.DESCRIBE_LOG_DIRS,
            versions=(1, 5),
            handle=partial(handle_describe_log_dirs, parts),
            rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
        ),
        ApiSpec(
            key=ApiKey.ALTER_REPLICA_LOG_DIRS,
            versions=(1, 2),
            handle=partial(handle_alter_log_dirs, parts),
            rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
        ),
    )
