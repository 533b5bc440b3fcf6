"""ShareFetch and ShareAcknowledge (KIP-932): a member of a share group acquires records, and says what became
of those that it has acquired.

A ShareFetch takes acknowledgements along, too. They are written first, then records are acquired, so that a
member that releases a record and fetches may get it again.

A member may have thousands of partitions, and acknowledge thousands of records: both are long work
(:class:`~nilometer.broker.turns.LongWork`), which goes on slice by slice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from uuid import UUID

import msgspec

from nilometer.broker.api.access import Rights
from nilometer.broker.api.leader_hints import LeaderHints
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Connection
from nilometer.broker.connection_memory import ResponseMemory
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.groups.group_coordinator import GroupCoordinator
from nilometer.broker.quotas import ClientQuotas
from nilometer.broker.replicas.delayed_requests import FetchWatchable
from nilometer.broker.replicas.fetch_reader import FetchOutcome, FetchReader, ReaderIdentity
from nilometer.broker.replicas.fetch_session import FetchPartition, TopicKey
from nilometer.broker.replicas.remote_fetch import take_remote
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.replicas.replication_quota import ReplicationQuotas
from nilometer.broker.responses import Response
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.sharing.share_partitions import LedSharePartition, SharePartitions
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.share_groups import MEMBER_ID_MAX
from nilometer.identifiers import (
    NO_BROKER_EPOCH,
    BrokerId,
    TopicId,
    TopicIdPartition,
    topic_id_of,
    uuid_from_text,
)
from nilometer.runtime import Runtime
from nilometer.share.partition_events import (
    AcknowledgementBatch,
    AcknowledgeType,
    Acquired,
    AcquireMode,
    batches_of,
    fetched,
)
from nilometer.share.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    PARTITIONS_MAX,
    MemberKey,
    ShareSession,
    ShareSessions,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message, milliseconds
from nilometer.wire.compression import Bytes
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import NONE, CorruptBatch, ErrorCode, KafkaError
from nilometer.wire.primitives import LeaderIdAndEpoch


class Parts(msgspec.Struct, frozen=True):
    config: BrokerConfig
    runtime: Runtime
    tasks: Tasks
    turns: Turns
    response_memory: ResponseMemory
    metadata: MetadataLog
    replicas: ReplicaManager
    groups: GroupCoordinator
    share_partitions: SharePartitions
    share_sessions: ShareSessions
    replication_quotas: ReplicationQuotas
    client_quotas: ClientQuotas
    rights: Rights


NO_TOPIC = UUID(int=0)
PARTITION_BYTES_MAX = 4 << 20
"""So much of one partition is read in a fetch: far fewer records may be locked than would fill a response."""
ELEMENTS_MAX = 4 * PARTITIONS_MAX
"""Of a request: each partition of a session may be of its own topic, with an acknowledgement of one type."""
NAMED_MAX = 256
"""A fetch that names more partitions waits at most ``LONG_WAIT_MS``: it is in memory for as long."""
LONG_WAIT_MS = 500
PAUSE_S_OF_A_PARTITION, PAUSE_S_MAX = 0.000_25, 2.0
"""For each partition of its session a fetch that has looked in vain pauses some ten times as long as it takes
to look at it, at most so long in all: it may wait for more bytes than come, and each record wakes it up."""
LOADING_AT_ONCE = 64
"""So many share partitions are loaded at once for one fetch."""
FEW_WAITERS = 8
"""Of more fetches that wait on a partition, each goes on in a turn of its own."""
RENEWALS_SINCE = 2
"""The version of both APIs (KIP-1222)."""
_NOT_LEADER = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


class _Result(msgspec.Struct):
    """The part of a response for one partition."""

    error: ErrorCode = NONE
    message: str | None = None
    acknowledge_error: ErrorCode = NONE
    has_acknowledged: bool = False
    records: Bytes = b""
    acquired: tuple[Acquired, ...] = ()

    @property
    def is_told(self) -> bool:
        return self.has_acknowledged or self.error is not NONE or bool(self.acquired)


class _Asked:
    """What both requests have: the member, its rights, and what it acknowledges."""

    def __init__(self, parts: Parts, request: Request, work: LongWork) -> None:
        self.parts = parts
        self.request = request
        self.work = work
        body = request.body
        self.member = MemberKey(body.group_id or "", body.member_id or "")
        self.epoch: int = body.share_session_epoch
        self.renews = bool(getattr(body, "is_renew_ack", False))
        self.results: dict[TopicIdPartition, _Result] = {}
        """In the order of the request."""
        self.acknowledgements: dict[TopicIdPartition, list[AcknowledgementBatch]] = {}

    def check(self) -> None:
        """Raises KafkaError if the member may not do this at all."""
        if not self.parts.groups.serves("share"):
            raise KafkaError(ErrorCode.unsupported_version, "share.version is 0")
        group_id, member_id = self.member
        if not group_id or not 0 < len(member_id) <= MEMBER_ID_MAX:
            raise KafkaError(ErrorCode.invalid_request, "a group id and a member id are required")
        if not self.parts.rights.access(self.request).allows(Operation.READ, ResourceType.GROUP, group_id):
            raise KafkaError(ErrorCode.group_authorization_failed)

    def result(self, key: TopicIdPartition) -> _Result:
        return self.results.setdefault(key, _Result())

    async def take_acknowledgements(self, topics: Sequence[Message]) -> None:
        for topic in topics:
            topic_id = _id_of(topic)
            for part in topic.partitions:
                if part.acknowledgement_batches:
                    batches: list[AcknowledgementBatch] = []
                    key = TopicIdPartition(topic_id, part.partition_index)
                    self.acknowledgements[key] = batches
                    for batch in part.acknowledgement_batches:
                        types = batch.acknowledge_types
                        batches.append(AcknowledgementBatch(batch.first_offset, batch.last_offset, types))
                        await self.work.step(1)
                await self.work.step(1)

    async def keys(self, topics: Sequence[Message]) -> list[TopicIdPartition]:
        """Return the partitions that a list of topics names, as numbers or as elements of their own."""
        keys: list[TopicIdPartition] = []
        for topic in topics:
            topic_id = _id_of(topic)
            for part in topic.partitions:
                keys.append(TopicIdPartition(topic_id, getattr(part, "partition_index", part)))
                await self.work.step(1)
            await self.work.step(1)
        return keys

    def why_not(self, key: TopicIdPartition) -> ErrorCode:
        """Return why the member may not read the partition's topic; NONE if it may."""
        topic = self.parts.metadata.image.topic_by_id(key.topic_id)
        if topic is None:
            return ErrorCode.unknown_topic_id
        allowed = self.parts.rights.access(self.request).allows(
            Operation.READ, ResourceType.TOPIC, topic.name
        )
        return NONE if allowed else ErrorCode.topic_authorization_failed

    async def acknowledge(self) -> None:
        """Write the acknowledgements; each partition has its own error."""
        waiting: list[tuple[_Result, asyncio.Future[ErrorCode]]] = []
        for key, batches in self.acknowledgements.items():
            result = self.result(key)
            result.has_acknowledged = True
            answer = await self._acknowledge_one(key, batches)
            if isinstance(answer, ErrorCode):
                result.acknowledge_error = answer
            else:
                waiting.append((result, answer))
            await self.work.step(1)
        for result, answer in waiting:
            result.acknowledge_error = await self.work.wait(answer)

    async def _acknowledge_one(
        self, key: TopicIdPartition, batches: Sequence[AcknowledgementBatch]
    ) -> ErrorCode | asyncio.Future[ErrorCode]:
        if (error := self.why_not(key)) is not NONE:
            return error
        if not self.renews and any(AcknowledgeType.RENEW in batch.types for batch in batches):
            return ErrorCode.invalid_request
        try:
            led = self.parts.share_partitions.of_acknowledgement(self.member.group_id, key)
        except KafkaError as refused:
            return refused.code
        return await led.acknowledge(self.member.member_id, batches, self.work)

    async def end_session(self, session: ShareSession) -> None:
        self.parts.share_sessions.end(session)
        await self.parts.share_partitions.release(session, self.work)

    # --- the response

    async def topics(self, topic_type: str, hints: LeaderHints) -> Sequence[Message]:
        """Return the topics of the response, which are made when they are encoded."""
        by_topic: dict[str, list[tuple[int, _Result, LeaderIdAndEpoch | None]]] = {}
        for (topic_id, index), result in self.results.items():
            leader = None
            if self.error_of(result) in _NOT_LEADER:
                leader = hints.leader(uuid_from_text(topic_id), index)
            by_topic.setdefault(topic_id, []).append((index, result, leader))
            await self.work.step(1)
        return LazySequence(partial(self._topic, topic_type), list(by_topic.items()))

    def _topic(
        self, topic_type: str, topic: tuple[str, list[tuple[int, _Result, LeaderIdAndEpoch | None]]]
    ) -> Message:
        topic_id, parts = topic
        return self.request.make(
            topic_type, topic_id=uuid_from_text(topic_id), partitions=LazySequence(self._partition, parts)
        )

    def _partition(self, part: tuple[int, _Result, LeaderIdAndEpoch | None]) -> Message:
        index, result, leader = part
        leader_id, leader_epoch = (0, 0) if leader is None else leader
        return self.request.make(
            "PartitionData",
            partition_index=index,
            current_leader=self.request.make(
                "LeaderIdAndEpoch", leader_id=leader_id, leader_epoch=leader_epoch
            ),
            **self.fields_of(result),
        )

    def error_of(self, result: _Result) -> ErrorCode:
        """Return the error of a partition that clients take for its leader's."""
        return result.acknowledge_error

    def fields_of(self, result: _Result) -> dict[str, object]:
        """Return what the part of a partition has besides its number and its leader."""
        return {"error_code": result.acknowledge_error, "error_message": None}

    def respond_with(
        self, error: KafkaError | None, hints: LeaderHints, topics: Sequence[Message], **fields: object
    ) -> Response:
        endpoints = tuple(
            self.request.make(
                "NodeEndpoint", node_id=one.node_id, host=one.host, port=one.port, rack=one.rack
            )
            for one in hints.endpoints()
        )
        return self.request.respond(
            error_code=NONE if error is None else error.code,
            error_message=None if error is None else error.message or None,
            responses=() if error is not None else topics,
            node_endpoints=endpoints,
            **fields,
        )


