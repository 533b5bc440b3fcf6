"""Admin programs that run during a chaos run: one reuses topic names, one moves replicas.

Both only rely on what a careful client may rely on. A topic name is reused only if the outcome of every
request for it is known: a request with unknown outcome may still arrive later, at the new topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.admin.reassignments import ElectionType, alter_reassignments, elect_leaders
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message

from .load import OWN_CLIENT

REQUEST_TIMEOUT_MS = 10_000
RECORDS = 40
READ_WITHIN_S = 120.0
PAUSE_S_MAX = 3.0
RETRY_S = 0.2
_ADMIN = {
    **OWN_CLIENT,
    "request.timeout.ms": REQUEST_TIMEOUT_MS,
    "default.api.timeout.ms": 2 * REQUEST_TIMEOUT_MS,
}


class _Program:
    """Runs the coroutine ``work`` in a thread until it is stopped; collects findings."""

    def __init__(self, name: str) -> None:
        self.findings: list[str] = []
        self._name = name
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = READ_WITHIN_S + 30) -> None:
        """Have the program end after its current step, and wait for it; a time-out is a finding."""
        self._stopping.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.findings.append(f"{self._name} does not end")

    def _run(self) -> None:
        try:
            asyncio.run(self.work())
        except Exception as error:
            self.findings.append(f"{self._name} ended: {error!r}")

    async def work(self) -> None:
        raise NotImplementedError

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()


class TopicReuse(_Program):
    """Creates a topic, writes, deletes records, reads the rest back, deletes the topic, and creates it again.

    Findings are: an acknowledged record that was not deleted and cannot be read, another record at its
    offset, or a record of an earlier topic of the same name.
    """

    def __init__(
        self, bootstrap: str, replicas: int, chance: random.Random, record: Callable[[str], None]
    ) -> None:
        super().__init__("topic reuse")
        self.cycles = 0
        """The number of topics whose records were read back."""
        self.abandoned = 0
        self.topic = "reused-0"
        self._deleted = set[UUID]()
        self._bootstrap = bootstrap
        self._replicas = replicas
        self._chance = chance
        self._record = record

    async def work(self) -> None:
        async with Admin(Runtime.system(), {"bootstrap.servers": self._bootstrap, **_ADMIN}) as admin:
            number = 0
            while not self.stopping:
                try:
                    await self._cycle(admin, number)
                    self.cycles += 1
                except KafkaError as error:
                    self.abandoned += 1
                    self._record(f"{self.topic} is abandoned: {error}")
                    self.topic = f"reused-{self.abandoned}"
                    await asyncio.sleep(self._chance.uniform(0.0, PAUSE_S_MAX))
                number += 1

    async def _cycle(self, admin: Admin, number: int) -> None:
        """Use the topic once. Raises KafkaError if an outcome is unknown: the name is then not reused."""
        topic = self.topic
        await admin.create_topic(NewTopic(topic, 1, self._replicas))
        topic_id = await self._id_of(admin, topic)
        written = await self._write(topic, number)
        start = await self._purge(admin, topic, max(written))
        await asyncio.sleep(self._chance.uniform(0.0, PAUSE_S_MAX))
        await self._read_back(topic, {at: value for at, value in written.items() if at >= start})
        await self._delete(admin, topic_id)
        self._deleted.add(topic_id)

    async def _id_of(self, admin: Admin, topic: str) -> UUID:
        """Return the new topic's id: what the client knows may be of the one that was deleted before."""
        while True:
            topic_id = (await admin.client.topic(topic, REQUEST_TIMEOUT_MS)).topic_id
            assert topic_id is not None
            if topic_id not in self._deleted:
                return topic_id
            await admin.client.refresh()
            await asyncio.sleep(RETRY_S)

    async def _write(self, topic: str, number: int) -> dict[int, bytes]:
        values = [b"%s-%d-%d-%s" % (topic.encode(), number, index, b"." * 200) for index in range(RECORDS)]
        config = {"bootstrap.servers": self._bootstrap, "linger.ms": 0, **OWN_CLIENT}
        written: dict[int, bytes] = {}
        async with Producer(Runtime.system(), config) as producer:
            for value in values:
                metadata = await (await producer.send(topic, value, partition=0))
                written[metadata.offset] = value
        return written

    async def _purge(self, admin: Admin, topic: str, last: int) -> int:
        """Half of the time delete the records below a random offset; return the offset, else 0."""
        if self._chance.random() < 0.5:
            return 0
        offset = self._chance.randrange(last + 1)

        def make(api: Api) -> Message:
            part = api.make_request("DeleteRecordsPartition", partition_index=0, offset=offset)
            asked = api.make_request("DeleteRecordsTopic", name=topic, partitions=(part,))
            return api.request(timeout_ms=REQUEST_TIMEOUT_MS, topics=(asked,))

        while True:
            response = await admin.client.send_to_leader(
                TopicPartition(topic, 0), ApiKey.DELETE_RECORDS, make
            )
            code = response.topics[0].partitions[0].error_code
            if code is ErrorCode.none or self.stopping:
                return offset
            if not KafkaError(code).retriable:
                raise KafkaError(code, f"purging {topic}")
            await admin.client.refresh()
            await asyncio.sleep(RETRY_S)

    async def _read_back(self, topic: str, expected: dict[int, bytes]) -> None:
        partition, found = TopicPartition(topic, 0), dict[int, bytes]()
        config = {"bootstrap.servers": self._bootstrap, "auto.offset.reset": "earliest", **OWN_CLIENT}
        deadline = time.monotonic() + READ_WITHIN_S
        async with Consumer(Runtime.system(), config) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, min(expected))
            while not expected.keys() <= found.keys() and time.monotonic() < deadline:
                try:
                    for record in await consumer.poll(1000, timeout_ms=200):
                        found[record.offset] = record.value or b""
                except KafkaError:
                    await asyncio.sleep(RETRY_S)
        missing = sorted(expected.keys() - found.keys())
        wrong = [at for at, value in expected.items() if at in found and found[at] != value]
        if missing or wrong:
            what = f"of {expected[max(expected)][:24]!r}: cannot read {missing}, other records at {wrong}"
            self.findings.append(f"{topic}, {what}")
        if strangers := [value for at, value in found.items() if at not in expected]:
            self.findings.append(f"{topic}: records that were not written there: {strangers[:3]}")

    async def _delete(self, admin: Admin, topic_id: UUID) -> None:
        """Delete the topic by its id, which cannot delete a later topic; retry until the outcome is known."""

        def make(api: Api) -> Message:
            state = api.make_request("DeleteTopicState", name=None, topic_id=topic_id)
            return api.request(topics=(state,), timeout_ms=REQUEST_TIMEOUT_MS)

        while True:
            try:
                response = await admin.client.send_to_controller(ApiKey.DELETE_TOPICS, make)
                if response.responses[0].error_code in (ErrorCode.none, ErrorCode.unknown_topic_id):
                    return
            except KafkaError:
                pass
            if self.stopping:
                return
            await asyncio.sleep(RETRY_S)


