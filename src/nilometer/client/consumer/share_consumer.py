"""A share consumer (KIP-932): acquires records of topics as a member of a share group, no more than were
asked for, and acknowledges them one by one. Does I/O.

Like the fetcher of a consumer it takes a *step* whenever something changed: it sends the ShareFetch and
ShareAcknowledge requests that are possible. Each broker has one connection for both, so that the broker sees
the requests of a session in their order.

Invariants:

- The records that are buffered, and those that requests in flight may bring, are together no more than were
  asked for by the last :meth:`ShareConsumer.take` (with version 2 of ShareFetch: before it, a broker may
  return a whole batch).
- A broker has at most one ShareFetch and one ShareAcknowledge in flight.
- Each acknowledgement is answered: by the broker, or with the error for which its answer did not come.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from nilometer.client.consumer.consumer_settings import CONSUMER_CONFIG_DEFINITION
from nilometer.client.consumer.fetch_exchange import ConsumerRecord, FetchedRecords
from nilometer.client.consumer.share_session import (
    RENEWALS_SINCE,
    AcknowledgedRecord,
    AcquiredRange,
    FetchedPartition,
    Outcome,
    SessionPlan,
    ShareFetchLimits,
    SharePartition,
    ShareSession,
    read_share_acknowledge,
    read_share_fetch,
    share_acknowledge_request,
    share_fetch_request,
)
from nilometer.client.group.coordinator import GROUP_CHANNEL, LOST, Coordinator
from nilometer.client.group.group_settings import GroupConfig
from nilometer.client.group.member import Heartbeats
from nilometer.client.network.client import STALE_METADATA, Client, Jobs
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.network.connection import Connection
from nilometer.client.network.connection_pool import Backoff
from nilometer.client.settings import ClientSettings, GivenConfig
from nilometer.config import ConfigError
from nilometer.runtime import Runtime
from nilometer.share.partition_events import AcknowledgeType
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message, milliseconds
from nilometer.wire.errors import ErrorCode, KafkaError, UnsupportedVersion

# The membership of a share group (KIP-932): heartbeats report the subscription, and the coordinator answers
# with the partitions to fetch from. Does I/O.
#
# Nothing is given up or taken over, since members may share a partition: an assignment is in effect at once.
#
# Invariant: a member keeps its id, also when it was fenced and joins again: what it has
# acquired stays its own.

logger = logging.getLogger("nilometer.client.share.share_consumer")
_member_logger = logging.getLogger("nilometer.client.share.share_member")

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
REJOIN_ERRORS = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch})


class ShareMember:
    def __init__(
        self, client: Client, config: GroupConfig, topics: tuple[str, ...], on_change: Callable[[], None]
    ) -> None:
        """``on_change`` is called after a change of :attr:`assigned`, and once :attr:`failure` is set."""
        self._client = client
        self._config = config
        self._topics = topics
        self._on_change = on_change
        self._clock = client.runtime.clock
        settings = client.settings
        self._backoff = Backoff(
            settings.integer("retry.backoff.ms"), settings.integer("retry.backoff.max.ms")
        )
        self._coordinator = Coordinator(client, config.group_id)
        self._heartbeats = Heartbeats(self._clock, config, self)
        self._heartbeats.on_poll_begun()  # and never ended: this member may not be late to poll
        self._epoch = JOIN_EPOCH
        self._is_active = False
        self._has_reported = False
        self._failures = 0
        # As Kafka's own ids: brokers before 4.1 take no other.
        self.member_id = base64.urlsafe_b64encode(client.runtime.entropy.uuid().bytes).decode().rstrip("=")
        self.assigned: tuple[SharePartition, ...] = ()
        self.failure: KafkaError | None = None

    def start(self) -> None:
        self._is_active = True
        self._heartbeats.begin()

    async def close(self) -> None:
        """Leave the group; a failure is logged: the session timeout removes the member."""
        was_member = self._epoch > JOIN_EPOCH
        self._is_active = False
        await self._heartbeats.end()
        if was_member:
            await self._coordinator.send_leave(
                ApiKey.SHARE_GROUP_HEARTBEAT, lambda api: self._request(api, LEAVE_EPOCH)
            )

    # --- heartbeats

    def wants_heartbeats(self) -> bool:
        return self._is_active

    def has_changes_to_report(self) -> bool:
        return not self._has_reported and not self._failures

    def on_session_over(self, now_ms: int) -> bool:
        return False

    async def leave_on_poll_timeout(self) -> None:
        raise AssertionError("a share member is never late to poll")

    async def beat(self, now_ms: int) -> None:
        self._heartbeats.liveness.on_heartbeat_sent(now_ms)
        try:
            response = await self._coordinator.ask(
                ApiKey.SHARE_GROUP_HEARTBEAT,
                lambda api: self._request(api, self._epoch),
                channel=GROUP_CHANNEL,
            )
            code, message = response.error_code, response.error_message or ""
        except KafkaError as error:
            response, code, message = None, error.code, error.message
        if not self._is_active:
            return
        if response is not None and code == ErrorCode.none:
            self._on_answer(response)
        else:
            self._on_refused(code, message)

    def _on_answer(self, response: Message) -> None:
        self._failures = 0
        self._has_reported = True
        self._epoch = response.member_epoch
        liveness = self._heartbeats.liveness
        liveness.heartbeat_every(max(milliseconds(response.heartbeat_interval), 1))
        now_ms = self._clock.monotonic_ms()
        liveness.on_heartbeat_answered(now_ms)
        liveness.on_heartbeat_sent(now_ms)
        if response.assignment is not None:
            self.assigned = tuple(
                SharePartition(topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            )
            _member_logger.debug("Group %s: assigned %s", self._config.group_id, self.assigned)
            self._on_change()

    def _on_refused(self, code: ErrorCode, message: str) -> None:
        self._failures += 1
        self._has_reported = False
        if code in REJOIN_ERRORS:
            _member_logger.info("Group %s: fenced (%s); joining again", self._config.group_id, code.name)
            self._epoch = JOIN_EPOCH
            if self._failures == 1:
                self._failures = 0  # at once
                return
        elif code in LOST:
            self._coordinator.lose(code.name)
        elif not KafkaError(code).retriable:
            self._is_active = False
            self.failure = KafkaError(code, message or f"group {self._config.group_id}")
            self._on_change()
            return
        pause_ms = self._backoff.delay_ms(self._failures, self._client.runtime.entropy)
        self._heartbeats.liveness.on_heartbeat_failed(self._clock.monotonic_ms(), pause_ms)

    def _request(self, api: Api, epoch: int) -> Message:
        is_change = not self._has_reported and epoch >= JOIN_EPOCH
        return api.request(
            group_id=self._config.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            rack_id=self._config.rack if is_change else None,
            subscribed_topic_names=self._topics if is_change else None,
        )


SHARE_CHANNEL = "share"
BUSY_WAIT_MS = 100
"""How long a fetch may wait at the broker while records are in hand: a broker that handles the requests of a
connection one after another answers acknowledgements only after it."""
CLOSE_TIMEOUT_MS = 5_000
TRIED_AGAIN = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
    }
)
"""Errors of an acknowledgement that the partition's leader could not write: the lock holds, and it is sent
again."""


class AcquiredRecord(NamedTuple):
    record: ConsumerRecord
    key: AcknowledgedRecord
    delivery_count: int
    """How often the record was delivered, this time included."""
    lock_ends_ms: int
    """On the monotonic clock: no later than then another member may get the record."""


@dataclass(slots=True)
class _Broker:
    """What is under way with one broker."""

    session: ShareSession = field(default_factory=ShareSession)
    requested: int = 0
    """How many records the ShareFetch in flight may bring; 0: there is none."""
    acknowledges: bool = False
    """Whether a ShareAcknowledge is in flight."""
    was_empty: bool = False
    """Whether the last fetch brought nothing."""
    failures: int = 0
    retry_at_ms: int = 0


class ShareConsumer:
    """Use as ``async with ShareConsumer(runtime, {"bootstrap.servers": …, "group.id": …}, topics)``."""

    def __init__(self, runtime: Runtime, config: GivenConfig, topics: Iterable[str]) -> None:
        """Raises ConfigError."""
        settings = ClientSettings(CONSUMER_CONFIG_DEFINITION, config)
        group = GroupConfig.of(settings)
        if group is None:
            raise ConfigError("group.id", "a share consumer needs a group.id")
        self.client = Client(runtime, settings)
        self.group_id = group.group_id
        self._group = group
        self._topics = tuple(sorted(set(topics)))
        self._clock = runtime.clock
        self._max_wait_ms = settings.integer("fetch.max.wait.ms")
        self._max_bytes = settings.integer("fetch.max.bytes")
        self._check_crcs = settings.boolean("check.crcs")
        self._backoff = Backoff(
            settings.integer("retry.backoff.ms"), settings.integer("retry.backoff.max.ms")
        )
        self._member: ShareMember | None = None
        self._brokers: dict[int, _Broker] = {}
        self._turn = 0
        self._buffer: deque[AcquiredRecord] = deque()
        self._in_hand: dict[AcknowledgedRecord, tuple[int, int]] = {}
        """Acquired and not acknowledged yet, to the broker and the number of the session it is from."""
        self._answers: dict[tuple[AcknowledgedRecord, AcknowledgeType], asyncio.Future[ErrorCode]] = {}
        self._demand = 0
        self._failure: KafkaError | None = None
        self._jobs = Jobs("share", self._wake)
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._step_is_due = False
        self._started = 0
        self._is_closed = False
        self.lock_ms = 0
        """The lock's duration, as a broker has told it last; 0: none has."""
        self.renews = True
        """Whether the brokers know renewals, as far as they have been asked."""
        self.client.on_metadata.append(lambda _metadata: self._wake())

    async def __aenter__(self) -> ShareConsumer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect, and begin to join the group. Raises KafkaError."""
        await self.client.start()
        self.client.watch_topics(self._topics)
        await self.client.refresh()
        self._member = ShareMember(self.client, self._group, self._topics, self._on_membership)
        self._member.start()

    async def close(self) -> None:
        """Send what is acknowledged, release the rest, and leave the group."""
        if self._is_closed:
            return
        self._demand = 0
        self.release_buffered()
        with suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_MS / 1000):
                await self._end_sessions()
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._jobs.close()
        for broker in self._brokers.values():
            self._settle(broker.session.drop(ErrorCode.network_exception))
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(ErrorCode.network_exception)
        if self._member is not None:
            await self._member.close()
        await self.client.close()

    @property
    def member_id(self) -> str:
        assert self._member is not None
        return self._member.member_id

    # --- the user's side

    async def take(self, max_records: int) -> list[AcquiredRecord]:
        """Return acquired records, at least one and at most ``max_records``; wait for the first.

        What is still under way belongs to the next call. Raises KafkaError if the group cannot be joined.
        """
        self.want(max_records)
        while True:
            count = min(self._demand, len(self._buffer))
            if count:
                self._demand -= count
                return [self._buffer.popleft() for _ in range(count)]
            if self._failure is not None:
                raise self._failure
            if self._is_closed:
                raise KafkaError(ErrorCode.network_exception, "the share consumer is closed")
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def want(self, max_records: int) -> None:
        """Set how many records :meth:`take`, which may be waiting, returns at most; 0 acquires no more."""
        self._demand = max_records
        self._wake()

    def acknowledge(self, acquired: AcquiredRecord, kind: AcknowledgeType) -> asyncio.Future[ErrorCode]:
        """Accept, release, reject or renew a record; the future has the broker's answer, NONE or an error.

        INVALID_RECORD_STATE: the lock is lost. An error of the network or of a moved leader means that it is
        not known; then the record is delivered again, unless the broker had written the acknowledgement.
        """
        key = acquired.key
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        broker = self._holder(key)
        if broker is None or self._is_closed:
            self._in_hand.pop(key, None)
            answer.set_result(ErrorCode.invalid_record_state)
            return answer
        if kind is not AcknowledgeType.RENEW:
            renewal = self._answers.pop((key, AcknowledgeType.RENEW), None)
            if renewal is not None and not renewal.done():
                renewal.set_result(ErrorCode.none)  # what comes after it decides
        earlier = self._answers.get((key, kind))
        if earlier is not None and not earlier.done():  # a renewal that is under way does for both
            earlier.add_done_callback(partial(_copy, answer))
            return answer
        self._answers[key, kind] = answer
        broker.session.acknowledge(key, kind)
        self._wake()
        return answer

    def _holder(self, key: AcknowledgedRecord) -> _Broker | None:
        """Return the broker in whose present session a record was acquired; None if that session is over. A
        broker that is asked nevertheless may answer that all is well: it ignores what is below the start
        offset, where a record is once another member has accepted it."""
        if key not in self._in_hand:
            return None
        node_id, session = self._in_hand[key]
        broker = self._brokers[node_id]
        return broker if broker.session.is_open and broker.session.number == session else None

    def release_buffered(self) -> None:
        """Release the records that were acquired, and not taken."""
        while self._buffer:
            self.acknowledge(self._buffer.popleft(), AcknowledgeType.RELEASE)

    def take_buffered(self) -> list[AcquiredRecord]:
        """Return what was acquired and not taken, without waiting."""
        taken = list(self._buffer)
        self._buffer.clear()
        return taken

    @property
    def is_fetching(self) -> bool:
        """Whether a request is in flight that may bring records."""
        return any(broker.requested for broker in self._brokers.values())

    @property
    def is_assigned(self) -> bool:
        """Whether the group has given this member partitions to fetch from."""
        return self._member is not None and bool(self._member.assigned)

    # --- steps

    def _on_membership(self) -> None:
        assert self._member is not None
        if self._member.failure is not None:
            self._failure = self._member.failure
            self._notify()
        elif any(self._name(part) is None for part in self._member.assigned):
            self.client.request_refresh()
        self._wake()

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _wake(self) -> None:
        if not self._step_is_due and not self._is_closed:
            self._step_is_due = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._step_is_due = False
        if self._is_closed or self._member is None:
            return
        now_ms = self._clock.monotonic_ms()
        wanted = self._by_leader()
        self._fetch_from(wanted, now_ms)
        for node_id, broker in self._brokers.items():
            if broker.session.has_acknowledgements and not broker.acknowledges:
                if broker.session.is_open:
                    broker.acknowledges = True
                    self._start("acknowledge", partial(self._acknowledge, node_id))
                elif broker.session.can_fetch:
                    self._settle(broker.session.drop(ErrorCode.share_session_not_found))
        self._set_timer(now_ms)

    def _by_leader(self) -> dict[int, list[SharePartition]]:
        """Return the assigned partitions by the broker that leads them; ask for what is not known."""
        assert self._member is not None
        found: dict[int, list[SharePartition]] = {}
        metadata = self.client.metadata
        for part in self._member.assigned:
            name = self._name(part)
            leader = None if name is None else metadata.leader(TopicPartition(name, part.partition))
            if leader is None:
                self.client.request_refresh()
            else:
                found.setdefault(leader.node_id, []).append(part)
        return found

    def _fetch_from(self, wanted: dict[int, list[SharePartition]], now_ms: int) -> None:
        """Start the fetches for which there is demand: a broker that had nothing last time is asked for one
        record only, while there are others, so that it does not keep the demand to itself."""
        free = self._demand - len(self._buffer) - sum(one.requested for one in self._brokers.values())
        ready = [
            node_id
            for node_id in wanted
            if not (broker := self._brokers.setdefault(node_id, _Broker())).requested
            and broker.session.can_fetch
            and broker.retry_at_ms <= now_ms
        ]
        if not ready or free <= 0:
            return
        self._turn += 1
        first = self._turn % len(ready)
        order = ready[first:] + ready[:first]
        rich = [node_id for node_id in order if not self._brokers[node_id].was_empty]
        shares = dict.fromkeys(order[:free], 1)
        left = free - len(shares)
        eager = [node_id for node_id in (rich or order) if node_id in shares]
        for index, node_id in enumerate(eager):
            more = left // (len(eager) - index)
            shares[node_id] += more
            left -= more
        for node_id, count in shares.items():
            self._brokers[node_id].requested = count
            self._start("fetch", partial(self._fetch, node_id, wanted[node_id], count))

    def _start(self, name: str, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._started += 1
        self._jobs.start(f"{name}-{self._started}", job)

    def _set_timer(self, now_ms: int) -> None:
        due = [one.retry_at_ms for one in self._brokers.values() if one.retry_at_ms > now_ms]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due:
            delay_s = (min(due) - now_ms) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _name(self, part: SharePartition) -> str | None:
        return self.client.metadata.topic_name(part.topic_id)

    # --- requests

    async def _fetch(self, node_id: int, parts: list[SharePartition], count: int) -> None:
        broker = self._brokers[node_id]
        plan: SessionPlan | None = None
        try:
            connection = await self.client.connections.get(node_id, SHARE_CHANNEL)
            api = connection.api(ApiKey.SHARE_FETCH)
            self.renews = api.version >= RENEWALS_SINCE
            plan = broker.session.plan_fetch(parts)
            wait_ms = 0 if plan.acknowledgements else self._wait_ms
            limits = ShareFetchLimits(max_records=count, max_wait_ms=wait_ms, max_bytes=self._max_bytes)
            request = share_fetch_request(api, self.group_id, self.member_id, plan, limits)
            sent_ms = self._clock.monotonic_ms()
            response = await connection.send(request)
            code = response.error_code
            self.lock_ms = milliseconds(response.acquisition_lock_timeout) or self.lock_ms
            fetched, errors = read_share_fetch(response)
        except UnsupportedVersion as error:
            self._failure = KafkaError(
                ErrorCode.unsupported_version,
                f"broker {node_id} serves no share groups: it needs Kafka 4.1 or newer ({error.message})",
            )
            self._notify()
            return
        except KafkaError as error:
            self._on_failed(node_id, broker, error.code, plan)
            return
        finally:
            broker.requested = 0
        self._settle(broker.session.on_answer(plan, code, errors))
        if code is not ErrorCode.none:
            self._on_refused(node_id, broker, code, response.error_message or "")
            return
        broker.failures = 0
        failed: ErrorCode | None = None
        before = len(self._buffer)
        for one in fetched:
            if one.error is not ErrorCode.none:
                failed = one.error
            elif one.acquired:
                self._receive(node_id, one, sent_ms)
        broker.was_empty = len(self._buffer) == before
        if self._buffer:
            self._notify()
        if failed is not None:
            self._pause(broker)
            if failed in STALE_METADATA or KafkaError(failed).retriable:
                self.client.request_refresh()
            else:
                self._failure = KafkaError(failed, f"topics {', '.join(self._topics)}")
                self._notify()

    @property
    def _wait_ms(self) -> int:
        return min(BUSY_WAIT_MS, self._max_wait_ms) if self._in_hand else self._max_wait_ms

    async def _acknowledge(self, node_id: int, *, ends: bool = False) -> None:
        broker = self._brokers[node_id]
        try:
            connection = self.client.connections.existing(node_id, SHARE_CHANNEL)
            if connection is None:
                self._settle(broker.session.drop(ErrorCode.network_exception))
            elif ends or broker.session.has_acknowledgements:  # else a fetch has taken them along
                plan = broker.session.plan_end() if ends else broker.session.plan_acknowledge()
                await self._send_acknowledgements(node_id, broker, connection, plan)
        finally:
            broker.acknowledges = False

    async def _send_acknowledgements(
        self, node_id: int, broker: _Broker, connection: Connection, plan: SessionPlan
    ) -> None:
        try:
            api = connection.api(ApiKey.SHARE_ACKNOWLEDGE)
            request = share_acknowledge_request(api, self.group_id, self.member_id, plan)
            response = await connection.send(request)
            errors = read_share_acknowledge(response)
        except KafkaError as error:
            self._on_failed(node_id, broker, error.code, plan)
            return
        self._settle(broker.session.on_answer(plan, response.error_code, errors))
        if response.error_code is not ErrorCode.none:
            self._on_refused(node_id, broker, response.error_code, response.error_message or "")
        elif any(code in STALE_METADATA for code in errors.values()):
            self.client.request_refresh()

    async def _end_sessions(self) -> None:
        while any(one.requested or one.acknowledges for one in self._brokers.values()):
            self._waiter = asyncio.get_running_loop().create_future()
            with suppress(TimeoutError):
                async with asyncio.timeout(BUSY_WAIT_MS / 1000):
                    await self._waiter
            self.release_buffered()
        for node_id, broker in self._brokers.items():
            while broker.session.is_open and broker.session.has_acknowledgements:
                await self._acknowledge(node_id)
            if broker.session.is_open:
                await self._acknowledge(node_id, ends=True)

    # --- outcomes

    def _on_failed(self, node_id: int, broker: _Broker, code: ErrorCode, plan: SessionPlan | None) -> None:
        if plan is not None:
            self._settle(broker.session.on_lost(plan, code))
            connection = self.client.connections.existing(node_id, SHARE_CHANNEL)
            if connection is not None:  # the next session is on a new connection: the broker ends this one
                connection.close("a request of the share session failed")
        self._pause(broker)
        self.client.request_refresh()

    def _on_refused(self, node_id: int, broker: _Broker, code: ErrorCode, message: str) -> None:
        """Handle an error of a whole request. The session is begun again."""
        logger.info("Group %s: broker %d answered %s", self.group_id, node_id, code.name)
        if code in (ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch):
            self._wake()
            return
        self._pause(broker)
        if not KafkaError(code).retriable and code is not ErrorCode.share_session_limit_reached:
            self._failure = KafkaError(code, message or f"group {self.group_id}")
            self._notify()

    def _pause(self, broker: _Broker) -> None:
        broker.failures += 1
        delay_ms = self._backoff.delay_ms(broker.failures, self.client.runtime.entropy)
        broker.retry_at_ms = self._clock.monotonic_ms() + delay_ms

    def _settle(self, outcomes: Iterable[Outcome]) -> None:
        """Answer acknowledgements, but for those that are sent again."""
        for key, kind, error in outcomes:
            answer = self._answers.get((key, kind))
            if error in TRIED_AGAIN and answer is not None and key in self._in_hand:
                self._start("again", partial(self._again, key, kind))
                continue
            if answer is not None:
                del self._answers[key, kind]
                if not answer.done():
                    answer.set_result(error)
            if kind is not AcknowledgeType.RENEW or error is not ErrorCode.none:
                self._in_hand.pop(key, None)
        self._notify()

    async def _again(self, key: AcknowledgedRecord, kind: AcknowledgeType) -> None:
        await self.client.pause(1)
        broker = self._holder(key)
        if broker is None:
            self._settle([Outcome(key, kind, ErrorCode.share_session_not_found)])
        elif (key, kind) in self._answers:
            broker.session.acknowledge(key, kind)

    # --- records

    def _receive(self, node_id: int, fetched: FetchedPartition, sent_ms: int) -> None:
        """Buffer what was acquired; say of offsets without a record that there is none."""
        name = self._name(fetched.partition)
        if name is None:
            return  # deleted meanwhile
        session = self._brokers[node_id].session
        place = TopicPartition(name, fetched.partition.partition)
        records = self._decoded(place, fetched)
        lock_ends_ms = sent_ms + self.lock_ms
        if records is None:  # corrupt: as Kafka's consumer, so that it does not come again and again
            for offset, _ in _offsets(fetched.acquired):
                session.acknowledge(AcknowledgedRecord(fetched.partition, offset), AcknowledgeType.REJECT)
            return
        for offset, delivery_count in _offsets(fetched.acquired):
            key = AcknowledgedRecord(fetched.partition, offset)
            record = records.get(offset)
            if record is None:
                session.acknowledge(key, AcknowledgeType.GAP)
            else:
                self._in_hand[key] = node_id, session.number
                self._buffer.append(AcquiredRecord(record, key, delivery_count, lock_ends_ms))

    def _decoded(self, place: TopicPartition, fetched: FetchedPartition) -> dict[int, ConsumerRecord] | None:
        first = fetched.acquired[0].first_offset
        last = fetched.acquired[-1].last_offset
        try:
            reader = FetchedRecords(place, 0, first, fetched.records, check_crcs=self._check_crcs)
            records = reader.take(last - first + 1)
        except KafkaError as error:
            logger.error("%s from offset %d on cannot be read, and is rejected: %s", place, first, error)
            return None
        return {record.offset: record for record in records}


def _copy(answer: asyncio.Future[ErrorCode], earlier: asyncio.Future[ErrorCode]) -> None:
    if not answer.done():
        answer.set_result(ErrorCode.network_exception if earlier.cancelled() else earlier.result())


def _offsets(ranges: Iterable[AcquiredRange]) -> Iterable[tuple[int, int]]:
    for first, last, delivery_count in ranges:
        for offset in range(first, last + 1):
            yield offset, delivery_count
