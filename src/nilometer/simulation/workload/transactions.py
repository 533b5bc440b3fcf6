"""Programs that write in transactions, and commit, abort, crash, restart and continue as zombies: what all
have, and the writer.
"""

from __future__ import annotations

import asyncio
import enum
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_exchange import CoordinatorType
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.network.connection import MakeRequest
from nilometer.client.producer.producer_settings import PRODUCER_CONFIG_DEFINITION
from nilometer.client.settings import ClientSettings
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.transactions import Fate, LoggedTransaction, TransactionLedger
from nilometer.simulation.world import Host, Program
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.records import BatchBuilder

# A transactional program: its session, request by request, its incarnations, and their ledger.

# One transactional producer, request by request, so that a program may also do what is not allowed.
#
# It retries retriable errors. After any other error, the program either aborts the transaction or initializes
# the id again. With ``version`` 2 the first batch adds its partition to the transaction, and every end
# returns a new epoch (KIP-890); with version 1 the producer adds partitions by a request, and keeps its
# epoch.
#
# A commit with an unknown outcome is requested again until there is a response. After that, and after a batch
# with an unknown outcome, the next transaction needs a new epoch: otherwise a request still in flight could
# become part of it. Only version 1 needs this; version 2 does it, too.

V1, V2 = 1, 2
API_TIMEOUT_MS = 40_000
REQUEST_TIMEOUT_MS = 10_000
PRODUCE_AT_MOST = {V1: 11, V2: 12}
END_AT_MOST = {V1: 4, V2: 5}
OFFSETS_AT_MOST = {V1: 4, V2: 5}
ADD_PARTITIONS_AT_MOST = 3
"""The newest version for clients; later versions are sent by brokers only."""
REFUSED = frozenset(
    {
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_txn_state,
        ErrorCode.transaction_abortable,
    }
)
"""Errors after which the producer has lost its transaction."""
NOT_CARRIED_OUT = REFUSED | {ErrorCode.coordinator_load_in_progress, ErrorCode.concurrent_transactions}
"""Errors of a request that has changed nothing."""
Record = tuple[str | None, str]
"""Key and value."""


def make_client(runtime: Runtime, bootstrap_servers: str, client_id: str) -> Client:
    return Client(
        runtime,
        ClientSettings(
            PRODUCER_CONFIG_DEFINITION,
            {
                "bootstrap.servers": bootstrap_servers,
                "client.id": client_id,
                "request.timeout.ms": REQUEST_TIMEOUT_MS,
                "metadata.max.age.ms": 30_000,
                "delivery.timeout.ms": API_TIMEOUT_MS,
            },
        ),
    )


