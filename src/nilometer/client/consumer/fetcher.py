"""Fetches a consumer's partitions in the background, and has unknown positions looked up: the consumer's I/O.

Like the producer's sender it takes a *step* whenever something changed: it sends all Fetch requests that are
possible. Partitions are fetched ahead: while the user reads one response, the next one is requested.

Invariants:

- At most one Fetch request per broker is in flight, and at most :data:`BUFFERED_MAX` responses of a partition
  are buffered.
- Records are returned in the order of offsets, each once, also after seeks and lost connections.
- An error is raised only once the records before it have been returned.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

from nilometer.client.consumer.consumer_settings import ConsumerConfig
from nilometer.client.consumer.fetch_exchange import (
    TOPIC_IDS_SINCE,
    ConsumerRecord,
    FetchedRecords,
    FetchPlan,
    FetchResponse,
    FetchSessionHandler,
    WantedPartition,
    damaged,
    fetch_request,
    read_fetch_response,
    record_bytes,
)
from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.client.network.client import STALE_METADATA, Client, Jobs
from nilometer.client.network.cluster_metadata import TopicPartition, nodes_named
from nilometer.client.network.connection import ConnectionLost
from nilometer.client.network.connection_pool import FETCH_CHANNEL, Backoff
from nilometer.client.offset_queries import ListedOffset, epoch_ends, list_offsets
from nilometer.client.positions import LATEST_TIMESTAMP, OffsetReset, PartitionPosition, Positions
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.errors import ErrorCode, KafkaError, is_retriable

# Looks up positions: committed offsets, offset resets, and validation after a change of leader.
#
# Part of the fetcher: it sends the requests for which :mod:`~nilometer.client.positions` waits, and
# reports errors to the user.

FetchCommitted = Callable[[list[TopicPartition]], Awaitable[dict[TopicPartition, OffsetAndMetadata | None]]]
"""Fetches a group's committed offsets; None for a partition without one. Raises KafkaError."""

Generations = dict[TopicPartition, int]
"""The generation of each position when the job about it began (see ``positions``)."""

Report = Callable[[TopicPartition, KafkaError], None]
"""Reports an error of a partition to the user and pauses its lookups."""


