"""The judge of a recorded broker's images: another broker of the simulation is started on each.

It must start, and have what was promised at the power cut: topics, acknowledged records of topics that are
flushed, committed offsets, and the whole of each transaction whose commit was acknowledged. What has no
outcome yet may be there or not, a transaction as a whole; nothing else may be there. Then all topics accept a
record, and the broker stops in order.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping

from nilometer.client.admin.admin import Admin
from nilometer.client.admin.group_admin import GroupAdmin
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.runtime import Runtime
from nilometer.simulation.disk import FolderNode
from nilometer.simulation.run import LogCapture
from nilometer.simulation.workload.transactions import make_client
from nilometer.simulation.workload.transformers import fetch_committed
from nilometer.simulation.world import World
from nilometer.wire.errors import ErrorCode, KafkaError
from support.crash_images.machine import (
    GROUP,
    IN_TRANSACTIONS,
    LAZY,
    MEMBERS,
    PAIRS,
    SERVERS,
    SOURCE,
    TOPICS,
    WRITER,
    Machine,
    Store,
    frequent_snapshots,
    settings_for,
)
from support.crash_images.recording import Mark

LIMIT_S = 300.0
"""Simulated; a judgement takes some seconds."""
STABLE_S = 60.0
JUDGE_SEED = -1
"""No recording has it: the ids that a broker draws are others."""
API_MS = 60_000
LAST = "last"


@dataclasses.dataclass
class Promised:
    """What the marks before a power cut say."""

    topics: set[str] = dataclasses.field(default_factory=set[str])
    unsure: set[str] = dataclasses.field(default_factory=set[str])
    """They are being created or deleted."""
    acknowledged: dict[str, dict[int, str]] = dataclasses.field(default_factory=dict[str, dict[int, str]])
    """By topic, the values by offset."""
    sent: set[str] = dataclasses.field(default_factory=set[str])
    offset: int = 0
    """The last committed one."""
    offsets: int = 0
    """The last one whose commit was requested."""
    committed: set[int] = dataclasses.field(default_factory=set[int])
    """The transactions whose commit was acknowledged."""
    maybe_committed: set[int] = dataclasses.field(default_factory=set[int])
    """Those whose commit was requested."""

    @classmethod
    def by(cls, marks: Iterable[Mark]) -> Promised:
        found = cls()
        for mark in marks:
            found.note(mark)
        return found

    def note(self, mark: Mark) -> None:
        first = mark.values[0] if mark.values else ""
        name = str(first)
        match mark.kind:
            case "creating":
                self.unsure.add(name)
            case "topic":
                self.topics.add(name)
                self.unsure.discard(name)
            case "deleting":
                self.unsure.add(name)
                self.topics.discard(name)
                self.acknowledged.pop(name, None)
            case "gone":
                self.unsure.discard(name)
                self.sent = {value for value in self.sent if not value.startswith(f"{name}:")}
            case "sent":
                self.sent.add(str(mark.values[1]))
            case "acknowledged":
                self.acknowledged.setdefault(name, {})[int(mark.values[2])] = str(mark.values[1])
            case "offset":
                self.offsets = int(mark.values[1])
            case "committed":
                self.offset = int(mark.values[1])
            case "ending" if mark.values[1]:
                self.maybe_committed.add(int(first))
            case "ended" if mark.values[1]:
                self.committed.add(int(first))
            case _:
                assert mark.kind in ("begun", "ending", "ended"), mark


Look = Callable[[Runtime], Awaitable[list[str]]]


def judge_machine(image: FolderNode, store: Store, marks: Iterable[Mark]) -> list[str]:
    """Return what is wrong with the image of a power cut after these marks."""
    promised = Promised.by(marks)
    return judge_by(image, settings_for(store), lambda runtime: _Looking(runtime, promised).look())


def judge_by(image: FolderNode, settings: Mapping[str, str], look: Look) -> list[str]:
    """Start a broker on an image, have a client ``look`` at it, and stop it; return what is wrong."""
    world, findings = World(JUDGE_SEED), list[str]()

    async def main(world: World) -> None:
        machine = Machine(world, settings, image)
        await machine.start()

        async def client(runtime: Runtime) -> None:
            findings.extend(await look(runtime))

        for error in (await machine.run_client(client), await machine.stop()):
            if error is not None:
                raise error

    with frequent_snapshots(), LogCapture(world) as log:
        try:
            world.run(main, LIMIT_S)
        except Exception as error:  # whatever it is, the broker does not serve
            findings.append(f"{type(error).__name__}: {error}")
    return findings + log.unexpected + [repr(each) for each in world.failures]


async def read_all(
    runtime: Runtime, partition: TopicPartition, isolation: str = "read_uncommitted"
) -> dict[int, str]:
    """Return the values of a partition by offset."""
    settings = SERVERS | {"isolation.level": isolation, "auto.offset.reset": "earliest"}
    found: dict[int, str] = {}
    async with Consumer(runtime, settings) as consumer:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        while await consumer.position(partition) < end:
            for record in await consumer.poll(timeout_ms=1_000):
                found[record.offset] = (record.value or b"").decode()
    return found


class _Looking:
    def __init__(self, runtime: Runtime, promised: Promised) -> None:
        self._runtime = runtime
        self._promised = promised
        self._findings: list[str] = []

    async def look(self) -> list[str]:
        async with (
            Admin(self._runtime, SERVERS) as admin,
            Producer(self._runtime, SERVERS) as producer,
            make_client(self._runtime, SERVERS["bootstrap.servers"], "judge") as client,
        ):
            there = set(await admin.list_topics()) & set(TOPICS)
            promised, findings = self._promised, self._findings
            findings += [f"topic {each} is gone" for each in sorted(promised.topics - there)]
            findings += [
                f"topic {each} is back" for each in sorted(there - promised.topics - promised.unsure)
            ]
            if PAIRS in there:
                async with TransactionalProducer(
                    self._runtime, SERVERS | {"transactional.id": WRITER}
                ):  # it ends what was open
                    await self._wait_stable()
            for name in sorted(there - {PAIRS}):
                await producer.send_and_wait(name, LAST.encode(), key=LAST.encode())
                self._judge_records(name, await read_all(self._runtime, TopicPartition(name, 0)))
            if findings:
                return findings
            offset = (await fetch_committed(client, [SOURCE], GROUP))[SOURCE] if SOURCE.topic in there else 0
            if not promised.offset <= offset <= promised.offsets:
                findings.append(
                    f"group {GROUP} has offset {offset}, not {promised.offset} to {promised.offsets}"
                )
            if PAIRS in there:
                offset = (await fetch_committed(client, [SOURCE], IN_TRANSACTIONS))[SOURCE]
                await self._judge_transactions(offset)
            groups = await GroupAdmin(client, API_MS).describe([GROUP, MEMBERS])
            findings += [
                str(each)
                for name, each in groups.items()
                if isinstance(each, KafkaError)
                and (each.code is not ErrorCode.group_id_not_found or (name == GROUP and promised.offset))
            ]
        return findings

    async def _wait_stable(self) -> None:
        """Wait until all transactions have ended."""
        until_ms = self._runtime.clock.monotonic_ms() + int(STABLE_S * 1000)
        partitions = [TopicPartition(PAIRS, index) for index in (0, 1)]
        async with (
            Consumer(self._runtime, SERVERS | {"isolation.level": "read_committed"}) as stable,
            Consumer(self._runtime, SERVERS) as all_records,
        ):
            while await stable.end_offsets(partitions) != await all_records.end_offsets(partitions):
                if self._runtime.clock.monotonic_ms() > until_ms:
                    self._findings.append("a transaction does not end")
                    return
                await asyncio.sleep(0.1)

    def _judge_records(self, name: str, found: dict[int, str]) -> None:
        values = {offset: value for offset, value in found.items() if value != LAST}
        strange = [each for each in values.values() if each not in self._promised.sent]
        strange += [each for each in values.values() if not each.startswith(f"{name}:")]
        self._findings += [f"{name} has {each[:60]!r}, which was not sent to it" for each in strange[:3]]
        if name == LAZY or name not in self._promised.topics:
            return
        promised = self._promised.acknowledged.get(name, {})
        if TOPICS[name].get("cleanup.policy") == "compact":
            newest = {_key_of(value): offset for offset, value in sorted(values.items())}
            lost = sorted(at for at, value in promised.items() if newest.get(_key_of(value), -1) < at)
        else:
            lost = sorted(at for at, value in promised.items() if values.get(at) != value)
        if lost:
            self._findings.append(f"{name} lacks acknowledged records at {lost}, of {sorted(values)}")

    async def _judge_transactions(self, offset: int) -> None:
        found = [
            set((await read_all(self._runtime, TopicPartition(PAIRS, index), "read_committed")).values())
            for index in (0, 1)
        ]
        visible = [{int(value.partition(":")[0]) for value in values} for values in found]
        if visible[0] != visible[1]:
            self._findings.append(f"transactions are there in part: {sorted(visible[0] ^ visible[1])}")
        lost = self._promised.committed - visible[0]
        strange = visible[0] - self._promised.maybe_committed
        if lost or strange:
            self._findings.append(
                f"transactions {sorted(lost)} are lost, {sorted(strange)} were not committed"
            )
        expected = max(visible[0], default=-1) + 1
        if offset != expected:
            self._findings.append(f"group {IN_TRANSACTIONS} has offset {offset}, not {expected}")


def _key_of(value: str) -> str:
    """Return the key of a record, which its value repeats."""
    return value.split(":")[1]
