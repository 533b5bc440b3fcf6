"""What `send` hands back: the fate of one record, to be awaited, asked or ignored.

A delivery costs one small object; the asyncio future behind it is made only when a caller waits.
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
    """-1 where the broker did not say: with acks=0, or for a repetition it has no record of."""
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
        """What came of it; it must be done. Raises KafkaError."""
        batch, index = self._batch.locate(self._index)
        match batch.outcome:
            case Acknowledged(base_offset, log_append_time):
                offset = base_offset + index if base_offset >= 0 else -1
                timestamp = log_append_time if log_append_time >= 0 else self._timestamp
                return RecordMetadata(batch.partition.topic, batch.partition.partition, offset, timestamp)
            case KafkaError() as error:
                # A new one for each record: a raised exception collects the traceback of its raiser.
                raise KafkaError(error.code, error.message) from error
            case None:
                raise asyncio.InvalidStateError("the record is not acknowledged yet")

    def add_done_callback(self, callback: Callable[[Delivery], None]) -> None:
        """Have ``callback`` called with this delivery when it is done; at once if it is."""
        self._watch(lambda _batch: callback(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self.done():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watch(lambda _batch: None if future.done() else future.set_result(None))
            yield from future.__await__()
        return self.result()

    def _watch(self, call: Callable[[ProducerBatch], None]) -> None:
        """Call when the batch that has the record then is resolved: it may be split before that."""

        def on_resolved(_batch: ProducerBatch) -> None:
            batch, _ = self._batch.locate(self._index)
            if batch.outcome is not None:
                call(batch)
            else:
                batch.add_done_callback(on_resolved)

        batch, _ = self._batch.locate(self._index)
        batch.add_done_callback(on_resolved)
