"""Produce: record batches for partitions led here."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

import msgspec

from nilometer.broker.api.access import Rights
from nilometer.broker.api.leader_hints import LeaderHints
from nilometer.broker.api.spec import ApiSpec, PartOfRequest, Request, Right
from nilometer.broker.api.throttling import count_refused
from nilometer.broker.authorizer import Access
from nilometer.broker.control.internal_topics import check_client_may_write
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.quotas import ClientQuotas
from nilometer.broker.rejected_batches import RejectedBatches
from nilometer.broker.replicas.delayed_requests import (
    DelayedProduce,
    PartitionOutcome,
    ProduceOutcome,
    ProduceWait,
    ReadyFetches,
)
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.record_reading import RecordReading
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.responses import CloseConnection, MadeResponse, Response, WaitingResponse
from nilometer.broker.tasks import Tasks
from nilometer.broker.transactions.verification import (
    Asker,
    Guard,
    TransactionVerification,
    VerifiedPartitions,
)
from nilometer.broker.turns import SLICE_US, LongWork, LoopTime, Turns
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.states import NAME_LENGTH_MAX
from nilometer.runtime import Clock, Runtime
from nilometer.storage.errors import RecordsRejected
from nilometer.storage.record_validation import ReadingAllowance, UnreadRecords, ValidatedBatch
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.body_reader import SLICE_ELEMENTS
from nilometer.wire.compression import Bytes, Codec
from nilometer.wire.errors import (
    NONE,
    CorruptBatch,
    ErrorCode,
    InvalidRecord,
    KafkaError,
    UnsupportedMagic,
    is_retriable,
)
from nilometer.wire.primitives import NodeEndpoint
from nilometer.wire.produce import (
    ProduceBody,
    ProducedPartition,
    ProducedRecords,
    ProducedTopic,
    ProducedToTopic,
    RecordError,
    begin_produce_body,
    encode_produce_response,
    produce_response_slices,
)
from nilometer.wire.record_batch import HEADER_BYTES, MAGIC, BatchHeader, read_header


class Parts(msgspec.Struct, frozen=True):
    runtime: Runtime
    tasks: Tasks
    turns: Turns
    metadata: MetadataLog
    replicas: ReplicaManager
    record_reading: RecordReading
    verification: TransactionVerification
    ready_fetches: ReadyFetches
    client_quotas: ClientQuotas
    rights: Rights


FIRST_WITH_ZSTD = 7

_LENGTH = slice(8, 12)
_BEFORE_LENGTH = 12
_MAGIC = 16
_CODEC_AND_FLAGS = 22
_CODEC_MASK = 0x07
_TRANSACTIONAL = 0x10


def check_produced_records(records: Bytes, version: int, *, in_transaction: bool) -> None:
    """Raise KafkaError if ``records`` may not be produced.

    ``version``: that of the Produce request. ``in_transaction``: the request has a transactional id.
    """
    if len(records) < HEADER_BYTES:
        raise InvalidRecord(f"{len(records)} bytes are not a complete record batch")
    if records[_MAGIC] < MAGIC:
        raise InvalidRecord(
            f"a message of magic {records[_MAGIC]}: only record batches (magic 2) are accepted"
        )
    size = _BEFORE_LENGTH + int.from_bytes(records[_LENGTH], "big", signed=True)
    if size > len(records):
        raise InvalidRecord(f"{len(records)} bytes of a record batch of {size}")
    if HEADER_BYTES <= size < len(records):
        raise InvalidRecord("a produce request carries exactly one record batch for a partition")
    flags = records[_CODEC_AND_FLAGS]
    if version < FIRST_WITH_ZSTD and flags & _CODEC_MASK == Codec.ZSTD:
        raise KafkaError(
            ErrorCode.unsupported_compression_type,
            f"zstd needs version {FIRST_WITH_ZSTD} of Produce, not {version}",
        )
    if flags & _TRANSACTIONAL and not in_transaction:
        raise KafkaError(
            ErrorCode.transactional_id_authorization_failed,
            "a transactional batch in a request without a transactional id",
        )


NO_TOPICS: frozenset[str | UUID] = frozenset()


def denied_topics(parts: Parts, request: Request) -> frozenset[str | UUID]:
    """Return the topics of the request, as it names them, that its principal may not write to."""
    if parts.rights.authorizer is None:
        return NO_TOPICS
    access, body = parts.rights.access(request), request.body
    return frozenset(
        topic.topic for topic in body.topics if not _may_write(access, parts.metadata.image, topic.topic)
    )


def _may_write(access: Access, image: ClusterImage, topic: str | UUID) -> bool:
    if isinstance(topic, UUID):
        found = image.topic_by_uuid(topic)
        if found is None:
            return True  # the topic does not exist: the response may say so
        topic = found.name
    return access.allows(Operation.WRITE, ResourceType.TOPIC, topic)


def _exists(image: ClusterImage, topic: str | UUID) -> bool:
    """Return whether the topic exists, if it is named by its id."""
    return isinstance(topic, str) or image.topic_by_uuid(topic) is not None


def is_transaction_denied(parts: Parts, request: Request) -> bool:
    """Return whether a batch of the request is part of a transaction that its principal may not write."""
    if parts.rights.authorizer is None:
        return False
    access, body = parts.rights.access(request), request.body
    if access.is_full or not _has_transactional_batches(body):
        return False
    transactional_id: str | None = body.transactional_id
    return transactional_id is None or not access.allows(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )


def _has_transactional_batches(body: ProduceBody) -> bool:
    headers = (sequenced(part.records) for topic in body.topics for part in topic.partitions)
    return any(header is not None and header.is_transactional for header in headers)


def sequenced(records: memoryview | None) -> BatchHeader | None:
    """Return the header of the first batch; None if it cannot be read or has no producer id."""
    if not records:
        return None
    try:
        header = read_header(records)
    except (CorruptBatch, UnsupportedMagic):
        return None
    return header if header.producer_id >= 0 else None


ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
FIRST_WITH_ABORTABLE, FIRST_THAT_ADDS = 11, 12
PARTITIONS_AT_ONCE = 64
"""So many partitions of a large request are handled before other clients are served."""


_ACKS = frozenset((ACKS_NONE, ACKS_LEADER, ACKS_ALL))


def handle(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    body: ProduceBody = request.body
    if is_transaction_denied(parts, request):
        return _refuse(parts, request, ErrorCode.transactional_id_authorization_failed)
    if body.transactional_id is not None:
        guards = _guards(parts, request)
        if guards:
            request.connection.process_alone()  # later batches of the producer must not pass this one
            return parts.tasks.spawn(_verify_then_append(parts, request, body.transactional_id, guards))
    return _append_all(parts, request)


async def handle_long(parts: Parts, request: Request, work: LongWork) -> Response:
    """Append the batches of a request with many partitions part by part; then wait for all of them."""
    handled: list[PartOfRequest] = []
    waiting: list[asyncio.Future[Response]] = []
    for body, partitions in _parts(request.body):
        part = request.part(body, parts.runtime.clock.monotonic_us())
        response = handle(parts, part)
        if isinstance(response, WaitingResponse):
            waiting.append(response)
        elif isinstance(response, asyncio.Future):  # a later batch must not pass one that is being verified
            await work.wait(response)
            waiting += part.waiting
        handled.append(part)
        await work.step(partitions)
    for response in waiting:
        await work.wait(response)
    if request.body.acks == ACKS_NONE:
        return None
    return await _encode_parts(request, handled, work)


def _parts(body: ProduceBody) -> Iterator[tuple[ProduceBody, int]]:
    """Yield bodies with at most ``PARTITIONS_AT_ONCE`` partitions, and how many; a topic has at least one."""
    topics: list[ProducedToTopic] = []
    count = 0
    for topic in body.topics:
        for start in range(0, len(topic.partitions) or 1, PARTITIONS_AT_ONCE):
            some = topic.partitions[start : start + PARTITIONS_AT_ONCE]
            weight = len(some) or 1
            if topics and count + weight > PARTITIONS_AT_ONCE:
                yield msgspec.structs.replace(body, topics=topics), count
                topics, count = [], 0
            topics.append(ProducedToTopic(topic.topic, some))
            count += weight
    if topics:
        yield msgspec.structs.replace(body, topics=topics), count


async def _encode_parts(request: Request, parts: list[PartOfRequest], work: LongWork) -> Response:
    topics: list[ProducedTopic] = []
    outcomes: list[list[ProducedPartition]] = []
    endpoints: dict[NodeEndpoint, None] = {}
    throttle_ms = 0
    for part in parts:
        response = part.made.pop()
        for topic in response.topics:
            if not topics or topics[-1].name != topic.name:
                outcomes.append([])
                topics.append(ProducedTopic(topic.name, outcomes[-1]))
            outcomes[-1].extend(topic.partitions)
        endpoints.update(dict.fromkeys(response.endpoints))
        throttle_ms = max(throttle_ms, response.throttle_ms)
        await work.step(PARTITIONS_AT_ONCE)
    header = request.header
    frame: list[bytes] = []
    for piece in produce_response_slices(
        header.api_version, header.correlation_id, topics, throttle_ms, tuple(endpoints)
    ):
        frame.append(piece)
        await work.step(SLICE_ELEMENTS)
    await work.release(parts)
    for partitions in [*outcomes, *(topic.partitions for topic in request.body.topics)]:
        await work.release(partitions)
    await work.release(topics)
    await work.release(request.body.topics)
    return MadeResponse([sum(map(len, frame)).to_bytes(4, "big"), *frame])


def _refuse(parts: Parts, request: Request, error: ErrorCode) -> Response | asyncio.Future[Response]:
    """Return the response with ``error`` for each partition. With acks=0 there is no response: raises
    CloseConnection."""
    topics: list[ProducedTopic] = []
    for topic in request.body.topics:
        outcomes = [ProduceOutcome(part.partition, error) for part in topic.partitions]
        topics.append(ProducedTopic(topic.topic, outcomes))
    if request.body.acks == ACKS_NONE:
        _close_on_error(topics)
    waiting = _Waiting(parts, request, topics)
    waiting.throttle_ms = count_refused(parts.client_quotas, parts.runtime.clock, request)
    return waiting.response(0)


def _guards(parts: Parts, request: Request) -> list[Guard]:
    """Return a guard for each partition in which the producer has no open transaction yet: its batch must be
    verified with the coordinator first."""
    guards: list[Guard] = []
    denied = denied_topics(parts, request)
    for topic in request.body.topics:
        if topic.topic in denied:
            continue  # _append_all reports the error
        for part in topic.partitions:
            header = sequenced(part.records)
            if header is None or not header.is_transactional:
                continue
            try:
                partition = _find(parts, topic.topic, part.partition)
            except KafkaError:
                continue  # _append_all reports the error
            guard = parts.verification.guard(
                partition, header.producer_id, header.producer_epoch, _asker(request.version)
            )
            if guard is not None:
                guards.append(guard)
    return guards


def _asker(version: int) -> Asker:
    return Asker(knows_abortable=version >= FIRST_WITH_ABORTABLE, adds=version >= FIRST_THAT_ADDS)


async def _verify_then_append(
    parts: Parts, request: Request, transactional_id: str, guards: Sequence[Guard]
) -> Response:
    time = LoopTime(parts.runtime.clock.monotonic_us, request.began_us)
    time.pause()
    verified = await parts.verification.verify(transactional_id, guards, _asker(request.version))
    time.resume()
    return await _wait_for(request, _append_all(parts, request, verified, time))


def _append_all(
    parts: Parts,
    request: Request,
    verified: VerifiedPartitions | None = None,
    time: LoopTime | None = None,
) -> Response | asyncio.Future[Response]:
    topics: list[ProducedTopic] = []
    denied = denied_topics(parts, request)
    waiting = _Waiting(parts, request, topics)
    allowance = ReadingAllowance()
    left: list[_Left] = []  # not list[_Left](), which takes ten times as long
    ends_us = 0  # of the slice in which batches are appended at once
    if more_follow := request.connection.has_queued:
        parts.ready_fetches.hold()
    for topic in request.body.topics:
        outcomes: list[ProduceOutcome] = []
        topics.append(ProducedTopic(topic.topic, outcomes))
        for part in topic.partitions:
            outcome = ProduceOutcome(part.partition)
            outcomes.append(outcome)
            if topic.topic in denied:
                outcome.fail(ErrorCode.topic_authorization_failed)
                continue
            if len(outcomes) > 1 or len(topics) > 1:
                now_us = parts.runtime.clock.monotonic_us()
                ends_us = ends_us or now_us + SLICE_US
                if now_us >= ends_us and _exists(parts.metadata.image, topic.topic):
                    # New segments were begun, say: each takes a millisecond. The rights on a topic that does
                    # not exist were not looked up: it might exist by then.
                    left.append(_Left(topic.topic, part, outcome, None))
                    continue
            try:
                _append_to(parts, request, topic.topic, part, outcome, waiting, verified, allowance=allowance)
            except KafkaError as error:
                _refuse_records(parts, request, topic.topic, part, outcome, error)
            except UnreadRecords as found:
                left.append(_Left(topic.topic, part, outcome, found.steps))
    if not more_follow:
        parts.ready_fetches.answer()
    if left:
        request.connection.process_alone()  # later batches of the producer must not pass these
        work = _append_left(parts, request, topics, waiting, left, verified, time)
        return parts.tasks.spawn(work, kind="Produce")
    return _end(parts, request, topics, waiting, time)


def _end(
    parts: Parts,
    request: Request,
    topics: Sequence[ProducedTopic],
    waiting: _Waiting,
    time: LoopTime | None,
) -> Response | asyncio.Future[Response]:
    """Return the response, now that each batch has been appended or refused."""
    if parts.client_quotas.limits_clients and not request.context.is_broker:
        time = time or LoopTime(parts.runtime.clock.monotonic_us, request.began_us)
        waiting.throttle_ms = _count_for_quotas(parts, request, time)
    if request.body.acks == ACKS_NONE:
        _close_on_error(topics)
        return None
    return waiting.response(request.body.timeout_ms)


class _Left(NamedTuple):
    """A batch that is not appended in the turn in which its request arrived."""

    topic: str | UUID
    part: ProducedRecords
    outcome: ProduceOutcome
    steps: Generator[int, None, list[ValidatedBatch]] | None
    """Read its records, which must be done before; None if there was no time for it."""


async def _append_left(
    parts: Parts,
    request: Request,
    topics: Sequence[ProducedTopic],
    waiting: _Waiting,
    left: Sequence[_Left],
    verified: VerifiedPartitions | None,
    time: LoopTime | None,
) -> Response:
    time = time or LoopTime(parts.runtime.clock.monotonic_us, request.began_us)
    turns, ends_us = parts.turns, 0
    if verified is None:  # a transaction that needed no verification may end before its batch is appended
        verified = VerifiedPartitions(parts.verification, (), {}, _asker(request.version))
    for topic, part, outcome, steps in left:
        if steps is None and turns.now_us() >= ends_us:
            time.pause()
            await turns.wait_next()
            time.resume()
            ends_us = turns.now_us() + SLICE_US
        append = partial(_append_to, parts, request, topic, part, outcome, waiting, verified)
        try:
            if steps is None:
                try:
                    append(allowance=ReadingAllowance())
                    continue
                except UnreadRecords as found:
                    steps = found.steps
            append(validated=await parts.record_reading.run(request.connection.origin, steps))
        except KafkaError as error:
            _refuse_records(parts, request, topic, part, outcome, error)
    return await _wait_for(request, _end(parts, request, topics, waiting, time))


async def _wait_for(request: Request, response: Response | asyncio.Future[Response]) -> Response:
    """Return the response, or leave it to :func:`handle_long`, which appends the next part before it waits
    for acknowledgements."""
    if isinstance(request, PartOfRequest) and isinstance(response, WaitingResponse):
        request.waiting.append(response)
        return ()
    return await response if isinstance(response, asyncio.Future) else response


def _refuse_records(
    parts: Parts,
    request: Request,
    topic: str | UUID,
    part: ProducedRecords,
    outcome: ProduceOutcome,
    error: KafkaError,
) -> None:
    """Set the outcome of a batch that was not appended because of ``error``."""
    refused = request.connection.rejected_batches
    outcome.fail(_remember(refused, topic, part, error.code, parts.runtime.clock), error.message)
    if isinstance(error, RecordsRejected):
        outcome.record_errors = [RecordError(index, message) for index, message in error.records]
    parts.replicas.traffic.failed_produces += 1


def _count_for_quotas(parts: Parts, request: Request, time: LoopTime) -> int:
    """Count the request for its client's quotas, and mute the connection for the time (ms) returned.

    As in Kafka, requests with acks=0 are exempt from the quota of time, since they have no response.
    """
    spent_us = 0 if request.body.acks == ACKS_NONE else time.spent_us
    size = request.header.size + sum(
        len(part.records or b"") for topic in request.body.topics for part in topic.partitions
    )
    throttle_ms = parts.client_quotas.on_produce(request.context, request.header.client_id, size, spent_us)
    if throttle_ms:
        request.connection.mute(throttle_ms)
    return throttle_ms


def _check_verified(verified: VerifiedPartitions, partition: Partition, records: memoryview | None) -> None:
    """Raise KafkaError if the batch is transactional, and was not verified for this partition in its state
    now."""
    header = sequenced(records)
    if header is not None and header.is_transactional:
        verified.check(partition, header.producer_id, header.producer_epoch)


def _find(parts: Parts, topic: str | UUID, index: int) -> Partition:
    if isinstance(topic, str):
        return parts.replicas.partition(topic, index)
    return parts.replicas.partition_by_id(topic, index)


def _check_passes_none(
    refused: RejectedBatches, partition: Partition, topic: str | UUID, part: ProducedRecords, now_ms: int
) -> None:
    """Raise KafkaError if an earlier batch of the same producer was rejected on this connection.

    Checked only for a producer that the log does not know: the log would accept any batch as its first one.
    """
    header = sequenced(part.records)
    if header is None or header.producer_id in partition.log.producers.producers:
        return
    if (error := refused.error_before((topic, part.partition), header, now_ms)) is not None:
        raise KafkaError(error, "An earlier batch of this producer was rejected.")


def _remember(
    refused: RejectedBatches,
    topic: str | UUID,
    part: ProducedRecords,
    error: ErrorCode,
    clock: Clock,
) -> ErrorCode:
    """Note a retriable ``error`` of a batch that was not appended, and return the error for its response. Of
    a topic that cannot exist nothing is noted: its name may be long, and the batch is never accepted.

    OUT_OF_ORDER_SEQUENCE_NUMBER becomes the error of an earlier rejected batch, if that one caused it: with
    that error a producer sends both again, in order; with its own it may begin another epoch, and so append
    a batch twice (:mod:`nilometer.broker.rejected_batches`).
    """
    out_of_order = error is ErrorCode.out_of_order_sequence_number
    if (out_of_order and not refused) or not (out_of_order or is_retriable(error)):
        return error
    if isinstance(topic, str) and len(topic) > NAME_LENGTH_MAX:
        return error
    header = sequenced(part.records)
    if header is None:
        return error
    where = topic, part.partition
    if out_of_order:
        return refused.error_before(where, header, clock.monotonic_ms()) or error
    refused.note(where, header, error, clock.monotonic_ms())
    return error


def _append_to(
    parts: Parts,
    request: Request,
    topic: str | UUID,
    part: ProducedRecords,
    outcome: ProduceOutcome,
    waiting: _Waiting,
    verified: VerifiedPartitions | None,
    *,
    allowance: ReadingAllowance | None = None,
    validated: Sequence[ValidatedBatch] | None = None,
) -> None:
    """``allowance`` and ``validated``: see :meth:`Log.append_as_leader`. Raises KafkaError, UnreadRecords."""
    body: ProduceBody = request.body
    records = part.records
    partition = _find(parts, topic, part.partition)
    if verified is not None:
        _check_verified(verified, partition, records)
    if refused := request.connection.rejected_batches:
        _check_passes_none(refused, partition, topic, part, parts.runtime.clock.monotonic_ms())
    acks, header = body.acks, request.header
    if acks not in _ACKS:
        raise KafkaError(ErrorCode.invalid_required_acks, f"acks={acks}; use 0, 1 or -1 (all)")
    if not records:
        raise KafkaError(ErrorCode.invalid_record, "no records")
    check_produced_records(records, header.api_version, in_transaction=body.transactional_id is not None)
    check_client_may_write(partition.topic, header.client_id)
    appended = partition.append(
        records, all_replicas=acks == ACKS_ALL, allowance=allowance, validated=validated
    )
    outcome.base_offset = appended.first_offset
    outcome.log_append_time_ms = appended.log_append_time_ms
    outcome.log_start_offset = appended.log_start_offset
    if acks == ACKS_ALL:
        partition.acknowledge_when_committed(appended, outcome, waiting)
    elif acks == ACKS_LEADER:
        partition.acknowledge_when_written(appended, outcome, waiting)


class _Response(NamedTuple):
    """The response to a part of a request, not encoded yet."""

    topics: Sequence[ProducedTopic]
    endpoints: Sequence[NodeEndpoint]
    throttle_ms: int


class _Waiting:
    """Makes the response to one request, at once or when its last partition has its outcome.

    It keeps no records, and no reference cycle outlives the response: otherwise the records of thousands of
    requests would stay in memory until the next garbage collection.
    """

    __slots__ = (
        "_delayed",
        "_header",
        "_listener",
        "_made",
        "_parts",
        "_topics",
        "_waiting",
        "throttle_ms",
    )

    def __init__(self, parts: Parts, request: Request, topics: Sequence[ProducedTopic]) -> None:
        """``topics``: with the outcomes; those of later partitions may be added until :meth:`response`."""
        self._parts = parts
        self._header = request.header
        self._made = request.made if isinstance(request, PartOfRequest) else None
        self._listener = request.context.listener
        self._topics = topics
        self._waiting: WaitingResponse | None = None
        self._delayed: DelayedProduce | None = None
        self.throttle_ms = 0

    def wait_for(self, outcome: PartitionOutcome) -> ProduceWait:
        """Make the request wait for a partition; on a topic with one replica it never has to."""
        if self._delayed is None:
            self._delayed = DelayedProduce(self._finish)
        return self._delayed.wait_for(outcome)

    def response(self, timeout_ms: int) -> Response | asyncio.Future[Response]:
        delayed = self._delayed
        if delayed is None:
            return self._respond()
        if not delayed.is_waiting:
            delayed.close()
            return self._respond()
        self._waiting = WaitingResponse()
        delayed.start_timer(timeout_ms)
        return self._waiting

    def _finish(self) -> None:
        self._parts.turns.answer(self._answer, sum(len(topic.partitions) for topic in self._topics))

    def _answer(self) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(self._respond())

    def _respond(self) -> Response:
        if self._made is not None:
            self._made.append(_Response(self._topics, self._name_leaders(), self.throttle_ms))
            return ()
        header = self._header
        frame = encode_produce_response(
            header.api_version, header.correlation_id, self._topics, self.throttle_ms, self._name_leaders()
        )
        return (frame,)

    def _name_leaders(self) -> tuple[NodeEndpoint, ...]:
        """Set the leader in each outcome that has NOT_LEADER_OR_FOLLOWER; return the leaders' endpoints."""
        hints: LeaderHints | None = None
        for topic in self._topics:
            for outcome in topic.partitions:
                if outcome.error is not NONE and outcome.error is ErrorCode.not_leader_or_follower:
                    hints = hints or LeaderHints(self._parts.metadata, self._listener)
                    outcome.current_leader = hints.leader(topic.name, outcome.index)
        return () if hints is None else hints.endpoints()


def _close_on_error(topics: Sequence[ProducedTopic]) -> None:
    """Raise CloseConnection if an append failed: with acks=0 there is no response, and a producer learns of a
    failure only from the closed connection."""
    for topic in topics:
        for outcome in topic.partitions:
            if outcome.error is not NONE:
                raise CloseConnection(
                    f"acks=0 to {topic.name}-{outcome.index} failed: {outcome.error.name.upper()}"
                )


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.PRODUCE,
            versions=(3, 13),
            handle=partial(handle, parts),
            decode=begin_produce_body,
            handle_long=partial(handle_long, parts),
            advertised_min=0,
            pipelined=True,
            counts_quotas=True,
            rights=(
                Right(Operation.WRITE, ResourceType.TOPIC),
                Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
            ),
        ),
    )
