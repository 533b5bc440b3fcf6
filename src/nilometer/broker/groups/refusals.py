"""What a client is told where its request never reached a group, or its outcome is not known.

Kafka's words for each API: a heartbeat is taken as heard while the group is still being loaded; an old
consumer understands NOT_COORDINATOR of an OffsetFetch and little else.
"""

from __future__ import annotations

from nilometer.broker.coordinators.refusals import NOT_AVAILABLE, coordinator_error
from nilometer.groups.refusals import refusal
from nilometer.groups.requests import GroupRequest, Heartbeat, HeartbeatReply, OffsetFetch, Reply
from nilometer.wire.errors import ErrorCode


def refuse(request: GroupRequest, error: ErrorCode) -> Reply:
    """``error`` as the answer to all of ``request``."""
    if isinstance(request, Heartbeat) and error is ErrorCode.coordinator_load_in_progress:
        return HeartbeatReply(ErrorCode.none)
    return refusal(request, error)


def refuse_for_log(request: GroupRequest, error: ErrorCode) -> Reply:
    """The answer where the log said ``error`` of an append, or of the wait for its being committed."""
    if isinstance(request, OffsetFetch) and error in NOT_AVAILABLE:
        return refuse(request, ErrorCode.not_coordinator)
    return refuse(request, coordinator_error(error))
