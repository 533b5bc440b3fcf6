"""The admin client for transactions; ``nilometer transaction`` uses it.

Lists are requested from all brokers, descriptions from the coordinator of each transactional id, producers
and markers from the leader of each partition. An operation on several ids or partitions returns one outcome
for each: the result, or its KafkaError.

A *hanging* transaction is open in a partition although its coordinator does not have it. It is never ended,
and consumers with ``isolation.level=read_committed`` cannot read past its first offset (KIP-664).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nilometer.client.admin.group_admin import partitions_of
from nilometer.client.admin.requests import AdminRequests
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_exchange import CoordinatorType
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import milliseconds_since_epoch
from nilometer.wire.errors import ErrorCode, KafkaError, UnsupportedVersion
from nilometer.wire.messages import Api, Message, milliseconds

K = TypeVar("K")
T = TypeVar("T")

WITHOUT_TRANSACTION = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
"""States without an open transaction. Coordinators apply the duration filter to their ids as if the
transactions had begun in 1970, so the client removes them."""
DURATION_SINCE, PATTERN_SINCE = 1, 2
"""The first versions of ListTransactions that can filter by duration and by pattern."""
FENCING_TIMEOUT_MS = 60_000
"""The time-out in the InitProducerId of :meth:`TransactionAdmin.fence`; no transaction is opened with it."""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    """Milliseconds since 1970; None while no transaction is open."""
    partitions: tuple[TopicPartition, ...]
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer's state in a partition, as its leader returns it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    start_offset: int | None
    """The first offset of its open transaction; None if none is open."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    partition: TopicPartition
    producer: ActiveProducer

    @property
    def key(self) -> tuple[TopicPartition, int, int | None]:
        """What tells it from every other transaction: partition, producer id and first offset."""
        return self.partition, self.producer.producer_id, self.producer.start_offset


