"""Fetch: records for consumers (up to the high watermark, or the LSO) and for followers (up to the log's
end).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from nilometer.broker.api.access import Rights
from nilometer.broker.api.leader_hints import LeaderHints
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.api.throttling import count_refused, throttled
from nilometer.broker.authorizer import Authorizer
from nilometer.broker.connection_memory import ResponseMemory
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.quotas import ClientQuotas
from nilometer.broker.replicas.delayed_requests import WAITING_MAX, DelayedFetch, FetchWatchable, ReadyFetches
from nilometer.broker.replicas.fetch_reader import FetchOutcome, FetchReader, ReaderIdentity
from nilometer.broker.replicas.fetch_session import (
    NO_SESSION,
    FetchPartition,
    FetchRound,
    FetchSessionCache,
    PartitionKey,
    TopicKey,
    watch_of,
)
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.remote_fetch import take_remote
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.replicas.replication_quota import ReplicationQuotas
from nilometer.broker.responses import MadeResponse, Response, WaitingResponse
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork, LoopTime, Turns
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.runtime import Runtime
from nilometer.storage.reading import LogSlice
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchBody,
    FetchedPartition,
    FetchedTopic,
    ForgottenTopic,
    WantedTopic,
    begin_fetch_body,
    encode_fetch_response,
    fetch_response_slices,
)
from nilometer.wire.primitives import NodeEndpoint


class Parts(msgspec.Struct, frozen=True):
    config: BrokerConfig
    runtime: Runtime
    tasks: Tasks
    turns: Turns
    response_memory: ResponseMemory
    metadata: MetadataLog
    replicas: ReplicaManager
    fetch_sessions: FetchSessionCache
    ready_fetches: ReadyFetches
    replication_quotas: ReplicationQuotas
    client_quotas: ClientQuotas
    rights: Rights


_NOT_LEADER = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


FIRST_WITH_ERROR = 7
"""The first version with an error for the whole fetch."""


def refuse_fetch(request: Request, error: ErrorCode) -> Response:
    """Return a response with ``error`` for the whole fetch; in versions without such a field, for each of its
    partitions."""
    topics: list[FetchedTopic] = []
    if request.version < FIRST_WITH_ERROR:
        body: FetchBody = request.body
        for name, partitions in body.topics:
            refused = [FetchedPartition(one.partition, error, -1, -1, -1, ()) for one in partitions]
            topics.append(FetchedTopic(name, refused))
    return encode_fetch_response(request.version, request.header.correlation_id, 0, error, 0, topics)


def throttled_fetch(parts: Parts, request: Request, session_round: FetchRound, throttle_ms: int) -> Response:
    """Return the response to a client above a quota: the time (ms) to wait, and no partitions (KIP-219).

    A fetch that would have begun a session begins none: its client asks for all partitions again. The next
    fetch of a session reads what this one read.
    """
    session_id = session_round.session_id
    if session_round.session is not None and not session_round.incremental:
        parts.fetch_sessions.drop(session_id)
        session_id = NO_SESSION
    return encode_fetch_response(
        request.version, request.header.correlation_id, throttle_ms, ErrorCode.none, session_id, ()
    )


def encode_fetch_response_body(
    parts: Parts, request: Request, session_round: FetchRound, outcomes: Sequence[FetchOutcome]
) -> Response:
    response = _Response(parts, request)
    for outcome in outcomes:
        response.add(session_round, outcome)
    return encode_fetch_response(*response.parts(session_round))


async def encode_long_fetch_response(
    parts: Parts,
    request: Request,
    session_round: FetchRound,
    outcomes: list[FetchOutcome],
    work: LongWork,
) -> Response:
    """Make a response with many partitions slice by slice; ``outcomes`` is empty then."""
    response = _Response(parts, request)
    for outcome in outcomes:
        response.add(session_round, outcome)
        await work.step(1)
    await work.release(outcomes)
    made = MadeResponse(await work.go_through(fetch_response_slices(*response.parts(session_round))))
    await response.release(work)
    return made


class _Response:
    """Collects the partitions of a response by topic."""

    def __init__(self, parts: Parts, request: Request) -> None:
        self._request = request
        self._hints = LeaderHints(parts.metadata, request.context.listener)
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


logger = logging.getLogger("nilometer.broker.api")

READ_COMMITTED = 1
PARTITIONS_AT_ONCE = 256
"""More partitions are read slice by slice, between which other clients are served."""
LONG_WAIT_MS_MAX = 500
"""For so long a fetch of more partitions waits for records."""
UPDATE_WAIT_MS = 5
"""A new high watermark is sent to a waiting follower with the next record, or after this time (ms)."""


def handle(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    body: FetchBody = request.body
    forgotten = list(_forgotten(body.forgotten)) if body.forgotten else ()
    try:
        session_round = _begin(parts, request, list(_partitions(body.topics)), forgotten)
    except KafkaError as error:
        return _refuse(parts, request, error.code)
    return _Fetch(parts, request, session_round).begin()


async def handle_long(parts: Parts, request: Request, work: LongWork) -> Response:
    """Handle a fetch that names many partitions, slice by slice."""
    body: FetchBody = request.body
    partitions: list[FetchPartition] = []
    for topic in body.topics:
        await work.step(1)  # it may have no partitions
        for partition in _partitions((topic,)):
            partitions.append(partition)
            await work.step(1)
    try:
        session_round = _begin(parts, request, partitions, ())
        for topic in body.topics:
            await work.release(topic.partitions)
        await work.release(body.topics)
        for topic in body.forgotten:
            for key in _forgotten((topic,)):
                if session_round.session is not None:
                    session_round.session.forget(key)
                await work.step(1)
            await work.release(topic.partitions)
        await work.release(body.forgotten)
    except KafkaError as error:
        return _refuse(parts, request, error.code)
    response = await _Fetch(parts, request, session_round).read_long(work)
    await work.release(partitions)
    return response


def _begin(
    parts: Parts,
    request: Request,
    partitions: Sequence[FetchPartition],
    forgotten: Sequence[PartitionKey],
) -> FetchRound:
    """Begin a round of the fetch's session. Raises KafkaError."""
    body: FetchBody = request.body
    if body.replica_id >= 0 and parts.rights.why_not_broker(request, body.replica_id) is not None:
        raise KafkaError(ErrorCode.cluster_authorization_failed)
    return parts.fetch_sessions.begin(
        body.session_id,
        body.session_epoch,
        partitions,
        forgotten,
        by_topic_id=request.version >= 13,
        now_ms=parts.runtime.clock.monotonic_ms(),
        is_bounded=body.replica_id < 0,
    )


