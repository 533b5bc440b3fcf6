"""What a client is told where its request never reached a group, or its outcome is not known.

Kafka's words for each API: a heartbeat is taken as heard while the group is still being loaded; an old
consumer understands NOT_COORDINATOR of an OffsetFetch and little else; whoever writes into a log that cannot
be written is told about the coordinator, not about the log.
"""

from __future__ import annotations

from nilometer.groups.refusals import refusal
from nilometer.groups.requests import GroupRequest, Heartbeat, HeartbeatReply, OffsetFetch, Reply
from nilometer.wire.errors import ErrorCode

_NOT_AVAILABLE = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out,
)
_MOVED = (ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error)
_TOO_LARGE = (ErrorCode.message_too_large, ErrorCode.record_list_too_large, ErrorCode.invalid_fetch_size)


def refuse(request: GroupRequest, error: ErrorCode) -> Reply:
    """``error`` as the answer to all of ``request``."""
    if isinstance(request, Heartbeat) and error is ErrorCode.coordinator_load_in_progress:
        return HeartbeatReply(ErrorCode.none)
    return refusal(request, error)


def refuse_for_log(request: GroupRequest, error: ErrorCode) -> Reply:
    """The answer where the log said ``error`` of an append, or of the wait for its being committed."""
    if isinstance(request, OffsetFetch) and error in _NOT_AVAILABLE:
        return refuse(request, ErrorCode.not_coordinator)
    return refuse(request, _coordinator_error(error))


def _coordinator_error(error: ErrorCode) -> ErrorCode:
    if error in _NOT_AVAILABLE:
        return ErrorCode.coordinator_not_available
    if error in _MOVED:
        return ErrorCode.not_coordinator
    if error in _TOO_LARGE:
        return ErrorCode.unknown_server_error
    return error