class TransactionAdmin(AdminRequests):
    async def list_transactions(
        self,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        *,
        longer_than_ms: int | None = None,
        pattern: str = "",
    ) -> list[TransactionListing]:
        """Query all coordinators; return the transactions that match every given filter, sorted by id.

        ``longer_than_ms``: only transactions that have been open for longer. ``pattern``: a regular
        expression (RE2) of whole ids. Raises KafkaError.
        """

        def make(api: Api) -> Message:
            needed = PATTERN_SINCE if pattern else DURATION_SINCE if longer_than_ms is not None else 0
            if api.version < needed:
                raise UnsupportedVersion(api.key, api.version)
            return api.request(
                state_filters=tuple(states),
                producer_id_filters=tuple(producer_ids),
                duration_filter=-1 if longer_than_ms is None else longer_than_ms,
                transactional_id_pattern=pattern or None,
            )

        async def ask(broker_id: int) -> list[TransactionListing]:
            response = await self._client.send_to(broker_id, ApiKey.LIST_TRANSACTIONS, make)
            if response.error_code != ErrorCode.none:
                raise KafkaError(response.error_code, f"listing the transactions of broker {broker_id}")
            if response.unknown_state_filters:
                names = ", ".join(response.unknown_state_filters)
                raise KafkaError(ErrorCode.invalid_request, f"no transaction state has the name {names}")
            return [
                TransactionListing(one.transactional_id, one.producer_id, one.transaction_state, broker_id)
                for one in response.transaction_states
            ]

        listed = {one.transactional_id: one for one in await self._all(ask)}
        return [
            one
            for _, one in sorted(listed.items())
            if longer_than_ms is None or one.state not in WITHOUT_TRANSACTION
        ]

    async def describe(self, ids: Iterable[str]) -> dict[str, TransactionDescription | KafkaError]:
        return await _each(ids, self._describe)

    async def producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ActiveProducer] | KafkaError]:
        """Return the active producers of each partition, from its leader, sorted by producer id."""
        wanted = list(partitions)
        if self._client.watch_topics(sorted({partition.topic for partition in wanted})):
            await self._client.refresh()
        return await _each(wanted, self._producers)

    async def abort(self, partition: TopicPartition, producer: ActiveProducer) -> None:
        """Write an abort marker for a transaction that is open in ``partition``. Raises KafkaError.

        Use it only for hanging transactions; the coordinator ends all others.
        """

        def make(api: Api) -> Message:
            topic = api.make_request(
                "WritableTxnMarkerTopic", name=partition.topic, partition_indexes=(partition.partition,)
            )
            marker = api.make_request(
                "WritableTxnMarker",
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transaction_result=False,
                coordinator_epoch=max(producer.coordinator_epoch, 0),
                topics=(topic,),
            )
            return api.request(markers=(marker,))

        async def ask() -> None:
            response = await self._client.send_to_leader(partition, ApiKey.WRITE_TXN_MARKERS, make)
            code: ErrorCode = response.markers[0].topics[0].partitions[0].error_code
            if code != ErrorCode.none:
                raise KafkaError(code, f"abort marker for producer {producer.producer_id} in {partition}")

        await self._client.retry(ask, self._timeout_ms)

    async def fence(self, transactional_id: str) -> None:
        """Fence the producer of a transactional id; the coordinator aborts its open transaction.

        Raises KafkaError, with TRANSACTIONAL_ID_NOT_FOUND if the id does not exist.
        """
        await self._describe(transactional_id)  # raises if there is no such id: InitProducerId creates it
        coordinator = self._coordinator(transactional_id)

        async def ask() -> None:
            response = await coordinator.ask(
                ApiKey.INIT_PRODUCER_ID,
                lambda api: api.request(
                    transactional_id=transactional_id,
                    transaction_timeout_ms=FENCING_TIMEOUT_MS,
                    producer_id=-1,
                    producer_epoch=-1,
                ),
            )
            coordinator.check(response.error_code, "fencing its producer")

        await self._client.retry(ask, self._timeout_ms)

    async def find_hanging(
        self, partitions: Iterable[TopicPartition], older_than_ms: int
    ) -> tuple[list[OpenTransaction], dict[TopicPartition, KafkaError]]:
        """Return the hanging transactions in ``partitions``, and an error for each partition that failed.

        Transactions whose last record is at most ``older_than_ms`` old are left out: their coordinator may
        not have them yet. The leaders are asked before the coordinators and once more after them. Raises
        KafkaError if a request to a coordinator failed.
        """
        found, problems = await self._open_for_longer(partitions, older_than_ms)
        unknown = {one.key: one for one in await self._unknown_to_coordinators(found)}
        if not unknown:
            return [], problems
        # A coordinator that was asked after the end of a transaction does not have it, so ask again.
        asked_again = {one.partition for one in unknown.values()}
        still_open, more_problems = await self._open_for_longer(sorted(asked_again), older_than_ms)
        return [one for one in still_open if one.key in unknown], problems | more_problems

    async def _open_for_longer(
        self, partitions: Iterable[TopicPartition], older_than_ms: int
    ) -> tuple[list[OpenTransaction], dict[TopicPartition, KafkaError]]:
        now_ms = self._client.runtime.clock.wall_ms()
        found: list[OpenTransaction] = []
        problems: dict[TopicPartition, KafkaError] = {}
        for partition, producers in (await self.producers(partitions)).items():
            if isinstance(producers, KafkaError):
                problems[partition] = producers
                continue
            found += [
                OpenTransaction(partition, producer)
                for producer in producers
                if producer.start_offset is not None and now_ms - producer.last_timestamp_ms > older_than_ms
            ]
        return found, problems

    async def _unknown_to_coordinators(self, candidates: Sequence[OpenTransaction]) -> list[OpenTransaction]:
        if not candidates:
            return []
        producer_ids = sorted({one.producer.producer_id for one in candidates})
        ids = {
            one.producer_id: one.transactional_id
            for one in await self.list_transactions(producer_ids=producer_ids)
        }
        described = await self.describe(sorted(ids.values()))
        known: set[tuple[int, TopicPartition]] = set()
        for one in described.values():
            if isinstance(one, TransactionDescription):
                known.update((one.producer_id, partition) for partition in one.partitions)
            elif one.code != ErrorCode.transactional_id_not_found:
                raise one
        return [one for one in candidates if (one.producer.producer_id, one.partition) not in known]

    async def _describe(self, transactional_id: str) -> TransactionDescription:
        coordinator = self._coordinator(transactional_id)

        async def ask() -> TransactionDescription:
            response = await coordinator.ask(
                ApiKey.DESCRIBE_TRANSACTIONS, lambda api: api.request(transactional_ids=(transactional_id,))
            )
            one = response.transaction_states[0]
            coordinator.check(one.error_code, "describing its transaction")
            return _description(one, await coordinator.find())

        return await self._client.retry(ask, self._timeout_ms)

    async def _producers(self, partition: TopicPartition) -> list[ActiveProducer]:
        def make(api: Api) -> Message:
            topic = api.make_request(
                "TopicRequest", name=partition.topic, partition_indexes=(partition.partition,)
            )
            return api.request(topics=(topic,))

        async def ask() -> list[ActiveProducer]:
            response = await self._client.send_to_leader(partition, ApiKey.DESCRIBE_PRODUCERS, make)
            part = response.topics[0].partitions[0]
            if part.error_code != ErrorCode.none:
                raise KafkaError(part.error_code, part.error_message or str(partition))
            return sorted(map(_producer, part.active_producers), key=lambda one: one.producer_id)

        if self._client.metadata.partition_count(partition.topic) <= partition.partition:
            await partitions_of(self._client, partition.topic, [partition.partition], self._timeout_ms)
        return await self._client.retry(ask, self._timeout_ms)

    def _coordinator(self, transactional_id: str) -> Coordinator:
        return Coordinator(self._client, transactional_id, CoordinatorType.TRANSACTION)


def _description(state: Message, coordinator_id: int) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=state.transactional_id,
        state=state.transaction_state,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        timeout_ms=milliseconds(state.transaction_timeout),
        start_ms=milliseconds_since_epoch(state.transaction_start_time) or None,  # -1 is read as 0
        partitions=tuple(
            TopicPartition(topic.topic, number)
            for topic in state.topics
            for number in sorted(topic.partitions)
        ),
        coordinator_id=coordinator_id,
    )


def _producer(state: Message) -> ActiveProducer:
    start: int = state.current_txn_start_offset
    return ActiveProducer(
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        last_sequence=state.last_sequence,
        last_timestamp_ms=state.last_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        start_offset=start if start >= 0 else None,
    )


async def _each(keys: Iterable[K], work: Callable[[K], Awaitable[T]]) -> dict[K, T | KafkaError]:
    async def attempt(key: K) -> T | KafkaError:
        try:
            return await work(key)
        except KafkaError as error:
            return error

    wanted = list(dict.fromkeys(keys))
    return dict(zip(wanted, await asyncio.gather(*map(attempt, wanted)), strict=True))
