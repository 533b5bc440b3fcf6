"""Consumes, transforms and produces as applications do: a member of a group with a transactional producer.

The members share the input partitions; a rebalance fences the commits of a member that has lost its
partitions (KIP-447). Producer and consumer are those of the client library.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import Delivery
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.client.transactions.transaction_manager import AbortableTransactionError
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.transactions.ledger import (
    NO_PRODUCER_ID,
    Consumed,
    Fate,
    LoggedTransaction,
    TransactionLedger,
    Written,
)
from nilometer.simulation.checkers.transactions.transaction_checker import OUTPUT_MARK
from nilometer.simulation.workload.transactions.program import TransactionalProgram, TransactionPlan
from nilometer.simulation.world import Host
from nilometer.wire.errors import KafkaError

GROUP = "group-transformers"
POLL_MS = 1_000
ABORT_OF = 12
LEAVE_OF = 15
_CONSUMES: dict[str, str | int | bool] = {
    "group.id": GROUP,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "session.timeout.ms": 8_000,
    "max.poll.interval.ms": 60_000,
    "max.poll.records": 20,
    "allow.auto.create.topics": False,
}


class GroupTransformer(TransactionalProgram):
    def __init__(
        self,
        name: str,
        host: Host,
        bootstrap_servers: str,
        plan: TransactionPlan,
        ledger: TransactionLedger,
        *,
        topic: str,
        target: TopicPartition,
        is_drained: Callable[[TopicPartition, int], bool],
    ) -> None:
        """``is_drained``: whether no record will be written at or above an offset of a partition."""
        super().__init__(name, host, bootstrap_servers, plan, ledger)
        self._topic = topic
        self._target = target
        self._is_drained = is_drained
        self._has_finished = False

    def _is_finished(self) -> bool:
        return self._has_finished

    async def _incarnation(self, runtime: Runtime) -> None:
        settings = {"bootstrap.servers": self._bootstrap_servers, "client.id": self.name}
        produces = {"transactional.id": self.name, "transaction.timeout.ms": self.plan.timeout_ms}
        async with (
            TransactionalProducer(runtime, {**settings, **produces}) as producer,
            Consumer(runtime, {**settings, **_CONSUMES}) as consumer,
        ):
            await consumer.subscribe([self._topic])
            while True:
                records = await consumer.poll(timeout_ms=POLL_MS)
                if not records:
                    if await self._finishes(consumer):
                        self._has_finished = True
                        return
                    continue
                if not await self._transform(runtime, producer, consumer, records):
                    return
                await asyncio.sleep(runtime.entropy.uniform(0.0, 2 * self.plan.gap_s))

    async def _finishes(self, consumer: Consumer) -> bool:
        assigned = sorted(consumer.assignment())
        if not self._stopping or not assigned:
            return False
        return all([self._is_drained(each, await consumer.position(each)) for each in assigned])

    async def _transform(
        self,
        runtime: Runtime,
        producer: TransactionalProducer,
        consumer: Consumer,
        records: Sequence[ConsumerRecord],
    ) -> bool:
        """Transform ``records`` in one transaction. Returns whether the consumer's position is right
        afterwards; else a new incarnation starts at the committed offset. Raises KafkaError."""
        member = consumer.group_metadata()
        transaction = self.ledger.begin(self.name, NO_PRODUCER_ID, NO_PRODUCER_ID)
        await producer.begin()
        try:
            await self._produce(producer, transaction, records)
            offsets = {TopicPartition(one.topic, one.partition): one.offset + 1 for one in records}
            await producer.send_offsets(offsets, member)
            if not self._stopping and runtime.entropy.below(LEAVE_OF) == 0:
                self.done["left open"] += 1
                return False
            if not self._stopping and runtime.entropy.below(ABORT_OF) == 0:
                await producer.abort()
                self.done["aborted"] += 1
                return False
            transaction.fate = Fate.UNKNOWN
            await producer.commit()
        except AbortableTransactionError as error:
            transaction.fate = Fate.ABORTED
            self.error_counts[error.code.name] += 1
            with suppress(AbortableTransactionError):
                await producer.abort()
            return False
        transaction.fate = Fate.COMMITTED
        self.done["committed by a group member"] += 1
        return True

    async def _produce(
        self,
        producer: TransactionalProducer,
        transaction: LoggedTransaction,
        records: Sequence[ConsumerRecord],
    ) -> None:
        values = [(record.value or b"").decode() for record in records]
        transaction.inputs = tuple(
            Consumed(f"{record.topic}-{record.partition}", record.offset, value)
            for record, value in zip(records, values, strict=True)
        )
        for value in values:
            output = f"{value}{OUTPUT_MARK}{transaction.number}"
            written = transaction.write(str(self._target), output)
            delivery = await producer.send(
                self._target.topic, output.encode(), partition=self._target.partition
            )
            delivery.add_done_callback(partial(_note, written))
        await producer.flush()


def _note(written: Written, delivery: Delivery) -> None:
    with suppress(KafkaError):  # the commit fails too
        offset = delivery.result().offset
        written.offset = offset if offset >= 0 else None
