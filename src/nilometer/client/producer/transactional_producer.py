"""The transactional producer: all records and offsets of a transaction become visible, or none (SPEC P-5).

    async with TransactionalProducer(runtime, {..., "transactional.id": "x"}) as producer:
        await producer.begin()
        await producer.send("topic", b"value")
        await producer.send_offsets({partition: next_offset}, consumer.group_metadata())
        await producer.commit()

After an AbortableTransactionError call ``abort()`` and begin again. After a FatalTransactionError close the
producer; ProducerFenced is one: another producer with the same ``transactional.id`` has taken over.

A call that ends with REQUEST_TIMED_OUT continues in the background: make the same call again to wait for it.

This module checks the order of the application's calls and waits for their results. The transaction manager
holds the state, the runner sends the requests, the producer sends the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from nilometer.client.group.group_exchange import GroupMetadata, OffsetAndMetadata
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import Delivery
from nilometer.client.producer.partitioner import PartitionFunction
from nilometer.client.producer.producer import Headers, Producer
from nilometer.client.producer.producer_settings import PRODUCER_CONFIG_DEFINITION, ProducerConfig
from nilometer.client.producer.transaction_manager import (
    FatalTransactionError,
    ProducerState,
    TransactionManager,
)
from nilometer.client.producer.transaction_runner import TransactionRunner
from nilometer.client.settings import ClientSettings, GivenConfig
from nilometer.config import ConfigError
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

CLOSE_TIMEOUT_MS = 5_000
"""How long ``close()`` tries to abort an open transaction. After that the coordinator aborts it, once
``transaction.timeout.ms`` has passed."""


class TransactionalProducer:
    """Use as ``async with``: entering it calls ``init()``, leaving it aborts an open transaction."""

    def __init__(
        self, runtime: Runtime, config: GivenConfig, *, partitioner: PartitionFunction | None = None
    ) -> None:
        settings = ProducerConfig.of(ClientSettings(PRODUCER_CONFIG_DEFINITION, config))
        if settings.transactional_id is None:
            raise ConfigError(
                "transactional.id", "transactional.id must be given for a transactional producer"
            )
        self._manager = TransactionManager(settings.transactional_id, settings.transaction_timeout_ms)
        self._producer = Producer(
            runtime,
            config,
            partitioner=partitioner,
            transactions=self._manager,
            on_settled=self._on_settled,
        )
        self._max_block_ms = settings.max_block_ms
        self._runner: TransactionRunner | None = None
        self._changed = asyncio.Event()
        self._unfinished: str | None = None
        """The name of the call that timed out or still waits, and so must be made again."""
        self._closed = False

    async def __aenter__(self) -> TransactionalProducer:
        try:
            await self.start()
            await self.init()
        except BaseException:
            await self.close(timeout_ms=0)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not GeneratorExit:  # after GeneratorExit the coroutine must not await anything
            await self.close()

    async def start(self) -> None:
        """Connect to the cluster. Raises ConnectionLost when no bootstrap server responds."""
        await self._producer.start()
        self._runner = TransactionRunner(
            self._producer.client, self._manager, lambda: self._producer.is_all_settled, self._on_changed
        )

    async def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Try for at most ``timeout_ms`` to abort an open transaction (not at all if 0), then close."""
        if self._closed:
            return
        self._closed = True
        try:
            if timeout_ms > 0 and self._manager.state in (
                ProducerState.IN_TRANSACTION,
                ProducerState.ABORTABLE_ERROR,
            ):
                with suppress(KafkaError):  # the coordinator will abort it
                    await self._end("abort", timeout_ms)
        finally:
            if self._runner is not None:
                await self._runner.close()
            await self._producer.close(timeout_ms=0)

    @property
    def state(self) -> ProducerState:
        return self._manager.state

    @property
    def config(self) -> ProducerConfig:
        return self._producer.config

    @property
    def client(self) -> Client:
        return self._producer.client

    # --- transactions

    async def init(self, timeout_ms: int | None = None) -> None:
        """Get a producer id and epoch for the transactional id. Earlier producers with the same id are fenced
        and their open transactions aborted.

        Raises FatalTransactionError, and KafkaError with REQUEST_TIMED_OUT after ``timeout_ms`` (default:
        ``max.block.ms``).
        """
        await self._call(
            "init",
            self._manager.begin_init,
            lambda: self._manager.state is not ProducerState.INITIALIZING,
            timeout_ms,
        )

    async def begin(self) -> None:
        """Begin a transaction. Raises KafkaError (INVALID_TXN_STATE) if one is open."""
        self._check_unfinished("begin")
        self._manager.begin()

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Send a record as part of the transaction; parameters and result are those of ``Producer.send``.

        Raises AbortableTransactionError if an earlier record of the transaction failed.
        """
        self._manager.check_in_transaction("send")
        return await self._producer.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
        )

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group: GroupMetadata,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit offsets of a consumer group as part of the transaction.

        An offset is that of the next record to process. Get ``group`` from the consumer's
        ``group_metadata()`` before the records are processed: if the member has lost its partitions since
        then, the commit fails. Raises AbortableTransactionError, FatalTransactionError.
        """
        self._manager.check_in_transaction("send_offsets")
        if not offsets:
            return
        whole = {one: OffsetAndMetadata(at) if isinstance(at, int) else at for one, at in offsets.items()}
        pending = self._manager.add_offsets(group, whole)
        self._wake()
        await self._wait(lambda: pending.is_done, "send_offsets", timeout_ms)
        self._manager.raise_error()

    async def flush(self) -> None:
        """Send all buffered records now and wait until each is acknowledged or has failed."""
        await self._producer.flush()

    async def commit(self, timeout_ms: int | None = None) -> None:
        """Wait until all records are acknowledged, then commit the transaction.

        Raises AbortableTransactionError (nothing was committed: call ``abort()``), FatalTransactionError.
        """
        await self._end("commit", timeout_ms)

    async def abort(self, timeout_ms: int | None = None) -> None:
        """Abort the transaction; no ``read_committed`` consumer will see it. Raises FatalTransactionError."""
        await self._end("abort", timeout_ms)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None, None]:
        """Begin a transaction; commit it at the end of the block, or abort it if the block raises."""
        await self.begin()
        try:
            yield
            await self.commit()
        except FatalTransactionError:
            raise
        except BaseException:
            if self._manager.state in (ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE_ERROR):
                await self.abort()
            raise

    # --- helpers

    async def _end(self, call: str, timeout_ms: int | None) -> None:
        commit = call == "commit"
        ending = (ProducerState.COMMITTING, ProducerState.ABORTING, ProducerState.INITIALIZING)
        await self._call(
            call,
            lambda: self._manager.begin_end(commit=commit),
            lambda: self._manager.state not in ending,
            timeout_ms,
            flushes=True,
        )

    async def _call(
        self,
        name: str,
        begin: Callable[[], None],
        is_done: Callable[[], bool],
        timeout_ms: int | None,
        *,
        flushes: bool = False,
    ) -> None:
        """Call ``begin`` and wait until ``is_done()``.

        If the call of this ``name`` timed out before, only wait. ``flushes``: send all buffered records too.
        """
        self._check_unfinished(name)
        if self._unfinished is None:
            begin()
            self._unfinished = name
        self._wake()
        flush = asyncio.create_task(self._producer.flush()) if flushes else None
        try:
            await self._wait(is_done, name, timeout_ms)
        finally:
            if flush is not None:
                flush.cancel()
                await asyncio.gather(flush, return_exceptions=True)
        self._unfinished = None
        self._manager.raise_error()

    def _check_unfinished(self, name: str) -> None:
        if self._runner is None or (self._closed and name != "abort"):
            raise KafkaError(ErrorCode.network_exception, "the producer is not open: use it in `async with`")
        if self._unfinished not in (None, name):
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"{self._unfinished}() has not ended: call it again before {name}()",
            )

    async def _wait(self, is_done: Callable[[], bool], name: str, timeout_ms: int | None) -> None:
        """Wait until ``is_done()`` or an error is stored. Raises KafkaError with REQUEST_TIMED_OUT."""
        limit_ms = self._max_block_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                while self._manager.error is None and not is_done():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise KafkaError(
                ErrorCode.request_timed_out,
                f"{name}() has not ended within {limit_ms} ms; call it again to wait for it",
            ) from None

    def _wake(self) -> None:
        self._producer.wake()
        self._on_settled()

    def _on_settled(self) -> None:
        """Start the next request; called after a batch is resolved and after a partition's first record."""
        if self._runner is not None:
            self._runner.wake()
        self._changed.set()

    def _on_changed(self) -> None:
        """Wake the sender and the waiting calls after a coordinator's response."""
        self._producer.wake()
        self._changed.set()
