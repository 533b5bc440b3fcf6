"""Writes the records of one Spark task in one transaction, exactly once even if Spark runs the task again.

Does not depend on Spark. The transaction also commits the batch number, as an offset of a consumer group that
is named like the transactional id (the *note*). So records and note become visible together or not at all:

- an attempt that fails, or whose executor dies, writes nothing that ``read_committed`` consumers return;
- an attempt that starts after another one has committed finds the note and writes nothing;
- an attempt fences all attempts that started before it, so that only one of several concurrent ones commits.

Invariant: the note is read after InitProducerId, when no earlier attempt can commit any more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from nilometer.client.admin.group_admin import GroupAdmin
from nilometer.client.group.group_exchange import GroupMetadata, OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import Delivery
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.pipeline.errors import SinkError
from nilometer.pipeline.sink.cluster_writer import ClusterWriter, Outgoing, acknowledged, send_all
from nilometer.runtime import Runtime
from nilometer.wire.errors import KafkaError

logger = logging.getLogger(__name__)

_ROWS = "rows="


class TaskTransaction(NamedTuple):
    """Identifies a task of a micro-batch; equal for all attempts of the task."""

    transactional_id: str
    batch: int
    """The number of the micro-batch; 0 outside a stream. Lower numbers than the committed one are skipped."""


class Committed(NamedTuple):
    batch: int
    rows: int


class TransactionalWriter:
    """Writes one attempt of a task. ``runner`` has the event loop, ``settings`` are the producer's."""

    def __init__(self, runner: ClusterWriter, settings: Mapping[str, str], task: TaskTransaction) -> None:
        self._runner = runner
        self._settings = settings
        self._task = task

    def write(self, chunks: Iterable[Sequence[Outgoing]]) -> int:
        """Write and commit the rows unless an earlier attempt has committed them; return their number.

        Raises SinkError if that failed. If the commit took effect nevertheless, the next attempt finds it.
        """
        try:
            producer = self._runner.run(self._open())
            try:
                before = self._runner.run(self._committed(producer))
                if before is not None and before.batch >= self._task.batch:
                    return self._skip(chunks, before)
                return self._write(producer, chunks)
            finally:
                with suppress(KafkaError):  # an open transaction that this cannot abort times out
                    self._runner.run(producer.close())
        except KafkaError as error:
            servers = self._settings["bootstrap.servers"]
            raise SinkError(
                f"the transaction of {self._task.transactional_id} at {servers} failed: {error}"
            ) from error

    def _write(self, producer: TransactionalProducer, chunks: Iterable[Sequence[Outgoing]]) -> int:
        count = 0
        place: TopicPartition | None = None
        under_way: Sequence[Delivery] = ()
        for chunk in chunks:
            if not chunk:
                continue
            if place is None:
                place = TopicPartition(chunk[0].topic, 0)
                self._runner.run(producer.begin())
            sent = self._runner.run(send_all(producer, chunk))
            self._runner.run(acknowledged(under_way))
            under_way = sent
            count += len(chunk)
        if place is not None:
            self._runner.run(self._commit(producer, place, count))
        return count

    def _skip(self, chunks: Iterable[Sequence[Outgoing]], before: Committed) -> int:
        """Return the number of rows without writing them, since the batch is committed.

        Raises SinkError if the committed number of rows is another one: then Spark has distributed the rows
        of the batch over its tasks in another way.
        """
        count = sum(len(chunk) for chunk in chunks)
        if before.batch == self._task.batch and before.rows != count:
            raise SinkError(
                f"{self._task.transactional_id} committed {before.rows} rows of batch {self._task.batch} "
                f"and has {count} rows now: exactlyOnce needs a batch that is run again to have the same "
                "rows in the same tasks"
            )
        logger.info(
            "%s has committed batch %d already; its rows are not written again",
            self._task.transactional_id,
            self._task.batch,
        )
        return count

    # --- in the event loop's thread

    async def _open(self) -> TransactionalProducer:
        settings = {**self._settings, "transactional.id": self._task.transactional_id}
        return await TransactionalProducer(Runtime.system(), settings).__aenter__()

    async def _committed(self, producer: TransactionalProducer) -> Committed | None:
        timeout_ms = producer.config.max_block_ms
        notes = await GroupAdmin(producer.client, timeout_ms).committed(self._task.transactional_id)
        return max((self._read(note) for note in notes.values()), default=None)

    def _read(self, note: OffsetAndMetadata) -> Committed:
        rows = note.metadata.removeprefix(_ROWS)
        if not note.metadata.startswith(_ROWS) or not rows.isdecimal():
            raise SinkError(
                f"consumer group {self._task.transactional_id} has offsets that the sink did not commit: "
                "delete the group, since exactlyOnce keeps its progress in it"
            )
        return Committed(note.offset - 1, int(rows))

    async def _commit(self, producer: TransactionalProducer, place: TopicPartition, rows: int) -> None:
        note = OffsetAndMetadata(self._task.batch + 1, metadata=f"{_ROWS}{rows}")
        await producer.send_offsets({place: note}, GroupMetadata(self._task.transactional_id))
        await producer.commit()
