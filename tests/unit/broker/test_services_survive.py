"""A service survives what goes wrong for one folder or one partition; its death is never silent."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker import tasks as tasks_module
from nilometer.broker.housekeeping import Housekeeping
from nilometer.broker.replicas.file_work import GroupCommit
from nilometer.broker.replicas.replica_failures import ReplicaFailures
from nilometer.broker.tasks import FAILED_ROUNDS_MAX, Tasks
from nilometer.broker.turns import SLICE_US, Turns
from nilometer.runtime.runtime import SeededEntropy
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.records import BatchBuilder
from support.logs.memory_disk import MemoryDisk
from support.step_clock import StepClock

NEVER_MS = 10**9


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


async def eventually_async(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Partitions(list[Any]):
    with_flush_ms: dict[Any, None] = {}  # noqa: RUF012

    def forget_deleted_strays(self) -> None:
        """There are none."""


def open_logs(disk: MemoryDisk) -> LogManager:
    config = LogConfig(segment_bytes=400, retention_bytes=0)
    options = ManagerOptions(
        node_id=1,
        directories=["/one"],
        entropy=SeededEntropy(random.Random(1)),
        config_for=lambda _: config,
    )
    logs = LogManager.open(disk, options, wall_ms=1)
    for name in "abc":
        log = logs.create(TopicPartition(name, 0), config, wall_ms=1)
        for number in range(20):
            builder = BatchBuilder()
            builder.append(1_000, None, b"%d" % number)
            log.append_as_leader(builder.build(0), leader_epoch=0, wall_ms=1)
    return logs


class _Partition:
    """As much of a hosted partition as the services see."""

    def __init__(self, log: Any, failures: ReplicaFailures) -> None:
        self.log = log
        self.failures = failures
        self.replica = SimpleNamespace(high_watermark=log.log_end_offset)
        self.flushes = 0
        self.fails_with: Exception | None = None

    def __str__(self) -> str:
        return str(self.log.topic_partition)

    def notify_log_start(self) -> None:
        if self.fails_with is not None:
            raise self.fails_with

    def on_failure(self, work: str, error: Exception) -> None:
        self.failures.on_failure(self.log, work, error)

    def on_success(self, work: str) -> None:
        self.failures.on_success(self.log, work)

    def on_flush_ended(self, error: Exception | None) -> None:
        if error is not None:
            self.on_failure("flush", error)
            return
        if self.fails_with is not None:
            raise self.fails_with
        self.flushes += 1


def housekeeping(partitions: Partitions, turns: Turns | None = None) -> Housekeeping:
    def integer(key: str) -> int:
        return 5 if "retention.check" in key else NEVER_MS

    return Housekeeping(
        cast(Any, SimpleNamespace(integer=integer, replica_lag_time_max_ms=NEVER_MS)),
        cast(Any, SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: 10, monotonic_ms=lambda: 10))),
        cast(Any, partitions),
        cast(Any, SimpleNamespace(connections={})),
        cast(Any, SimpleNamespace(remove_files=lambda _paths, _delay_ms: None)),
        turns or Turns(StepClock()),
    )


def segments_of(partition: Any) -> int:
    return len(tuple(partition.log.segments))


def fails_in(folder: str) -> Callable[..., OSError | None]:
    def fails(_disk: object, verb: str, path: str) -> OSError | None:
        writes = verb in ("create", "open", "write", "append", "replace")
        return OSError(28, "no space left") if writes and path.startswith(folder) else None

    return fails


@in_a_loop
async def test_work_on_a_partition_that_is_removed_between_two_steps_ends() -> None:
    failures = ReplicaFailures(lambda _log, error: pytest.fail(str(error)))
    first, second = (_Partition(log, failures) for log in list(open_logs(MemoryDisk()).logs.values())[:2])
    partitions, steps = Partitions([first, second]), list[object]()

    def work(partition: object) -> Iterator[int]:
        for _ in range(3):
            steps.append(partition)
            if partition is first and first in partitions:
                partitions.remove(first)
            yield 1

    await housekeeping(partitions)._for_each(partitions, "a test", cast(Any, work))
    assert steps == [first, second, second, second]


@in_a_loop
async def test_a_disk_error_of_one_log_fails_its_folder_and_retention_goes_on_for_all_others() -> None:
    disk = MemoryDisk()
    failed: list[Any] = []
    failures = ReplicaFailures(lambda log, error: failed.append((log, error)))
    partitions = Partitions(_Partition(log, failures) for log in open_logs(disk).logs.values())
    disk.fails = fails_in("/one/a-0/leader-epoch")
    tasks = Tasks()
    housekeeping(partitions).start(tasks)
    await eventually_async(lambda: segments_of(partitions[1]) == segments_of(partitions[2]) == 1)
    assert tasks.services["retention"].is_alive
    assert [(log, error.errno) for log, error in failed] == [(partitions[0].log, 28)]
    await tasks.stop()


@in_a_loop
async def test_another_error_fails_that_one_partition_is_shown_and_tried_again() -> None:
    failures = ReplicaFailures(lambda _log, _error: pytest.fail("no disk failed"))
    partitions = Partitions(_Partition(log, failures) for log in open_logs(MemoryDisk()).logs.values())
    first, *others = partitions
    first.fails_with = ValueError("no such thing")
    keeping = housekeeping(partitions)
    await keeping.apply_retention()
    assert all(segments_of(one) == 1 for one in others)
    name = first.log.topic_partition
    assert failures.failures_of(name) == ("retention: ValueError: no such thing",)
    await keeping.apply_retention()
    assert failures.failures_of(name) == (), "nothing is left to be told, so the next round succeeds"


@in_a_loop
async def test_a_round_lets_clients_be_served_between_the_partitions() -> None:
    """One that was removed meanwhile is left alone."""
    failures = ReplicaFailures(lambda *_: None)
    partitions = Partitions(_Partition(log, failures) for log in open_logs(MemoryDisk()).logs.values())
    clock, visited = StepClock(), list[Any]()
    keeping = housekeeping(partitions, Turns(clock))

    def slow(partition: Any) -> None:
        visited.append(partition)
        clock.us += SLICE_US

    round_of_all = asyncio.ensure_future(keeping._for_each(cast(Any, partitions), "work", slow))
    first, second, third = partitions
    await asyncio.sleep(0)
    assert visited == [first]
    partitions.remove(second)
    await round_of_all
    assert visited == [first, third]


class _Offload:
    async def offload(self, work: Callable[[], Any]) -> Any:
        return work()


@in_a_loop
async def test_a_flush_that_fails_leaves_the_rest_of_its_commit_flushed() -> None:
    disk = MemoryDisk()
    failed: list[Any] = []
    failures = ReplicaFailures(lambda log, error: failed.append(log))
    full, broken, sound = (_Partition(log, failures) for log in open_logs(disk).logs.values())
    tasks = Tasks()
    runtime = SimpleNamespace(
        disk=_Offload(), clock=SimpleNamespace(wall_ms=lambda: 10, monotonic_us=lambda: 0)
    )
    commit = GroupCommit(cast(Any, runtime), tasks)

    def no_plan() -> Any:
        raise OSError(5, "input/output error")

    full.log = _WithoutPlan(full.log, no_plan)
    broken.fails_with = KeyError("a role")
    for partition in (full, broken, sound):
        commit.request(partition.log, partition.on_flush_ended)
    await eventually_async(lambda: sound.flushes == 1)
    assert failed == [full.log]
    assert failures.failures_of(broken.log.topic_partition) == ("flush: KeyError: 'a role'",)
    await tasks.stop()


class _WithoutPlan:
    """A log whose flush cannot even be planned."""

    def __init__(self, log: Any, flush_plan: Callable[[], Any]) -> None:
        self.topic_partition, self.name = log.topic_partition, log.name
        self.fence, self.flush_plan = log.fence, flush_plan
        self.failure = OSError("fenced")


@in_a_loop
async def test_a_round_that_fails_is_counted_and_the_next_one_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks_module, "RETRY_MIN_MS", 1)
    died: list[str] = []
    tasks = Tasks(lambda name, _error: died.append(name))
    calls = 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("once")

    tasks.periodic("a service", 1, work)
    await eventually_async(lambda: tasks.services["a service"].rounds >= 2)
    service = tasks.services["a service"]
    assert service.is_alive
    assert (service.failures, service.failures_in_a_row) == (1, 0)
    assert service.last_failure == "RuntimeError: once"
    assert service.last_round_ms is not None
    assert died == []
    await tasks.stop()
    assert died == [], "to be stopped is no death"


@in_a_loop
async def test_the_death_of_a_service_is_reported_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "RETRY_MIN_MS", 1)
    died: list[tuple[str, BaseException]] = []
    tasks = Tasks(lambda name, error: died.append((name, error)))

    def work() -> None:
        raise RuntimeError("for ever")

    async def die() -> None:
        raise ValueError("at once")

    tasks.periodic("rounds", 1, work)
    tasks.service("no rounds", die())
    await eventually_async(lambda: len(died) == 2)
    assert sorted((name, str(error)) for name, error in died) == [
        ("no rounds", "at once"),
        ("rounds", "for ever"),
    ]
    assert tasks.services["rounds"].failures == FAILED_ROUNDS_MAX
    assert not tasks.services["rounds"].is_alive
    await tasks.stop()


@in_a_loop
async def test_a_service_ends_when_an_error_replaces_the_cancellation_of_its_round() -> None:
    """As where a cancelled round cleans up on a disk that fails: the broker has to end all the same."""
    tasks, began = Tasks(), asyncio.Event()

    async def round_that_fails_to_clean_up() -> None:
        is_first = not began.is_set()
        began.set()
        try:
            await asyncio.sleep(NEVER_MS)
        finally:
            if is_first:  # a second round could be cancelled: else this test could not end
                raise OSError(5, "Input/output error")

    tasks.periodic("cleaner", 1, round_that_fails_to_clean_up)
    await began.wait()
    async with asyncio.timeout(30):
        await tasks.stop()
