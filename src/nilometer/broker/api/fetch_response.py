"""Builds the response to a fetch. Records are sent from the buffers into which they were read; they are not
copied into the message.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.broker.api.leader_hints import LeaderHints
from nilometer.broker.api.spec import Request
from nilometer.broker.connection import Reply
from nilometer.broker.fetching.fetch_reader import FetchOutcome
from nilometer.broker.fetching.fetch_session import NO_SESSION, FetchRound, TopicKey
from nilometer.broker.services import Services
from nilometer.wire.errors import ErrorCode
from nilometer.wire.fetch_body import FetchBody
from nilometer.wire.fetch_response import (
    AbortedTransaction,
    EpochEndOffset,
    FetchedPartition,
    FetchedTopic,
    encode_fetch_response,
)

_NOT_LEADER = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


FIRST_WITH_ERROR = 7
"""The first version with an error for the whole fetch."""


def refuse_fetch(request: Request, error: ErrorCode) -> Reply:
    """Return a response with ``error`` for the whole fetch; in versions without such a field, for each of its
    partitions."""
    topics: list[FetchedTopic] = []
    if request.version < FIRST_WITH_ERROR:
        body: FetchBody = request.body
        for name, partitions in body.topics:
            refused = [FetchedPartition(one.partition, error, -1, -1, -1, ()) for one in partitions]
            topics.append(FetchedTopic(name, refused))
    return encode_fetch_response(request.version, request.header.correlation_id, 0, error, 0, topics)


def throttled_fetch(
    services: Services, request: Request, session_round: FetchRound, throttle_ms: int
) -> Reply:
    """Return the response to a client above a quota: the time (ms) to wait, and no partitions (KIP-219).

    A fetch that would have begun a session begins none: its client asks for all partitions again. The next
    fetch of a session reads what this one read.
    """
    session_id = session_round.session_id
    if session_round.session is not None and not session_round.incremental:
        services.fetch_sessions.drop(session_id)
        session_id = NO_SESSION
    return encode_fetch_response(
        request.version, request.header.correlation_id, throttle_ms, ErrorCode.none, session_id, ()
    )


def encode_fetch_response_body(
    services: Services, request: Request, session_round: FetchRound, outcomes: Sequence[FetchOutcome]
) -> Reply:
    hints = LeaderHints(services, request.context.listener)
    by_topic: dict[TopicKey, list[FetchedPartition]] = {}
    for outcome in outcomes:
        if _must_report(session_round, outcome):
            by_topic.setdefault(outcome.asked.topic, []).append(_partition(hints, outcome))
    topics = [FetchedTopic(key.id or key.name or "", partitions) for key, partitions in by_topic.items()]
    return encode_fetch_response(
        request.version,
        request.header.correlation_id,
        0,
        ErrorCode.none,
        session_round.session_id,
        topics,
        hints.endpoints(),
    )


def _must_report(session_round: FetchRound, outcome: FetchOutcome) -> bool:
    session = session_round.session
    if session is None:
        return True
    must_report = session.must_report(
        outcome.asked.key,
        failed=outcome.error is not ErrorCode.none or outcome.diverging is not None,
        has_records=outcome.size > 0,
        has_more=outcome.has_more,
        high_watermark=outcome.high_watermark,
        log_start=outcome.log_start_offset,
    )
    return must_report or not session_round.incremental or outcome.preferred_read_replica >= 0


def _partition(hints: LeaderHints, outcome: FetchOutcome) -> FetchedPartition:
    asked = outcome.asked
    return FetchedPartition(
        asked.partition,
        outcome.error,
        outcome.high_watermark,
        outcome.last_stable_offset,
        outcome.log_start_offset,
        (outcome.records,) if outcome.size else (),
        None if outcome.aborted is None else [AbortedTransaction(*item) for item in outcome.aborted],
        outcome.preferred_read_replica,
        None if outcome.diverging is None else EpochEndOffset(*outcome.diverging),
        hints.leader(outcome.topic, asked.partition) if outcome.error in _NOT_LEADER else None,
    )
