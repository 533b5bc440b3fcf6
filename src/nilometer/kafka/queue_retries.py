"""Retry topics of a queue: for pauses of minutes to days, after which a job that failed is put again.

A job that fails on its last permitted delivery is moved to the retry topic of its *round*:
``retry.QUEUE.600`` for ten minutes, then that of the next longer pause; after the last one it is buried. So
``max_deliveries`` are those of a round. A record of a retry topic is due when its pause is over, by the time
at which the broker appended it: those of a topic are due in the order of their offsets. The workers of a
queue put again what is due (:class:`Returner`), as the members of a consumer group of their own.

A move is two writes, first the one that keeps the job: a worker that dies in between leaves it twice.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.kafka.records import Send, partition_of
from nilometer.runtime import Clock
from nilometer.wire.errors import KafkaError

logger = logging.getLogger(__name__)

RETRY_PREFIX: Final = "retry."
ROUND_HEADER: Final = "__retry.round"
"""How many retry topics a job has been in, as digits."""
PAUSE_S_MAX: Final = 30 * 86_400
KEPT_S: Final = 7 * 86_400
"""So much longer than its pause a record is kept, for workers that are down."""
POLL_MS: Final = 500
"""How late a job is put again at most, if its workers are up and idle."""
FAILURE_PAUSE_S: Final = 5.0

_ROUND = re.compile(rb"[0-9]{1,4}")


def retry_topic(queue: str, pause_s: int) -> str:
    return f"{RETRY_PREFIX}{queue}.{pause_s}"


def retry_group(queue: str) -> str:
    """Return the group whose committed offsets say which jobs were put again."""
    return f"{queue}.retry"


def pauses_among(topics: Iterable[str], queue: str) -> tuple[int, ...]:
    """Return the pauses of a queue's retry topics in seconds, the shortest first."""
    name = re.compile(re.escape(RETRY_PREFIX + queue) + r"\.([1-9][0-9]{0,9})")
    return tuple(sorted(int(match[1]) for topic in topics if (match := name.fullmatch(topic))))


def round_of(record: ConsumerRecord) -> int:
    """Return how many retry topics a job has been in. A header that is no number counts as none."""
    value = record.header(ROUND_HEADER)
    return int(value) if value is not None and _ROUND.fullmatch(value) else 0


def of_next_round(record: ConsumerRecord) -> list[tuple[str, bytes | None]]:
    """Return the headers of a job that goes to a retry topic."""
    own = [one for one in record.headers if one[0] != ROUND_HEADER]
    return [*own, (ROUND_HEADER, str(round_of(record) + 1).encode())]


class Returner:
    """Puts the jobs of retry topics again, each when it is due. Cancel :meth:`run` to end it."""

    def __init__(
        self, consumer: Consumer, queue: str, pauses_s: Collection[int], clock: Clock, send: Send
    ) -> None:
        """``consumer``: of :func:`retry_group`, without automatic commits; :meth:`run` starts and closes
        it."""
        self._consumer = consumer
        self._queue = queue
        self._pauses_ms = {retry_topic(queue, pause_s): pause_s * 1000 for pause_s in pauses_s}
        self._clock = clock
        self._send = send
        self._due_ms: dict[TopicPartition, int] = {}
        """When the next record of a paused partition is due, on the wall clock."""
        self.has_looked = False
        """Whether what was due at the start has been put again, by this member of the group or another
        one."""

    async def run(self) -> None:
        """Put again what is due, for good. Errors are logged, and what they concern is tried again."""
        try:
            await self._until_done(self._start)
            while True:
                await self._until_done(self._put_due)
        finally:
            await self._consumer.close()

    async def _until_done(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await step()
            except KafkaError as error:
                self.has_looked = True  # else a worker would wait for it
                logger.warning("Failed jobs of %s are not put again now: %s", self._queue, error)
                await asyncio.sleep(FAILURE_PAUSE_S)

    async def _start(self) -> None:
        await self._consumer.start()
        await self._consumer.subscribe(tuple(self._pauses_ms))

    async def _put_due(self) -> None:
        """Put again the jobs of one poll that are due. Raises KafkaError."""
        self._resume()
        is_member = self._consumer.group_metadata().identity.is_member
        due = self._due(await self._consumer.poll(timeout_ms=POLL_MS))
        if due:
            await self._put(due)
        self.has_looked |= is_member

    async def _put(self, due: Sequence[ConsumerRecord]) -> None:
        try:
            await asyncio.gather(
                *(self._send(self._queue, one.value, key=one.key, headers=one.headers) for one in due)
            )
        except KafkaError:
            for one in reversed(due):
                self._read_again(one)
            raise
        logger.info("Put %d failed jobs of %s again", len(due), self._queue)
        # If this fails, they are put once more only if another worker takes the partition over.
        await self._consumer.commit({partition_of(one): one.offset + 1 for one in due})

    def _due(self, records: Iterable[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return the records that are due; read the others again when the first of them is."""
        now_ms = self._clock.wall_ms()
        due: list[ConsumerRecord] = []
        paused: set[TopicPartition] = set()
        for record in records:
            partition = partition_of(record)
            due_ms = record.timestamp + self._pauses_ms[record.topic]
            if partition in paused:
                continue
            if due_ms <= now_ms:
                due.append(record)
            else:
                paused.add(partition)
                self._due_ms[partition] = due_ms
                self._read_again(record)
                self._consumer.pause(partition)
        return due

    def _resume(self) -> None:
        now_ms = self._clock.wall_ms()
        assigned = self._consumer.assignment()
        for partition, due_ms in list(self._due_ms.items()):
            if partition not in assigned:
                del self._due_ms[partition]
            elif due_ms <= now_ms:
                del self._due_ms[partition]
                self._consumer.resume(partition)

    def _read_again(self, record: ConsumerRecord) -> None:
        partition = partition_of(record)
        if partition in self._consumer.assignment():
            self._consumer.seek(partition, record.offset, record.leader_epoch)