def _refuse(parts: Parts, request: Request, error: ErrorCode) -> Response:
    response = refuse_fetch(request, error)
    throttle_ms = count_refused(parts.client_quotas, parts.runtime.clock, request)
    return throttled(request, response, throttle_ms) if throttle_ms else response


def _partitions(topics: Sequence[WantedTopic]) -> Iterator[FetchPartition]:
    return (
        FetchPartition(
            key,
            part.partition,
            part.fetch_offset,
            part.partition_max_bytes,
            part.current_leader_epoch,
            part.last_fetched_epoch,
            part.log_start_offset,
        )
        for topic, partitions in topics
        for key in (TopicKey.of(topic),)
        for part in partitions
    )


def _forgotten(topics: Sequence[ForgottenTopic]) -> Iterator[PartitionKey]:
    return (
        PartitionKey(key, index)
        for topic, partitions in topics
        for key in (TopicKey.of(topic),)
        for index in partitions
    )


class _Found:
    """Collects the partitions that a fetch reads, so that it can wait for their changes.

    It is a separate object so that fetch and reader do not reference each other: with such a cycle the
    records would stay in memory until the next garbage collection.
    """

    def __init__(self, session_round: FetchRound, *, for_replica: bool) -> None:
        session = session_round.session
        self._watch = None if session is None else watch_of(session, for_replica=for_replica)
        self._partitions: dict[FetchWatchable, None] = {}

    def __call__(self, asked: FetchPartition, partition: Partition) -> None:
        if self._watch is not None:
            self._watch.watch(asked.key, partition)
        else:
            self._partitions[partition] = None

    def to_wait_on(self) -> list[FetchWatchable]:
        if self._watch is None:
            return list(self._partitions)
        self._watch.begin_to_wait()
        return [self._watch]


class _ReadingRights:
    """Raises KafkaError if the client may not read a partition.

    It is called at each read, also when the fetch has waited: an answer about a topic counts until an ACL
    changes. It does not know the fetch: see :class:`_Found`.
    """

    def __init__(self, parts: Parts, request: Request, authorizer: Authorizer) -> None:
        self._parts = parts
        self._request = request
        self._authorizer = authorizer
        self._version = authorizer.version
        self._may_read: dict[str, bool] = {}

    def __call__(self, asked: FetchPartition) -> None:
        topic = asked.topic.as_named
        if not isinstance(topic, str):
            found = self._parts.metadata.image.topic_by_uuid(topic)
            if found is None:
                return  # the topic does not exist: the response may say so
            topic = found.name
        if self._version != self._authorizer.version:
            self._version = self._authorizer.version
            self._may_read.clear()
        if topic not in self._may_read:
            access = self._parts.rights.access(self._request)
            self._may_read[topic] = access.allows(Operation.READ, ResourceType.TOPIC, topic)
        if not self._may_read[topic]:
            raise KafkaError(ErrorCode.topic_authorization_failed)


