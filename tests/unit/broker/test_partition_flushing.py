"""A partition whose records count only once they are flushed: what lies there unflushed comes to count
without another record behind it, and what was cut and written again counts as unflushed."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from nilometer.broker.coordinator_shell import WaitingEffects
from nilometer.broker.replicas.delayed_requests import (
    RELEASED_AT_ONCE,
    RELEASED_IN_TURN,
    DelayedRequest,
    PartitionWait,
    ProduceOutcome,
    Releases,
)
from nilometer.broker.replicas.file_work import FlushEnded, GroupCommit, LogDisposal
from nilometer.broker.replicas.hosted_partition import Partition, PartitionHost
from nilometer.broker.replicas.isr_changes import IsrLog, IsrRequests
from nilometer.broker.replicas.replica_failures import ReplicaFailures
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import SLICE_US, Turns
from nilometer.cluster.states import PartitionState
from nilometer.coordinators import Token
from nilometer.identifiers import BrokerId, LeaderEpoch, PartitionEpoch, TopicId, TopicIdPartition
from nilometer.replication.epochs import EpochEnd
from nilometer.replication.follower import FetchResponse, FollowerRole, NoFetch
from nilometer.replication.leader import LeaderRole
from nilometer.replication.replica import Replica
from nilometer.replication.shell_interface import FollowerFetch
from nilometer.runtime import Runtime
from nilometer.runtime.runtime import SeededEntropy
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.flushing import FlushPlan
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.errors import ErrorCode
from nilometer.wire.records import BatchBuilder
from support.logs.memory_disk import MemoryDisk
from support.step_clock import StepClock

NAME = TopicPartition("t", 0)
FLUSHED = LogConfig(flush_messages=1)
CACHED = LogConfig()


class StandingClock:
    def wall_ms(self) -> int:
        return 1

    def monotonic_ms(self) -> int:
        return 1

    def monotonic_us(self) -> int:
        return 1000

    def thread_cpu_us(self) -> int:
        return 0


class Host:
    """Flushes when the test says so."""

    def __init__(self) -> None:
        self.wanting: dict[Log, FlushEnded] = {}
        self.resumed = 0
        self.failed: list[tuple[Log, OSError]] = []
        self.parts = PartitionHost(
            clock=StandingClock(),
            is_live=lambda: True,
            commit=cast(GroupCommit, SimpleNamespace(request=self.wanting.__setitem__)),
            disposal=cast(LogDisposal, SimpleNamespace(truncate_to=self._truncate_to)),
            isr_requests=cast(IsrRequests, None),
            isr_log=IsrLog(),
            failures=ReplicaFailures(lambda log, error: self.failed.append((log, error))),
            start_in_tier=lambda partition, log_start: None,
            releases=Releases(Turns(StandingClock())),
        )

    def _truncate_to(self, log: Log, offset: int) -> None:
        log.truncate_to(offset, wall_ms=1)

    def on_resumed(self, _: Partition) -> None:
        self.resumed += 1

    def commit(self) -> None:
        """Flush all that want it."""
        wanting = dict(self.wanting)
        self.wanting.clear()
        for log, ended in wanting.items():
            log.mark_flushed(_ran(log), wall_ms=1)
            ended(None)


def open_log(disk: MemoryDisk, config: LogConfig = FLUSHED) -> Log:
    options = ManagerOptions(
        node_id=1,
        directories=["/data"],
        entropy=SeededEntropy(random.Random(1)),
        config_for=lambda _: config,
    )
    disk.crash_process()
    manager = LogManager.open(disk, options, wall_ms=1)
    return manager.create(NAME, config, wall_ms=1, topic_id=uuid.UUID(int=7))


def _unbroken(_partition: Partition, broken: AssertionError) -> None:
    raise broken


def partition_of(log: Log, host: Host) -> Partition:
    replica = Replica(log, broker_id=1, broker_epoch=1, counts_flushed=log.config.flush_messages <= 1)
    key = TopicIdPartition(TopicId("x"), 0)
    partition = Partition("t", key, _state(0, 1), log, replica, host.parts, _unbroken)
    partition.add_resume_listener(host.on_resumed)
    return partition


def _state(epoch: int, leader: int) -> PartitionState:
    members = (BrokerId(1),) if leader == 1 else (BrokerId(1), BrokerId(2))
    return PartitionState(members, members, BrokerId(leader), LeaderEpoch(epoch), PartitionEpoch(epoch))


def _batch(value: bytes) -> bytes:
    builder = BatchBuilder()
    builder.append(1, None, value)
    return builder.build()


def _append(log: Log, count: int) -> None:
    for number in range(count):
        log.append_as_leader(_batch(b"%d" % number), leader_epoch=0, wall_ms=1)


def test_what_a_crash_left_unflushed_is_committed_without_another_record() -> None:
    disk = MemoryDisk()
    _append(open_log(disk), 3)
    log, host = open_log(disk), Host()
    partition = partition_of(log, host)
    partition.on_metadata(_state(1, 1), {1: 1})
    assert isinstance(partition.replica.role, LeaderRole)
    assert partition.replica.high_watermark == 0
    host.commit()
    assert partition.replica.high_watermark == 3


def test_a_segment_that_is_full_during_a_flush_gets_a_flush_without_another_record() -> None:
    host = Host()
    log = open_log(MemoryDisk(), LogConfig(segment_bytes=200))
    partition = partition_of(log, host)
    partition.on_metadata(_state(1, 1), {1: 1})

    def append_until_full() -> int:
        before = log.segments.active.base_offset
        while log.segments.active.base_offset == before:
            partition.append(_batch(b"x" * 50), all_replicas=True)
        return log.segments.active.base_offset

    append_until_full()
    [ended] = host.wanting.values()
    host.wanting.clear()
    plan = log.flush_plan()
    second_end = append_until_full()
    assert not host.wanting, "one flush at a time"
    plan.run()
    log.mark_flushed(plan, wall_ms=1)
    ended(None)
    host.commit()
    assert log.recovery_point >= second_end
    assert not host.wanting, "and no more when no segment waits"


async def test_what_waits_for_one_offset_is_released_slice_by_slice() -> None:
    """As 51,200 produces of 800 connections that repeat one batch, until their follower goes on."""
    released: list[int] = []
    host, log = Host(), open_log(MemoryDisk())
    partition = partition_of(log, host)
    partition.on_metadata(_state(1, 1), {1: 1})
    partition.append(_batch(b"x"), all_replicas=True)
    count = 3 * RELEASED_AT_ONCE
    for number in range(count):
        wait = SimpleNamespace(release=lambda error, number=number: released.append(number))
        partition.hold_until_committed(1, wait)
    host.commit()
    most = len(released)
    assert most <= RELEASED_AT_ONCE
    async with asyncio.timeout(60):
        while len(released) < count:
            before = len(released)
            await asyncio.sleep(0)
            most = max(most, len(released) - before)
    assert most <= RELEASED_AT_ONCE
    assert released == list(range(count))
    assert not partition.waiting_produces


async def test_a_produce_whose_time_is_over_before_its_slice_is_acknowledged() -> None:
    """Its records are committed: the producer need not send them again."""
    host, log = Host(), open_log(MemoryDisk())
    partition = partition_of(log, host)
    partition.on_metadata(_state(1, 1), {1: 1})
    appended = partition.append(_batch(b"x"), all_replicas=True)
    outcomes = [ProduceOutcome(0) for _ in range(2 * RELEASED_AT_ONCE)]
    waits: list[PartitionWait] = []
    finished: list[ProduceOutcome] = []
    for outcome in outcomes:
        request = DelayedRequest(lambda outcome=outcome: finished.append(outcome))
        waits.append(request.wait_for(outcome))
        held = SimpleNamespace(wait_for=lambda _: waits[-1])
        partition.acknowledge_when_committed(appended, outcome, held)
        request.start_timer(60_000)
    host.commit()
    assert len(finished) < len(outcomes)
    for wait in waits:
        wait.time_out()
    for _ in range(RELEASED_AT_ONCE // RELEASED_IN_TURN + 1):
        await asyncio.sleep(0)
    assert len(finished) == len(outcomes)
    assert {outcome.error for outcome in outcomes} == {ErrorCode.none}


async def test_what_a_coordinator_adds_while_releases_are_put_off_follows_them() -> None:
    """And waits for no further append: there may be none for hours."""
    left: list[object] = []
    host, log = Host(), open_log(MemoryDisk())
    partition = partition_of(log, host)
    partition.on_metadata(_state(1, 1), {1: 1})
    effects = WaitingEffects[int, str](
        partition.replica, partition.hold_until_committed, left.extend, left.extend
    )
    results = [(Token(number), number) for number in range(2 * RELEASED_AT_ONCE)]
    for result in results:
        appended = partition.append(_batch(b"x"), all_replicas=False)
        effects.add(appended.last_offset + 1, [result], [], 100)
    marker = partition.append(_batch(b"marker"), all_replicas=False)
    host.commit()
    assert len(left) < len(results)
    effects.add(marker.last_offset + 1, [], ["send"], 100)
    for _ in range(RELEASED_AT_ONCE // RELEASED_IN_TURN + 1):
        await asyncio.sleep(0)
    assert left == [*results, "send"]


class Follower:
    """Waits for records, and reads them when they are there."""

    for_replica = True

    def __init__(self, disk: MemoryDisk, log: Log) -> None:
        self.disk, self.log = disk, log
        self.reads = 0
        self.records = b""
        self.fails = False

    def on_readable(self, source: object, byte_count: int) -> None:
        before = self.disk.reads
        part = self.log.read(self.log.log_end_offset - 1, 1000, self.log.log_end_offset, only_cached=True)
        assert part is not None
        self.records, self.reads = bytes(part.records), self.disk.reads - before
        if self.fails:
            raise RuntimeError("it fails")

    def on_watermark_advanced(self, source: object) -> None:
        pass

    def complete(self, source: object) -> None:
        pass


def test_a_waiting_follower_gets_an_append_from_memory_and_nothing_is_kept_then() -> None:
    disk, host = MemoryDisk(), Host()
    log = open_log(disk, CACHED)
    partition = partition_of(log, host)
    partition.on_metadata(_state(1, 1), {1: 1})
    partition.append(_batch(b"none waits"), all_replicas=True)
    follower = Follower(disk, log)
    partition.fetch_waiters.add(follower)
    partition.append(_batch(b"one waits"), all_replicas=True)
    assert (follower.reads, follower.records[-10:-1]) == (0, b"one waits")
    assert log.kept is None
    follower.fails = True
    with pytest.raises(RuntimeError):
        partition.append(_batch(b"it fails"), all_replicas=True)
    assert log.kept is None


def test_a_follower_that_was_restarted_fetches_on() -> None:
    disk = MemoryDisk()
    _append(open_log(disk), 3)
    host = Host()
    partition = partition_of(open_log(disk), host)
    partition.on_metadata(_state(1, 2), {1: 1, 2: 1})
    role = partition.replica.role
    assert isinstance(role, FollowerRole)
    assert role.next_fetch() is NoFetch.UNFLUSHED
    host.commit()
    fetch = role.next_fetch()
    assert isinstance(fetch, FollowerFetch) and fetch.fetch_offset == 3
    assert host.resumed == 1


def test_what_is_flushed_already_counts_for_a_new_role() -> None:
    log, host = open_log(MemoryDisk()), Host()
    _append(log, 3)
    log.mark_flushed(_ran(log), wall_ms=1)
    partition = partition_of(log, host)
    partition.on_metadata(_state(1, 1), {1: 1})
    assert not host.wanting
    assert partition.replica.high_watermark == 3


def test_what_was_cut_and_written_again_does_not_count_as_flushed_to_a_new_leader() -> None:
    log, host = open_log(MemoryDisk()), Host()
    _append(log, 5)
    partition = partition_of(log, host)
    partition.on_metadata(_state(1, 2), {1: 1, 2: 1})
    host.commit()
    log.truncate_to(2, wall_ms=1)
    _append(log, 3)
    partition.on_metadata(_state(2, 1), {1: 1})
    assert partition.replica.high_watermark == 2
    host.commit()
    assert partition.replica.high_watermark == 5


def test_a_flush_that_a_truncation_overtook_is_asked_for_again() -> None:
    log, host = open_log(MemoryDisk()), Host()
    _append(log, 5)
    partition = partition_of(log, host)
    partition.on_metadata(_state(1, 2), {1: 1, 2: 1})
    [ended] = host.wanting.values()
    plan = _ran(log)
    log.truncate_to(2, wall_ms=1)
    host.wanting.clear()
    log.mark_flushed(plan, wall_ms=1)
    ended(None)
    host.commit()
    assert log.flushed_offset == 2
    assert isinstance(partition.replica.role, FollowerRole)
    assert isinstance(partition.replica.role.next_fetch(), FollowerFetch)


def test_a_topic_that_comes_to_ask_for_flushes_has_its_followers_flush_what_they_have() -> None:
    log, host = open_log(MemoryDisk(), CACHED), Host()
    _append(log, 3)
    partition = partition_of(log, host)
    partition.on_metadata(_state(1, 2), {1: 1, 2: 1})
    log.configure(FLUSHED)
    partition.configure(1)
    role = partition.replica.role
    assert isinstance(role, FollowerRole) and role.next_fetch() is NoFetch.UNFLUSHED
    host.commit()
    assert isinstance(role.next_fetch(), FollowerFetch)


def _ran(log: Log) -> FlushPlan:
    plan = log.flush_plan()
    plan.run()
    return plan


def test_an_effect_that_the_disk_refuses_is_the_hosts_to_hear_of() -> None:
    """And no other partition: the fetcher that brought the answer goes on with the other partitions."""
    disk, host = MemoryDisk(), Host()
    log = open_log(disk)
    _append(log, 5)
    partition = partition_of(log, host)
    partition.on_metadata(_state(1, 2), {1: 1, 2: 1})
    host.commit()
    role = partition.replica.role
    assert isinstance(role, FollowerRole)
    fetch = role.next_fetch()
    assert isinstance(fetch, FollowerFetch)
    disk.fail_once(1)
    assert (
        partition.on_fetch_response(fetch, FetchResponse(diverging=EpochEnd(0, 2)), b"")
        == "its log has failed"
    )
    assert host.failed == [(log, log.failure)]
    assert log.failure is not None


def test_a_request_that_timed_out_waits_nowhere_any_more() -> None:
    """A high watermark may be held for hours: the requests that gave up in that time are not kept."""

    async def scenario() -> None:
        host = Host()
        partition = partition_of(open_log(MemoryDisk()), host)
        partition.on_metadata(_state(1, 1), {1: 1})
        outcomes = [ProduceOutcome(0) for _ in range(3)]
        for outcome, timeout_ms in zip(outcomes, (1, 60_000, 1), strict=True):
            finished = asyncio.Event()
            request = DelayedRequest(finished.set)
            appended = partition.append(_batch(b"held"), all_replicas=True)
            partition.acknowledge_when_committed(appended, outcome, request)
            request.start_timer(timeout_ms)
            if timeout_ms == 1:
                await finished.wait()
        assert partition.waiting_produces == 1
        role = partition.replica.role
        assert isinstance(role, LeaderRole)
        assert [offset for offset, _ in role._tickets.waiting()] == [2]
        host.commit()
        assert partition.waiting_produces == 0
        timed_out = ErrorCode.request_timed_out
        assert [outcome.error for outcome in outcomes] == [timed_out, ErrorCode.none, timed_out]

    asyncio.run(scenario())


def test_an_append_with_acks_1_is_acknowledged_by_the_flush_of_its_records() -> None:
    async def scenario() -> None:
        host, log = Host(), open_log(MemoryDisk())
        partition = partition_of(log, host)
        partition.on_metadata(_state(1, 1), {1: 1})

        def append() -> None:
            appended = partition.append(_batch(b"v"), all_replicas=False)
            partition.acknowledge_when_written(appended, ProduceOutcome(0), DelayedRequest(lambda: None))

        append()
        assert partition.waiting_produces == 1
        of_the_first, ended = _ran(log), host.wanting.pop(log)
        append()
        log.mark_flushed(of_the_first, wall_ms=1)
        ended(None)
        assert partition.waiting_produces == 1, "the second one"
        host.commit()
        assert partition.waiting_produces == 0

    asyncio.run(scenario())


class SlowClock(StepClock):
    """To look at it takes a quarter of a slice."""

    def monotonic_us(self) -> int:
        self.us += SLICE_US // 4
        return self.us


async def test_the_flushes_of_thousands_of_logs_are_planned_and_ended_slice_by_slice() -> None:
    """Clients may have each record of each of their partitions flushed."""
    loops = [0]

    async def count_iterations() -> None:
        while True:
            loops[0] += 1
            await asyncio.sleep(0)

    class Flushed:
        failure = None

        def flush_plan(self) -> object:
            planned.append(loops[0])
            return SimpleNamespace(run=lambda: None)

        def mark_flushed(self, plan: object, wall_ms: int) -> None:
            ended.append(loops[0])

    async def offload(work: Callable[[], object]) -> object:
        return work()

    planned: list[int] = []
    ended: list[int] = []
    runtime = SimpleNamespace(disk=SimpleNamespace(offload=offload), clock=SlowClock())
    tasks = Tasks()
    commit, errors = GroupCommit(cast(Runtime, runtime), tasks), list[Exception | None]()
    counting = asyncio.ensure_future(count_iterations())
    for _ in range(40):
        commit.request(cast(Log, Flushed()), errors.append)
    assert commit._committing is not None
    await commit._committing
    counting.cancel()
    await tasks.stop()
    assert errors == [None] * 40
    for done in (planned, ended):
        assert max(Counter(done).values()) <= 4