class _Wait:
    """A fetch that waits for records: new ones, or such as become available again.

    It notices what comes while the fetch looks, too: the fetch looks again then.
    """

    for_replica = False

    def __init__(self) -> None:
        self._watched: list[FetchWatchable] = []
        self._is_over = asyncio.get_running_loop().create_future()

    def watch(self, one: FetchWatchable) -> None:
        self._watched.append(one)
        one.fetch_waiters.add(self)

    def on_readable(self, source: FetchWatchable, byte_count: int) -> None:
        self.end()

    def on_watermark_advanced(self, source: FetchWatchable) -> None:
        """Do nothing: only followers' fetches wait for it. Readable records end a share fetch."""

    def complete(self, source: FetchWatchable) -> None:
        self.end()

    def end(self) -> None:
        if not self._is_over.done():
            self._is_over.set_result(None)

    def begin(self) -> None:
        """What has come so far is looked at now."""
        if self._is_over.done():
            self._is_over = asyncio.get_running_loop().create_future()

    async def over(self, seconds: float) -> None:
        """Return when there is something, or after ``seconds``."""
        await asyncio.wait((self._is_over,), timeout=seconds)

    @property
    def has_many_beside(self) -> bool:
        """Whether many wait for the same."""
        return any(len(one.fetch_waiters) > FEW_WAITERS for one in self._watched[:FEW_WAITERS])

    def stop(self) -> None:
        for one in self._watched:
            one.fetch_waiters.discard(self)


