"""The share coordinators of one broker, which keep the state of share partitions in ``__share_group_state``,
and the APIs by which brokers read and write that state (KIP-932).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from nilometer.broker.api.access import CLUSTER_DENIED, Rights
from nilometer.broker.api.spec import ApiSpec, Handler, Request, Right
from nilometer.broker.control.internal_topics import InternalTopics
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.coordinator_shell import CoordinatorKind, CoordinatorShell
from nilometer.broker.coordinator_shells import CoordinatorShells, coordinator_error
from nilometer.broker.replicas.delayed_requests import DelayedRequest, DeleteOutcome
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.responses import Response
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import SHARE_GROUP_STATE_TOPIC
from nilometer.identifiers import topic_id_of, uuid_from_text
from nilometer.runtime import Runtime
from nilometer.share.state_records import (
    UNKNOWN_COUNT,
    DeliveryState,
    SharePartitionKey,
    SharePartitionState,
    ShareRecord,
    StateBatch,
    decode_record,
    encode_record,
)
from nilometer.share.state_shard import (
    DeleteState,
    InitializeState,
    Prune,
    ReadState,
    ReadSummary,
    ShareStateShard,
    StateRequest,
    StateResult,
    WriteState,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.compression import Codec
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division

# The share coordinators of one broker: they keep the state of share partitions in ``__share_group_state``.
#
# Which of the topic's partitions keeps a share partition is decided by the text ``group:topic id:partition``.

logger = logging.getLogger("nilometer.broker.share")

Shell: TypeAlias = CoordinatorShell[StateRequest, StateResult, ShareRecord, Prune]
FOLLOWERS_TIMEOUT_MS = 30_000
"""For how long a pruned partition notes when its followers have deleted the records, too."""
INT32 = range(-(2**31), 2**31)


def coordinator_key(key: SharePartitionKey) -> str:
    """Return the text whose hash decides which partition of the topic keeps the share partition."""
    return f"{key.group_id}:{key.topic_id}:{key.partition}"


def parse_coordinator_key(text: str) -> SharePartitionKey:
    """Parse ``group:topic id:partition``, of which the group may contain colons. Raises ValueError."""
    parts = text.rstrip(":").rsplit(":", 2)  # as Java's split, which drops empty texts at the end
    if len(parts) < 3 or not parts[0].strip():
        raise ValueError(f"{text!r} is not of the form group:topic id:partition")
    group_id, topic_id, partition = parts
    number = int(partition) if partition.lstrip("+-").isdecimal() else None
    if number is None or number not in INT32:
        raise ValueError(f"{partition!r} is not the number of a partition")
    return SharePartitionKey(group_id, topic_id_of(uuid_from_text(topic_id)), number)


class ShareCoordinator(CoordinatorShells[StateRequest, StateResult, ShareRecord, Prune]):
    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        tasks: Tasks,
        metadata: MetadataLog,
        replicas: ReplicaManager,
        topics: InternalTopics,
    ) -> None:
        kind: CoordinatorKind[StateRequest, StateResult, ShareRecord, Prune] = CoordinatorKind(
            name="share",
            subject="share partitions",
            topic=SHARE_GROUP_STATE_TOPIC,
            num_partitions=config.integer("share.coordinator.state.topic.num.partitions"),
            commit_timeout_ms=config.integer("share.coordinator.write.timeout.ms"),
            load_buffer_bytes=config.integer("share.coordinator.load.buffer.size"),
            codec=Codec(config.integer("share.coordinator.state.topic.compression.codec")),
            make_shard=lambda: ShareStateShard(config.share_state, metadata.image),
            encode=encode_record,
            decode=decode_record,
            refuse=lambda request, error: StateResult(request.key, error),
            refuse_for_log=lambda request, error: StateResult(request.key, coordinator_error(error)),
            carry_out=_prune,
        )
        super().__init__(kind, runtime, tasks, metadata, replicas, topics)

    def partition_for_text(self, text: str) -> int:
        """Return the partition of the topic that keeps the share partition named ``text``. Raises
        ValueError."""
        return self.partition_for(coordinator_key(parse_coordinator_key(text)))


def _prune(shell: Shell, action: Prune) -> None:
    """Delete the records that are redundant, as DeleteRecords does; if that fails, the next pruning deletes
    them with others."""
    partition = shell.partition
    offset = shell.first_loaded_offset + action.records
    if offset <= partition.log.log_start_offset:
        return
    no_request = DelayedRequest(lambda: None)
    try:
        partition.delete_records(offset, DeleteOutcome(partition.key.partition), no_request)
    except KafkaError as refused:
        level = logging.INFO if refused.code is ErrorCode.not_leader_or_follower else logging.WARNING
        logger.log(level, "Redundant records of %s were not deleted: %s", partition, refused)
    else:
        logger.debug("Records of %s below offset %d were redundant", partition, offset)
    no_request.start_timer(FOLLOWERS_TIMEOUT_MS)


# The state of share partitions: InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState,
# DeleteShareGroupState and ReadShareGroupStateSummary (KIP-932).
#
# Brokers send them to the share coordinator: the leaders of partitions, and group coordinators. Each share
# partition of a request has its own result.
# Versions: 1 of WriteShareGroupState and of ReadShareGroupStateSummary has the delivery-complete count
# (KIP-1226).


class Parts(msgspec.Struct, frozen=True):
    share_state: ShareCoordinator
    rights: Rights


COMPLETE_COUNT_SINCE = 1
NO_TOPIC_ID = UUID(int=0)
NOTHING_READ = SharePartitionState(0, 0, 0, UNKNOWN_COUNT)
"""What is in the result of a read that has an error."""
MESSAGES: Mapping[ErrorCode, str] = {
    ErrorCode.cluster_authorization_failed: CLUSTER_DENIED,
    ErrorCode.fenced_leader_epoch: "The leader epoch in the request is older than the epoch on the broker.",
    ErrorCode.fenced_state_epoch: (
        "The coordinator rejected the request because the state epoch did not match."
    ),
    ErrorCode.unknown_topic_or_partition: "This server does not host this topic-partition.",
    ErrorCode.not_coordinator: "This is not the correct coordinator.",
    ErrorCode.coordinator_not_available: "The coordinator is not available.",
    ErrorCode.coordinator_load_in_progress: "The coordinator is loading and hence can't process requests.",
}
"""Kafka's texts of the errors that have no other message."""