class PositionFinder:
    def __init__(
        self, client: Client, config: ConsumerConfig, positions: Positions, jobs: Jobs, report: Report
    ) -> None:
        self._client = client
        self._config = config
        self._positions = positions
        self._jobs = jobs
        self._report = report
        self.fetch_committed: FetchCommitted | None = None

    def settle(self, now_ms: int) -> None:
        """Start the jobs that look up or validate positions; skip partitions that pause at ``now_ms``.

        The generations are recorded here: when a job runs, its partition may no longer be assigned.
        """
        resets: dict[TopicPartition, OffsetReset] = {}
        epochs: dict[TopicPartition, int] = {}
        committed: list[TopicPartition] = []
        generations: Generations = {}
        metadata = self._client.metadata
        for partition, position in self._positions.entries():
            if metadata.partition(partition) is None:
                self._client.request_refresh()
            elif position.retry_at_ms > now_ms:
                continue
            elif position.committed_wanted:
                committed.append(partition)
            elif position.reset is not None:
                resets[partition] = position.reset
            elif self._positions.on_leader_epoch(partition, metadata.leader_epoch(partition)):
                epochs[partition] = self._positions.of(partition).offset_epoch
            generations[partition] = self._positions.of(partition).generation
        if committed:
            self._jobs.start("committed", lambda: self._take_committed(committed, generations))
        if resets:
            self._jobs.start("look-up", lambda: self._look_up(resets, generations))
        if epochs:
            self._jobs.start("validate", lambda: self._validate(epochs, generations))

    def out_of_range(self, partition: TopicPartition) -> None:
        """Handle OFFSET_OUT_OF_RANGE: reset the position, or report the error if there is no reset."""
        try:
            self._positions.on_out_of_range(partition, "is not in the log")
        except KafkaError as error:
            self._report(partition, error)

    async def _take_committed(self, partitions: list[TopicPartition], generations: Generations) -> None:
        assert self.fetch_committed is not None
        try:
            found = await self.fetch_committed(partitions)
        except KafkaError as error:
            for partition in partitions:
                self._report(partition, error)
            return
        for partition, one in found.items():
            offset, epoch = (one.offset, one.leader_epoch) if one is not None else (None, NO_LEADER_EPOCH)
            self._positions.on_committed(partition, generations[partition], offset, epoch)

    async def _look_up(self, resets: dict[TopicPartition, OffsetReset], generations: Generations) -> None:
        now_ms = self._client.runtime.clock.wall_ms()
        timestamps = {partition: reset.timestamp_at(now_ms) for partition, reset in resets.items()}
        try:
            found = await self._list(timestamps)
            late = [partition for partition, one in found.items() if one.offset < 0]
            if late:  # no record has a timestamp that late: use the end
                found |= await self._list(dict.fromkeys(late, LATEST_TIMESTAMP))
        except KafkaError as error:
            for partition in resets:
                self._report(partition, error)
            return
        for partition, one in found.items():
            epoch = max(one.leader_epoch, self._client.metadata.leader_epoch(partition))
            self._positions.on_looked_up(partition, generations[partition], one.offset, epoch)

    async def _list(self, timestamps: dict[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        isolation_level = self._config.limits.isolation_level
        return await list_offsets(self._client, timestamps, isolation_level, self._config.api_timeout_ms)

    async def _validate(self, epochs: dict[TopicPartition, int], generations: Generations) -> None:
        metadata = self._client.metadata
        asked = {partition: metadata.leader_epoch(partition) for partition in epochs}
        try:
            ends = await epoch_ends(self._client, epochs, self._config.api_timeout_ms)
        except KafkaError as error:
            for partition in epochs:
                self._report(partition, error)
            return
        for partition, end in ends.items():
            generation, epoch = generations[partition], asked[partition]
            try:
                self._positions.on_validated(partition, generation, epoch, end.leader_epoch, end.end_offset)
            except KafkaError as error:
                self._report(partition, error)


BUFFERED_MAX = 2
"""The maximum of Fetch responses buffered per partition."""


class Fetcher:
    def __init__(self, client: Client, config: ConsumerConfig, positions: Positions) -> None:
        self._client = client
        self._config = config
        self._positions = positions
        settings = client.settings
        self._backoff = Backoff(
            settings.integer("retry.backoff.ms"), settings.integer("retry.backoff.max.ms")
        )
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[int, FetchSessionHandler] = {}
        self._fetching: dict[int, FetchPlan] = {}
        """Broker id to its Fetch request in flight."""
        self._fetched: deque[FetchedRecords] = deque()
        self._errors: deque[tuple[TopicPartition, int, KafkaError]] = deque()
        self._jobs = Jobs("consumer", self._on_job_ended)
        self._finder = PositionFinder(client, config, positions, self._jobs, self._on_lasting_error)
        self._waiters: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._step_is_due = False
        self._closed = False
        client.on_metadata.append(lambda _metadata: self.wake())

    def fetch_committed_by(self, fetch: FetchCommitted) -> None:
        """Use ``fetch`` to get the group's committed offsets for newly assigned partitions."""
        self._finder.fetch_committed = fetch

    def wake(self) -> None:
        """Schedule a step."""
        if not self._step_is_due and not self._closed:
            self._step_is_due = True
            self._loop.call_soon(self._step)

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._jobs.close()
        self._notify()

    # --- the user's side

    def take(self, count: int, bytes_max: int | None = None) -> list[ConsumerRecord]:
        """Return up to ``count`` buffered records. Raises KafkaError if there is an error and no record.

        ``bytes_max``: once they have so many bytes, no further batch is decompressed.
        """
        taken: list[ConsumerRecord] = []
        taken_bytes = 0
        returned: list[FetchedRecords] = []
        try:
            while self._fetched and len(taken) < count and (bytes_max is None or taken_bytes < bytes_max):
                fetched = self._fetched.popleft()
                position = self._positions.get(fetched.partition)
                if position is None or position.generation != fetched.generation:
                    continue  # the position was changed after this fetch
                if position.paused:
                    returned.append(fetched)
                    continue
                try:
                    if bytes_max is None:
                        taken += fetched.take(count - len(taken))
                    else:
                        part = fetched.take(count - len(taken), bytes_max - taken_bytes)
                        taken += part
                        taken_bytes += sum(map(record_bytes, part))
                except KafkaError:
                    returned.append(fetched)
                    if not taken:
                        raise
                    break
                self._move_on(position, fetched)
        finally:
            self._fetched.extendleft(reversed(returned))
        if not taken:
            self.raise_error()
        return taken

    def _move_on(self, position: PartitionPosition, fetched: FetchedRecords) -> None:
        """Set the user's position to the end of the records taken from ``fetched``."""
        position.offset = fetched.next_offset
        if fetched.epoch >= 0:
            position.offset_epoch = fetched.epoch
        if fetched.is_exhausted:
            position.buffered -= 1
            self.wake()
        else:
            self._fetched.appendleft(fetched)

    @property
    def has_work(self) -> bool:
        """Whether a step is scheduled: the caller should let the event loop run."""
        return self._step_is_due

    async def wait(self, timeout_s: float) -> None:
        """Wait until there are records, an error or other work for the poll, at most ``timeout_s``."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def raise_error(self) -> None:
        """Raise the oldest pending error of a partition whose position has not changed since, if any."""
        while self._errors:
            partition, generation, error = self._errors.popleft()
            position = self._positions.get(partition)
            if position is not None and position.generation == generation:
                raise error

    def interrupt(self) -> None:
        """Wake the waiting poll."""
        self._notify()

    def _notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _on_job_ended(self) -> None:
        self._notify()
        self.wake()

    def _on_lasting_error(self, partition: TopicPartition, error: KafkaError) -> None:
        """Report an error of a lookup to the user, and retry the lookup after a pause."""
        position = self._positions.get(partition)
        if position is not None:
            self._pause_partition(position)
        self._report(partition, error)

    def _report(self, partition: TopicPartition, error: KafkaError) -> None:
        position = self._positions.get(partition)
        if position is not None:
            self._errors.append((partition, position.generation, error))
            self._notify()

    # --- one step

    def _step(self) -> None:
        self._step_is_due = False
        if self._closed:
            return
        now_ms = self._client.runtime.clock.monotonic_ms()
        self._finder.settle(now_ms)
        by_node: dict[int, list[tuple[TopicPartition, PartitionPosition]]] = {}
        for partition, position in self._positions.fetchable(self._client.metadata, now_ms, BUFFERED_MAX):
            node_id = self._source(partition, position)
            if node_id is None:
                self._client.request_refresh()
            else:
                by_node.setdefault(node_id, []).append((partition, position))
        for node_id, wanted in by_node.items():
            if node_id not in self._fetching:
                self._fetch(node_id, wanted)
        self._set_timer(now_ms)

    def _source(self, partition: TopicPartition, position: PartitionPosition) -> int | None:
        """Return the broker to fetch a partition from: its preferred replica, else its leader; or None."""
        metadata = self._client.metadata
        if position.preferred_replica in metadata.brokers:
            return position.preferred_replica
        leader = metadata.leader(partition)
        return leader.node_id if leader is not None else None

    def _fetch(self, node_id: int, wanted: list[tuple[TopicPartition, PartitionPosition]]) -> None:
        connection = self._client.connections.existing(node_id, FETCH_CHANNEL)
        if connection is None:
            self._jobs.start(f"connect-{node_id}", lambda: self._connect(node_id))
            return
        metadata = self._client.metadata
        ids = {name: topic.topic_id for name, topic in metadata.topics.items() if topic.topic_id is not None}
        all_have_ids = all(partition.topic in ids for partition, _ in wanted)
        generations = {partition: position.generation for partition, position in wanted}
        session = self._sessions.setdefault(node_id, FetchSessionHandler())
        try:
            api = connection.api(ApiKey.FETCH, None if all_have_ids else TOPIC_IDS_SINCE - 1)
            plan = session.plan(
                {
                    partition: WantedPartition(
                        ids.get(partition.topic) if api.version >= TOPIC_IDS_SINCE else None,
                        position.fetch_offset,
                        metadata.leader_epoch(partition),
                        self._config.max_partition_fetch_bytes,
                    )
                    for partition, position in wanted
                }
            )
            timeout_ms = self._config.limits.max_wait_ms + self._config.request_timeout_ms
            future = connection.send(fetch_request(api, plan, self._config.limits), timeout_ms=timeout_ms)
        except KafkaError as error:
            session.on_disconnected()
            self._on_fetch_failed(list(generations), error)
            return
        self._fetching[node_id] = plan
        future.add_done_callback(lambda done: self._on_response(node_id, plan, generations, done))

    def _set_timer(self, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ms = self._positions.next_retry_ms(now_ms)
        if next_ms is not None:
            self._timer = self._loop.call_later((next_ms - now_ms) / 1000, self.wake)

    # --- responses

    def _on_response(
        self,
        node_id: int,
        plan: FetchPlan,
        generations: dict[TopicPartition, int],
        future: asyncio.Future[Message],
    ) -> None:
        del self._fetching[node_id]
        error = ConnectionLost("cancelled") if future.cancelled() else future.exception()
        if self._closed:
            return
        if isinstance(error, KafkaError):
            self._sessions[node_id].on_disconnected()
            self._on_fetch_failed(list(plan.wanted), error)
        elif error is not None:
            raise error
        else:
            self._on_answer(node_id, plan, generations, future.result())
        self.wake()

    def _on_answer(
        self, node_id: int, plan: FetchPlan, generations: dict[TopicPartition, int], response: Message
    ) -> None:
        code = getattr(response, "error_code", ErrorCode.none)
        self._sessions[node_id].on_answer(code, getattr(response, "session_id", 0))
        if code != ErrorCode.none:
            self._on_fetch_failed(list(plan.wanted), KafkaError(code, f"fetch from broker {node_id}"))
            return
        names: dict[UUID, str] = {
            wanted.topic_id: partition.topic
            for partition, wanted in plan.wanted.items()
            if wanted.topic_id is not None
        }
        nodes = nodes_named(response)
        for answer in read_fetch_response(response, names):
            position = self._positions.get(answer.partition)
            wanted = plan.wanted.get(answer.partition)
            if position is None or wanted is None or position.generation != generations[answer.partition]:
                continue
            if position.fetch_offset != wanted.fetch_offset:
                continue  # the response of another broker has already moved the fetch offset
            if answer.leader_id >= 0:
                self._client.learn_leader(answer.partition, answer.leader_id, answer.leader_epoch, nodes)
            if answer.code == ErrorCode.none:
                self._on_records(position, answer)
            else:
                self._on_partition_failed(answer.partition, position, answer.code)

    def _on_records(self, position: PartitionPosition, answer: FetchResponse) -> None:
        position.failures = 0
        position.drain_first = False
        position.high_watermark = answer.high_watermark
        position.log_start_offset = answer.log_start_offset
        if answer.preferred_replica >= 0:
            position.preferred_replica = answer.preferred_replica
        if not answer.records:
            return
        try:
            fetched = FetchedRecords(
                answer.partition,
                position.generation,
                position.fetch_offset,
                answer.records,
                aborted=answer.aborted,
                check_crcs=self._config.check_crcs,
                read_committed=self._config.read_committed,
            )
            if fetched.end_offset <= position.fetch_offset:
                raise damaged(answer.partition, position.fetch_offset)
        except KafkaError as error:
            self._pause_partition(position)
            self._report(answer.partition, error)
            return
        position.fetch_offset = fetched.end_offset
        position.buffered += 1
        self._fetched.append(fetched)
        self._positions.move_to_end(answer.partition)
        self._notify()

    def _on_partition_failed(
        self, partition: TopicPartition, position: PartitionPosition, code: ErrorCode
    ) -> None:
        if code == ErrorCode.offset_out_of_range:
            if position.preferred_replica >= 0:
                position.preferred_replica = -1  # a follower may lag: fetch from the leader
            elif position.buffered:
                position.drain_first = True
            else:
                self._finder.out_of_range(partition)
            return
        position.preferred_replica = -1
        self._pause_partition(position)
        if code in STALE_METADATA:
            self._client.request_refresh()
        elif not is_retriable(code) and code != ErrorCode.unknown_server_error:
            self._report(partition, KafkaError(code, str(partition)))

    def _on_fetch_failed(self, partitions: list[TopicPartition], error: KafkaError) -> None:
        """Handle a failed Fetch request: pause ``partitions``, and refresh stale metadata."""
        for partition in partitions:
            position = self._positions.get(partition)
            if position is not None:
                position.preferred_replica = -1
                self._pause_partition(position)
                if error.code == ErrorCode.unsupported_version:
                    self._report(partition, error)
        if error.code in STALE_METADATA:
            self._client.request_refresh()

    def _pause_partition(self, position: PartitionPosition) -> None:
        position.failures += 1
        delay_ms = self._backoff.delay_ms(position.failures, self._client.runtime.entropy)
        position.retry_at_ms = self._client.runtime.clock.monotonic_ms() + delay_ms

    async def _connect(self, node_id: int) -> None:
        try:
            await self._client.connections.get(node_id, FETCH_CHANNEL)
        except KafkaError:
            for _, position in self._positions.entries():
                position.preferred_replica = -1
            self._client.request_refresh()
