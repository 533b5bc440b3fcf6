"""Blocking calls for writing to a cluster from a Spark task: the producer runs in its own thread.

Does not depend on Spark.

Invariants: a process has one producer per set of settings, which is made when first used and kept, so that a
micro-batch needs no new connections; ``write`` returns when every record is acknowledged, or raises; at most
two chunks of rows are held in memory.

For transactions, ``transactional_writer`` uses the event loop of this module, and one producer per task.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from nilometer.client.producer.batch import Delivery
from nilometer.client.producer.producer import Producer
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.pipeline.errors import SinkError
from nilometer.runtime import Runtime
from nilometer.wire.errors import KafkaError

T = TypeVar("T")

_shared: dict[tuple[tuple[str, str], ...], ClusterWriter] = {}
_shared_lock = threading.Lock()


class Outgoing(NamedTuple):
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class ClusterWriter:
    """The blocking interface; :meth:`shared` returns one. ``producer`` are producer settings."""

    def __init__(self, producer: Iterable[tuple[str, str]]) -> None:
        self._settings = dict(producer)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nilometer-producer", daemon=True)
        self._thread.start()
        self._producer: Producer | None = None

    @classmethod
    def shared(cls, producer: tuple[tuple[str, str], ...]) -> ClusterWriter:
        """Return this process's writer for these settings; make it at the first call."""
        with _shared_lock:
            writer = _shared.get(producer)
            if writer is None:
                writer = _shared[producer] = cls(producer)
            return writer

    def close(self) -> None:
        with _shared_lock:
            for key, writer in list(_shared.items()):
                if writer is self:
                    del _shared[key]
        if self._producer is not None:
            asyncio.run_coroutine_threadsafe(self._producer.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def write(self, chunks: Iterable[Sequence[Outgoing]]) -> int:
        """Send all records, wait for their acknowledgements and return their number. Raises SinkError."""
        count = 0
        under_way: list[Delivery] = []
        try:
            for chunk in chunks:
                sent = self.run(self._send(chunk))
                self.run(acknowledged(under_way))
                under_way = sent
                count += len(chunk)
            self.run(acknowledged(under_way))
        except KafkaError as error:
            servers = self._settings["bootstrap.servers"]
            raise SinkError(f"writing to {servers} failed: {error}") from error
        return count

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the event loop's thread, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # --- in the producer's thread

    async def _send(self, chunk: Sequence[Outgoing]) -> list[Delivery]:
        return await send_all(await self._started(), chunk)

    async def _started(self) -> Producer:
        if self._producer is None:
            producer = Producer(Runtime.system(), self._settings)
            await producer.start()
            self._producer = producer
        return self._producer


async def send_all(producer: Producer | TransactionalProducer, chunk: Sequence[Outgoing]) -> list[Delivery]:
    """Call ``send`` for each record of ``chunk`` and return their deliveries. Raises KafkaError."""
    return [
        await producer.send(one.topic, one.value, key=one.key, headers=one.headers, partition=one.partition)
        for one in chunk
    ]


async def acknowledged(deliveries: Sequence[Delivery]) -> None:
    """Wait until all deliveries are acknowledged. Raises the KafkaError of the first that failed."""
    for one in deliveries:
        if one.done():
            one.result()
        else:
            await one
