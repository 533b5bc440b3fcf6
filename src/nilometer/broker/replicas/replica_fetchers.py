"""Replica fetchers: one for each leader and fetcher index (``num.replica.fetchers``), fetching for the
partitions that it leads.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterable, Iterator

import msgspec

from nilometer.broker.control.broker_peers import BrokerPeers
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.leader_liveness import LeaderLiveness
from nilometer.broker.replicas.replication_quota import ReplicationQuota
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import SLICE_US, Turns
from nilometer.client.network.connection import Connection, ConnectionLost
from nilometer.identifiers import BrokerId, uuid_from_text
from nilometer.replication.epochs import NO_DIVERGENCE, EpochEnd
from nilometer.replication.follower import FetchResponse, FollowerRole
from nilometer.replication.shell_interface import FollowerFetch
from nilometer.runtime import Runtime
from nilometer.storage.errors import LogFenced
from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.fetch import (
    FOLLOWER_VERSION_MAX,
    FOLLOWER_VERSION_MIN,
    FetchedFromLeader,
    LeaderAnswer,
    decode_leader_answer,
    encode_follower_fetch,
    encode_wanted,
)
from nilometer.wire.record_batch import offset_range

logger = logging.getLogger("nilometer.broker.replicas")

BACKOFF_MIN_MS = 20
CHECKPOINT_WAIT_MS = 100
"""How long (ms) a partition whose log was truncated waits before it is checked again: its log must not grow
before its checkpoint is written."""
FAILURES_REPORTED = 8
"""After so many failed attempts in a row, about 3 s, the reason is logged. A few happen whenever a leader
changes, of which two brokers learn at different moments."""
_WORK = "replication"

Locate = Callable[[], tuple[str, int] | None]
_Key = tuple[bytes, int]
"""The bytes of the topic's id, and the partition's index."""


class _Followed(msgspec.Struct):
    key: _Key
    partition: Partition
    sent: FollowerFetch | None = None
    """The fetch in the leader's session: the partition's next response belongs to it."""
    resume_ms: int = 0
    """The partition is not fetched before this time (monotonic)."""
    failures: int = 0
    held_until_ms: int = 0
    """When it is looked at again, if it is held back (monotonic)."""


class ReplicaFetcher:
    def __init__(
        self,
        leader_id: BrokerId,
        fetcher_index: int,
        config: BrokerConfig,
        runtime: Runtime,
        locate: Locate,
        quota: ReplicationQuota,
        peers: BrokerPeers,
        leader_liveness: LeaderLiveness,
        turns: Turns,
    ) -> None:
        """``locate`` returns the leader's current host and port, or None while they are not known."""
        self._leader_id = leader_id
        self._config = config
        self._runtime = runtime
        self._locate = locate
        self._quota = quota
        self._peers = peers
        self._leader_liveness = leader_liveness
        self._turns = turns
        self._name = f"fetcher {fetcher_index} of broker {leader_id}"
        self._client_id = f"broker-{config.node_id}-fetcher-{fetcher_index}"
        self._followed: dict[_Key, _Followed] = {}
        self._due: dict[_Key, None] = {}
        """The partitions whose fetch may have changed: only they are checked when a request is built."""
        self._held: list[tuple[int, _Key]] = []
        """A heap of the partitions that back off, are throttled or were truncated just now: when (monotonic)
        they are due again. Thousands may be throttled, and are not looked at for each request."""
        self._in_session: dict[_Key, None] = {}
        """The partitions in the leader's session."""
        self._dropped: dict[_Key, None] = {}
        self._changed = asyncio.Event()
        self._connection: Connection | None = None
        self._codec: Api = messages.api(ApiKey.FETCH, FOLLOWER_VERSION_MAX)
        """The Fetch version in use: the leader supports it, and it has the follower's broker epoch
        (KIP-903)."""
        self._session_id = 0
        self._session_epoch = 0
        self._session_broker_epoch = -1
        """The broker epoch with which the session began."""
        self._is_waiting = False
        self._exchange: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Pending while one fetch follows another; an error or a pause ends it."""
        self._failures = 0
        self._wait_max_ms = config.integer("replica.fetch.wait.max.ms")
        self._backoff_max_ms = config.integer("replica.fetch.backoff.ms")
        self._timeout_ms = self._wait_max_ms + config.replica_lag_time_max_ms
        self._partition_bytes_max = config.integer("replica.fetch.max.bytes")
        self._limits = (
            self._wait_max_ms,
            config.integer("replica.fetch.min.bytes"),
            config.integer("replica.fetch.response.max.bytes"),
        )

    def __len__(self) -> int:
        return len(self._followed)

    def follow(self, partition: Partition) -> None:
        """Fetch for ``partition`` from now on; its role may have changed."""
        key = _key(partition)
        self._followed[key] = _Followed(key, partition)
        self._due[key] = None
        self.wake()

    def forget(self, partition: Partition) -> None:
        key = _key(partition)
        if self._followed.pop(key, None) is not None:
            self._due.pop(key, None)
            self._leave_session(key)

    def resume(self, partition: Partition) -> None:
        """Fetch ``partition`` again: its records are flushed now, or its checkpoint is written."""
        self._due[_key(partition)] = None
        self.wake()

    def wake(self) -> None:
        """Build the next request soon, since another partition can be fetched now: end a pause, or make the
        leader respond to the waiting fetch."""
        self._changed.set()
        if self._is_waiting and self._connection is not None and not self._connection.closed:
            self._is_waiting = False
            wake_up = self._connection.send(
                self._connection.api(ApiKey.API_VERSIONS, 0).request()
            )  # the leader responds to a waiting fetch when another request arrives
            wake_up.add_done_callback(lambda done: done.cancelled() or done.exception())

    def stop(self) -> None:
        self._close()

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            self._changed.clear()
            if not self._followed:
                self._close()  # its end would go unnoticed
                await self._changed.wait()
                continue
            try:
                await self._fetch_once()
                self._failures = 0
            except Exception as error:
                await self._recover(error)

    async def _recover(self, error: Exception) -> None:
        """Drop the connection and its session after ``error``, and back off."""
        if self._failures == 0 and isinstance(error, KafkaError):
            logger.info("The %s failed: %s", self._name, error)
        elif self._failures == 0:
            logger.error("The %s failed and will try again", self._name, exc_info=error)
        self._reset_session()
        self._close()
        self._failures += 1
        await self._pause(self._backoff_ms(self._failures))

    def _close(self) -> None:
        if self._connection is not None:
            self._leader_liveness.before_close(self._leader_id, self._connection)
            self._connection.close()
            self._connection = None

    async def _pause(self, duration_ms: int) -> None:
        """Sleep for ``duration_ms``, or until :meth:`wake` is called."""
        try:
            async with asyncio.timeout(duration_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            return

    def _backoff_ms(self, failures: int) -> int:
        return min(self._backoff_max_ms, BACKOFF_MIN_MS << min(failures, 8))

    async def _fetch_once(self) -> None:
        connection = await self._connect()
        self._maybe_restart_session()
        asked, wake_in_ms = self._build()
        if not self._in_session:
            await self._pause(wake_in_ms)
            return
        self._exchange = asyncio.get_running_loop().create_future()
        try:
            self._send(connection, asked, wake_in_ms)
            await self._exchange
        finally:
            self._is_waiting = False

    def _send(self, connection: Connection, asked: Iterable[_Followed], wake_in_ms: int) -> None:
        if wake_in_ms < self._wait_max_ms:
            asyncio.get_running_loop().call_later(wake_in_ms / 1000, self.wake)
        self._is_waiting = True
        response = connection.send_body(
            self._codec, self._request(asked), decode_leader_answer, timeout_ms=self._timeout_ms
        )
        response.add_listener(lambda response: self._on_response(connection, response))

    def _on_response(self, connection: Connection, response: asyncio.Future[LeaderAnswer]) -> None:
        exchange = self._exchange
        if exchange.done():  # this fetcher has been stopped
            response.exception()
            return
        self._is_waiting = False
        try:
            fetched = self._open(response.result())
        except Exception as error:
            exchange.set_exception(error)
            return
        self._apply(connection, fetched)

    def _apply(self, connection: Connection, fetched: Iterator[FetchedFromLeader]) -> None:
        """Apply what is left of a response and send the next fetch: usually without an iteration of the event
        loop in between; slice by slice if it takes long, as when many partitions begin a segment. The slices
        do not take turns with the long work of clients: replication goes on whatever they do."""
        exchange = self._exchange
        if exchange.done():
            return
        try:
            if not self._take(fetched):
                asyncio.get_running_loop().call_soon(self._apply, connection, fetched)
                return
            if not self._session_id:
                self._reset_session()  # without a session every request names all partitions
            self._failures = 0
            self._maybe_restart_session()
            asked, wake_in_ms = self._build()
            if self._in_session:
                self._send(connection, asked, wake_in_ms)
            else:
                exchange.set_result(None)
        except Exception as error:
            exchange.set_exception(error)

    async def _connect(self) -> Connection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        endpoint = self._locate()
        if endpoint is None:
            raise KafkaError(ErrorCode.broker_not_available, f"broker {self._leader_id} is not registered")
        self._reset_session()
        try:
            connection = await self._peers.connect(self._leader_id, *endpoint, client_id=self._client_id)
        except ConnectionLost as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                self._leader_liveness.on_process_ended(self._leader_id)
            raise
        codec = connection.api(ApiKey.FETCH, FOLLOWER_VERSION_MAX)
        if codec.version < FOLLOWER_VERSION_MIN:
            connection.close()
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"broker {self._leader_id} does not support Fetch version {FOLLOWER_VERSION_MIN}",
            )
        self._codec = codec
        self._connection = connection
        self._leader_liveness.on_connected(self._leader_id, connection)
        return connection

    def _reset_session(self) -> None:
        self._session_id = self._session_epoch = 0
        self._dropped.clear()
        self._in_session.clear()
        self._held.clear()
        for key, followed in self._followed.items():
            followed.sent = None
            followed.held_until_ms = 0
            self._due[key] = None

    def _maybe_restart_session(self) -> None:
        """After a change of the broker epoch, replace the session by one that names every partition.

        Otherwise the leader would keep the fetch of the previous broker epoch for an idle partition, and its
        follower could not become in sync (KIP-903).
        """
        broker_epoch = self._broker_epoch()
        if broker_epoch != self._session_broker_epoch:
            replaced = self._session_id
            self._reset_session()
            self._session_id = replaced
            self._session_broker_epoch = broker_epoch

    # ── the request ─────────────────────────────────────────────────────────────────────────────
    def _build(self) -> tuple[list[_Followed], int]:
        """Return the partitions whose fetch must be sent, since the session does not have it, and the time
        (ms) until a partition that backs off or is throttled may be fetched again.
        """
        now_ms = self._runtime.clock.monotonic_ms()
        while self._held and self._held[0][0] <= now_ms:
            until_ms, key = heapq.heappop(self._held)
            followed = self._followed.get(key)
            if followed is not None and followed.held_until_ms == until_ms:  # or it was held again since
                self._due[key] = None
        asked: list[_Followed] = []
        due, self._due = self._due, {}
        for key in due:
            followed = self._followed.get(key)
            role = followed.partition.replica.role if followed is not None else None
            if followed is None or not isinstance(role, FollowerRole) or role.leader != self._leader_id:
                continue
            if followed.resume_ms > now_ms:
                self._hold(followed, followed.resume_ms)
            elif hold_ms := self._held_back_ms(followed.partition):
                self._hold(followed, now_ms + min(hold_ms, max(self._backoff_max_ms, 1)))
            elif self._must_send(key, followed, role):
                asked.append(followed)
        wake_in_ms = self._held[0][0] - now_ms if self._held else self._backoff_max_ms
        return asked, min(wake_in_ms, self._backoff_max_ms)

    def _hold(self, followed: _Followed, until_ms: int) -> None:
        """Do not fetch the partition before ``until_ms``, unless something changes."""
        if followed.held_until_ms != until_ms:
            followed.held_until_ms = until_ms
            heapq.heappush(self._held, (until_ms, followed.key))
        self._leave_session(followed.key)

    def _held_back_ms(self, partition: Partition) -> int:
        """Return how long (ms) a replica that is throttled and not in sync, or was just truncated, has to
        wait; usually 0."""
        if partition.log.awaits_checkpoint:
            return CHECKPOINT_WAIT_MS
        if not self._quota.throttles(partition.topic, partition.key.partition):
            return 0
        return 0 if self._config.node_id in partition.state.isr else self._quota.wait_ms()

    def _must_send(self, key: _Key, followed: _Followed, role: FollowerRole) -> bool:
        """Prepare the partition's next fetch; return whether it must be sent because the session does not
        have it."""
        before = followed.sent
        if before is not None and role.outstanding is before:
            return False
        fetch = role.next_fetch()
        if not isinstance(fetch, FollowerFetch):
            self._leave_session(key)  # until the fetched records are flushed
            return False
        followed.sent = fetch
        self._in_session[key] = None
        return before is None or not fetch.is_sent_like(before)

    def _leave_session(self, key: _Key) -> None:
        """Remove the partition from the session, so that it is not fetched for now."""
        if key in self._in_session:
            del self._in_session[key]
            self._dropped[key] = None
        if (followed := self._followed.get(key)) is not None:
            followed.sent = None

    def _request(self, asked: Iterable[_Followed]) -> bytes:
        wanted: dict[bytes, list[bytes]] = {}
        for followed in asked:
            fetch = followed.sent
            assert fetch is not None
            topic_id, index = followed.key
            self._dropped.pop(followed.key, None)
            wanted.setdefault(topic_id, []).append(
                encode_wanted(
                    index,
                    fetch.leader_epoch,
                    fetch.fetch_offset,
                    fetch.last_fetched_epoch,
                    fetch.log_start_offset,
                    self._partition_bytes_max,
                )
            )
        dropped: dict[bytes, list[int]] = {}
        for topic_id, index in self._dropped:
            dropped.setdefault(topic_id, []).append(index)
        self._dropped.clear()
        return encode_follower_fetch(
            self._config.node_id,
            self._session_broker_epoch,
            self._limits,
            (self._session_id, self._session_epoch),
            wanted,
            dropped,
        )

    def _broker_epoch(self) -> int:
        return next(iter(self._followed.values())).partition.replica.broker_epoch if self._followed else -1

    # ── the response ────────────────────────────────────────────────────────────────────────────
    def _open(self, answer: LeaderAnswer) -> Iterator[FetchedFromLeader]:
        if answer.error is not ErrorCode.none:
            raise KafkaError(answer.error, f"broker {self._leader_id} rejected the fetch")
        self._session_id = answer.session_id
        self._session_epoch = (self._session_epoch + 1) & 0x7FFF_FFFF or 1
        if not self._session_id:
            self._session_epoch = 0
        return iter(answer.partitions)

    def _take(self, partitions: Iterator[FetchedFromLeader]) -> bool:
        """Apply a slice of the response; return whether it was the last one."""
        ends_us = 0
        for fetched in partitions:
            followed = self._followed.get((fetched.topic_id, fetched.partition))
            if followed is not None and followed.sent is not None:
                self._take_partition(followed, followed.sent, fetched)
            now_us = self._turns.now_us()
            ends_us = ends_us or now_us + SLICE_US
            if now_us >= ends_us:
                return False
        return True

    def _take_partition(self, followed: _Followed, fetch: FollowerFetch, fetched: FetchedFromLeader) -> None:
        self._due[followed.key] = None
        partition, records = followed.partition, fetched.records
        if records and self._quota.throttles(partition.topic, partition.key.partition):
            self._quota.record(len(records))
        try:
            answer = _answer_of(fetched)
            reason = partition.on_fetch_response(fetch, answer, records)
        except Exception as error:
            self._refuse(partition, fetch, error)
            self._back_off(followed)
            return
        partition.on_success(_WORK)
        if reason is None:
            followed.failures = 0
            return
        self._back_off(followed)
        if followed.failures == FAILURES_REPORTED:
            logger.warning(
                "%s gets no records from broker %d, in %d attempts: %s",
                partition,
                self._leader_id,
                followed.failures,
                reason,
            )

    def _back_off(self, followed: _Followed) -> None:
        followed.failures += 1
        followed.resume_ms = self._runtime.clock.monotonic_ms() + self._backoff_ms(followed.failures)

    def _refuse(self, partition: Partition, fetch: FollowerFetch, error: Exception) -> None:
        """Report that a response could not be applied to ``partition``, and end its outstanding fetch."""
        if isinstance(error, KafkaError) and not isinstance(error, LogFenced):
            logger.warning(
                "The fetch response of broker %d for %s could not be applied: %s",
                self._leader_id,
                partition,
                error,
            )
        else:
            partition.on_failure(_WORK, error)
        role = partition.replica.role
        if isinstance(role, FollowerRole):
            role.on_fetch_failed(fetch)


def _key(partition: Partition) -> _Key:
    return uuid_from_text(partition.key.topic_id).bytes, partition.key.partition


def _answer_of(fetched: FetchedFromLeader) -> FetchResponse:
    base_offset, end_offset = offset_range(fetched.records)
    diverging = fetched.diverging
    return FetchResponse(
        error=fetched.error,
        diverging=NO_DIVERGENCE if diverging[0] < 0 else EpochEnd(*diverging),
        base_offset=base_offset,
        end_offset=end_offset,
        high_watermark=fetched.high_watermark,
        log_start_offset=fetched.log_start_offset,
    )


class ReplicaFetchers:
    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        metadata: MetadataLog,
        tasks: Tasks,
        quota: ReplicationQuota,
        peers: BrokerPeers,
        leader_liveness: LeaderLiveness,
        turns: Turns,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._metadata = metadata
        self._tasks = tasks
        self._quota = quota
        self._peers = peers
        self._leader_liveness = leader_liveness
        self._turns = turns
        self._fetchers_per_leader = config.integer("num.replica.fetchers")
        self._fetchers: dict[tuple[BrokerId, int], ReplicaFetcher] = {}
        self._runs: dict[tuple[BrokerId, int], asyncio.Task[None]] = {}
        self._by_partition: dict[Partition, ReplicaFetcher] = {}

    def assign(self, partition: Partition) -> None:
        """Fetch the partition from the leader that its role follows; stop fetching it if there is none."""
        role = partition.replica.role
        if not isinstance(role, FollowerRole) or not role.has_leader:
            self.forget(partition)
            return
        fetcher = self._fetcher(role.leader, partition.key.partition % self._fetchers_per_leader)
        if self._by_partition.get(partition) is not fetcher:
            self.forget(partition)
            self._by_partition[partition] = fetcher
        fetcher.follow(partition)

    def forget(self, partition: Partition) -> None:
        fetcher = self._by_partition.pop(partition, None)
        if fetcher is not None:
            fetcher.forget(partition)

    def resume(self, partition: Partition) -> None:
        """Fetch the partition again: its records are flushed now, or its checkpoint is written."""
        fetcher = self._by_partition.get(partition)
        if fetcher is not None:
            fetcher.resume(partition)

    def stop(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.stop()

    def _fetcher(self, leader_id: BrokerId, fetcher_index: int) -> ReplicaFetcher:
        fetcher = self._fetchers.get((leader_id, fetcher_index))
        if fetcher is None:
            fetcher = ReplicaFetcher(
                leader_id,
                fetcher_index,
                self._config,
                self._runtime,
                lambda: self.locate(leader_id),
                self._quota,
                self._peers,
                self._leader_liveness,
                self._turns,
            )
            self._fetchers[leader_id, fetcher_index] = fetcher
            self._runs[leader_id, fetcher_index] = self._tasks.service(
                f"fetcher {fetcher_index} of broker {leader_id}", fetcher.run()
            )
        return fetcher

    def locate(self, leader_id: BrokerId) -> tuple[str, int] | None:
        """Return the host and port of a broker; None if it is not there."""
        broker = self._metadata.image.broker(leader_id)
        if broker is None or broker.fenced:
            return None
        endpoint = broker.endpoint(self._peers.listener)
        return None if endpoint is None else (endpoint.host, endpoint.port)
