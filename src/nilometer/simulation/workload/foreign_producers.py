"""A producer with the habits of other libraries, which our own producer does not have.

It follows no leader that a response names (KIP-951), only Metadata. It sends up to five batches at once, from
the first one on, as the Java client does. It waits for a response only a short time; then it closes the
connection, or keeps it and sends the batch again while the broker may still work on the former request, as
librdkafka does with ``socket.max.fails=0``.

It is idempotent. A batch that is refused as out of order although all before it were acknowledged is a
violation: the broker has lost records, has let one batch overtake another, or does not know that it has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.network.connection import Connection
from nilometer.client.producer.batch import ProducerBatch
from nilometer.client.producer.producer_settings import PRODUCER_CONFIG_DEFINITION
from nilometer.client.producer.sender import (
    ProduceAnswer,
    produce_request,
    read_produce_response,
    topic_ids,
)
from nilometer.client.settings import ClientSettings
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.history import History, Send
from nilometer.simulation.world import Host, Program
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError, is_retriable
from nilometer.wire.records import BatchBuilder

IN_FLIGHT_MAX = 5
RETRY_S = 0.3
BATCHES_MAX = 100
"""How many batches at most it sends with one producer id."""
GAP_S = 0.004
"""The longest time between two batches that are sent at once: less than a response takes."""
DELIVERY_TIMEOUT_MS = 60_000
BROKER_TIMEOUT_MS = 10_000
"""How long the broker may wait for the replicas: longer than the producer waits."""
KEPT_TIMEOUT_MS = 600_000
"""The connection's own time-out, after which it would be closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignPlan:
    topic: str
    partition: int
    keeps_connections: bool
    """Whether it keeps a connection on which a request has timed out."""
    timeout_ms: int
    """How long it waits for the response to one request."""
    per_second: float = 2.0


@dataclass(slots=True)
class _Line:
    """The batches of one producer id, of which at most five from the first unsettled one on are sent."""

    name: str
    identity: tuple[int, int] = (-1, -1)
    unsettled: list[tuple[ProducerBatch, Send]] = field(default_factory=list[tuple[ProducerBatch, Send]])
    """In the order of their sequences."""
    next_sequence: int = 0

    @property
    def room(self) -> int:
        """How many further batches may be sent before an earlier one is settled."""
        first = self.unsettled[0][0].base_sequence if self.unsettled else self.next_sequence
        return IN_FLIGHT_MAX - (self.next_sequence - first)


