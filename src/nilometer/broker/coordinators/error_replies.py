"""The error that a coordinator's client gets for an error of the coordinator's log.

It is about the coordinator, not about the log: the same for groups and for transactions, as in Kafka.
"""

from __future__ import annotations

from nilometer.wire.errors import ErrorCode

NOT_AVAILABLE = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out,
)
_COORDINATOR_MOVED = (ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error)
_TOO_LARGE = (ErrorCode.message_too_large, ErrorCode.record_list_too_large, ErrorCode.invalid_fetch_size)


def coordinator_error(error: ErrorCode) -> ErrorCode:
    if error in NOT_AVAILABLE:
        return ErrorCode.coordinator_not_available
    if error in _COORDINATOR_MOVED:
        return ErrorCode.not_coordinator
    if error in _TOO_LARGE:
        return ErrorCode.unknown_server_error
    return error