class _Fetch:
    """One fetch request, until its response is made."""

    def __init__(self, parts: Parts, request: Request, session_round: FetchRound) -> None:
        self._parts = parts
        self._request = request
        self._round = session_round
        body: FetchBody = request.body
        self._max_wait_ms = body.max_wait_ms
        self._min_bytes = body.min_bytes
        identity = ReaderIdentity(
            body.replica_id, body.replica_epoch, body.isolation_level == READ_COMMITTED, body.rack_id
        )
        self._time: LoopTime | None = None
        """Measures the request; None if there are no quotas for its client."""
        self._found = _Found(session_round, for_replica=identity.is_replica)
        check = None
        if parts.rights.authorizer is not None and not identity.is_replica:
            check = _ReadingRights(parts, request, parts.rights.authorizer)
            if session_round.session is not None:
                session_round.session.follow_rights(parts.rights.authorizer.version)
        self._reader = FetchReader(
            parts.replicas,
            identity,
            session_round.to_read,
            max_bytes=self._max_bytes(identity),
            on_found=self._found,
            quota=parts.replication_quotas.leader,
            check=check,
            memory=None if identity.is_replica else parts.response_memory,
            holder=request.connection,
            cpu_us=parts.turns.cpu_us,
        )
        self._waiting: WaitingResponse | None = None

    def begin(self) -> Response | asyncio.Future[Response]:
        if self._round.size > PARTITIONS_AT_ONCE:
            return self._parts.tasks.spawn(self.read_long(LongWork(self._parts.turns)), kind="Fetch")
        self._reader.read()
        if self._reader.has_cold:
            return self._spawn_cold()
        wait_ms = self._update_wait_ms if self._reader.has_update else self._max_wait_ms
        if self._is_enough or min(wait_ms, self._max_wait_ms) <= 0 or self._round.is_empty:
            return self._answer()
        if self._round.session is None and self._parts.ready_fetches.waiting >= WAITING_MAX:
            return self._answer()
        return self._wait()

    async def read_long(self, work: LongWork, *, may_wait: bool = True) -> Response:
        """Read many partitions slice by slice, and respond, if need be after a wait. That is short, since
        the request is in memory for as long."""
        connection, reader = self._request.connection, self._reader
        for asked in reader.begin():
            connection.expect(max(reader.max_bytes, reader.bytes_read))
            reader.read_next(asked)
            await work.step(1)
        connection.expect(reader.bytes_read)
        if self._reader.has_cold:
            self._pause()
            await self._take_cold()
        elif may_wait and not self._is_enough and not self._round.is_empty and self._max_wait_ms > 0:
            self._max_wait_ms = min(self._max_wait_ms, LONG_WAIT_MS_MAX)
            return await work.wait(self._wait())
        if self._parts.client_quotas.limits_clients and (throttle_ms := self._throttle_ms()):
            return self._throttled(throttle_ms)
        self._reader.count_sent()
        outcomes = self._reader.outcomes
        return await encode_long_fetch_response(self._parts, self._request, self._round, outcomes, work)

    @property
    def _update_wait_ms(self) -> int:
        """How long (ms) a waiting follower's fetch may hold back a new high watermark.

        0 (not at all) if consumers may read from followers: they wait for that high watermark (KIP-392).
        """
        return 0 if self._parts.replicas.serves_from_followers else UPDATE_WAIT_MS

    @property
    def _is_enough(self) -> bool:
        return self._reader.bytes_read >= self._min_bytes or self._reader.is_urgent

    def _spawn_cold(self) -> asyncio.Future[Response]:
        self._pause()
        self._request.connection.expect(self._reader.max_bytes)
        return self._parts.tasks.spawn(self._read_cold())

    async def _read_cold(self) -> Response:
        await self._take_cold()
        return self._answer()

    async def _take_cold(self) -> None:
        """Read off the event loop, and then from remote storage."""
        if self._reader.has_local_cold:
            await self._take_local()
        await take_remote(self._parts.replicas.remote, self._request.connection.origin, self._reader)
        self._resume()

    async def _take_local(self) -> None:
        """Read from the disk. Of the batches that are larger than a client's response may be, one is read at
        once: its size is not known before."""
        reader, offload = self._reader, self._parts.runtime.disk.offload
        memory, connection = self._parts.response_memory, self._request.connection
        is_replica = reader.identity.is_replica
        cold = await offload(lambda: reader.read_cold(may_exceed=is_replica))
        if not is_replica and not reader.bytes_read and not _size(cold):
            connection.expect(0)
            async with memory.large_reads:
                if not memory.is_short_for(connection.origin):
                    cold = await offload(reader.read_cold)
                    connection.expect(_size(cold))
        reader.take_cold(cold)

    def _pause(self) -> None:
        if self._time is not None:
            self._time.pause()

    def _resume(self) -> None:
        if self._time is not None:
            self._time.resume()

    def _wait(self) -> asyncio.Future[Response]:
        self._waiting = waiting = WaitingResponse()
        self._reader.drop()
        self._request.connection.expect(0)
        delayed = DelayedFetch(
            self._found.to_wait_on(),
            self._min_bytes - self._reader.bytes_read,
            self._max_wait_ms,
            self._maybe_answer,
            for_replica=self._reader.identity.is_replica,
            update_wait_ms=self._update_wait_ms,
            has_update=self._reader.has_update,
            ready=self._parts.ready_fetches,
            size=self._round.size,
            has_session=self._round.session is not None or self._reader.identity.is_replica,
        )
        waiting.on_cancelled = delayed.cancel
        self._request.connection.complete_early = delayed.complete
        self._pause()
        return waiting

    def _maybe_answer(self, final: bool) -> bool:
        """Read again, and respond if there are enough bytes or if ``final``.

        Returns whether the wait is over: the response was sent, is being read, or the fetch was cancelled.
        """
        waiting = self._waiting
        if waiting is None or waiting.done():
            return True
        self._resume()
        if self._round.size > PARTITIONS_AT_ONCE:
            work = LongWork(self._parts.turns)
            reading = self._parts.tasks.spawn(self.read_long(work, may_wait=False), kind="Fetch")
            reading.add_done_callback(lambda done: _copy_outcome(done, waiting))
            return True
        self._reader.read()
        if self._reader.has_cold:
            reading = self._spawn_cold()
            reading.add_done_callback(lambda done: _copy_outcome(done, waiting))
            return True
        if not final and not self._is_enough:
            self._reader.drop()
            self._pause()
            return False
        waiting.set_result(self._answer())
        return True

    def _max_bytes(self, identity: ReaderIdentity) -> int:
        parts = self._parts
        bytes_max = min(self._request.body.max_bytes, parts.config.fetch_max_bytes)
        quotas, request = self._parts.client_quotas, self._request
        if not quotas.limits_clients or identity.is_replica:
            return bytes_max
        self._time = LoopTime(self._parts.runtime.clock.monotonic_us, request.began_us)
        bytes_max = quotas.fetch_bytes_max(request.context, request.header.client_id, bytes_max)
        self._min_bytes = min(self._min_bytes, bytes_max)
        return bytes_max

    def _throttle_ms(self) -> int:
        """Count the fetch for its client's quotas; return how long (ms) the client has to wait."""
        parts, request = self._parts, self._request
        if self._reader.identity.is_replica:
            return 0
        spent_us = 0 if self._time is None else self._time.spent_us  # None: quotas were set while it waited
        return parts.client_quotas.on_fetch(
            request.context, request.header.client_id, self._reader.bytes_read, spent_us
        )

    def _throttled(self, throttle_ms: int) -> Response:
        self._request.connection.mute(throttle_ms)
        return throttled_fetch(self._parts, self._request, self._round, throttle_ms)

    def _answer(self) -> Response:
        if self._parts.client_quotas.limits_clients and (throttle_ms := self._throttle_ms()):
            return self._throttled(throttle_ms)
        self._reader.count_sent()
        return encode_fetch_response_body(self._parts, self._request, self._round, self._reader.outcomes)


def _size(cold: Sequence[tuple[FetchOutcome, LogSlice | KafkaError | OSError]]) -> int:
    return sum(0 if isinstance(piece, Exception) else len(piece.records) for _, piece in cold)


def _copy_outcome(done: asyncio.Future[Response], target: asyncio.Future[Response]) -> None:
    if done.cancelled():
        target.cancel()
    elif (error := done.exception()) is None:
        if not target.done():
            target.set_result(done.result())
    elif not target.done():
        target.set_exception(error)
    else:
        logger.error("A fetch failed after its reader had disconnected", exc_info=error)


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.FETCH,
            versions=(4, 18),
            handle=partial(handle, parts),
            decode=begin_fetch_body,
            handle_long=partial(handle_long, parts),
            counts_quotas=True,
            rights=(Right(Operation.READ, ResourceType.TOPIC),),
        ),
    )
