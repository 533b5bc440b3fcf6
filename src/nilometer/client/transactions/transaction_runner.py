"""Sends the transaction manager's requests to the coordinators, one after the other.

It finds the coordinators and retries with back-off; the manager interprets the responses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import assert_never

from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_exchange import CoordinatorType
from nilometer.client.network.backoff import Backoff
from nilometer.client.network.client import STALE_METADATA, Client
from nilometer.client.network.jobs import Jobs
from nilometer.client.transactions.transaction_exchange import (
    ADD_PARTITIONS_OF_CLIENTS_MAX,
    COMMIT_OFFSETS_OF_VERSION_1_MAX,
    END_OF_VERSION_1_MAX,
    PREVIOUS_END_PAUSE_MS,
    add_offsets_request,
    add_partitions_request,
    at_most,
    commit_offsets_request,
    end_request,
    init_request,
    read_identity,
    read_offsets_committed,
    read_partitions_added,
    worst,
)
from nilometer.client.transactions.transaction_manager import TransactionManager
from nilometer.client.transactions.transaction_steps import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    EndTransaction,
    InitProducerId,
    Step,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

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
            at_most=at_most(step.version, COMMIT_OFFSETS_OF_VERSION_1_MAX),
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
