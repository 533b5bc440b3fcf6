"""Programs that consume, transform and produce: their inputs' offsets are part of their transactions."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_exchange import MemberIdentity, fetch_offsets_request, read_fetched_offsets
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import Delivery
from nilometer.client.producer.transaction_manager import AbortableTransactionError
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.transactions import (
    NO_PRODUCER_ID,
    OUTPUT_MARK,
    Consumed,
    Fate,
    LoggedTransaction,
    TransactionLedger,
    Written,
)
from nilometer.simulation.workload.transactions import (
    API_TIMEOUT_MS,
    TransactionalProgram,
    TransactionalSession,
    TransactionPlan,
)
from nilometer.simulation.world import Host
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import KafkaError

# A program that consumes, transforms and produces: the offsets of its inputs are part of its transactions.
#
# Each has one input partition and its own transactional id, as before KIP-447. After every start, and after
# an abort, it continues from the committed offset, which must be stable. Sometimes it leaves a transaction
# open, or another instance with the same transactional id starts while it commits.

TRANSFORMERS = "transformers"
POLL_MS = 1_000
PROBE_OF = 6
PROBE_MS = 300
NOWHERE = -1
FETCH_AT_MOST = 9
"""The last version of OffsetFetch with topic names instead of topic ids."""


class Ending(enum.Enum):
    COMMIT = "commit"
    ABORT = "abort"
    LEAVE = "leave"
    RIVAL = "rival"


WEIGHTS = {Ending.COMMIT: 10, Ending.ABORT: 1, Ending.LEAVE: 1, Ending.RIVAL: 2}
ENDINGS = tuple(ending for ending, weight in WEIGHTS.items() for _ in range(weight))


async def fetch_committed(
    client: Client,
    partitions: Sequence[TopicPartition],
    group_id: str = TRANSFORMERS,
    timeout_ms: int = API_TIMEOUT_MS,
) -> dict[TopicPartition, int]:
    """Return the group's stable committed offsets; 0 for a partition without one. Raises KafkaError."""
    group = Coordinator(client, group_id)

    async def attempt() -> dict[TopicPartition, int]:
        response = await group.ask(
            ApiKey.OFFSET_FETCH,
            lambda api: fetch_offsets_request(api, group_id, partitions, {}, MemberIdentity()),
            at_most=FETCH_AT_MOST,
        )
        error, found = read_fetched_offsets(response, {})
        group.check(error, "fetching offsets")
        offsets: dict[TopicPartition, int] = {}
        for partition in partitions:
            code, committed = found[partition]
            group.check(code, f"the offset of {partition}")
            offsets[partition] = 0 if committed is None else committed.offset
        return offsets

    return await client.retry(attempt, timeout_ms)


