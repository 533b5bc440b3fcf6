"""The result of `send`: the acknowledgement or failure of one record, which callers may await or ignore.

A delivery is one small object; an asyncio future is made only when a caller awaits it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from nilometer.client.producer.batch import Acknowledged, ProducerBatch
from nilometer.wire.errors import KafkaError


class RecordMetadata(NamedTuple):
    topic: str
    partition: int
    offset: int
    """-1 if the broker returned none: with acks=0, or for a duplicate whose offset it no longer knows."""
    timestamp: int


class Delivery:
    """Awaiting it returns the RecordMetadata or raises the KafkaError that the record failed with."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: ProducerBatch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        batch, _ = self._batch.locate(self._index)
        return batch.outcome is not None

    def result(self) -> RecordMetadata:
        """Return the metadata of the acknowledged record, or raise the KafkaError that it failed with.

        Raises InvalidStateError while it is neither.
        """
        batch, index = self._batch.locate(self._index)
        match batch.outcome:
            case Acknowledged(base_offset, log_append_time):
                offset = base_offset + index if base_offset >= 0 else -1
                timestamp = log_append_time if log_append_time >= 0 else self._timestamp
                return RecordMetadata(batch.partition.topic, batch.partition.partition, offset, timestamp)
            case KafkaError() as error:
                # A new exception for each record: each raise adds a traceback to the exception.
                raise KafkaError(error.code, error.message) from error
            case None:
                raise asyncio.InvalidStateError("the record is not acknowledged yet")

    def add_done_callback(self, callback: Callable[[Delivery], None]) -> None:
        """Call ``callback`` with this delivery when it is done; at once if it already is."""
        self._watch(lambda _batch: callback(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self.done():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watch(lambda _batch: None if future.done() else future.set_result(None))
            yield from future.__await__()
        return self.result()

    def _watch(self, call: Callable[[ProducerBatch], None]) -> None:
        """Call ``call`` when the record's batch is resolved, which may be a part of the present batch."""

        def on_resolved(_batch: ProducerBatch) -> None:
            batch, _ = self._batch.locate(self._index)
            if batch.outcome is not None:
                call(batch)
            else:
                batch.add_done_callback(on_resolved)

        batch, _ = self._batch.locate(self._index)
        batch.add_done_callback(on_resolved)
