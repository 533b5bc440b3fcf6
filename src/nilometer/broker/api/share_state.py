"""The state of share partitions: InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState,
DeleteShareGroupState and ReadShareGroupStateSummary (KIP-932).

Brokers send them to the share coordinator: the leaders of partitions, and group coordinators. Each share
partition of a request has its own result.
Versions: 1 of WriteShareGroupState and of ReadShareGroupStateSummary has the delivery-complete count
(KIP-1226).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from nilometer.broker.api.access import CLUSTER_DENIED, Rights
from nilometer.broker.api.spec import ApiSpec, Handler, Request, Right
from nilometer.broker.coordinators.share import ShareCoordinator, coordinator_key
from nilometer.broker.replies import Reply
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.identifiers import topic_id_of
from nilometer.share.delivery_state import (
    UNKNOWN_COUNT,
    DeliveryState,
    SharePartitionKey,
    SharePartitionState,
    StateBatch,
)
from nilometer.share.state_shard import (
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    StateReply,
    StateRequest,
    WriteState,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division


class Parts(msgspec.Struct, frozen=True, kw_only=True):
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
    def handle(request: Request) -> Reply | asyncio.Future[Reply]:
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
            return _respond(request, kind, [StateReply(key, denied) for key, _ in asked])
        if not body.group_id or not all(topic.partitions for topic in body.topics):
            return request.respond(results=())  # as Kafka
        requests = [kind.request_of(key, part) for key, part in asked]
        valid = [(coordinator_key(one.key), one) for one in requests if one is not None]

        def respond(replies: Sequence[StateReply]) -> Reply:
            in_order = iter(replies)
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


def _invalid(key: SharePartitionKey) -> StateReply:
    return StateReply(key, ErrorCode.invalid_request, "A state batch has an unknown delivery state.")


def _respond(request: Request, kind: _Kind, replies: Sequence[StateReply]) -> Reply:
    """Make the response from the replies, which are in the order of the request."""
    in_order = iter(replies)
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


def _result(request: Request, kind: _Kind, reply: StateReply) -> Message:
    return request.make(
        "PartitionResult",
        partition=reply.key.partition,
        error_code=reply.error,
        error_message=reply.message or MESSAGES.get(reply.error),
        **kind.fields_of(request, reply.state or NOTHING_READ),
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