class _Kind(NamedTuple):
    """How one API reads the partitions of its request, and makes their results."""

    topic_type: str
    """The message type of a topic's results."""
    request_of: Callable[[SharePartitionKey, Any], StateRequest | None]
    """Makes the request about one partition; None if the message is invalid."""
    fields_of: Callable[[Request, SharePartitionState], Mapping[str, object]]
    """Returns what a result has besides partition and error."""


def _handler(kind: _Kind, parts: Parts) -> Handler:
    def handle(request: Request) -> Response | asyncio.Future[Response]:
        body = request.body
        asked = [
            (
                SharePartitionKey(body.group_id, topic_id_of(topic.topic_id or NO_TOPIC_ID), part.partition),
                part,
            )
            for topic in body.topics
            for part in topic.partitions
        ]
        if not parts.rights.access(request).on_cluster(Operation.CLUSTER_ACTION):
            denied = ErrorCode.cluster_authorization_failed
            return _respond(request, kind, [StateResult(key, denied) for key, _ in asked])
        if not body.group_id or not all(topic.partitions for topic in body.topics):
            return request.respond(results=())  # as Kafka
        requests = [kind.request_of(key, part) for key, part in asked]
        valid = [(coordinator_key(one.key), one) for one in requests if one is not None]

        def respond(results: Sequence[StateResult]) -> Response:
            in_order = iter(results)
            return _respond(
                request,
                kind,
                [
                    _invalid(key) if one is None else next(in_order)
                    for (key, _), one in zip(asked, requests, strict=True)
                ],
            )

        return parts.share_state.ask(valid, respond) if valid else respond(())

    return handle


def _invalid(key: SharePartitionKey) -> StateResult:
    return StateResult(key, ErrorCode.invalid_request, "A state batch has an unknown delivery state.")