class ForeignProducer(Program):
    def __init__(
        self, number: int, host: Host, bootstrap_servers: str, plan: ForeignPlan, history: History
    ) -> None:
        super().__init__(f"foreign{number}", host)
        self.violations: list[str] = []
        self.acknowledged = 0
        self.timeouts = 0
        """How many requests it has stopped to wait for."""
        self._plan = plan
        self._partition = TopicPartition(plan.topic, plan.partition)
        self._history = history
        self.incarnations = 0
        """How many producer ids it has had, those that it did not get included."""
        self.sent = 0
        self._settings = ClientSettings(
            PRODUCER_CONFIG_DEFINITION,
            {"bootstrap.servers": bootstrap_servers, "client.id": self.name, "metadata.max.age.ms": 30_000},
        )

    async def _main(self, runtime: Runtime) -> None:
        while not self._stopping:
            self.incarnations += 1
            try:
                async with Client(runtime, self._settings) as client:
                    client.watch_topics((self._plan.topic,))
                    await client.refresh()
                    await self._write(runtime, client)
            except KafkaError as error:
                self.error_counts[error.code.name] += 1
                await asyncio.sleep(RETRY_S)

    async def _write(self, runtime: Runtime, client: Client) -> None:
        """Write with one producer id until it has written enough, or may not write on with this id.

        Raises KafkaError.
        """
        line = _Line(f"{self.name}.{self.incarnations}", await _new_identity(client))
        batches = IN_FLIGHT_MAX + runtime.entropy.below(runtime.entropy.choice((1, 1, BATCHES_MAX)))
        while line.unsettled or (not self._stopping and line.next_sequence < batches):
            if not self._stopping:
                for _ in range(min(line.room, 1 + runtime.entropy.below(IN_FLIGHT_MAX))):
                    self._add(runtime, line)
            if line.unsettled and not await self._attempt(runtime, client, line):
                return
            await asyncio.sleep(runtime.entropy.uniform(0.0, 2.0) / self._plan.per_second)

    def _add(self, runtime: Runtime, line: _Line) -> None:
        self.sent += 1
        value = f"{self.name}-{self.sent}"
        now_ms = runtime.clock.wall_ms()
        noted = self._history.send(
            line.name, f"{self._plan.topic}-{self._plan.partition}", value, at_ms=now_ms
        )
        begun_ms = runtime.clock.monotonic_ms()
        batch = ProducerBatch(self._partition, BatchBuilder(), begun_ms, begun_ms + DELIVERY_TIMEOUT_MS)
        batch.append(now_ms, None, value.encode(), ())
        batch.set_sequence(*line.identity, line.next_sequence)
        line.next_sequence += 1
        line.unsettled.append((batch, noted))

    async def _attempt(self, runtime: Runtime, client: Client, line: _Line) -> bool:
        """Send all unsettled batches at once. Return whether the producer id may still be used."""
        try:
            responses = await self._send_all(runtime, client, line.unsettled)
        except KafkaError as error:
            self.error_counts[error.code.name] += 1
            responses = ()
        left: list[tuple[ProducerBatch, Send]] = []
        may_go_on = True
        for position, (batch, noted) in enumerate(line.unsettled):
            answer = responses[position] if position < len(responses) else None
            if answer is not None and answer.code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                self._settle(noted, answer.base_offset)
                continue
            left.append((batch, noted))
            if answer is None:
                continue
            self.error_counts[ErrorCode(answer.code).name] += 1
            if answer.code == ErrorCode.out_of_order_sequence_number:
                may_go_on &= position > 0
                if position == 0:
                    self.violations.append(
                        f"overtaken batch: sequence {batch.base_sequence} of {line.name} in "
                        f"{self._partition} is refused as out of order, though all before it are acknowledged"
                    )
            elif not is_retriable(answer.code):
                may_go_on = False
        line.unsettled = left
        if left:
            await _refresh(client)
        now_ms = runtime.clock.monotonic_ms()
        return may_go_on and all(batch.deadline_ms > now_ms for batch, _ in left)

    def _settle(self, noted: Send, offset: int) -> None:
        self.acknowledged += 1
        if offset >= 0:
            noted.acknowledged(offset)
        else:
            noted.acknowledged_somewhere()

    async def _send_all(
        self, runtime: Runtime, client: Client, batches: Sequence[tuple[ProducerBatch, Send]]
    ) -> Sequence[ProduceAnswer | None]:
        """Return the answer for each of the first batches; None: there was none. Raises KafkaError."""
        leader = client.metadata.leader(self._partition)
        ids = topic_ids(client.metadata, [batch for batch, _ in batches])
        if leader is None or ids is None:
            raise KafkaError(ErrorCode.leader_not_available, f"no leader of {self._partition} is known")
        connection = await client.connections.get(leader.node_id)
        codec = connection.api(ApiKey.PRODUCE)
        gap_s = runtime.entropy.choice((0.0, GAP_S))
        futures: list[asyncio.Future[Any]] = []
        for batch, _ in batches:
            request = produce_request(codec, [batch], ids, -1, BROKER_TIMEOUT_MS)
            futures.append(connection.send(request, timeout_ms=KEPT_TIMEOUT_MS))
            if gap_s:
                await asyncio.sleep(runtime.entropy.uniform(0.0, gap_s))
            if connection.closed:
                break
        _, late = await asyncio.wait(futures, timeout=self._plan.timeout_ms / 1000)
        for future in late:
            future.add_done_callback(_ignore)
        answers = [None if future in late else self._answer(future, ids) for future in futures]
        if late:
            self._give_up_waiting(connection, len(late))
        return answers

    def _answer(self, future: asyncio.Future[Any], ids: dict[str, Any]) -> ProduceAnswer | None:
        error = future.exception()
        if isinstance(error, KafkaError):
            self.error_counts[error.code.name] += 1
            return None
        (answer,) = read_produce_response(future.result(), ids)
        return answer

    def _give_up_waiting(self, connection: Connection, requests: int) -> None:
        self.timeouts += requests
        if not self._plan.keeps_connections:
            connection.close()


async def _new_identity(client: Client) -> tuple[int, int]:
    """Return a new producer id and epoch. Raises KafkaError."""
    response = await client.send_to_any(
        ApiKey.INIT_PRODUCER_ID,
        lambda api: api.request(
            transactional_id=None, transaction_timeout_ms=2**31 - 1, producer_id=-1, producer_epoch=-1
        ),
    )
    if response.error_code != ErrorCode.none:
        raise KafkaError(response.error_code, "the broker returned no producer id")
    return response.producer_id, response.producer_epoch


async def _refresh(client: Client) -> None:
    """Ask for metadata once; without a response the known one is used on."""
    try:
        await client.refresh()
    except KafkaError:
        await asyncio.sleep(RETRY_S)


def _ignore(late: asyncio.Future[Any]) -> None:
    """Take the response that came too late, or the error: its batch was sent again."""
    if not late.cancelled():
        late.exception()
