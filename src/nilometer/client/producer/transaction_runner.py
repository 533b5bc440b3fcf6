"""Sends the transaction manager's requests to the coordinators, one after the other: how they are built, and
what their responses mean, in any version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import assert_never

from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_exchange import CoordinatorType, MemberIdentity
from nilometer.client.network.client import STALE_METADATA, Client, Jobs
from nilometer.client.network.cluster_metadata import TopicPartition, numbers_by_topic
from nilometer.client.network.connection_pool import Backoff
from nilometer.client.producer.transaction_manager import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    EndTransaction,
    InitProducerId,
    ProducerIdentity,
    Step,
    TransactionManager,
)
from nilometer.transactions.transaction import EPOCH_BUMP_VERSION
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError, UnsupportedVersion

# Builds the requests of a transactional producer and reads their responses, in any version. Pure.

NEXT_EPOCH_SINCE = 3
"""The first version of InitProducerId that can request the next epoch of a producer id (KIP-360)."""
ADD_PARTITIONS_OF_CLIENTS_MAX = 3
"""The newest version of AddPartitionsToTxn for clients; only brokers send later ones."""
PRODUCE_OF_VERSION_1_MAX = 11
"""The newest version of Produce without the implicit adding of partitions to the transaction (KIP-890)."""
COMMIT_OFFSETS_OF_VERSION_1_MAX = 4
COMMIT_OFFSETS_BY_NAME_MAX = 5
"""Later versions of TxnOffsetCommit have topic ids in place of names (KIP-1319)."""
END_OF_VERSION_1_MAX = 4
PREVIOUS_END_PAUSE_MS = 20
"""The longest pause before a retry after CONCURRENT_TRANSACTIONS: the markers of the previous transaction are
still being written, which takes less time than what other retriable errors wait for."""
MEMBER_SINCE = 3
"""The first version of TxnOffsetCommit with the group member and its generation, for fencing (KIP-447)."""


def init_request(api: Api, manager: TransactionManager, step: InitProducerId) -> Message:
    """Build the InitProducerId request. Raises UnsupportedVersion if it is for the next epoch of a known
    producer id and the broker does not support that."""
    if step.identity.is_known and api.version < NEXT_EPOCH_SINCE:
        raise UnsupportedVersion(api.key, api.version)
    return api.request(
        transactional_id=manager.transactional_id,
        transaction_timeout_ms=manager.timeout_ms,
        producer_id=step.identity.producer_id,
        producer_epoch=step.identity.producer_epoch,
    )


def add_partitions_request(api: Api, transactional_id: str, step: AddPartitions) -> Message:
    return api.request(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=step.identity.producer_id,
        v3_and_below_producer_epoch=step.identity.producer_epoch,
        v3_and_below_topics=tuple(
            api.make_request("AddPartitionsToTxnTopic", name=topic, partitions=tuple(numbers))
            for topic, numbers in numbers_by_topic(step.partitions).items()
        ),
    )


def read_partitions_added(response: Message) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, part.partition_index): part.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    }


def add_offsets_request(api: Api, transactional_id: str, step: AddOffsets) -> Message:
    return api.request(
        transactional_id=transactional_id,
        producer_id=step.identity.producer_id,
        producer_epoch=step.identity.producer_epoch,
        group_id=step.pending.group.group_id,
    )


def commit_offsets_request(api: Api, transactional_id: str, step: CommitOffsets) -> Message:
    """Build the TxnOffsetCommit request. Raises UnsupportedVersion if the offsets come from a group member
    and the broker cannot fence members."""
    member = step.pending.group.identity
    if api.version < MEMBER_SINCE and member != MemberIdentity():
        raise UnsupportedVersion(api.key, api.version)
    by_topic: dict[str, list[Message]] = {}
    for (topic, number), one in step.offsets.items():
        part = api.make_request(
            "TxnOffsetCommitRequestPartition",
            partition_index=number,
            committed_offset=one.offset,
            committed_leader_epoch=one.leader_epoch,
            committed_metadata=one.metadata,
        )
        by_topic.setdefault(topic, []).append(part)
    return api.request(
        transactional_id=transactional_id,
        group_id=step.pending.group.group_id,
        producer_id=step.identity.producer_id,
        producer_epoch=step.identity.producer_epoch,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=tuple(
            api.make_request("TxnOffsetCommitRequestTopic", name=topic, partitions=tuple(parts))
            for topic, parts in by_topic.items()
        ),
    )


def read_offsets_committed(response: Message) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, part.partition_index): part.error_code
        for topic in response.topics
        for part in topic.partitions
    }


def end_request(api: Api, transactional_id: str, step: EndTransaction) -> Message:
    return api.request(
        transactional_id=transactional_id,
        producer_id=step.identity.producer_id,
        producer_epoch=step.identity.producer_epoch,
        committed=step.committed,
    )


def read_identity(response: Message) -> ProducerIdentity | None:
    """Return the producer id and epoch in a response of InitProducerId or EndTxn; None for EndTxn before
    version 5, which has none."""
    if not hasattr(response, "producer_id"):
        return None
    return ProducerIdentity(response.producer_id, response.producer_epoch)


def at_most(version: int, of_version_1: int) -> int | None:
    """Return the newest request version for a transaction with ``transaction.version`` ``version``:
    ``of_version_1`` for versions 0 and 1, None (any request version) for later ones."""
    return None if version >= EPOCH_BUMP_VERSION else of_version_1


def worst(codes: Mapping[TopicPartition, ErrorCode]) -> tuple[TopicPartition, ErrorCode] | None:
    """Return one failed partition with its error, or None if none failed.

    Errors that are not retriable come first. OPERATION_NOT_ATTEMPTED does not count: it only follows from
    another partition's error.
    """
    failed = [
        (partition, code)
        for partition, code in codes.items()
        if code not in (ErrorCode.none, ErrorCode.operation_not_attempted)
    ]
    return min(failed, key=lambda one: one[1].retriable, default=None)


# Sends the transaction manager's requests to the coordinators, one after the other.
#
# It finds the coordinators and retries with back-off; the manager interprets the responses.

logger = logging.getLogger("nilometer.client.transactions.transaction_runner")

VERSION_FEATURE = "transaction.version"


class TransactionRunner:
    def __init__(
        self,
        client: Client,
        manager: TransactionManager,
        is_all_sent: Callable[[], bool],
        on_changed: Callable[[], None],
    ) -> None:
        """``is_all_sent`` returns whether no batch is open, queued or in flight; ``on_changed`` is called
        after every response and every failed attempt."""
        self._client = client
        self._manager = manager
        self._is_all_sent = is_all_sent
        self._on_changed = on_changed
        settings = client.settings
        self._backoff = Backoff(
            settings.integer("retry.backoff.ms"), settings.integer("retry.backoff.max.ms")
        )
        self._coordinator = Coordinator(client, manager.transactional_id, CoordinatorType.TRANSACTION)
        self._groups: dict[str, Coordinator] = {}
        self._jobs = Jobs("transaction", self.wake)

    def wake(self) -> None:
        """Start to send requests if there are any; call it after every change of the manager's state."""
        if self._next_step() is not None:
            self._jobs.start("steps", self._run)

    async def close(self) -> None:
        await self._jobs.close()

    def _next_step(self) -> Step | None:
        return self._manager.next_step(all_sent=self._is_all_sent())

    async def _run(self) -> None:
        failures = 0
        while (step := self._next_step()) is not None:
            self._manager.on_asking(step)
            try:
                await self._ask(step)
                failures = 0
            except KafkaError as error:
                failures += 1
                await self._on_failed(step, error, failures)
            self._on_changed()

    async def _on_failed(self, step: Step, error: KafkaError, failures: int) -> None:
        if not self._manager.on_step_failed(step, error.code, error.message):
            logger.info("Transactional id %s: %s", self._manager.transactional_id, error)
            return
        if error.code in STALE_METADATA:
            self._client.request_refresh()
        delay_ms = self._backoff.delay_ms(failures, self._client.runtime.entropy)
        if error.code == ErrorCode.concurrent_transactions:
            delay_ms = min(delay_ms, PREVIOUS_END_PAUSE_MS)
        await asyncio.sleep(delay_ms / 1000)

    async def _ask(self, step: Step) -> None:
        """Send one request and give its response to the manager. Raises KafkaError if it failed."""
        match step:
            case InitProducerId():
                await self._initialize(step)
            case AddPartitions():
                await self._add_partitions(step)
            case AddOffsets():
                await self._add_offsets(step)
            case CommitOffsets():
                await self._commit_offsets(step)
            case EndTransaction():
                await self._end(step)
            case _:
                assert_never(step)

    async def _initialize(self, step: InitProducerId) -> None:
        response = await self._coordinator.ask(
            ApiKey.INIT_PRODUCER_ID, lambda api: init_request(api, self._manager, step)
        )
        self._coordinator.check(response.error_code, "InitProducerId")
        identity = read_identity(response)
        assert identity is not None
        self._manager.on_initialized(identity, self._cluster_version())

    async def _add_partitions(self, step: AddPartitions) -> None:
        response = await self._coordinator.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            lambda api: add_partitions_request(api, self._manager.transactional_id, step),
            at_most=ADD_PARTITIONS_OF_CLIENTS_MAX,
        )
        failed = worst(read_partitions_added(response))
        if failed is not None:
            self._coordinator.check(failed[1], f"adding {failed[0]} to the transaction")
        self._manager.on_partitions_added(step.partitions)

    async def _add_offsets(self, step: AddOffsets) -> None:
        response = await self._coordinator.ask(
            ApiKey.ADD_OFFSETS_TO_TXN,
            lambda api: add_offsets_request(api, self._manager.transactional_id, step),
        )
        what = f"adding the offsets of group {step.pending.group.group_id} to the transaction"
        self._coordinator.check(response.error_code, what)
        self._manager.on_group_added(step.pending)

    async def _commit_offsets(self, step: CommitOffsets) -> None:
        group_id = step.pending.group.group_id
        coordinator = self._groups.setdefault(group_id, Coordinator(self._client, group_id))
        response = await coordinator.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            lambda api: commit_offsets_request(api, self._manager.transactional_id, step),
            at_most=at_most(step.version, COMMIT_OFFSETS_OF_VERSION_1_MAX) or COMMIT_OFFSETS_BY_NAME_MAX,
        )
        codes = read_offsets_committed(response)
        done = [partition for partition, code in codes.items() if code == ErrorCode.none]
        self._manager.on_offsets_committed(step.pending, done)
        failed = worst(codes)
        if failed is not None:
            coordinator.check(failed[1], f"offset of {failed[0]} in the transaction")
        if step.pending.left:
            reason = f"the response lacks {', '.join(map(str, step.pending.left))}"
            raise KafkaError(ErrorCode.unknown_server_error, reason)

    async def _end(self, step: EndTransaction) -> None:
        if step.is_empty:
            self._manager.on_ended(None, self._cluster_version())
            return
        response = await self._coordinator.ask(
            ApiKey.END_TXN,
            lambda api: end_request(api, self._manager.transactional_id, step),
            at_most=at_most(step.version, END_OF_VERSION_1_MAX),
        )
        what = "committing the transaction" if step.committed else "aborting the transaction"
        self._coordinator.check(response.error_code, what)
        self._manager.on_ended(read_identity(response), self._cluster_version())

    def _cluster_version(self) -> int:
        return self._client.connections.features.level(VERSION_FEATURE)