def _respond(request: Request, kind: _Kind, results: Sequence[StateResult]) -> Response:
    """Make the response from the results, which are in the order of the request."""
    in_order = iter(results)
    return request.respond(
        results=tuple(
            request.make(
                kind.topic_type,
                topic_id=topic.topic_id,
                partitions=tuple(_result(request, kind, next(in_order)) for _ in topic.partitions),
            )
            for topic in request.body.topics
        )
    )


def _result(request: Request, kind: _Kind, result: StateResult) -> Message:
    return request.make(
        "PartitionResult",
        partition=result.key.partition,
        error_code=result.error,
        error_message=result.message or MESSAGES.get(result.error),
        **kind.fields_of(request, result.state or NOTHING_READ),
    )


def _nothing(_request: Request, _state: SharePartitionState) -> Mapping[str, object]:
    return {}


def _api(parts: Parts, key: ApiKey, versions: tuple[int, int], kind: _Kind) -> ApiSpec:
    return ApiSpec(
        key=key,
        versions=versions,
        handle=_handler(kind, parts),
        divisions=(Division(("topics", "partitions"), ("results", "partitions")),),
        elements_max=ELEMENTS_MAX,
        rights=(Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
    )


ELEMENTS_MAX = 10_100
"""Of one share partition with its batches, which are handled as a whole: as many as a share coordinator
keeps."""


# InitializeShareGroupState: the group coordinator begins a share partition, or begins it again.


def _initialize(key: SharePartitionKey, part: Message) -> StateRequest:
    return InitializeState(key, part.state_epoch, part.start_offset)


# ReadShareGroupState: a partition's new leader reads the state, and fences the leaders before it.


def _read(key: SharePartitionKey, part: Message) -> StateRequest:
    return ReadState(key, part.leader_epoch)


def _read_fields(request: Request, state: SharePartitionState) -> Mapping[str, object]:
    return {
        "state_epoch": state.state_epoch,
        "start_offset": state.start_offset,
        "state_batches": LazySequence(partial(_batch, request), state.batches),
    }


def _batch(request: Request, batch: StateBatch) -> Message:
    return request.make(
        "StateBatch",
        first_offset=batch.first_offset,
        last_offset=batch.last_offset,
        delivery_state=int(batch.state),
        delivery_count=batch.delivery_count,
    )


# WriteShareGroupState: a partition's leader writes what has changed.


_STATES = {int(state): state for state in DeliveryState}


def _write(key: SharePartitionKey, part: Message) -> StateRequest | None:
    try:
        batches = tuple(
            StateBatch(one.first_offset, one.last_offset, _STATES[one.delivery_state], one.delivery_count)
            for one in part.state_batches
        )
    except KeyError:
        return None
    count = getattr(part, "delivery_complete_count", UNKNOWN_COUNT)
    return WriteState(key, part.state_epoch, part.leader_epoch, part.start_offset, count, batches)


# DeleteShareGroupState: the group is deleted, or has dropped the topic.


def _delete(key: SharePartitionKey, _part: Message) -> StateRequest:
    return DeleteState(key)


# ReadShareGroupStateSummary: the start offset and the epochs, for the descriptions of a group's offsets.


def _summary(key: SharePartitionKey, part: Message) -> StateRequest:
    return ReadSummary(key, part.leader_epoch)


def _summary_fields(request: Request, state: SharePartitionState) -> Mapping[str, object]:
    fields: dict[str, object] = {
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
    }
    if request.version >= COMPLETE_COUNT_SINCE:
        fields["delivery_complete_count"] = state.delivery_complete_count
    return fields


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        _api(
            parts,
            ApiKey.INITIALIZE_SHARE_GROUP_STATE,
            (0, 0),
            _Kind("InitializeStateResult", _initialize, _nothing),
        ),
        _api(parts, ApiKey.READ_SHARE_GROUP_STATE, (0, 0), _Kind("ReadStateResult", _read, _read_fields)),
        _api(parts, ApiKey.WRITE_SHARE_GROUP_STATE, (0, 1), _Kind("WriteStateResult", _write, _nothing)),
        _api(parts, ApiKey.DELETE_SHARE_GROUP_STATE, (0, 0), _Kind("DeleteStateResult", _delete, _nothing)),
        _api(
            parts,
            ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
            (0, 1),
            _Kind("ReadStateSummaryResult", _summary, _summary_fields),
        ),
    )
