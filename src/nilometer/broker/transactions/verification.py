"""Verifies with the transaction coordinator, before the first batch of a transaction is appended to a
partition, that the partition is part of the transaction.

Without that, a batch that was delayed until after its transaction's end would open a transaction that no
coordinator knows, and hold back every ``read_committed`` consumer (KIP-890, E-38). For producers that know
``transaction.version`` 2 the same request adds the partition.

The transaction may end between the coordinator's result and the append. A :class:`Guard` detects this: the
marker has changed the producer's state in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from nilometer.broker.control.broker_peers import PeerConnections
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.transactions.transaction_coordinator import TransactionCoordinator
from nilometer.cluster.states import TRANSACTION_STATE_TOPIC
from nilometer.runtime import Clock
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import NO_OFFSET, ProducerStateEntry
from nilometer.transactions.requests import (
    AddPartitions,
    AddPartitionsResult,
    VerifyPartitions,
    VerifyPartitionsResult,
)
from nilometer.transactions.transaction import EPOCH_BUMP_VERSION
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger("nilometer.broker.transactions")

_RETRY = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.network_exception,
)

Errors = Mapping[TopicPartition, ErrorCode]


class Asker(NamedTuple):
    """The abilities of the producer, from the version of its request."""

    knows_abortable: bool
    """Whether it knows the error TRANSACTION_ABORTABLE."""
    adds: bool
    """Whether its requests add their partitions to the transaction (``transaction.version`` 2), so that it
    sends no AddPartitionsToTxn."""


class Guard(msgspec.Struct, frozen=True):
    """A partition whose batch waits for the coordinator, and the producer's state in its log at the start of
    the wait (``known``)."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    known: ProducerStateEntry | None
    adds: bool
    """As :attr:`Asker.adds`."""

    @property
    def name(self) -> TopicPartition:
        return self.partition.log.topic_partition

    @property
    def is_intact(self) -> bool:
        """Whether the transaction has not ended since the guard was made.

        Other batches of it may have been appended. So may, if every end bumps the epoch, the marker of the
        producer's previous transaction: the end of this one would have left a higher epoch.
        """
        now = _known(self.partition, self.producer_id)
        if now is self.known or now is None:
            return now is self.known
        is_open = now.current_txn_first_offset != NO_OFFSET and now.producer_epoch == self.producer_epoch
        return is_open or (self.adds and now.producer_epoch <= self.producer_epoch)


class VerifiedPartitions:
    """The coordinator's result for a request's partitions, checked against the state of each partition now.

    Meanwhile a partition may have been hosted again or for the first time. And a transaction that was open in
    a partition, which therefore needed no guard, may have ended.
    """

    def __init__(
        self,
        verification: TransactionVerification,
        guards: Sequence[Guard],
        errors: Errors,
        asker: Asker,
    ) -> None:
        self._verification = verification
        self._guards = {guard.name: guard for guard in guards}
        self._errors = errors
        self._asker = asker

    def error(self, partition: Partition, producer_id: int, producer_epoch: int) -> ErrorCode:
        """Return the error if ``partition`` must not take the producer's batch; else ``none``."""
        name = partition.log.topic_partition
        guard = self._guards.get(name)
        if guard is None:
            now = self._verification.guard(partition, producer_id, producer_epoch, self._asker)
            return ErrorCode.none if now is None else ErrorCode.not_leader_or_follower
        if guard.partition is not partition:
            return ErrorCode.not_leader_or_follower
        if self._errors[name] is not ErrorCode.none:
            return self._errors[name]
        return ErrorCode.none if guard.is_intact else ErrorCode.invalid_txn_state

    def check(self, partition: Partition, producer_id: int, producer_epoch: int) -> None:
        """Raise KafkaError if ``partition`` must not take the producer's batch; see :meth:`error`."""
        if (error := self.error(partition, producer_id, producer_epoch)) is not ErrorCode.none:
            raise KafkaError(error, _why(error, partition, producer_id, producer_epoch))


