"""Markers are sent until each is committed, and not a moment longer than they are wanted."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.coordinator_shell import ShellState
from nilometer.broker.replicas.delayed_requests import ProduceOutcome
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.transactions import markers
from nilometer.broker.transactions.markers import Marker, MarkerSender, write_marker
from nilometer.broker.turns import ELEMENTS_MAX, Turns
from nilometer.storage.appending import AppendInfo
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import AppendOrigin
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.transactions.requests import MarkersWritten
from nilometer.transactions.shard import SendMarkers
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import ApiKey, api
from nilometer.wire.records import BatchBuilder
from support.logs.memory_disk import MemoryDisk
from support.step_clock import StepClock

ME, OTHER, NO_LEADER = 1, 2, -1
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
RETRIES = 5
WAIT_S = 60.0
LEADER_EPOCH = 4


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "RETRY_S", 0.001)


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Shell:
    """The coordinator that a transaction is ended for."""

    def __init__(self) -> None:
        self.state, self.loads, self.leader_epoch = ShellState.ACTIVE, 1, LEADER_EPOCH
        self.submitted: list[MarkersWritten] = []
        self.refuses = False
        self.refused = 0

    def submit(self, request: MarkersWritten, _deliver: object) -> None:
        if self.refuses:
            self.refused += 1
            raise KafkaError(ErrorCode.not_coordinator)
        self.submitted.append(request)


class Cluster:
    """Who leads which partition; the leaders answer what ``answers`` has for them, then that it is done."""

    def __init__(self, **leaders: int) -> None:
        self.leaders: dict[int, int] = {int(name[1:]): leader for name, leader in leaders.items()}
        self.answers: list[ErrorCode] = []
        self.resigned: set[int] = set()
        """Brokers that lead no partition, whatever ``leaders`` has."""
        self.looked_up = 0
        self.failures = 0
        """So many times the metadata cannot be asked."""
        self.asked: list[tuple[int, int]] = []
        """Leader and partition."""
        self.requests: list[Any] = []
        self.markers: list[Marker] = []
        image = SimpleNamespace(topic=lambda _name: SimpleNamespace(partition=self._partition))
        self.turns = Turns(StepClock())
        self.sender = MarkerSender(
            ME,
            cast(Any, SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: 7))),
            cast(Any, SimpleNamespace(spawn=lambda work, name: asyncio.ensure_future(work))),
            cast(Any, SimpleNamespace(image=image)),
            cast(Any, SimpleNamespace(begin=self._begin)),
            cast(Any, SimpleNamespace(to=self._connect)),
            self.turns,
        )
        self.shell = Shell()

    def _partition(self, index: int) -> object:
        self.looked_up += 1
        if self.failures:
            self.failures -= 1
            raise RuntimeError("a defect")
        leader = self.leaders.get(index)
        return None if leader is None else SimpleNamespace(has_leader=leader != NO_LEADER, leader=leader)

    def _begin(self, _topic: str, marker: Marker, outcome: ProduceOutcome, _request: object) -> None:
        self.markers.append(marker)
        if (error := self._answer(ME, outcome.index)) is not ErrorCode.none:
            outcome.fail(error)

    def _answer(self, leader: int, index: int) -> ErrorCode:
        self.asked.append((leader, index))
        if leader in self.resigned:
            return ErrorCode.not_leader_or_follower
        return self.answers.pop(0) if self.answers else ErrorCode.none

    async def _connect(self, leader: int) -> object:
        async def request(key: ApiKey, build: Callable[[Any], Any]) -> object:
            codec = api(key, 2)
            asked = codec.read_request(codec.write_request(build(codec)))
            self.requests.append(asked)
            return codec.response(
                markers=tuple(
                    codec.make(
                        "WritableTxnMarkerResult",
                        producer_id=marker.producer_id,
                        topics=tuple(
                            codec.make(
                                "WritableTxnMarkerTopicResult",
                                name=topic.name,
                                partitions=tuple(
                                    codec.make(
                                        "WritableTxnMarkerPartitionResult",
                                        partition_index=index,
                                        error_code=self._answer(leader, index),
                                    )
                                    for index in topic.partition_indexes
                                ),
                            )
                            for topic in marker.topics
                        ),
                    )
                    for marker in asked.markers
                )
            )

        if self.answers and self.answers[0] is ErrorCode.network_exception:
            self.asked.append((leader, -1))
            raise KafkaError(self.answers.pop(0))
        return SimpleNamespace(request=request)

    def send(self, *partitions: TopicPartition) -> None:
        action = SendMarkers(
            transactional_id="x",
            producer_id=7,
            producer_epoch=3,
            committed=True,
            partitions=partitions,
            version=2,
        )
        self.sender.send(cast(Any, self.shell), action)

    @property
    def is_completed(self) -> bool:
        written = MarkersWritten(transactional_id="x", producer_id=7, producer_epoch=3)
        return self.shell.submitted == [written]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_so():  # noqa: ASYNC110 — nothing announces it
            await asyncio.sleep(0.001)


async def until_idle() -> None:
    """Nothing is being sent, and nothing waits to be sent again."""
    await asyncio.sleep(0.01)
    await until(lambda: len(asyncio.all_tasks()) == 1)


@on_a_loop
async def test_a_marker_carries_the_epochs_of_its_end() -> None:
    cluster = Cluster(p0=ME, p1=OTHER)
    cluster.send(A, B)
    await until(lambda: cluster.is_completed)
    [marker] = cluster.markers
    [[sent]] = [request.markers for request in cluster.requests]
    for one, committed in ((marker, marker.committed), (sent, sent.transaction_result)):
        assert (one.producer_id, one.producer_epoch, one.coordinator_epoch) == (7, 3, LEADER_EPOCH)
        assert committed
    assert (marker.version, sent.transaction_version) == (2, 2)


@pytest.mark.parametrize("leader", [ME, OTHER])
@on_a_loop
async def test_a_marker_waits_for_a_leader(leader: int) -> None:
    cluster = Cluster(p0=NO_LEADER, p1=leader)
    cluster.send(A, B)
    await until(lambda: cluster.looked_up > RETRIES)
    assert cluster.asked == [(leader, 1)]
    assert not cluster.shell.submitted, "not while one partition is missing"
    cluster.leaders[0] = leader
    await until(lambda: cluster.is_completed)


@on_a_loop
async def test_of_a_partition_without_a_leader_one_marker_is_looked_at_for_all_transactions() -> None:
    """They may be thousands, with thousands of partitions each, for as long as a broker is down."""
    cluster = Cluster(p0=NO_LEADER)
    ends = 50
    for _ in range(ends):
        cluster.send(A)
    await until(lambda: cluster.looked_up >= ends + RETRIES)
    looked_up = cluster.looked_up
    assert looked_up < 2 * ends
    cluster.leaders[0] = ME
    await until(lambda: len(cluster.shell.submitted) == ends)
    assert cluster.asked == [(ME, 0)] * ends


@on_a_loop
async def test_it_is_looked_for_leaders_again_after_an_unexpected_error() -> None:
    cluster = Cluster(p0=NO_LEADER)
    cluster.send(A)
    cluster.failures = 1
    await until(lambda: not cluster.failures)
    cluster.leaders[0] = ME
    await until(lambda: cluster.is_completed)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
    ],
)
@on_a_loop
async def test_a_marker_is_sent_again_until_it_is_committed(error: ErrorCode) -> None:
    cluster = Cluster(p0=OTHER)
    cluster.answers = [error] * RETRIES
    cluster.send(A)
    await until(lambda: cluster.is_completed)
    assert len(cluster.asked) == RETRIES + 1


@on_a_loop
async def test_a_marker_follows_its_partition_to_another_leader() -> None:
    cluster = Cluster(p0=OTHER)
    cluster.resigned.add(OTHER)
    cluster.send(A)
    await until(lambda: len(cluster.asked) > RETRIES)
    cluster.leaders[0] = ME
    await until(lambda: cluster.is_completed)
    assert cluster.asked[-1] == (ME, 0)


@on_a_loop
async def test_a_partition_that_is_deleted_needs_no_marker() -> None:
    cluster = Cluster(p0=ME, p1=NO_LEADER)
    cluster.send(A, B)
    await until(lambda: cluster.looked_up > RETRIES)
    assert not cluster.shell.submitted
    del cluster.leaders[1]
    await until(lambda: cluster.is_completed)
    assert cluster.asked == [(ME, 0)]


@on_a_loop
async def test_a_transaction_without_partitions_is_complete_at_once() -> None:
    cluster = Cluster()
    cluster.send()
    assert cluster.is_completed


@pytest.mark.parametrize("leader", [ME, OTHER])
@on_a_loop
async def test_the_markers_of_thousands_of_partitions_are_written_in_several_turns(leader: int) -> None:
    """No turn walks all of them: neither to distribute them, nor to append them, nor after the responses."""
    count = 3 * ELEMENTS_MAX
    cluster = Cluster(**{f"p{number}": leader for number in range(count)})
    on_answer, walked, heard = cluster.sender._on_answer, [0], [0]

    def hear(*answer: Any) -> None:
        heard[0] += 1
        on_answer(*answer)

    async def note_turns() -> None:
        while not cluster.is_completed:
            before = cluster.looked_up + len(cluster.markers) + heard[0]
            await asyncio.sleep(0)
            walked.append(cluster.looked_up + len(cluster.markers) + heard[0] - before)

    cluster.sender._on_answer = hear  # type: ignore[method-assign]

    noting = asyncio.ensure_future(note_turns())
    cluster.send(*(TopicPartition("t", number) for number in range(count)))
    await until(lambda: cluster.is_completed)
    await noting
    assert len(cluster.asked) == count
    assert max(walked) <= 2 * ELEMENTS_MAX, "two tasks have one slice each"


@pytest.mark.parametrize(
    ("error", "completes"),
    [(ErrorCode.invalid_producer_epoch, True), (ErrorCode.transaction_coordinator_fenced, False)],
)
@on_a_loop
async def test_an_end_that_others_have_come_past_is_not_sent_again(error: ErrorCode, completes: bool) -> None:
    cluster = Cluster(p0=OTHER)
    cluster.answers = [error]
    cluster.send(A)
    await until(lambda: bool(cluster.asked))
    await until_idle()
    assert cluster.asked == [(OTHER, 0)]
    assert cluster.is_completed is completes


@pytest.mark.parametrize("what", ["unloaded", "loaded again"])
@on_a_loop
async def test_what_a_coordinator_of_before_asked_for_is_dropped(what: str) -> None:
    """The next one finds the transaction prepared in its log, and sends the markers itself."""
    cluster = Cluster(p0=ME, p1=NO_LEADER)
    cluster.send(A, B)
    await until(lambda: cluster.asked == [(ME, 0)] and cluster.looked_up > RETRIES)
    if what == "unloaded":
        cluster.shell.state = ShellState.UNLOADED
    else:
        cluster.shell.loads += 1
    cluster.leaders[1] = ME
    await until_idle()
    looked_up = cluster.looked_up
    await asyncio.sleep(0.02)
    assert (cluster.asked, cluster.looked_up) == ([(ME, 0)], looked_up)
    assert not cluster.shell.submitted


@on_a_loop
async def test_a_coordinator_that_ends_while_the_last_marker_is_written_is_not_told() -> None:
    cluster = Cluster(p0=OTHER)
    connect = cluster._connect

    async def lose_the_role(leader: int) -> object:
        cluster.shell.loads += 1
        return await connect(leader)

    cluster.sender._connections = cast(Any, SimpleNamespace(to=lose_the_role))
    cluster.send(A)
    await until(lambda: bool(cluster.asked))
    await until_idle()
    assert not cluster.shell.submitted


@on_a_loop
async def test_a_shell_that_rejects_requests_for_a_while_completes_the_transaction_afterwards() -> None:
    """The session of its broker was in doubt, and is live: the shell stays, and no other one takes over."""
    cluster = Cluster(p0=ME)
    cluster.shell.refuses = True
    cluster.send(A)
    await until(lambda: cluster.shell.refused > RETRIES)
    assert not cluster.is_completed
    cluster.shell.refuses = False
    await until(lambda: cluster.is_completed)
    assert cluster.asked == [(ME, 0)]


@on_a_loop
async def test_a_shell_that_is_unloaded_leaves_the_end_to_the_next_coordinator() -> None:
    cluster = Cluster(p0=ME)
    cluster.shell.refuses = True
    cluster.send(A)
    await until(lambda: cluster.shell.refused > RETRIES)
    cluster.shell.state = ShellState.UNLOADED
    await asyncio.sleep(0.02)
    refused = cluster.shell.refused
    cluster.shell.refuses = False
    await asyncio.sleep(0.02)
    assert (cluster.shell.refused, cluster.shell.submitted) == (refused, [])
    assert cluster.asked == [(ME, 0)]


@pytest.mark.parametrize(
    ("version", "epoch", "is_written"),
    [(2, 2, False), (2, 3, False), (2, 4, True), (1, 3, True)],
)
def test_a_late_marker_does_not_end_a_later_transaction(version: int, epoch: int, is_written: bool) -> None:
    """With transactions v2 the end bumps the epoch: what is open in the marker's epoch began after it."""
    options = OpenOptions(clean=True, wall_ms=1)
    log = Log.open(SegmentFiles.on(MemoryDisk()), "/t-0", TopicPartition("t", 0), LogConfig(), options)
    builder = BatchBuilder()
    builder.append(1, None, b"of the later one")
    log.append_as_leader(builder.build(0, 7, 3, 0, transactional=True), leader_epoch=0, wall_ms=1)

    def append(batch: bytes, *, all_replicas: bool, origin: AppendOrigin) -> AppendInfo:
        assert all_replicas
        return log.append_as_leader(batch, leader_epoch=0, wall_ms=1, origin=origin)

    partition = cast("Partition", SimpleNamespace(log=log, append=append))
    marker = Marker(
        producer_id=7,
        producer_epoch=epoch,
        committed=True,
        coordinator_epoch=1,
        version=version,
        timestamp_ms=1,
    )
    if is_written:
        assert write_marker(partition, marker).first_offset == 1
    else:
        with pytest.raises(KafkaError) as refused:
            write_marker(partition, marker)
        assert refused.value.code is ErrorCode.invalid_producer_epoch
        assert log.last_stable_offset(1) == 0