class Transformer(TransactionalProgram):
    def __init__(
        self,
        name: str,
        host: Host,
        bootstrap_servers: str,
        plan: TransactionPlan,
        ledger: TransactionLedger,
        *,
        source: TopicPartition,
        target: TopicPartition,
        is_drained: Callable[[TopicPartition, int], bool],
    ) -> None:
        """``is_drained`` tells whether a partition will have no more records from an offset on."""
        super().__init__(name, host, bootstrap_servers, plan, ledger)
        self._source = source
        self._target = target
        self._is_drained = is_drained
        self._position = NOWHERE
        """The offset up to which all records are transformed; NOWHERE while a transaction is open."""

    def _is_finished(self) -> bool:
        return self._stopping and self._is_drained(self._source, self._position)

    async def _incarnation(self, runtime: Runtime) -> None:
        async with self._client(runtime) as client, self._consumer(runtime) as consumer:
            session = self._session(client)
            await session.init()
            consumer.assign([self._source])
            await self._go_to_committed(client, consumer)
            while not self._is_finished():
                self._position = NOWHERE
                records = await consumer.poll(timeout_ms=POLL_MS)
                if not records:
                    self._position = await consumer.position(self._source)
                    continue
                ending = Ending.COMMIT if self._stopping else runtime.entropy.choice(ENDINGS)
                probes = runtime.entropy.below(PROBE_OF) == 0
                following = await self._transform(session, consumer, records, ending, probes=probes)
                if following is None:
                    return
                session = following
                await asyncio.sleep(runtime.entropy.uniform(0.0, 2 * self.plan.gap_s))
                if session.needs_new_epoch:
                    await session.init(goes_on=runtime.entropy.below(2) == 0)

    def _consumer(self, runtime: Runtime) -> Consumer:
        return Consumer(
            runtime,
            {
                "bootstrap.servers": self._bootstrap_servers,
                "client.id": self.name,
                "isolation.level": "read_committed",
                "auto.offset.reset": "none",
                "fetch.max.wait.ms": 2_000,
                "max.poll.records": 20,
                "allow.auto.create.topics": False,
            },
        )

    async def _go_to_committed(self, client: Client, consumer: Consumer) -> None:
        consumer.seek(self._source, (await fetch_committed(client, [self._source]))[self._source])

    async def _transform(
        self,
        session: TransactionalSession,
        consumer: Consumer,
        records: Sequence[ConsumerRecord],
        ending: Ending,
        *,
        probes: bool,
    ) -> TransactionalSession | None:
        """Transform ``records`` in one transaction and end it as ``ending`` says.

        Returns the session to continue with; None: start a new incarnation. Raises KafkaError.
        """
        transaction = self._begin(session)
        await self._write(session, transaction, records)
        given = await self._probe(session.client) if probes else None
        match ending:
            case Ending.COMMIT:
                await self._end(session, transaction, commit=True)
                if given is not None:
                    self.violations.append(f"pending offset: {given} was stable within {transaction}")
            case Ending.ABORT:
                await self._end(session, transaction, commit=False)
                await self._go_to_committed(session.client, consumer)
            case Ending.LEAVE:
                self.done["left open"] += 1
                return None
            case Ending.RIVAL:
                rival = self._session(session.client)

                async def take_over() -> None:
                    await rival.init()
                    await self._go_to_committed(rival.client, consumer)

                await self._beside(take_over(), self._end(session, transaction, commit=True))
                return rival
        return session

    async def _probe(self, client: Client) -> int | None:
        """Fetch the group's offset while the transaction's own offset is pending.

        Returns None if it is not stable, as it must be unless the transaction has been aborted meanwhile.
        """
        try:
            offset = (await fetch_committed(client, [self._source], timeout_ms=PROBE_MS))[self._source]
        except KafkaError as error:
            self.error_counts[error.code.name] += 1
            return None
        return offset

    async def _write(
        self,
        session: TransactionalSession,
        transaction: LoggedTransaction,
        records: Sequence[ConsumerRecord],
    ) -> None:
        source = str(self._source)
        values = [(record.value or b"").decode() for record in records]
        transaction.inputs = tuple(
            Consumed(source, record.offset, value) for record, value in zip(records, values, strict=True)
        )
        outputs = [f"{value}{OUTPUT_MARK}{transaction.number}" for value in values]
        target = str(self._target)
        written = [transaction.write(target, value) for value in outputs]
        offset = await session.write(self._target, [(None, value) for value in outputs])
        if offset is not None:
            for index, each in enumerate(written):
                each.offset = offset + index
        group = Coordinator(session.client, TRANSFORMERS)
        await session.commit_offsets(group, {self._source: records[-1].offset + 1})


# Consumes, transforms and produces as applications do: a member of a group with a transactional producer.
#
# The members share the input partitions; a rebalance fences the commits of a member that has lost its
# partitions (KIP-447). Producer and consumer are those of the client library.

GROUP_TRANSFORMERS = "group-transformers"
ABORT_OF = 12
LEAVE_OF = 15
_CONSUMES: dict[str, str | int | bool] = {
    "group.id": GROUP_TRANSFORMERS,
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
