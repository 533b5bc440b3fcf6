"""A client that writes numbered values to the partitions of a topic, and records the outcome of each.

Values are unique, and a producer's values of one partition increase. A send with an unknown outcome
(timeouts, lost connections, any error after its batch was sent) stays unknown; one rejected before it was
added to a batch has certainly failed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from nilometer.client.producer.batch import Delivery
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.history import History, Send
from nilometer.simulation.world import Host, Program
from nilometer.wire.errors import KafkaError

RETRY_S = 0.5
SENDS_PER_INCARNATION_MIN = 50
"""How many sends at least until the program closes its producer and creates another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterPlan:
    topic: str
    partitions: int
    per_second: float = 5.0
    idempotent: bool = True
    acks: str = "all"
    codec: str = "none"
    value_bytes: int = 100
    """The mean padding: each value gets up to twice as many bytes."""
    retries: bool = True
    """Whether sends are retried; without retries a producer without idempotence cannot duplicate records."""

    @property
    def counts(self) -> bool:
        """Whether an acknowledged record must not be lost: with acks=1 it may be lost with its leader."""
        return self.acks == "all"

    @property
    def may_repeat(self) -> bool:
        return not self.idempotent and self.retries


class Writer(Program):
    def __init__(
        self, name: str, host: Host, bootstrap_servers: str, plan: WriterPlan, history: History
    ) -> None:
        super().__init__(name, host)
        self.plan = plan
        self.acknowledged = 0
        self._bootstrap_servers = bootstrap_servers
        self._history = history
        self._incarnations = 0
        self._sent = 0

    @property
    def incarnations(self) -> int:
        """How many producers it has created."""
        return self._incarnations

    @property
    def sent(self) -> int:
        return self._sent

    async def _main(self, runtime: Runtime) -> None:
        while not self._stopping:
            self._incarnations += 1
            sends = SENDS_PER_INCARNATION_MIN + runtime.entropy.below(400)
            try:
                async with Producer(runtime, self._settings()) as producer:
                    await self._poll_until_stopped(runtime, producer, sends)
            except KafkaError as error:
                self.error_counts[error.code.name] += 1
                await asyncio.sleep(RETRY_S)

    def _settings(self) -> dict[str, str | int | bool]:
        plan = self.plan
        settings: dict[str, str | int | bool] = {
            "bootstrap.servers": self._bootstrap_servers,
            "client.id": self.name,
            "enable.idempotence": plan.idempotent,
            "acks": plan.acks,
            "compression.type": plan.codec,
            "batch.size": 2_000,
            "request.timeout.ms": 10_000,
            "delivery.timeout.ms": 40_000,
            "max.block.ms": 20_000,
            "metadata.max.age.ms": 30_000,
            "allow.auto.create.topics": False,
        }
        if not plan.retries:
            settings["retries"] = 0
        return settings

    async def _poll_until_stopped(self, runtime: Runtime, producer: Producer, sends: int) -> None:
        producer_name = f"{self.name}.{self._incarnations}"
        while sends > 0 and not self._stopping:
            await asyncio.sleep(runtime.entropy.uniform(0.0, 2.0) / self.plan.per_second)
            for _ in range(1 + (runtime.entropy.below(8) == 0) * runtime.entropy.below(20)):
                sends -= 1
                await self._send(runtime, producer, producer_name)

    async def _send(self, runtime: Runtime, producer: Producer, producer_name: str) -> None:
        plan = self.plan
        self._sent += 1
        partition = runtime.entropy.below(plan.partitions)
        value = f"{self.name}-{self._sent}"
        padded = value.encode() + b" " * runtime.entropy.below(2 * plan.value_bytes)
        noted = self._history.send(
            producer_name,
            f"{plan.topic}-{partition}",
            value,
            may_repeat=plan.may_repeat,
            at_ms=runtime.clock.wall_ms(),
        )
        try:
            delivery = await producer.send(plan.topic, padded, partition=partition)
        except KafkaError as error:
            self.error_counts[error.code.name] += 1
            noted.failed()
        else:
            delivery.add_done_callback(lambda done: self._on_done(noted, done))

    def _on_done(self, noted: Send, delivery: Delivery) -> None:
        try:
            response = delivery.result()
        except KafkaError as error:
            self.error_counts[error.code.name] += 1
            return
        self.acknowledged += 1
        if self.plan.counts:
            if response.offset >= 0:
                noted.acknowledged(response.offset)
            else:
                noted.acknowledged_somewhere()