class Mover(_Program):
    """Reassigns partitions to other replicas in another order, and elects preferred leaders."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, brokers: tuple[int, ...], chance: random.Random
    ) -> None:
        super().__init__("mover")
        self.moves = 0
        self._bootstrap = bootstrap
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._brokers = brokers
        self._chance = chance

    async def work(self) -> None:
        async with Admin(Runtime.system(), {"bootstrap.servers": self._bootstrap, **_ADMIN}) as admin:
            while not self.stopping:
                await self._attempt(self._move(admin))
                await asyncio.sleep(self._chance.uniform(0.5, 4.0))
            for _ in range(20):  # restore: every broker has every partition
                if await self._attempt(self._restore(admin)):
                    return
            self.findings.append("the mover could not give the partitions back all their replicas")

    async def _attempt(self, work: Awaitable[None]) -> bool:
        try:
            await work
        except KafkaError:
            return False
        return True

    async def _move(self, admin: Admin) -> None:
        partition = self._chance.choice(self._partitions)
        count = self._chance.choice((len(self._brokers) - 1, len(self._brokers)))
        target = self._chance.sample(self._brokers, count)
        outcome = (await alter_reassignments(admin, {partition: target}))[partition]
        self.moves += outcome is None
        if self._chance.random() < 0.5:
            await elect_leaders(admin, ElectionType.PREFERRED, [partition])

    async def _restore(self, admin: Admin) -> None:
        outcomes = await alter_reassignments(admin, dict.fromkeys(self._partitions, self._brokers))
        for error in outcomes.values():
            if error is not None:
                raise error


class DirectoryMover(_Program):
    """Moves replicas between the log directories of their brokers, also before the last move has ended; at
    the end it waits until no replica moves any more."""

    def __init__(self, bootstrap: str, brokers: Sequence[int], chance: random.Random) -> None:
        super().__init__("directory mover")
        self.moves = 0
        """How many moves brokers have begun."""
        self._bootstrap = bootstrap
        self._brokers = brokers
        self._chance = chance

    async def work(self) -> None:
        async with Admin(Runtime.system(), {"bootstrap.servers": self._bootstrap, **_ADMIN}) as admin:
            while not self.stopping:
                with contextlib.suppress(KafkaError):
                    await self._move_some(admin, self._chance.choice(self._brokers))
                await asyncio.sleep(self._chance.uniform(0.1, 1.0))
            ends = time.monotonic() + READ_WITHIN_S
            while time.monotonic() < ends:
                with contextlib.suppress(KafkaError):
                    if not await self._moving(admin):
                        return
                await asyncio.sleep(RETRY_S)
            self.findings.append("replicas still move between log directories")

    async def _move_some(self, admin: Admin, broker_id: int) -> None:
        folders = await admin.describe_log_dirs([broker_id])
        replicas = sorted({one.partition for folder in folders for one in folder.replicas}, key=str)
        some = self._chance.sample(replicas, self._chance.randint(0, len(replicas)))
        paths = {partition: self._chance.choice(folders).path for partition in some}
        outcomes = await admin.alter_replica_log_dirs(broker_id, paths)
        self.moves += sum(error is None for error in outcomes.values())

    async def _moving(self, admin: Admin) -> bool:
        folders = await admin.describe_log_dirs(list(self._brokers))
        return any(one.is_future for folder in folders for one in folder.replicas)