class _ShareFetch(_Asked):
    def __init__(self, parts: Parts, request: Request, work: LongWork) -> None:
        super().__init__(parts, request, work)
        body = request.body
        self._left: int = max(0, body.max_records)
        self._batch_size: int = max(1, body.batch_size)
        self._mode = AcquireMode.BATCH_OPTIMIZED
        self._settings = parts.share_partitions.settings(self.member.group_id)
        self._max_wait_ms = milliseconds(body.max_wait)
        self._led: dict[TopicIdPartition, LedSharePartition] = {}
        self._offsets: dict[TopicIdPartition, int] = {}
        """The partitions that are read now, and from where."""
        self._asked: list[FetchPartition] = []
        """The same, for the reader."""
        self._has_ended_early = False
        self._bytes_max = min(body.max_bytes, parts.config.fetch_max_bytes)
        if self._has_quota:
            self._bytes_max = parts.client_quotas.fetch_bytes_max(
                request.context, request.header.client_id, self._bytes_max
            )
        self._bytes_min = min(body.min_bytes, self._bytes_max)

    @property
    def _has_quota(self) -> bool:
        return self.parts.client_quotas.limits_clients and not self.request.context.is_broker

    async def run(self) -> Response:
        body, parts = self.request.body, self.parts
        try:
            self.check()
            mode: int = getattr(body, "share_acquire_mode", AcquireMode.BATCH_OPTIMIZED)
            if mode not in tuple(AcquireMode):
                raise KafkaError(ErrorCode.invalid_request, f"there is no acquire mode {mode}")
            self._mode = AcquireMode(mode)
            await self.take_acknowledgements(body.topics)
            if self.epoch == INITIAL_EPOCH and self.acknowledgements:
                raise KafkaError(ErrorCode.invalid_request, "a new share session acknowledges nothing")
            if self.renews and (body.max_bytes or body.min_bytes or body.max_records or body.max_wait):
                raise KafkaError(ErrorCode.invalid_request, "a renewal fetches no records")
            added, removed = await self.keys(body.topics), await self.keys(body.forgotten_topics_data)
            if len(added) + len(removed) > NAMED_MAX:
                self._max_wait_ms = min(self._max_wait_ms, LONG_WAIT_MS)
            session, replaced = parts.share_sessions.begin(
                self.member, self.epoch, self.request.connection, added, removed
            )
        except KafkaError as refused:
            if refused.code is ErrorCode.share_session_limit_reached and self._max_wait_ms > 0:
                await self._wait(_Wait(), self._max_wait_ms / 1000)  # or its member asks again at once
            return await self.respond(refused)
        await self._leave(session, removed if replaced is None else replaced.partitions)
        await parts.share_partitions.wait_released(self.member)
        await self.acknowledge()
        if self.epoch == FINAL_EPOCH:
            await self.end_session(session)
        elif not self.renews and self._left and body.max_bytes > 0:
            await self._fetch(session)
            session.rotate([key for key, result in self.results.items() if result.acquired])
        if self.epoch != INITIAL_EPOCH:
            self.results = {key: result for key, result in self.results.items() if result.is_told}
        return await self.respond()

    async def _leave(self, session: ShareSession, keys: Iterable[TopicIdPartition]) -> None:
        """Leave the partitions that the session has no more. What the member holds of them stays locked."""
        for key in keys:
            if key not in session.partitions:
                self.parts.share_partitions.leave(self.member, key)
            await self.work.step(1)

    # --- reading

    async def _fetch(self, session: ShareSession) -> None:
        """Acquire records, if need be after a wait."""
        deadline_ms = self.parts.runtime.clock.monotonic_ms() + self._max_wait_ms
        wait = _Wait()
        try:
            await self._load(session)
            if self._max_wait_ms > 0:
                for led in self._led.values():
                    wait.watch(led)
                    wait.watch(led.partition)
                    await self.work.step(1)
            await self._acquire_until(deadline_ms, wait)
        finally:
            wait.stop()
            if not self.parts.share_sessions.has(self.member):  # it ended with the connection meanwhile
                self.parts.share_partitions.release_all([session])

    async def _acquire_until(self, deadline_ms: int, wait: _Wait) -> None:
        """Look for records until there are some; after a wait, when others have come or time is over."""
        clock, connection = self.parts.runtime.clock, self.request.connection
        reader = self._reader()
        looks, pause_s = 0, min(len(self._led) * PAUSE_S_OF_A_PARTITION, PAUSE_S_MAX)
        while True:
            looks += 1
            wait.begin()
            await self._prepare()
            for asked in reader.begin():
                connection.expect(max(reader.max_bytes, reader.bytes_read))
                reader.read_next(asked)
                await self.work.step(1)
            connection.expect(reader.bytes_read)
            left_ms = deadline_ms - clock.monotonic_ms()
            is_final = left_ms <= 0 or self._has_ended_early or self._has_failed
            if reader.has_cold:
                connection.expect(reader.max_bytes)
                cold = self.parts.runtime.disk.offload(reader.read_cold)
                reader.take_cold(await self.work.wait(cold))
                remote = take_remote(self.parts.replicas.remote, connection.origin, reader)
                await self.work.wait(remote)
            if (reader.bytes_read >= self._bytes_min or is_final) and await self._acquire(reader):
                return
            reader.drop()
            if is_final:
                return
            if looks > 1:  # what came was not enough: it does not look again for each record that comes
                await self._wait(_Wait(), min(left_ms / 1000, pause_s))
                left_ms = max(0, deadline_ms - clock.monotonic_ms())
            if not self._has_ended_early:
                await self._wait(wait, left_ms / 1000)

    @property
    def _has_failed(self) -> bool:
        return any(result.error is not NONE for result in self.results.values())

    async def _load(self, session: ShareSession) -> None:
        partitions = self.parts.share_partitions
        group_id = self.member.group_id
        keys = list(session.partitions)
        loading: deque[asyncio.Future[KafkaError | None]] = deque()
        for key in keys:
            result = self.result(key)
            result.error = self.why_not(key)
            if result.error is NONE:
                try:
                    led = partitions.begin(group_id, key)
                except KafkaError as refused:
                    result.error, result.message = refused.code, refused.message
                else:
                    if led.core is None and led.loading is not None:
                        loading.append(led.loading)
            if len(loading) >= LOADING_AT_ONCE:
                await self.work.wait(asyncio.wait((loading.popleft(),)))
            await self.work.step(1)
        for key in keys:
            result = self.result(key)
            if result.error is NONE:
                try:
                    led = self._led[key] = await partitions.get(group_id, key)
                    led.members[self.member.member_id] = None
                except KafkaError as refused:
                    result.error, result.message = refused.code, refused.message
            await self.work.step(1)

    def _reader(self) -> FetchReader:
        parts = self.parts
        return FetchReader(
            parts.replicas,
            ReaderIdentity(BrokerId(-1), NO_BROKER_EPOCH, self._settings.read_committed, ""),
            lambda: self._asked,
            max_bytes=self._bytes_max,
            on_found=lambda asked, partition: None,
            quota=parts.replication_quotas.leader,
            cpu_us=parts.turns.cpu_us,
            memory=parts.response_memory,
            holder=self.request.connection,
        )

    async def _prepare(self) -> None:
        """Note the partitions that have room for records, each with where it is read next."""
        self._offsets.clear()
        self._asked = []
        for key, led in self._led.items():
            led.end_locks()
            core = led.core
            if core is None or led.is_dropped:
                self.result(key).error = ErrorCode.not_leader_or_follower
            elif core.can_acquire():
                offset = self._offsets[key] = core.next_fetch_offset()
                topic = TopicKey(uuid_from_text(key.topic_id).bytes, None)
                self._asked.append(FetchPartition(topic, key.partition, offset, PARTITION_BYTES_MAX))
            await self.work.step(1)

    async def _acquire(self, reader: FetchReader) -> bool:
        """Acquire what was read; return whether there is anything to respond."""
        for key, outcome in zip(self._offsets, reader.outcomes, strict=True):
            await self.work.step(1 + self._acquire_one(key, outcome))
        reader.count_sent()
        return any(result.is_told and not result.has_acknowledged for result in self.results.values()) or any(
            result.acquired for result in self.results.values()
        )

    def _acquire_one(self, key: TopicIdPartition, outcome: FetchOutcome) -> int:
        """Acquire what was read of one partition; return of how many batches that was."""
        led, result = self._led[key], self.result(key)
        core = led.core
        if outcome.error is ErrorCode.offset_out_of_range:
            return 0  # the log begins later now, or the high watermark is behind after an election
        if outcome.error is not NONE or core is None or led.is_dropped:
            result.error = outcome.error if outcome.error is not NONE else ErrorCode.not_leader_or_follower
            return 0
        if not outcome.size or self._left <= 0:
            return 0
        try:
            found = fetched(outcome.records, self._offsets[key], outcome.aborted or ())
        except CorruptBatch as corrupt:
            result.error, result.message = corrupt.code, corrupt.message
            return 0
        acquired, effects = core.acquire(
            self.member.member_id,
            found,
            max_records=self._left,
            batch_size=self._batch_size,
            mode=self._mode,
            now_ms=self.parts.runtime.clock.monotonic_ms(),
        )
        led.carry_out(effects, has_acquired=True)
        if acquired:
            led.note_acquired(acquired)
            result.acquired = acquired
            result.records = batches_of(outcome.records, acquired)
            self._left -= sum(one.last_offset - one.first_offset + 1 for one in acquired)
        return len(found.batches)

    async def _wait(self, wait: _Wait, seconds: float) -> None:
        connection = self.request.connection
        connection.expect(0)
        connection.complete_early = partial(self._end_early, wait)
        try:
            await self.work.wait(wait.over(seconds))
        finally:
            connection.complete_early = None
        if wait.has_many_beside:
            await self.parts.turns.wait_next()

    def _end_early(self, wait: _Wait) -> None:
        """Another request of this connection waits."""
        self._has_ended_early = True
        wait.end()

    # --- the response

    async def respond(self, error: KafkaError | None = None) -> Response:
        hints = LeaderHints(self.parts.metadata, self.request.context.listener)
        topics = await self.topics("ShareFetchableTopicResponse", hints)
        lock_ms = self._settings.record_lock_duration_ms if error is None else 0
        return self.respond_with(
            error,
            hints,
            topics,
            acquisition_lock_timeout=timedelta(milliseconds=lock_ms),
            throttle_time=timedelta(milliseconds=self._throttle_ms()),
        )

    def _throttle_ms(self) -> int:
        """Count the records for their client's quota, and mute its connection for the time (ms) returned.

        Unlike a Fetch, it gets the records: they are locked, and each delivery counts.
        """
        size = sum(len(result.records) for result in self.results.values())
        if not size or not self._has_quota:
            return 0
        context, client_id = self.request.context, self.request.header.client_id
        throttle_ms = self.parts.client_quotas.on_share_fetch(context, client_id, size)
        if throttle_ms:
            self.request.connection.mute(throttle_ms)
        return throttle_ms

    def error_of(self, result: _Result) -> ErrorCode:
        return result.error

    def fields_of(self, result: _Result) -> dict[str, object]:
        return {
            "error_code": result.error,
            "error_message": result.message,
            "acknowledge_error_code": int(result.acknowledge_error),
            "acknowledge_error_message": None,
            "records": bytes(result.records),
            "acquired_records": LazySequence(self._acquired, result.acquired),
        }

    def _acquired(self, one: Acquired) -> Message:
        return self.request.make(
            "AcquiredRecords",
            first_offset=one.first_offset,
            last_offset=one.last_offset,
            delivery_count=one.delivery_count,
        )


