"""One broker and the client library, whole, in the virtual world: crashed, and what was promised kept.

A death of the process loses nothing; a power cut loses nothing where ``flush.messages=1`` was asked for, and
elsewhere no more than the end of a log: what is left is what was there, up to some offset.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.history import History, Outcome, Send, check
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.workload.consumers import Reader
from nilometer.simulation.workload.producers import Writer, WriterPlan
from nilometer.simulation.world import World

PARTITIONS = 2
ROUNDS = 5
WRITERS = {
    "idempotent": {"idempotent": True},
    "packed": {"idempotent": True, "codec": "zstd"},
    "plain": {"idempotent": False, "retries": False},
}


class OneBroker:
    """The broker, its clients, and what they were told."""

    def __init__(self, world: World, *, flush_each: bool) -> None:
        self.world = world
        self.cluster = Cluster(world, brokers=1, one_machine=True)
        self.node = self.cluster.nodes[1]
        self.history = History()
        self.clients = world.host("clients")
        self._configs = {"flush.messages": "1"} if flush_each else {}
        self.partitions = [TopicPartition("t", index) for index in range(PARTITIONS)]

    async def set_up(self) -> None:
        await self.cluster.set_up()

        async def create(runtime: Runtime) -> None:
            async with Admin(runtime, {"bootstrap.servers": self.cluster.bootstrap_servers}) as admin:
                await admin.create_topic(NewTopic("t", PARTITIONS, 1, self._configs))

        assert await self.clients.start("admin", create).exited is None

    def writers(self, incarnation: str) -> list[Writer]:
        return [
            Writer(
                f"{name}{incarnation}",
                self.clients,
                self.cluster.bootstrap_servers,
                WriterPlan(topic="t", partitions=PARTITIONS, per_second=10.0, **choice),  # type: ignore[arg-type]
                self.history,
            )
            for name, choice in WRITERS.items()
        ]

    async def read_all(self, name: str) -> dict[str, dict[int, str]]:
        """What the log holds: by partition, offset to value."""
        reader = Reader(name, self.clients, self.cluster.bootstrap_servers, self.partitions, self.history)
        assert await self.clients.start(name, reader.read_to_end).exited is None
        assert reader.violations == []
        found: dict[str, dict[int, str]] = {str(partition): {} for partition in self.partitions}
        for poll in self.history.polls:
            if poll.consumer == name:
                for seen in poll.records:
                    found[seen.partition][seen.offset] = seen.value
        return found

    async def come_back(self) -> None:
        self.node.start()
        await self.cluster.until_serving([1])
        assert self.node.unexpected_exits == []


def _acknowledged(sends: list[Send]) -> list[Send]:
    return [send for send in sends if send.outcome is Outcome.OK and send.offset is not None]


async def crashes_of_the_process(world: World) -> History:
    one = OneBroker(world, flush_each=False)
    await one.set_up()
    writers = one.writers("")
    follower = Reader("tail", one.clients, one.cluster.bootstrap_servers, one.partitions, one.history)
    processes = [each.start() for each in (*writers, follower)]
    for _ in range(ROUNDS):
        await asyncio.sleep(world.chance.uniform(0.2, 4.0))
        one.node.crash()
        await asyncio.sleep(world.chance.uniform(0.0, 2.0))
        await one.come_back()
    await asyncio.sleep(3)
    for writer in writers:
        writer.stop()
    for process in processes[:-1]:
        assert await process.exited is None
    follower.stop()
    await processes[-1].exited
    await one.read_all("last")
    assert check(one.history) == []
    assert follower.violations == []
    assert all(send.outcome is Outcome.OK for send in one.history.sends if send.producer[0] == "i")
    return one.history


async def power_cuts(world: World, *, flush_each: bool) -> int:
    """Returns how many acknowledged records were lost: all of them from the end of a log."""
    one = OneBroker(world, flush_each=flush_each)
    await one.set_up()
    lost = 0
    known: dict[str, dict[int, str]] = {str(partition): {} for partition in one.partitions}
    for turn in range(ROUNDS):
        writers = one.writers(f"-{turn}")
        processes = [writer.start() for writer in writers]
        begun = len(one.history.operations)
        await asyncio.sleep(world.chance.uniform(0.2, 5.0))
        for process in processes:
            process.crash()
        one.cluster.power_off(one.node.host)
        for send in _acknowledged(one.history.sends):
            if send.number >= begun:
                known[send.partition][send.offset or 0] = send.value
        await asyncio.sleep(world.chance.uniform(0.1, 2.0))
        one.cluster.power_on(one.node.host)
        await one.come_back()
        for partition, found in (await one.read_all(f"reader-{turn}")).items():
            end = len(found)
            assert sorted(found) == list(range(end)), "no holes"
            before = known[partition]
            assert {offset: found.get(offset) for offset in before if offset < end} == {
                offset: value for offset, value in before.items() if offset < end
            }, "what is left is what was there"
            lost += sum(offset >= end for offset in before)
            known[partition] = found
    assert not flush_each or lost == 0, "flush.messages=1: acknowledged is on the platter"
    return lost


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_of_the_process_loses_nothing(seed: int) -> None:
    world = World(seed)
    history = world.run(crashes_of_the_process)
    assert world.failures == []
    assert len(history.sends) > 100


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_loses_nothing_that_was_flushed(seed: int) -> None:
    world = World(seed)
    world.run(lambda world: power_cuts(world, flush_each=True))
    assert world.failures == []


def test_a_power_cut_leaves_a_prefix_where_nothing_was_flushed() -> None:
    lost = 0
    for seed in range(6):
        world = World(seed)
        lost += world.run(lambda world: power_cuts(world, flush_each=False))
        assert world.failures == []
    assert lost > 0, "the disks of this world do forget"


def _digest(seed: int) -> str:
    world = World(seed)
    world.run(crashes_of_the_process)
    return world.trace.digest


DIGEST = """
import sys
sys.path[:0] = [{tests!r}, {here!r}]
from test_simulated_broker_and_client import _digest
print(_digest(int(sys.argv[1])))
"""


@pytest.mark.thorough
def test_same_seed_same_course__in_any_process_and_hash_seed() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    script = DIGEST.format(here=here, tests=os.path.dirname(here))
    found = {
        subprocess.run(
            [sys.executable, "-c", script, "11"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "4242")
    }
    assert found == {_digest(11)} == {_digest(11)}
    assert _digest(12) not in found