class TransactionVerification:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        metadata: MetadataLog,
        coordinator: TransactionCoordinator,
        connections: PeerConnections,
    ) -> None:
        self._broker_id = config.node_id
        self._verifies = config.boolean("transaction.partition.verification.enable")
        self._retry_ms = config.integer("add.partitions.to.txn.retry.backoff.ms")
        self._retry_max_ms = config.integer("add.partitions.to.txn.retry.backoff.max.ms")
        self._clock = clock
        self._metadata = metadata
        self._coordinator = coordinator
        self._connections = connections

    def guard(
        self, partition: Partition, producer_id: int, producer_epoch: int, asker: Asker
    ) -> Guard | None:
        """Return a guard if the producer's batch in ``partition`` must be verified first.

        None if its transaction is open in the partition already, or verification is disabled.
        """
        if not (self._verifies or asker.adds):
            return None
        known = _known(partition, producer_id)
        if (
            known is not None
            and known.current_txn_first_offset != NO_OFFSET
            and known.producer_epoch == producer_epoch
        ):
            return None
        return Guard(partition, producer_id, producer_epoch, known, asker.adds)

    async def verify(
        self, transactional_id: str, guards: Sequence[Guard], asker: Asker
    ) -> VerifiedPartitions:
        """Verify the guards' partitions with the coordinator, or add them to the transaction if
        ``asker.adds``; return the result, which decides about the batches."""
        errors = await self._verify(transactional_id, guards, asker)
        return VerifiedPartitions(self, guards, errors, asker)

    async def _verify(self, transactional_id: str, guards: Sequence[Guard], asker: Asker) -> Errors:
        """Return, by partition, the error for the producer."""
        identities = {(guard.producer_id, guard.producer_epoch) for guard in guards}
        if len(identities) > 1:
            return {guard.name: ErrorCode.invalid_producer_id_mapping for guard in guards}
        give_up_ms = self._clock.monotonic_ms() + self._retry_max_ms
        answered = await self._ask(transactional_id, guards, adds=asker.adds)
        while asker.adds and ErrorCode.concurrent_transactions in answered.values():
            # The producer's previous transaction has ended, and its markers are being written.
            if self._clock.monotonic_ms() + self._retry_ms > give_up_ms:
                break
            await asyncio.sleep(self._retry_ms / 1000)
            answered = await self._ask(transactional_id, guards, adds=True)
        return {name: _error_for(error, asker) for name, error in answered.items()}

    async def _ask(self, transactional_id: str, guards: Sequence[Guard], *, adds: bool) -> Errors:
        leader = self._metadata.image.partition(
            TRANSACTION_STATE_TOPIC, self._coordinator.partition_for(transactional_id)
        )
        if leader is None or not leader.has_leader:
            return {guard.name: ErrorCode.coordinator_not_available for guard in guards}
        if leader.leader == self._broker_id:
            return await self._ask_here(transactional_id, guards, adds=adds)
        try:
            connection = await self._connections.to(int(leader.leader))
            response = await connection.request(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                lambda api: _request(api, transactional_id, guards, adds=adds),
            )
        except KafkaError as refused:
            logger.info("No response from the transaction coordinator of %s: %s", transactional_id, refused)
            return {guard.name: ErrorCode.network_exception for guard in guards}
        return _errors(response, guards)

    async def _ask_here(self, transactional_id: str, guards: Sequence[Guard], *, adds: bool) -> Errors:
        names = tuple(guard.name for guard in guards)
        producer_id, producer_epoch = guards[0].producer_id, guards[0].producer_epoch
        if not adds:
            verified = await self._coordinator.answer_for_id(
                VerifyPartitions(
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    partitions=names,
                )
            )
            assert isinstance(verified, VerifyPartitionsResult)
            return dict(verified.errors)
        added = await self._coordinator.answer_for_id(
            AddPartitions(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partitions=frozenset(names),
                version=EPOCH_BUMP_VERSION,
            )
        )
        assert isinstance(added, AddPartitionsResult)
        return dict.fromkeys(names, added.error_code)


def _known(partition: Partition, producer_id: int) -> ProducerStateEntry | None:
    return partition.log.producers.producers.get(producer_id)


def _error_for(error: ErrorCode, asker: Asker) -> ErrorCode:
    """Translate the coordinator's error to one to which a producer of that version reacts correctly."""
    if error is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if error is ErrorCode.transaction_abortable and not asker.knows_abortable:
        return ErrorCode.invalid_txn_state
    if error in _RETRY or (error is ErrorCode.concurrent_transactions and not asker.adds):
        return ErrorCode.not_enough_replicas
    return error


def _why(error: ErrorCode, partition: Partition, producer_id: int, producer_epoch: int) -> str:
    match error:
        case ErrorCode.invalid_producer_id_mapping:
            return f"the transactional id does not have producer id {producer_id}"
        case ErrorCode.invalid_producer_epoch:
            return (
                f"producer {producer_id} does not have epoch {producer_epoch} any more: "
                "another producer uses its transactional id, or its transaction timed out"
            )
        case ErrorCode.concurrent_transactions:
            return f"the previous transaction of producer {producer_id} has not ended yet; try again"
        case ErrorCode.not_enough_replicas:
            return (
                f"the transaction coordinator could not confirm that {partition} is part of the transaction; "
                "try again"
            )
        case ErrorCode.not_leader_or_follower:
            return f"{partition} changed while the transaction coordinator was asked; try again"
        case _:
            return f"{partition} is not part of the transaction, or the transaction has ended"


def _request(api: Api, transactional_id: str, guards: Sequence[Guard], *, adds: bool) -> Message:
    topics: dict[str, list[int]] = {}
    for guard in guards:
        topics.setdefault(guard.name.topic, []).append(guard.name.partition)
    return api.request(
        transactions=(
            api.make_request(
                "AddPartitionsToTxnTransaction",
                transactional_id=transactional_id,
                producer_id=guards[0].producer_id,
                producer_epoch=guards[0].producer_epoch,
                verify_only=not adds,
                topics=tuple(
                    api.make_request("AddPartitionsToTxnTopic", name=name, partitions=tuple(indexes))
                    for name, indexes in topics.items()
                ),
            ),
        )
    )


def _errors(response: Message, guards: Sequence[Guard]) -> Errors:
    if response.error_code:
        return {guard.name: ErrorCode(response.error_code) for guard in guards}
    found = {
        TopicPartition(topic.name, result.partition_index): ErrorCode(result.partition_error_code)
        for transaction in response.results_by_transaction
        for topic in transaction.topic_results
        for result in topic.results_by_partition
    }
    return {guard.name: found.get(guard.name, ErrorCode.network_exception) for guard in guards}