def _id_of(topic: Message) -> TopicId:
    """Return the topic's id; without one, an id that no topic has."""
    return topic_id_of(topic.topic_id or NO_TOPIC)


class _ShareAcknowledge(_Asked):
    async def run(self) -> Response:
        body, parts = self.request.body, self.parts
        try:
            self.check()
            await self.take_acknowledgements(body.topics)
            if self.epoch == INITIAL_EPOCH:
                raise KafkaError(ErrorCode.invalid_share_session_epoch, "it begins no session")
            session = parts.share_sessions.of(self.member, self.epoch, self.request.connection)
        except KafkaError as refused:
            return await self.respond(refused)
        await self.acknowledge()
        if self.epoch == FINAL_EPOCH:
            await self.end_session(session)
        return await self.respond()

    async def respond(self, error: KafkaError | None = None) -> Response:
        hints = LeaderHints(self.parts.metadata, self.request.context.listener)
        topics = await self.topics("ShareAcknowledgeTopicResponse", hints)
        fields: dict[str, object] = {}
        if self.request.version >= RENEWALS_SINCE:
            settings = self.parts.share_partitions.settings(self.member.group_id)
            lock_ms = settings.record_lock_duration_ms if error is None else 0
            fields["acquisition_lock_timeout"] = timedelta(milliseconds=lock_ms)
        return self.respond_with(error, hints, topics, **fields)


