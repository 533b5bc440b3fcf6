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
from nilometer.broker.replies import MadeReply
from nilometer.broker.services import Services
from nilometer.broker.turns import LongWork
from nilometer.wire.errors import ErrorCode
from nilometer.wire.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchBody,
    FetchedPartition,
    FetchedTopic,
    encode_fetch_response,
    fetch_response_slices,
)
from nilometer.wire.primitives import NodeEndpoint

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
    response = _Response(services, request)
    for outcome in outcomes:
        response.add(session_round, outcome)
    return encode_fetch_response(*response.parts(session_round))


async def encode_long_fetch_response(
    services: Services,
    request: Request,
    session_round: FetchRound,
    outcomes: list[FetchOutcome],
    work: LongWork,
) -> Reply:
    """Make a response with many partitions slice by slice; ``outcomes`` is empty then."""
    response = _Response(services, request)
    for outcome in outcomes:
        response.add(session_round, outcome)
        await work.step(1)
    await work.release(outcomes)
    slices = fetch_response_slices(*response.parts(session_round))
    while True:
        try:
            pieces = next(slices)
        except StopIteration as done:
            reply = MadeReply(done.value)
            break
        await work.step(pieces)
    await response.release(work)
    return reply


class _Response:
    """Collects the partitions of a response by topic."""

    def __init__(self, services: Services, request: Request) -> None:
        self._request = request
        self._hints = LeaderHints(services, request.context.listener)
        self._by_topic: dict[TopicKey, list[FetchedPartition]] = {}

    def add(self, session_round: FetchRound, outcome: FetchOutcome) -> None:
        if _must_report(session_round, outcome):
            self._by_topic.setdefault(outcome.asked.topic, []).append(_partition(self._hints, outcome))

    async def release(self, work: LongWork) -> None:
        for partitions in self._by_topic.values():
            await work.release(partitions)

    def parts(
        self, session_round: FetchRound
    ) -> tuple[int, int, int, int, int, Sequence[FetchedTopic], Sequence[NodeEndpoint]]:
        """Return the arguments of the encoder."""
        topics = [FetchedTopic(key.id or key.name or "", found) for key, found in self._by_topic.items()]
        version, correlation_id = self._request.version, self._request.header.correlation_id
        session_id, endpoints = session_round.session_id, self._hints.endpoints()
        return version, correlation_id, 0, ErrorCode.none, session_id, topics, endpoints


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
