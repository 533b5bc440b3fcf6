"""A program that writes to several partitions in each transaction and ends it in correct and faulty ways.

It commits or aborts; leaves the transaction open and starts again; waits until the transaction has timed out
and then tries to commit it; continues as a zombie while another producer uses its transactional id; or sends
a batch after the end of its transaction. While a transaction is open, it reads records of others as a
read_committed consumer.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.transactions import LoggedTransaction, TransactionLedger
from nilometer.simulation.workload.transactions.program import (
    REFUSED,
    V1,
    TransactionalProgram,
    TransactionalSession,
    TransactionPlan,
)
from nilometer.simulation.world import Host
from nilometer.wire.errors import KafkaError

TRANSACTIONS_PER_INCARNATION_MAX = 30
BATCHES_MAX = 4
RECORDS_MAX = 3
KEYS = 6
POLL_MS = 20
TIME_OUT_MARGIN_S = 3.0


class Ending(enum.Enum):
    COMMIT = "commit"
    ABORT = "abort"
    LEAVE = "leave"
    """The producer leaves the transaction open; InitProducerId of the next producer with the same
    transactional id aborts it."""
    TIME_OUT = "time out"
    RIVAL = "rival"
    """Another producer takes over the transactional id; the first one continues meanwhile, or afterwards."""
    LATE = "late"
    """A batch is sent after the end of the transaction."""


WEIGHTS = {
    Ending.COMMIT: 11,
    Ending.ABORT: 3,
    Ending.LEAVE: 1,
    Ending.TIME_OUT: 1,
    Ending.RIVAL: 2,
    Ending.LATE: 2,
}
ENDINGS = tuple(ending for ending, weight in WEIGHTS.items() for _ in range(weight))


class TransactionalWriter(TransactionalProgram):
    def __init__(
        self,
        name: str,
        host: Host,
        bootstrap_servers: str,
        plan: TransactionPlan,
        ledger: TransactionLedger,
        *,
        partitions: Sequence[TopicPartition],
        table: TopicPartition,
    ) -> None:
        """``table`` is a partition of a compacted topic; its values are ``key=value``."""
        super().__init__(name, host, bootstrap_servers, plan, ledger)
        self._partitions = list(partitions)
        self._table = table
        self._written = 0

    async def _incarnation(self, runtime: Runtime) -> None:
        async with self._client(runtime) as client, self._consumer(runtime) as consumer:
            session = self._session(client)
            await session.init()
            consumer.assign(self._partitions)
            for _ in range(1 + runtime.entropy.below(TRANSACTIONS_PER_INCARNATION_MAX)):
                if self._stopping:
                    return
                await asyncio.sleep(runtime.entropy.uniform(0.0, 2 * self.plan.gap_s))
                ending = runtime.entropy.choice(ENDINGS)
                following = await self._transaction(runtime, session, consumer, ending)
                if following is None:
                    return
                session = following
                if session.needs_new_epoch:
                    await session.init(goes_on=runtime.entropy.below(2) == 0)

    def _consumer(self, runtime: Runtime) -> Consumer:
        return Consumer(
            runtime,
            {
                "bootstrap.servers": self._bootstrap_servers,
                "client.id": self.name,
                "isolation.level": "read_committed",
                "auto.offset.reset": "latest",
                "fetch.max.wait.ms": 5_000,
                "allow.auto.create.topics": False,
            },
        )

    async def _transaction(
        self, runtime: Runtime, session: TransactionalSession, consumer: Consumer, ending: Ending
    ) -> TransactionalSession | None:
        """Write one transaction and end it as ``ending`` says.

        Returns the session to continue with; None: start a new incarnation. Raises KafkaError.
        """
        transaction = self._begin(session)
        try:
            for _ in range(1 + runtime.entropy.below(BATCHES_MAX)):
                await self._write(runtime, session, transaction)
            await self._read(consumer, transaction)
        except KafkaError as error:
            if error.code in REFUSED:
                raise
            self.error_counts[error.code.name] += 1
            ending = Ending.ABORT
        match ending:
            case Ending.COMMIT | Ending.ABORT:
                await self._end(session, transaction, commit=ending is Ending.COMMIT)
            case Ending.LEAVE:
                self.done["left open"] += 1
                return None
            case Ending.TIME_OUT:
                await self._time_out(runtime, session, transaction)
            case Ending.RIVAL:
                return await self._yield_to_rival(runtime, session, transaction)
            case Ending.LATE:
                commit = runtime.entropy.below(2) == 0
                before, repeated = session.as_before(), session.as_before()
                await self._end(session, transaction, commit=commit)
                await self._end_again(session, repeated, commit=commit)
                await self._write_late(runtime, before)
                session.needs_new_epoch |= session.version == V1
        return session

    # ── writing and reading ─────────────────────────────────────────────────────────────────────
    async def _write(
        self,
        runtime: Runtime,
        session: TransactionalSession,
        transaction: LoggedTransaction,
        *,
        adds: bool = True,
    ) -> None:
        partition = runtime.entropy.choice([*self._partitions, self._table])
        records = [self._record(runtime, partition) for _ in range(1 + runtime.entropy.below(RECORDS_MAX))]
        written = [transaction.write(str(partition), value) for _, value in records]
        offset = await session.write(partition, records, adds=adds)
        if offset is not None:
            for index, each in enumerate(written):
                each.offset = offset + index

    def _record(self, runtime: Runtime, partition: TopicPartition) -> tuple[str | None, str]:
        self._written += 1
        value = f"{self.name}-{self._written}"
        if partition != self._table:
            return None, value
        key = f"key{runtime.entropy.below(KEYS)}"
        return key, f"{key}={value}"

    async def _read(self, consumer: Consumer, transaction: LoggedTransaction) -> None:
        try:
            records = await consumer.poll(timeout_ms=POLL_MS)
        except KafkaError as error:
            self.error_counts[error.code.name] += 1
            return
        transaction.read += [(record.value or b"").decode() for record in records]

    # ── faulty endings ──────────────────────────────────────────────────────────────────────────
    async def _time_out(
        self, runtime: Runtime, session: TransactionalSession, transaction: LoggedTransaction
    ) -> None:
        await asyncio.sleep(self.plan.timeout_ms / 1000 + TIME_OUT_MARGIN_S)
        try:
            if runtime.entropy.below(2) == 0:
                await self._write(runtime, session, transaction)
            await self._end(session, transaction, commit=True)
        except KafkaError as error:
            if error.code in REFUSED and not session.end_is_uncertain:
                self.done["timed out"] += 1
            raise

    async def _yield_to_rival(
        self, runtime: Runtime, session: TransactionalSession, transaction: LoggedTransaction
    ) -> TransactionalSession:
        rival = self._session(session.client)

        async def go_on() -> None:
            await self._write(runtime, session, transaction)
            await self._end(session, transaction, commit=True)

        async def take_over() -> None:
            await rival.init()

        async def write_and_commit() -> None:
            of_rival = self._begin(rival)
            await self._write(runtime, rival, of_rival)
            await self._end(rival, of_rival, commit=True)

        if runtime.entropy.below(2) == 0:
            await self._beside(take_over(), go_on())
        else:
            await take_over()
            await self._beside(write_and_commit(), go_on())
        return rival

    async def _end_again(
        self, session: TransactionalSession, repeated: TransactionalSession, *, commit: bool
    ) -> None:
        """Request the same end again: the response comes when the markers are written, and is the same."""
        await repeated.end(commit=commit)
        self.done["ends repeated"] += 1
        given = repeated.producer_id, repeated.producer_epoch
        if given != (session.producer_id, session.producer_epoch):
            self.violations.append(
                f"repeated end: {self.name} was given producer {session.producer_id} in epoch "
                f"{session.producer_epoch}, and then {given}"
            )

    async def _write_late(self, runtime: Runtime, before: TransactionalSession) -> None:
        """Write a batch in the epoch of a transaction that has ended; brokers must reject it."""
        late = self._begin(before)
        try:
            await self._write(runtime, before, late, adds=False)
        except KafkaError as error:
            self.error_counts[error.code.name] += 1
            self.done["rejected verifications"] += error.code in REFUSED
        else:
            self.violations.append(f"verification: {late.writes} were accepted outside of a transaction")
