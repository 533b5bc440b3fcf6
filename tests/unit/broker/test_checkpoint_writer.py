"""One write of a directory's checkpoint files at a time, made of what the logs say when it begins."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar, cast

from nilometer.broker.replicas.file_work import CheckpointWriter
from nilometer.broker.tasks import Tasks
from nilometer.runtime import Runtime
from nilometer.runtime.runtime import SeededEntropy, SystemClock
from nilometer.storage import checkpoints
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import LogConfig
from support.logs.memory_disk import MemoryDisk

T = TypeVar("T")
KEY = TopicPartition("t", 0)


class HeldDisk(MemoryDisk):
    """Offloaded work waits until it is let go; a cancelled wait does not take it back."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[asyncio.Event] = []

    async def offload(self, work: Callable[[], T]) -> T:
        gate = asyncio.Event()
        self.waiting.append(gate)

        async def run() -> T:
            await gate.wait()
            return work()

        return await asyncio.shield(asyncio.ensure_future(run()))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def open_writer(
    disk: HeldDisk, marks: dict[TopicPartition, int]
) -> tuple[LogManager, Tasks, CheckpointWriter]:
    """A log directory with one log, and the writer of its checkpoints."""
    entropy = SeededEntropy(random.Random(1))
    options = ManagerOptions(node_id=1, directories=["/data"], entropy=entropy)
    logs = LogManager.open(disk, options, wall_ms=1)
    logs.create(KEY, LogConfig(), wall_ms=1)
    runtime, tasks = Runtime(SystemClock(), disk, cast(Any, None), entropy), Tasks()
    return logs, tasks, CheckpointWriter(runtime, logs, tasks, lambda: dict(marks), logs.fail_directory)


def test_writes_follow_each_other_and_the_last_one_says_what_is_newest() -> None:
    async def scenario() -> None:
        disk = HeldDisk()
        marks = {KEY: 1}
        _, tasks, writer = open_writer(disk, marks)
        first = writer.request("/data")
        await settle()
        marks[KEY] = 2
        second, third = writer.request("/data"), writer.request("/data")
        await settle()
        assert len(disk.waiting) == 1  # the second write waits for the first
        assert second is third
        disk.waiting[0].set()
        await first
        marks[KEY] = 3
        await settle()
        assert len(disk.waiting) == 2
        fourth = writer.request("/data")
        await tasks.stop()  # the write that has begun goes on
        idle = asyncio.ensure_future(writer.wait_idle())
        await settle()
        assert not idle.done()
        disk.waiting[1].set()
        await idle
        assert fourth.cancelled()  # no task is left to carry it out
        assert checkpoints.read_offsets(disk, "/data/replication-offset-checkpoint") == {KEY: 2}

    asyncio.run(scenario())


def test_a_write_that_fails_ends_all_requests_and_the_next_one_is_carried_out() -> None:
    """A thread cannot be started, for example: no error of the disk."""

    async def scenario() -> None:
        disk = HeldDisk()
        logs, tasks, writer = open_writer(disk, {KEY: 1})
        note, logs.note_checkpoint = logs.note_checkpoint, fail  # type: ignore[method-assign]
        first = writer.request("/data")
        await settle()
        second = writer.request("/data")
        disk.waiting[0].set()
        await settle()
        assert isinstance(first.exception(), RuntimeError)
        assert isinstance(second.exception(), RuntimeError)
        logs.note_checkpoint = note  # type: ignore[method-assign]
        third = writer.request("/data")
        await settle()
        disk.waiting[1].set()
        await asyncio.wait_for(third, 10)
        await tasks.stop()

    asyncio.run(scenario())


def fail(*_: object) -> Any:
    raise RuntimeError("can't start new thread")


def test_the_end_waits_for_a_write_although_the_next_one_was_cancelled_while_it_waited_for_it() -> None:
    async def scenario() -> None:
        disk = HeldDisk()
        _, tasks, writer = open_writer(disk, {KEY: 1})
        writer.request("/data")
        await settle()
        await tasks.stop()
        writer.request("/data")  # by a task that ends late
        await settle()
        await tasks.stop()
        idle = asyncio.ensure_future(writer.wait_idle())
        await settle()
        assert not idle.done()
        disk.waiting[0].set()
        await asyncio.wait_for(idle, 10)

    asyncio.run(scenario())
