"""Sends batches to the leaders of their partitions and handles the responses: the producer's I/O.

There is no permanent task: a *step* sends all batches that are due and can be sent. A step is scheduled
whenever something changed: a batch is full or its ``linger.ms`` has passed, a response arrived, a connection
was made, metadata arrived.

Invariants:

- At most ``max.in.flight.requests.per.connection`` requests to one broker are in flight, and a request has at
  most one batch of a partition; with a limit of 1 a partition has at most one batch in flight at all.
- Every batch taken from the accumulator is resolved (acknowledged or failed), or put back into it.
- A batch whose delivery timeout has passed fails, sent or not. If it was ever sent, it may have been written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from nilometer.client.network.client import STALE_METADATA, Client, Jobs
from nilometer.client.network.cluster_metadata import ClusterMetadata, TopicPartition, nodes_named
from nilometer.client.network.connection import Connection, ConnectionLost
from nilometer.client.network.connection_pool import Backoff
from nilometer.client.producer.batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Acknowledged,
    ProducerBatch,
    RecordAccumulator,
    RecordsRejected,
)
from nilometer.client.producer.idempotence import IdempotenceState, Verdict
from nilometer.client.producer.producer_settings import ProducerConfig
from nilometer.client.producer.transaction_manager import ProducerState, TransactionManager
from nilometer.client.producer.transaction_runner import PREVIOUS_END_PAUSE_MS, PRODUCE_OF_VERSION_1_MAX
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message, milliseconds_since_epoch
from nilometer.wire.errors import ErrorCode, KafkaError, is_retriable

# Makes Produce requests from batches, and reads the responses per batch. Pure.

TOPIC_IDS_SINCE = 13
"""The first version of Produce that names topics only by id."""


@dataclass(frozen=True, slots=True)
class ProduceAnswer:
    """A Produce response for one batch."""

    partition: TopicPartition
    code: ErrorCode
    message: str
    base_offset: int
    log_append_time: int
    leader_id: int
    leader_epoch: int
    """The epoch of ``leader_id``, the new leader if the response names one (KIP-951); else both are -1."""
    rejected: Mapping[int, str]
    """Why the broker rejected the batch, by the index of a record in it (KIP-467)."""

    def error(self) -> KafkaError:
        if self.rejected:
            return RecordsRejected(self.code, self.message, self.rejected)
        return KafkaError(self.code, self.message)


def topic_ids(metadata: ClusterMetadata, batches: Sequence[ProducerBatch]) -> dict[str, UUID] | None:
    """Return the topic ids of ``batches`` by topic name, or None if one of them is unknown."""
    ids: dict[str, UUID] = {}
    for batch in batches:
        topic = metadata.topics.get(batch.partition.topic)
        if topic is None or topic.topic_id is None:
            return None
        ids[topic.name] = topic.topic_id
    return ids


def produce_request(
    api: Api,
    batches: Sequence[ProducerBatch],
    ids: dict[str, UUID] | None,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> Message:
    """Make a Produce request; ``batches`` contains at most one batch per partition.

    ``ids`` are the topics' ids, for versions that name topics by id.
    """
    by_topic: dict[str, list[Message]] = {}
    for batch in batches:
        part = api.make_request(
            "PartitionProduceData", index=batch.partition.partition, records=batch.encoded()
        )
        by_topic.setdefault(batch.partition.topic, []).append(part)
    return api.request(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=tuple(
            api.make_request(
                "TopicProduceData",
                name=topic,
                topic_id=ids[topic] if ids is not None else None,
                partition_data=tuple(parts),
            )
            for topic, parts in by_topic.items()
        ),
    )


def read_produce_response(response: Message, ids: dict[str, UUID] | None) -> list[ProduceAnswer]:
    names = {topic_id: name for name, topic_id in ids.items()} if ids is not None else {}
    answers: list[ProduceAnswer] = []
    for topic in response.responses:
        name = topic.name if hasattr(topic, "name") else names.get(topic.topic_id, "")
        for part in topic.partition_responses:
            leader = getattr(part, "current_leader", None)
            answers.append(
                ProduceAnswer(
                    partition=TopicPartition(name, part.index),
                    code=part.error_code,
                    message=getattr(part, "error_message", None) or "",
                    base_offset=part.base_offset,
                    log_append_time=_milliseconds(part.log_append_time),
                    leader_id=leader.leader_id if leader is not None else -1,
                    leader_epoch=leader.leader_epoch if leader is not None else NO_LEADER_EPOCH,
                    rejected={
                        one.batch_index: one.batch_index_error_message or "no reason given"
                        for one in getattr(part, "record_errors", ())
                    },
                )
            )
    return answers


def _milliseconds(moment: datetime | None) -> int:
    """Return a timestamp field of a response in milliseconds, or -1 if it is null."""
    return milliseconds_since_epoch(moment) if moment is not None else -1


MAYBE_WRITTEN = frozenset(
    {
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.unknown_server_error,
        ErrorCode.not_leader_or_follower,  # also returned by a leader that resigned after the append
        ErrorCode.kafka_storage_error,
    }
)
"""Errors after which it is unknown whether the batch is in the log."""

NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1


class Sender:
    def __init__(
        self,
        client: Client,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        on_room: Callable[[], None],
        buffer_is_full: Callable[[], bool],
        transactions: TransactionManager | None = None,
    ) -> None:
        """``on_room`` is called after every resolved batch; ``buffer_is_full`` returns whether a ``send``
        waits for memory."""
        transactional = transactions is not None
        self.idempotence = IdempotenceState(transactional=transactional) if config.idempotent else None
        self._transactions = transactions
        self._client = client
        self._config = config
        self._accumulator = accumulator
        self._on_room = on_room
        self._buffer_is_full = buffer_is_full
        settings = client.settings
        self._backoff = Backoff(
            settings.integer("retry.backoff.ms"), settings.integer("retry.backoff.max.ms")
        )
        self._loop = asyncio.get_running_loop()
        self._requests: dict[int, int] = {}
        """Broker id to the number of its requests in flight."""
        self._sent: dict[ProducerBatch, None] = {}
        """Batches in flight, in the order they were sent."""
        self._muted: dict[TopicPartition, None] = {}
        self._jobs = Jobs("producer", self.wake)
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._step_is_due = False
        self._closed = False
        client.on_metadata.append(lambda _metadata: self.wake())

    def wake(self) -> None:
        """Schedule a step."""
        if not self._step_is_due and not self._closed:
            self._step_is_due = True
            self._loop.call_soon(self._step)

    async def close(self) -> None:
        """Stop the sender; all unresolved batches fail with ConnectionLost."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._jobs.close()
        self._accumulator.discard_all()
        for batch in self._accumulator.incomplete():
            self._resolve(batch, ConnectionLost("the producer was closed"))

    # --- one step

    def _step(self) -> None:
        self._step_is_due = False
        if self._closed:
            return
        now_ms = self._client.runtime.clock.monotonic_ms()
        self._expire(now_ms)
        if not self._has_identity():
            self._set_timer(now_ms, None)
            return
        due, next_ms = self._accumulator.ready(now_ms, self._buffer_is_full())
        by_leader, leaderless = self._by_leader(due)
        if leaderless:
            self._client.request_refresh()
        for node_id, partitions in by_leader.items():
            self._send_to(node_id, partitions, now_ms)
        self._set_timer(now_ms, next_ms)

    def _has_identity(self) -> bool:
        """Return whether there is a producer id to send with (True without idempotence); else request one."""
        if self.idempotence is None:
            return True
        if self._transactions is not None:
            self._follow(self._transactions, self.idempotence)
            return self.idempotence.has_identity
        self.idempotence.maybe_raise_epoch()
        if not self.idempotence.has_identity:
            self._jobs.start("identity", self._obtain_identity)
        return self.idempotence.has_identity

    def _follow(self, transactions: TransactionManager, idempotence: IdempotenceState) -> None:
        """Adopt the transaction's producer id and epoch; if it cannot be committed, fail unsent batches."""
        identity = transactions.identity
        if (identity.producer_id, identity.producer_epoch) != (
            idempotence.producer_id,
            idempotence.producer_epoch,
        ):
            idempotence.adopt(identity.producer_id, identity.producer_epoch)
        if not transactions.drops_unsent:
            return
        error = transactions.error or KafkaError(
            ErrorCode.transaction_abortable, "the transaction was aborted"
        )
        is_over = transactions.state is ProducerState.FATAL_ERROR
        dropped = self._accumulator.discard_all() if is_over else self._accumulator.discard_unsent()
        for batch in dropped:
            self._resolve(batch, error)

    def _by_leader(self, due: list[TopicPartition]) -> tuple[dict[int, list[TopicPartition]], bool]:
        by_leader: dict[int, list[TopicPartition]] = {}
        leaderless = False
        for partition in due:
            leader = self._client.metadata.leader(partition)
            if leader is None:
                leaderless = True
            else:
                by_leader.setdefault(leader.node_id, []).append(partition)
        return by_leader, leaderless

    def _send_to(self, node_id: int, partitions: list[TopicPartition], now_ms: int) -> None:
        connection = self._client.connections.existing(node_id)
        if connection is None:
            self._jobs.start(f"connect-{node_id}", lambda: self._connect(node_id))
            return
        while self._requests.get(node_id, 0) < self._config.max_in_flight and connection.writable:
            batches = self._drain(partitions, now_ms)
            if not batches:
                return
            self._send(node_id, connection, batches)
        connection.on_writable = self.wake

    def _drain(self, partitions: list[TopicPartition], now_ms: int) -> list[ProducerBatch]:
        """Take the batches for one request: the first of each partition, up to ``max.request.size``.

        Each call begins with another partition, so that none is always last.
        """
        batches: list[ProducerBatch] = []
        size = 0
        self._turn += 1
        begin = self._turn % len(partitions)
        for partition in partitions[begin:] + partitions[:begin]:
            batch = self._accumulator.ready_batch(partition, now_ms, self._buffer_is_full())
            if batch is None or partition in self._muted:
                continue
            if self._transactions is not None and not self._transactions.may_send(partition):
                continue
            if self.idempotence is not None and not self.idempotence.may_send(batch):
                continue
            if batches and size + batch.size > self._config.max_request_size:
                break
            size += batch.size
            batches.append(self._accumulator.take_first(partition))
        return batches

    def _send(self, node_id: int, connection: Connection, batches: list[ProducerBatch]) -> None:
        for batch in batches:
            if self.idempotence is not None:
                self.idempotence.begin(batch)
            batch.attempts += 1
            self._sent[batch] = None
            if self._config.max_in_flight == 1:
                self._muted[batch.partition] = None
        ids = topic_ids(self._client.metadata, batches)
        try:
            api = connection.api(ApiKey.PRODUCE, self._newest_version(ids is not None))
            named = ids if api.version >= TOPIC_IDS_SINCE else None
            config = self._config
            request = produce_request(
                api, batches, named, config.acks, config.request_timeout_ms, config.transactional_id
            )
            if self._config.acks == 0:
                connection.send_without_response(request)
                for batch in batches:
                    self._acknowledge(batch, Acknowledged(-1))
                return
            future = connection.send(request)
        except KafkaError as error:
            self._on_request_failed(batches, error)
            return
        self._requests[node_id] = self._requests.get(node_id, 0) + 1
        future.add_done_callback(lambda done: self._on_response(node_id, batches, named, done))

    def _newest_version(self, has_ids: bool) -> int | None:
        """Return the newest version of Produce to use; None: the newest that the broker supports.

        ``has_ids``: whether the topic ids of all batches are known, which versions 13 and later require.
        """
        if self._transactions is not None and not self._transactions.adds_implicitly:
            return PRODUCE_OF_VERSION_1_MAX
        return None if has_ids else TOPIC_IDS_SINCE - 1

    # --- responses

    def _on_response(
        self,
        node_id: int,
        batches: Sequence[ProducerBatch],
        ids: dict[str, UUID] | None,
        future: asyncio.Future[Message],
    ) -> None:
        self._requests[node_id] -= 1
        error = ConnectionLost("cancelled") if future.cancelled() else future.exception()
        if self._closed:
            return
        if isinstance(error, KafkaError):
            self._on_request_failed(batches, error)
        elif error is not None:
            self._on_request_failed(batches, KafkaError(ErrorCode.unknown_server_error, repr(error)))
            raise error  # a bug in this client: the event loop's exception handler reports it
        else:
            self._on_answers(batches, ids, future.result())
        self.wake()

    def _on_answers(
        self, batches: Sequence[ProducerBatch], ids: dict[str, UUID] | None, response: Message
    ) -> None:
        waiting = {batch.partition: batch for batch in batches}
        nodes = nodes_named(response)
        for answer in read_produce_response(response, ids):
            batch = waiting.pop(answer.partition, None)
            if batch is None:
                continue
            if answer.code == ErrorCode.none:
                self._acknowledge(batch, Acknowledged(answer.base_offset, answer.log_append_time))
                continue
            if answer.leader_id >= 0:
                self._client.learn_leader(answer.partition, answer.leader_id, answer.leader_epoch, nodes)
            self._on_batch_failed(batch, answer.error(), answer)
        for batch in waiting.values():
            lacking = KafkaError(ErrorCode.unknown_server_error, "the response lacks the partition")
            self._on_batch_failed(batch, lacking)

    def _on_request_failed(self, batches: Sequence[ProducerBatch], error: KafkaError) -> None:
        for batch in batches:
            self._on_batch_failed(batch, error)

    def _on_batch_failed(
        self, batch: ProducerBatch, error: KafkaError, answer: ProduceAnswer | None = None
    ) -> None:
        code = error.code
        self._sent.pop(batch, None)
        self._muted.pop(batch.partition, None)
        if code in STALE_METADATA:
            self._client.request_refresh()
        if batch.outcome is not None:
            return  # it expired before the response came
        batch.last_failure = error
        batch.maybe_written |= code in MAYBE_WRITTEN
        now_ms = self._client.runtime.clock.monotonic_ms()
        if code == ErrorCode.message_too_large and batch.records_count > 1:
            self._split(batch, now_ms)
            return
        verdict = Verdict.NOT_ABOUT_SEQUENCES
        if self.idempotence is not None:
            verdict = self.idempotence.judge(batch, code)
        if verdict is Verdict.ALREADY_WRITTEN:
            self._acknowledge(batch, Acknowledged(answer.base_offset if answer is not None else -1))
        elif verdict is Verdict.RETRY:
            self._client.request_refresh()  # the broker may not be the leader any more
            self._accumulator.put_back(batch, now_ms + self._delay_ms(1))
        elif verdict is Verdict.FAILED:
            self._give_up(batch, error, maybe_written=True)
        elif is_retriable(code) and batch.failures < self._config.retries:
            batch.failures += 1
            delay_ms = self._delay_ms(batch.failures)
            if code == ErrorCode.concurrent_transactions:
                delay_ms = min(delay_ms, PREVIOUS_END_PAUSE_MS)
            self._accumulator.put_back(batch, now_ms + delay_ms)
        else:
            self._give_up(batch, error, maybe_written=batch.maybe_written)

    def _split(self, batch: ProducerBatch, now_ms: int) -> None:
        parts = batch.split(self._accumulator.codec, self._accumulator.level)
        if self.idempotence is not None:
            self.idempotence.on_split(batch, parts)
        self._accumulator.replace(batch, parts, now_ms)

    def _acknowledge(self, batch: ProducerBatch, outcome: Acknowledged) -> None:
        self._sent.pop(batch, None)
        self._muted.pop(batch.partition, None)
        if self.idempotence is not None:
            self.idempotence.on_acknowledged(batch)
        self._resolve(batch, outcome)

    def _give_up(self, batch: ProducerBatch, error: KafkaError, *, maybe_written: bool) -> None:
        if self.idempotence is not None and batch.has_sequence:
            self.idempotence.on_failed(batch, maybe_written=maybe_written)
        if self._transactions is not None:
            self._transactions.on_batch_failed(error.code, f"{batch.partition}: {error.message or error}")
            self.wake()
        self._resolve(batch, error)

    def _resolve(self, batch: ProducerBatch, outcome: Acknowledged | KafkaError) -> None:
        self._accumulator.release(batch)
        batch.resolve(outcome)
        self._on_room()

    def _delay_ms(self, failures: int) -> int:
        return self._backoff.delay_ms(failures, self._client.runtime.entropy)

    # --- time

    def _expire(self, now_ms: int) -> None:
        oldest = self._accumulator.oldest_deadline_ms()
        if oldest is None or oldest > now_ms:
            return
        late = self._accumulator.expired(now_ms)
        late += [batch for batch in self._sent if batch.deadline_ms <= now_ms]
        for batch in late:
            self._sent.pop(batch, None)
            after = now_ms - batch.created_ms
            reason = f"{batch.records_count} records for {batch.partition} not acknowledged after {after} ms"
            if batch.last_failure is not None:
                reason += f"; the last of {batch.attempts} attempts failed with {batch.last_failure}"
            error = KafkaError(ErrorCode.request_timed_out, reason)
            self._give_up(batch, error, maybe_written=batch.attempts > 0)

    def _set_timer(self, now_ms: int, next_ms: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        oldest = self._accumulator.oldest_deadline_ms()
        times = [when for when in (next_ms, oldest) if when is not None]
        if times:
            self._timer = self._loop.call_later(max(min(times) - now_ms, 0) / 1000, self.wake)

    # --- background jobs

    async def _connect(self, node_id: int) -> None:
        try:
            await self._client.connections.get(node_id)
        except KafkaError:
            self._client.request_refresh()  # the broker may be down, and other brokers lead its partitions

    async def _obtain_identity(self) -> None:
        assert self.idempotence is not None

        async def ask() -> Message:
            response = await self._client.send_to_any(
                ApiKey.INIT_PRODUCER_ID,
                lambda api: api.request(
                    transactional_id=None,
                    transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS,
                    producer_id=NO_PRODUCER_ID,
                    producer_epoch=NO_PRODUCER_EPOCH,
                ),
            )
            if response.error_code != ErrorCode.none:
                raise KafkaError(response.error_code, "the broker returned no producer id")
            return response

        try:
            response = await self._client.retry(ask, self._config.delivery_timeout_ms)
        except KafkaError as error:
            if not error.retriable:
                for batch in self._accumulator.discard_all():
                    self._give_up(batch, error, maybe_written=batch.attempts > 0)
            return
        self.idempotence.adopt(response.producer_id, response.producer_epoch)