async def fetch_long(parts: Parts, request: Request, work: LongWork) -> Response:
    return await _ShareFetch(parts, request, work).run()


async def acknowledge_long(parts: Parts, request: Request, work: LongWork) -> Response:
    return await _ShareAcknowledge(parts, request, work).run()


def handle_fetch(parts: Parts, request: Request) -> asyncio.Future[Response]:
    return parts.tasks.spawn(fetch_long(parts, request, LongWork(parts.turns)), kind="ShareFetch")


def handle_acknowledge(parts: Parts, request: Request) -> asyncio.Future[Response]:
    return parts.tasks.spawn(acknowledge_long(parts, request, LongWork(parts.turns)), kind="ShareAcknowledge")


_RIGHTS = (Right(Operation.READ, ResourceType.GROUP), Right(Operation.READ, ResourceType.TOPIC))


def end_sessions(sessions: ShareSessions, partitions: SharePartitions, connection: Connection) -> None:
    """End the share sessions of a connection that has closed, and release what their members hold."""
    ended = sessions.of_connection(connection)
    for session in ended:
        sessions.end(session)
    if ended:
        partitions.release_all(ended)


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.SHARE_FETCH,
            versions=(1, 2),
            handle=partial(handle_fetch, parts),
            handle_long=partial(fetch_long, parts),
            elements_max=ELEMENTS_MAX,
            rights=_RIGHTS,
        ),
        ApiSpec(
            key=ApiKey.SHARE_ACKNOWLEDGE,
            versions=(1, 2),
            handle=partial(handle_acknowledge, parts),
            handle_long=partial(acknowledge_long, parts),
            elements_max=ELEMENTS_MAX,
            rights=_RIGHTS,
        ),
    )
