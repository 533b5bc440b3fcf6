"""ShareFetch and ShareAcknowledge (KIP-932): a member of a share group acquires records, and says what became
of those that it has acquired.

A ShareFetch takes acknowledgements along, too. They are written first, then records are acquired, so that a
member that releases a record and fetches may get it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from uuid import UUID

import msgspec

from nilometer.broker.api.access import access_of
from nilometer.broker.api.leader_hints import LeaderHints
from nilometer.broker.api.spec import ApiSpec, Request, Right, spawn
from nilometer.broker.fetching.fetch_reader import FetchOutcome, FetchReader, ReaderIdentity
from nilometer.broker.fetching.fetch_session import FetchPartition, TopicKey
from nilometer.broker.replicas.delayed_requests import FetchWatchable
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replies import Reply
from nilometer.broker.services import Services
from nilometer.broker.sharing.share_partitions import LedSharePartition
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.identifiers import (
    NO_BROKER_EPOCH,
    BrokerId,
    TopicId,
    TopicIdPartition,
    topic_id_of,
    uuid_from_text,
)
from nilometer.share.fetched_records import batches_of, fetched
from nilometer.share.partition_events import AcknowledgementBatch, Acquired, AcquireMode
from nilometer.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, MemberKey, ShareSession
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import NONE, CorruptBatch, ErrorCode, KafkaError
from nilometer.wire.messages import milliseconds

NO_TOPIC = UUID(int=0)
MEMBER_ID_MAX = 256
"""Characters; clients of Kafka have random UUIDs."""
PARTITION_BYTES_MAX = 4 << 20
"""So much of one partition is read in a fetch: far fewer records may be locked than would fill a response."""
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

    def __init__(self, services: Services, request: Request) -> None:
        self.services = services
        self.request = request
        body = request.body
        self.member = MemberKey(body.group_id or "", body.member_id or "")
        self.epoch: int = body.share_session_epoch
        self.results: dict[TopicIdPartition, _Result] = {}
        """In the order of the request."""
        self.acknowledgements: dict[TopicIdPartition, list[AcknowledgementBatch]] = {}

    def check(self) -> None:
        """Raises KafkaError if the member may not do this at all."""
        if not self.services.groups.serves_share_groups:
            raise KafkaError(ErrorCode.unsupported_version, "share.version is 0")
        group_id, member_id = self.member
        if not group_id or not member_id or len(member_id) > MEMBER_ID_MAX:
            raise KafkaError(ErrorCode.invalid_request, "a group id and a member id are required")
        if not access_of(self.services, self.request).allows(Operation.READ, ResourceType.GROUP, group_id):
            raise KafkaError(ErrorCode.group_authorization_failed)

    def result(self, key: TopicIdPartition) -> _Result:
        return self.results.setdefault(key, _Result())

    def take_acknowledgements(self, topics: Sequence[Message]) -> None:
        for topic in topics:
            topic_id = _id_of(topic)
            for part in topic.partitions:
                if part.acknowledgement_batches:
                    key = TopicIdPartition(topic_id, part.partition_index)
                    self.acknowledgements[key] = [
                        AcknowledgementBatch(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                        for batch in part.acknowledgement_batches
                    ]

    def why_not(self, key: TopicIdPartition) -> ErrorCode:
        """Return why the member may not read the partition's topic; NONE if it may."""
        topic = self.services.image.topic_by_id(key.topic_id)
        if topic is None:
            return ErrorCode.unknown_topic_id
        allowed = access_of(self.services, self.request).allows(
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
        for result, answer in waiting:
            result.acknowledge_error = await answer

    async def _acknowledge_one(
        self, key: TopicIdPartition, batches: Sequence[AcknowledgementBatch]
    ) -> ErrorCode | asyncio.Future[ErrorCode]:
        if (error := self.why_not(key)) is not NONE:
            return error
        try:
            led = await self.services.share_partitions.get(self.member.group_id, key)
        except KafkaError as refused:
            return refused.code
        answer = led.acknowledge(self.member.member_id, batches)
        led.drop_if_unused()
        return answer

    def end_session(self, session: ShareSession) -> None:
        self.services.share_sessions.end(session)
        self.services.share_partitions.release(session)

    # --- the response

    def topics(
        self, hints: LeaderHints, topic_name: str, fields_of: Callable[[_Result], dict[str, object]]
    ) -> tuple[Message, ...]:
        make = self.request.make
        by_topic: dict[str, list[Message]] = {}
        for (topic_id, index), result in self.results.items():
            fields = fields_of(result)
            leader_id, leader_epoch = 0, 0
            if fields["error_code"] in _NOT_LEADER:
                leader_id, leader_epoch = hints.leader(uuid_from_text(topic_id), index)
            leader = make("LeaderIdAndEpoch", leader_id=leader_id, leader_epoch=leader_epoch)
            part = make("PartitionData", partition_index=index, current_leader=leader, **fields)
            by_topic.setdefault(topic_id, []).append(part)
        return tuple(
            make(topic_name, topic_id=uuid_from_text(topic_id), partitions=tuple(parts))
            for topic_id, parts in by_topic.items()
        )

    def respond_with(
        self, error: KafkaError | None, hints: LeaderHints, topics: Sequence[Message], **fields: object
    ) -> Reply:
        endpoints = tuple(
            self.request.make(
                "NodeEndpoint", node_id=one.node_id, host=one.host, port=one.port, rack=one.rack
            )
            for one in hints.endpoints()
        )
        return self.request.respond(
            error_code=NONE if error is None else error.code,
            error_message=None if error is None else error.message or None,
            responses=() if error is not None else tuple(topics),
            node_endpoints=endpoints,
            **fields,
        )


class _Wait:
    """A fetch that waits for records: new ones, or such as become available again."""

    for_replica = False

    def __init__(self, watched: Sequence[FetchWatchable]) -> None:
        self._watched = watched
        self._is_over = asyncio.get_running_loop().create_future()
        for one in watched:
            one.fetch_waiters.add(self)

    def on_readable(self, source: FetchWatchable, byte_count: int) -> None:
        self.end()

    def on_watermark_advanced(self, source: FetchWatchable) -> None:
        """Followers only."""

    def complete(self, source: FetchWatchable) -> None:
        self.end()

    def end(self) -> None:
        if not self._is_over.done():
            self._is_over.set_result(None)

    async def over(self, seconds: float) -> None:
        """Return when there is something, or after ``seconds``."""
        try:
            await asyncio.wait((self._is_over,), timeout=seconds)
        finally:
            for one in self._watched:
                one.fetch_waiters.discard(self)


class _ShareFetch(_Asked):
    def __init__(self, services: Services, request: Request) -> None:
        super().__init__(services, request)
        body = request.body
        self._left: int = max(0, body.max_records)
        self._batch_size: int = max(1, body.batch_size)
        self._mode = AcquireMode.BATCH_OPTIMIZED
        self._settings = services.share_partitions.settings(self.member.group_id)
        self._led: dict[TopicIdPartition, LedSharePartition] = {}
        self._hosted: dict[FetchWatchable, None] = {}
        self._offsets: dict[TopicIdPartition, int] = {}
        self._has_ended_early = False
        self._bytes_max = min(body.max_bytes, services.config.fetch_max_bytes)
        if self._has_quota:
            self._bytes_max = services.client_quotas.fetch_bytes_max(
                request.context, request.header.client_id, self._bytes_max
            )
        self._bytes_min = min(body.min_bytes, self._bytes_max)

    @property
    def _has_quota(self) -> bool:
        return self.services.client_quotas.limits_clients and not self.request.context.is_broker

    async def run(self) -> Reply:
        body, services = self.request.body, self.services
        try:
            self.check()
            mode: int = getattr(body, "share_acquire_mode", AcquireMode.BATCH_OPTIMIZED)
            if mode not in tuple(AcquireMode):
                raise KafkaError(ErrorCode.invalid_request, f"there is no acquire mode {mode}")
            self._mode = AcquireMode(mode)
            self.take_acknowledgements(body.topics)
            if self.epoch == INITIAL_EPOCH and self.acknowledgements:
                raise KafkaError(ErrorCode.invalid_request, "a new share session acknowledges nothing")
            is_renewal = bool(getattr(body, "is_renew_ack", False))
            if is_renewal and (body.max_bytes or body.min_bytes or body.max_records or body.max_wait):
                raise KafkaError(ErrorCode.invalid_request, "a renewal fetches no records")
            session, replaced = services.share_sessions.begin(
                self.member,
                self.epoch,
                self.request.connection,
                _keys(body.topics),
                _keys(body.forgotten_topics_data),
            )
        except KafkaError as refused:
            return self.respond(refused)
        if replaced is not None:
            services.share_partitions.release(replaced)
        await self.acknowledge()
        if self.epoch == FINAL_EPOCH:
            self.end_session(session)
        elif not is_renewal and self._left:
            await self._fetch(session)
            session.rotate([key for key, result in self.results.items() if result.acquired])
        if self.epoch != INITIAL_EPOCH:
            self.results = {key: result for key, result in self.results.items() if result.is_told}
        return self.respond()

    # --- reading

    async def _fetch(self, session: ShareSession) -> None:
        """Acquire records, if need be after a wait."""
        clock = self.services.runtime.clock
        deadline_ms = clock.monotonic_ms() + milliseconds(self.request.body.max_wait)
        await self._load(session)
        reader = self._reader()
        while True:
            reader.read()
            left_ms = deadline_ms - clock.monotonic_ms()
            is_final = left_ms <= 0 or self._has_ended_early or self._has_failed
            if reader.has_cold:
                self.request.connection.expect(reader.max_bytes)
                reader.take_cold(await self.services.runtime.disk.offload(reader.read_cold))
            if (reader.bytes_read >= self._bytes_min or is_final) and self._acquire(reader):
                return
            reader.drop()
            if is_final:
                return
            await self._wait(left_ms / 1000)

    @property
    def _has_failed(self) -> bool:
        return any(result.error is not NONE for result in self.results.values())

    async def _load(self, session: ShareSession) -> None:
        for key in list(session.partitions):
            result = self.result(key)
            if (error := self.why_not(key)) is not NONE:
                result.error = error
                continue
            try:
                led = self._led[key] = await self.services.share_partitions.get(self.member.group_id, key)
                led.members[self.member.member_id] = None
            except KafkaError as refused:
                result.error, result.message = refused.code, refused.message

    def _reader(self) -> FetchReader:
        services = self.services
        return FetchReader(
            services.replicas,
            ReaderIdentity(BrokerId(-1), NO_BROKER_EPOCH, self._settings.read_committed, ""),
            self._to_read,
            max_bytes=self._bytes_max,
            on_found=self._note,
            quota=services.replication_quotas.leader,
            now_us=services.turns.now_us,
            memory=services.response_memory,
        )

    def _note(self, _asked: FetchPartition, partition: Partition) -> None:
        self._hosted[partition] = None

    def _to_read(self) -> list[FetchPartition]:
        """Return the partitions that have room for records, each from where they are read next."""
        asked: list[FetchPartition] = []
        self._offsets.clear()
        for key, led in self._led.items():
            led.end_locks()
            core = led.core
            if core is None or led.is_dropped:
                self.result(key).error = ErrorCode.not_leader_or_follower
            elif core.can_acquire():
                offset = self._offsets[key] = core.next_fetch_offset()
                topic = TopicKey(uuid_from_text(key.topic_id).bytes, None)
                asked.append(FetchPartition(topic, key.partition, offset, PARTITION_BYTES_MAX))
        return asked

    def _acquire(self, reader: FetchReader) -> bool:
        """Acquire what was read; return whether there is anything to respond."""
        for key, outcome in zip(self._offsets, reader.outcomes, strict=True):
            self._acquire_one(key, outcome)
        reader.count_sent()
        return any(result.is_told and not result.has_acknowledged for result in self.results.values()) or any(
            result.acquired for result in self.results.values()
        )

    def _acquire_one(self, key: TopicIdPartition, outcome: FetchOutcome) -> None:
        led, result = self._led[key], self.result(key)
        core = led.core
        if outcome.error is ErrorCode.offset_out_of_range:
            return  # the log begins later now, or the high watermark is behind after an election
        if outcome.error is not NONE or core is None or led.is_dropped:
            result.error = outcome.error if outcome.error is not NONE else ErrorCode.not_leader_or_follower
            return
        if not outcome.size or self._left <= 0:
            return
        try:
            found = fetched(outcome.records, self._offsets[key], outcome.aborted or ())
        except CorruptBatch as corrupt:
            result.error, result.message = corrupt.code, corrupt.message
            return
        acquired, effects = core.acquire(
            self.member.member_id,
            found,
            max_records=self._left,
            batch_size=self._batch_size,
            mode=self._mode,
            now_ms=self.services.runtime.clock.monotonic_ms(),
        )
        led.carry_out(effects, has_acquired=True)
        if acquired:
            led.note_acquired(acquired)
            result.acquired = acquired
            result.records = batches_of(outcome.records, acquired)
            self._left -= sum(one.last_offset - one.first_offset + 1 for one in acquired)

    async def _wait(self, seconds: float) -> None:
        connection = self.request.connection
        connection.expect(0)
        wait = _Wait([*self._hosted, *self._led.values()])
        connection.complete_early = partial(self._end_early, wait)
        try:
            await wait.over(seconds)
        finally:
            connection.complete_early = None

    def _end_early(self, wait: _Wait) -> None:
        """Another request of this connection waits."""
        self._has_ended_early = True
        wait.end()

    # --- the response

    def respond(self, error: KafkaError | None = None) -> Reply:
        hints = LeaderHints(self.services, self.request.context.listener)
        topics = self.topics(hints, "ShareFetchableTopicResponse", self._partition)
        lock_ms = self._settings.record_lock_duration_ms
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
        throttle_ms = self.services.client_quotas.on_share_fetch(context, client_id, size)
        if throttle_ms:
            self.request.connection.mute(throttle_ms)
        return throttle_ms

    def _partition(self, result: _Result) -> dict[str, object]:
        make = self.request.make
        return {
            "error_code": result.error,
            "error_message": result.message,
            "acknowledge_error_code": int(result.acknowledge_error),
            "acknowledge_error_message": None,
            "records": bytes(result.records),
            "acquired_records": tuple(
                make(
                    "AcquiredRecords",
                    first_offset=one.first_offset,
                    last_offset=one.last_offset,
                    delivery_count=one.delivery_count,
                )
                for one in result.acquired
            ),
        }


def _id_of(topic: Message) -> TopicId:
    """Return the topic's id; without one, an id that no topic has."""
    return topic_id_of(topic.topic_id or NO_TOPIC)


def _keys(topics: Sequence[Message]) -> list[TopicIdPartition]:
    """Return the partitions that a list of topics names, as numbers or as elements of their own."""
    return [
        TopicIdPartition(_id_of(topic), getattr(part, "partition_index", part))
        for topic in topics
        for part in topic.partitions
    ]


class _ShareAcknowledge(_Asked):
    async def run(self) -> Reply:
        body, services = self.request.body, self.services
        try:
            self.check()
            self.take_acknowledgements(body.topics)
            if self.epoch == INITIAL_EPOCH:
                raise KafkaError(ErrorCode.invalid_share_session_epoch, "it begins no session")
            session = services.share_sessions.of(self.member, self.epoch, self.request.connection)
        except KafkaError as refused:
            return self.respond(refused)
        await self.acknowledge()
        if self.epoch == FINAL_EPOCH:
            self.end_session(session)
        return self.respond()

    def respond(self, error: KafkaError | None = None) -> Reply:
        hints = LeaderHints(self.services, self.request.context.listener)
        topics = self.topics(hints, "ShareAcknowledgeTopicResponse", self._partition)
        fields: dict[str, object] = {}
        if self.request.version >= RENEWALS_SINCE:
            lock_ms = self.services.share_partitions.settings(self.member.group_id).record_lock_duration_ms
            fields["acquisition_lock_timeout"] = timedelta(milliseconds=lock_ms)
        return self.respond_with(error, hints, topics, **fields)

    def _partition(self, result: _Result) -> dict[str, object]:
        return {"error_code": result.acknowledge_error, "error_message": None}


def handle_fetch(services: Services, request: Request) -> asyncio.Future[Reply]:
    return spawn(services, _ShareFetch(services, request).run(), "ShareFetch")


def handle_acknowledge(services: Services, request: Request) -> asyncio.Future[Reply]:
    return spawn(services, _ShareAcknowledge(services, request).run(), "ShareAcknowledge")


_RIGHTS = (Right(Operation.READ, ResourceType.GROUP), Right(Operation.READ, ResourceType.TOPIC))

FETCH = ApiSpec(key=ApiKey.SHARE_FETCH, versions=(1, 2), handle=handle_fetch, rights=_RIGHTS)
ACKNOWLEDGE = ApiSpec(
    key=ApiKey.SHARE_ACKNOWLEDGE, versions=(1, 2), handle=handle_acknowledge, rights=_RIGHTS
)