class TransactionalSession:
    def __init__(self, client: Client, transactional_id: str, *, timeout_ms: int, version: int) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.version = version
        self.producer_id, self.producer_epoch = -1, -1
        self.needs_new_epoch = False
        self.end_is_uncertain = False
        """Whether an EndTxn request for the open transaction may have succeeded without a response."""
        self.coordinator = Coordinator(client, transactional_id, CoordinatorType.TRANSACTION)
        self._sequences: dict[TopicPartition, int] = {}
        self._added: dict[TopicPartition, None] = {}

    def as_before(self) -> TransactionalSession:
        """Return a new session with this one's present producer id, epoch, sequences and added partitions."""
        same = TransactionalSession(
            self.client, self.transactional_id, timeout_ms=self.timeout_ms, version=self.version
        )
        same.producer_id, same.producer_epoch = self.producer_id, self.producer_epoch
        same._sequences.update(self._sequences)
        same._added.update(self._added)
        return same

    # ── the identity ────────────────────────────────────────────────────────────────────────────
    async def init(self, *, goes_on: bool = False) -> None:
        """Send InitProducerId and use the id and epoch of the response. Raises KafkaError.

        ``goes_on``: send the current producer id and epoch (KIP-360).
        """
        has = (self.producer_id, self.producer_epoch) if goes_on else (-1, -1)

        def make(api: Api) -> Message:
            return api.request(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=self.timeout_ms,
                producer_id=has[0],
                producer_epoch=has[1],
            )

        response = await self._ask(ApiKey.INIT_PRODUCER_ID, make)
        self._take(response.producer_id, response.producer_epoch)

    def _take(self, producer_id: int, producer_epoch: int) -> None:
        if (producer_id, producer_epoch) != (self.producer_id, self.producer_epoch):
            self._sequences.clear()
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.begin()
        self.needs_new_epoch = False

    def begin(self) -> None:
        self._added.clear()
        self.end_is_uncertain = False

    # ── writing ─────────────────────────────────────────────────────────────────────────────────
    async def write(
        self, partition: TopicPartition, records: Sequence[Record], *, adds: bool = True
    ) -> int | None:
        """Write a batch; return the offset of its first record, or None for a duplicate without an offset.

        ``adds``: with version 1, first add the partition to the transaction. Raises KafkaError.
        """
        await self.client.topic(partition.topic, API_TIMEOUT_MS)
        if adds and self.version == V1 and partition not in self._added:
            await self._add(partition)
        sequence = self._sequences.get(partition, 0)
        builder = BatchBuilder()
        now_ms = self.client.runtime.clock.wall_ms()
        for key, value in records:
            builder.append(now_ms, None if key is None else key.encode(), value.encode())
        batch = builder.build(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        before, self.needs_new_epoch = self.needs_new_epoch, True
        offset = await self.client.retry(lambda: self._produce(partition, batch), API_TIMEOUT_MS)
        self.needs_new_epoch = before
        self._sequences[partition] = sequence + len(records)
        return offset

    async def _produce(self, partition: TopicPartition, batch: bytes) -> int | None:
        def make(api: Api) -> Message:
            part = api.make_request(
                "PartitionProduceData", index=partition.partition, records=memoryview(batch)
            )
            topic = api.make_request("TopicProduceData", name=partition.topic, partition_data=(part,))
            return api.request(
                transactional_id=self.transactional_id,
                acks=-1,
                timeout_ms=REQUEST_TIMEOUT_MS,
                topic_data=(topic,),
            )

        response = await self.client.send_to_leader(
            partition, ApiKey.PRODUCE, make, at_most=PRODUCE_AT_MOST[self.version]
        )
        (topic,) = response.responses
        (part,) = topic.partition_responses
        if part.error_code is ErrorCode.duplicate_sequence_number:
            return None
        if part.error_code is not ErrorCode.none:
            raise KafkaError(part.error_code, f"{self.transactional_id} writes to {partition}")
        return part.base_offset

    async def _add(self, partition: TopicPartition) -> None:
        def make(api: Api) -> Message:
            topic = api.make_request(
                "AddPartitionsToTxnTopic", name=partition.topic, partitions=(partition.partition,)
            )
            return api.request(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.producer_epoch,
                v3_and_below_topics=(topic,),
            )

        def error_of(response: Message) -> ErrorCode:
            return response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

        await self._ask(ApiKey.ADD_PARTITIONS_TO_TXN, make, ADD_PARTITIONS_AT_MOST, error_of)
        self._added[partition] = None

    # ── offsets ─────────────────────────────────────────────────────────────────────────────────
    async def commit_offsets(self, group: Coordinator, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the group's offsets as part of the transaction. Raises KafkaError."""
        if self.version == V1:
            await self._ask(
                ApiKey.ADD_OFFSETS_TO_TXN,
                lambda api: api.request(
                    transactional_id=self.transactional_id,
                    producer_id=self.producer_id,
                    producer_epoch=self.producer_epoch,
                    group_id=group.key,
                ),
            )
        await self.client.retry(lambda: self._commit_offsets(group, offsets), API_TIMEOUT_MS)

    async def _commit_offsets(self, group: Coordinator, offsets: Mapping[TopicPartition, int]) -> None:
        def topic(api: Api, partition: TopicPartition, offset: int) -> Message:
            one = api.make_request(
                "TxnOffsetCommitRequestPartition",
                partition_index=partition.partition,
                committed_offset=offset,
                committed_metadata="",
            )
            return api.make_request("TxnOffsetCommitRequestTopic", name=partition.topic, partitions=(one,))

        response = await group.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            lambda api: api.request(
                transactional_id=self.transactional_id,
                group_id=group.key,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                topics=tuple(topic(api, *each) for each in offsets.items()),
            ),
            at_most=OFFSETS_AT_MOST[self.version],
        )
        for answered in response.topics:
            for part in answered.partitions:
                group.check(part.error_code, f"offsets of {self.transactional_id}")

    # ── the end ─────────────────────────────────────────────────────────────────────────────────
    async def end(self, *, commit: bool) -> None:
        """End the transaction. Raises KafkaError; if ``end_is_uncertain`` is set, the outcome is unknown."""

        def make(api: Api) -> Message:
            return api.request(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                committed=commit,
            )

        async def attempt() -> Message:
            before, self.end_is_uncertain = self.end_is_uncertain, True
            try:
                response = await self._ask_once(ApiKey.END_TXN, make, END_AT_MOST[self.version])
            except KafkaError as error:
                if error.code in NOT_CARRIED_OUT:
                    self.end_is_uncertain = before
                raise
            self.end_is_uncertain = False
            self.needs_new_epoch |= before
            return response

        response = await self.client.retry(attempt, API_TIMEOUT_MS)
        if self.version == V2:
            self._take(response.producer_id, response.producer_epoch)

    # ── the coordinator ─────────────────────────────────────────────────────────────────────────
    async def _ask(
        self,
        api_key: int,
        make: MakeRequest,
        at_most: int | None = None,
        error_of: Callable[[Message], ErrorCode] = lambda response: response.error_code,
    ) -> Message:
        return await self.client.retry(
            lambda: self._ask_once(api_key, make, at_most, error_of), API_TIMEOUT_MS
        )

    async def _ask_once(
        self,
        api_key: int,
        make: MakeRequest,
        at_most: int | None = None,
        error_of: Callable[[Message], ErrorCode] = lambda response: response.error_code,
    ) -> Message:
        response = await self.coordinator.ask(api_key, make, at_most=at_most)
        self.coordinator.check(error_of(response), f"API key {api_key}")
        return response


# Base class of transactional programs: the incarnations of one transactional id, and their ledger.
#
# An incarnation is the time from one InitProducerId to the next restart of the producer.

RETRY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPlan:
    version: int
    """The ``transaction.version`` whose request versions the producers use: 1 or 2."""
    timeout_ms: int
    """The transaction timeout, after which the coordinator aborts an open transaction."""
    gap_s: float
    """The average pause between two transactions of a program."""
    first_epoch: int = 0
    """The first epoch of new producer ids; near the largest one, a producer id is soon exhausted."""

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the brokers."""
        return {
            "transaction.state.log.num.partitions": "2",
            "offsets.topic.num.partitions": "2",
            "group.initial.rebalance.delay.ms": "500",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        }


class TransactionalProgram(Program):
    """A process with one transactional id. ``violations`` has the responses that no broker may give."""

    def __init__(
        self, name: str, host: Host, bootstrap_servers: str, plan: TransactionPlan, ledger: TransactionLedger
    ) -> None:
        super().__init__(name, host)
        self.plan = plan
        self.ledger = ledger
        self.done: Counter[str] = Counter()
        """Number of its actions, by name."""
        self.violations: list[str] = []
        self.incarnations = 0
        self._producer_id: int | None = None
        """The one that it had last."""
        self._bootstrap_servers = bootstrap_servers

    async def _main(self, runtime: Runtime) -> None:
        while not self._is_finished():
            self.incarnations += 1
            try:
                await self._incarnation(runtime)
            except KafkaError as error:
                self.error_counts[error.code.name] += 1
                await asyncio.sleep(RETRY_S)

    def _is_finished(self) -> bool:
        return self._stopping

    @abstractmethod
    async def _incarnation(self, runtime: Runtime) -> None:
        """Run the producer once: from InitProducerId to its next restart. Raises KafkaError."""

    def _client(self, runtime: Runtime) -> Client:
        return make_client(runtime, self._bootstrap_servers, self.name)

    def _session(self, client: Client) -> TransactionalSession:
        return TransactionalSession(
            client, self.name, timeout_ms=self.plan.timeout_ms, version=self.plan.version
        )

    def _begin(self, session: TransactionalSession) -> LoggedTransaction:
        session.begin()
        if self._producer_id not in (None, session.producer_id):
            self.done["producer ids rotated"] += 1
        self._producer_id = session.producer_id
        return self.ledger.begin(self.name, session.producer_id, session.producer_epoch)

    async def _end(
        self, session: TransactionalSession, transaction: LoggedTransaction, *, commit: bool
    ) -> None:
        """End the transaction and record its fate in the ledger. Raises KafkaError."""
        if commit:
            transaction.fate = Fate.UNKNOWN
        try:
            await session.end(commit=commit)
        except KafkaError:
            if commit and not session.end_is_uncertain:
                transaction.fate = Fate.ABORTED
            raise
        if commit:
            transaction.fate = Fate.COMMITTED
        self.done["committed" if commit else "aborted"] += 1

    async def _beside(
        self, rival: Coroutine[object, object, None], zombie: Coroutine[object, object, None]
    ) -> None:
        """Run both concurrently; count the zombie's KafkaError, and raise the rival's."""
        outcomes = await asyncio.gather(rival, zombie, return_exceptions=True)
        for error in outcomes:
            if isinstance(error, BaseException) and not isinstance(error, KafkaError):
                raise error
        refused = outcomes[1]
        if isinstance(refused, KafkaError):
            self.error_counts[refused.code.name] += 1
            self.done["zombies stopped"] += 1
        if isinstance(outcomes[0], KafkaError):
            raise outcomes[0]


# A program that writes to several partitions in each transaction and ends it in correct and faulty ways.
#
# It commits or aborts; leaves the transaction open and starts again; waits until the transaction has timed
# out and then tries to commit it; continues as a zombie while another producer uses its transactional id; or
# sends a batch after the end of its transaction. While a transaction is open, it reads records of others as a
# read_committed consumer.

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
