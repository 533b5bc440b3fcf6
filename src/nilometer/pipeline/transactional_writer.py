"""Writes the records of one Spark task in one transaction, once, however often Spark runs the task.

Does not depend on Spark. With the records the transaction commits which batch they were: as an offset of a
group that has the name of the transactional id. So records and note are there together or not at all:

- an attempt that fails, or whose executor dies, leaves nothing that readers of committed records see;
- an attempt that comes after a commit finds the note and writes nothing;
- an attempt that begins fences all that began before, so that of attempts that run side by side one commits.

Invariant: the note is read after the transactional id was taken over: no earlier attempt can commit then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from nilometer.client.admin.group_admin import GroupAdmin
from nilometer.client.group.group_exchange import GroupMetadata, OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.delivery import Delivery
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.pipeline.cluster_writer import ClusterWriter, Outgoing, acknowledged, send_all
from nilometer.pipeline.errors import SinkError
from nilometer.runtime import Runtime
from nilometer.wire.errors import KafkaError

logger = logging.getLogger(__name__)

_ROWS = "rows="


class TaskTransaction(NamedTuple):
    """Which task it is, the same for all its attempts."""

    transactional_id: str
    batch: int
    """The number of the micro-batch; each task of a writer counts on by itself."""


class Committed(NamedTuple):
    batch: int
    rows: int


class TransactionalWriter:
    """Of one attempt. ``runner`` has the event loop, ``settings`` are the producer's."""

    def __init__(self, runner: ClusterWriter, settings: Mapping[str, str], task: TaskTransaction) -> None:
        self._runner = runner
        self._settings = settings
        self._task = task

    def write(self, chunks: Iterable[Sequence[Outgoing]]) -> int:
        """Return the number of rows once they are committed, by this attempt or an earlier one.

        Raises SinkError; then nothing was committed, or the next attempt finds what was.
        """
        try:
            producer = self._runner.run(self._open())
            try:
                before = self._runner.run(self._committed(producer))
                if before is not None and before.batch >= self._task.batch:
                    return self._skip(chunks, before)
                return self._write(producer, chunks)
            finally:
                with suppress(KafkaError):  # an open transaction is aborted, if not here by its coordinator
                    self._runner.run(producer.close())
        except KafkaError as error:
            servers = self._settings["bootstrap.servers"]
            raise SinkError(f"writing {self._task.transactional_id} to {servers}: {error}") from error

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
        """The rows are there. If there are others now, the batch was cut into tasks in another way."""
        count = sum(len(chunk) for chunk in chunks)
        if before.batch == self._task.batch and before.rows != count:
            raise SinkError(
                f"{self._task.transactional_id} committed {before.rows} rows of batch {self._task.batch} "
                f"and has {count} rows now: exactlyOnce needs a batch that is run again to have the same "
                "rows in the same tasks"
            )
        logger.info("%s: batch %d is committed already", self._task.transactional_id, self._task.batch)
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
            raise SinkError(f"the group {self._task.transactional_id} has offsets that no sink committed")
        return Committed(note.offset - 1, int(rows))

    async def _commit(self, producer: TransactionalProducer, place: TopicPartition, rows: int) -> None:
        note = OffsetAndMetadata(self._task.batch + 1, metadata=f"{_ROWS}{rows}")
        await producer.send_offsets({place: note}, GroupMetadata(self._task.transactional_id))
        await producer.commit()
