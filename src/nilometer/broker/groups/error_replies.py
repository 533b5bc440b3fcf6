"""The replies to requests that never reached a group, or whose outcome is not known.

They are Kafka's for each API: a Heartbeat succeeds while the group is still being loaded; the errors of an
OffsetFetch become NOT_COORDINATOR, on which older consumers retry.
"""

from __future__ import annotations

from nilometer.broker.coordinators.error_replies import NOT_AVAILABLE, coordinator_error
from nilometer.groups.requests import GroupRequest, Heartbeat, HeartbeatReply, OffsetFetch, Reply, refusal
from nilometer.wire.errors import ErrorCode


def refuse(request: GroupRequest, error: ErrorCode) -> Reply:
    """Return the reply with ``error`` for the whole ``request``."""
    if isinstance(request, Heartbeat) and error is ErrorCode.coordinator_load_in_progress:
        return HeartbeatReply(ErrorCode.none)
    return refusal(request, error)


def refuse_for_log(request: GroupRequest, error: ErrorCode) -> Reply:
    """Return the reply to ``request`` if its append, or the wait for its commit, failed with ``error``."""
    if isinstance(request, OffsetFetch) and error in NOT_AVAILABLE:
        return refuse(request, ErrorCode.not_coordinator)
    return refuse(request, coordinator_error(error))
