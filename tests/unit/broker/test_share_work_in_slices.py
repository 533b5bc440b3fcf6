"""What members of share groups make long is done slice by slice: requests about thousands of partitions, the
release of what a lost connection held, and what is written about many records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from nilometer.broker.api.spec import Request
from nilometer.broker.request_context import RequestContext
from nilometer.broker.responses import wait_whole
from nilometer.broker.sharing import persister as persisting
from nilometer.broker.sharing import share_fetch, share_offsets
from nilometer.broker.sharing import share_partitions as share_partitions_module
from nilometer.broker.sharing.persister import BATCHES_AT_ONCE, DECISION_ELEMENTS, SharePersister
from nilometer.broker.sharing.share_partitions import RELEASED_AT_ONCE, LedSharePartition, SharePartitions
from nilometer.broker.turns import ELEMENTS_MAX, LongWork, Turns
from nilometer.groups.turn import InitializeShareState
from nilometer.identifiers import TopicIdPartition, topic_id_of
from nilometer.share.partition_events import (
    Acquired,
    AcquireMode,
    Dead,
    DeadReason,
    Fetched,
    OffsetRange,
    ShareSettings,
    Write,
)
from nilometer.share.sessions import MemberKey, ShareSession, ShareSessions
from nilometer.share.share_partition import LOCKS_WHEN_SHORT, SharePartition
from nilometer.share.state_records import DeliveryState, SharePartitionKey, SharePartitionState, StateBatch
from nilometer.share.state_shard import StateRequest, StateResult, WriteState
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import NONE, ErrorCode
from nilometer.wire.large_requests import divide
from nilometer.wire.messages import RequestHeader, api, decode_response
from support.brokers.fake_rights import rights_of
from support.brokers.served_apis import APIS

PARTITIONS = 3 * ELEMENTS_MAX
TOPIC = UUID(int=9)
KEY = SharePartitionKey("g", topic_id_of(TOPIC), 0)
SHARE_SETTINGS = {"g": SimpleNamespace(read_committed=False, record_lock_duration_ms=1)}
CLOCK = SimpleNamespace(monotonic_us=lambda: 0, thread_cpu_us=lambda: 0, monotonic_ms=lambda: 0)


class CountedTurns(Turns):
    """Counts how often long work has waited for its turn. No time passes."""

    def __init__(self) -> None:
        super().__init__(cast(Any, CLOCK))
        self.waits = 0

    async def wait_next(self) -> None:
        self.waits += 1
        await super().wait_next()


class Connection:
    """Another request of this connection waits: what may end early does."""

    def __init__(self) -> None:
        self.waits = 0

    def expect(self, size: int) -> None:
        """Hold no memory."""

    @property
    def complete_early(self) -> Callable[[], None] | None:
        return None

    @complete_early.setter
    def complete_early(self, complete: Callable[[], None] | None) -> None:
        if complete is not None:
            self.waits += 1
            asyncio.get_running_loop().call_soon(complete)


def send(
    turns: Turns,
    key: ApiKey,
    monkeypatch: pytest.MonkeyPatch,
    sessions: ShareSessions,
    connection: Connection | None = None,
) -> Any:
    """Send a request about partitions of a topic that does not exist; return its response."""
    codec = api(key, 2)
    partition, topic = ("FetchPartition", "FetchTopic")
    fields: dict[str, object] = {"share_session_epoch": 0}
    if key is ApiKey.SHARE_FETCH:
        fields |= {"max_wait": timedelta(seconds=100), "min_bytes": 1, "max_bytes": 100}
        fields |= {"max_records": 10, "batch_size": 10, "forgotten_topics_data": ()}
    else:
        partition, topic = ("AcknowledgePartition", "AcknowledgeTopic")
        fields["share_session_epoch"] = 1
    batches: tuple[Any, ...] = ()
    if key is ApiKey.SHARE_ACKNOWLEDGE:
        batches = (
            codec.make_request("AcknowledgementBatch", first_offset=0, last_offset=0, acknowledge_types=(1,)),
        )
    parts = tuple(
        codec.make_request(partition, partition_index=index, acknowledgement_batches=batches)
        for index in range(PARTITIONS)
    )
    topics = (codec.make_request(topic, topic_id=TOPIC, partitions=parts),)
    parts_used = SimpleNamespace(
        turns=turns,
        groups=SimpleNamespace(serves=lambda kind: True),
        share_sessions=sessions,
        share_partitions=share_partitions(turns),
        metadata=SimpleNamespace(
            image=SimpleNamespace(topic_by_id=lambda _: None, topic_by_uuid=lambda _: None)
        ),
        rights=ALLOWED,
        runtime=SimpleNamespace(clock=CLOCK),
        replicas=None,
        config=SimpleNamespace(fetch_max_bytes=1_000),
        client_quotas=SimpleNamespace(limits_clients=False),
        replication_quotas=SimpleNamespace(leader=None),
        response_memory=SimpleNamespace(fetch_bytes_max=lambda: 1_000),
    )
    body = codec.request(group_id="g", member_id="m", topics=topics, **fields)
    header = RequestHeader(key, 2, 1, "client", 0)
    request = Request(header, body, codec, cast(Any, connection or Connection()), RequestContext())
    handle = share_fetch.fetch_long if key is ApiKey.SHARE_FETCH else share_fetch.acknowledge_long

    async def run() -> bytes:
        reply = await handle(cast(Any, parts_used), request, LongWork(turns))
        assert reply is not None
        return await wait_whole(cast(Any, reply), turns)

    return decode_response(key, 2, asyncio.run(run())[4:])[1]


def share_partitions(turns: Turns, tasks: object = None) -> SharePartitions:
    runtime = SimpleNamespace(clock=CLOCK)
    replicas = SimpleNamespace(add_hosting_listener=lambda _: None)
    settings, persister = SHARE_SETTINGS.get, SimpleNamespace(is_busy=False)
    return SharePartitions(
        *(cast(Any, one) for one in (runtime, tasks, replicas, None, persister, None, None, settings, turns))
    )


def test_requests_about_thousands_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = ShareSessions(10)
    for key, passes in ((ApiKey.SHARE_FETCH, 5), (ApiKey.SHARE_ACKNOWLEDGE, 3)):
        turns = CountedTurns()
        response = send(turns, key, monkeypatch, sessions)
        ((topic),) = response.responses
        assert [part.partition_index for part in topic.partitions] == list(range(PARTITIONS))
        assert {part.error_code for part in topic.partitions} == {ErrorCode.unknown_topic_id}
        assert turns.waits >= passes * (PARTITIONS // ELEMENTS_MAX), key


def test_a_member_waits_to_be_told_that_there_are_too_many_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was told at once would ask again at once, as Kafka's does."""
    connection = Connection()
    response = send(CountedTurns(), ApiKey.SHARE_FETCH, monkeypatch, ShareSessions(0), connection)
    assert response.error_code is ErrorCode.share_session_limit_reached
    assert connection.waits == 1


def test_ranges_that_were_acquired_are_made_when_they_are_encoded() -> None:
    made: list[Acquired] = []
    fetch = cast(Any, SimpleNamespace(_acquired=made.append))
    result = share_fetch._Result(acquired=tuple(Acquired(at, at, 1) for at in range(PARTITIONS)))
    fields = share_fetch._ShareFetch.fields_of(fetch, result)
    assert (len(cast(Any, fields["acquired_records"])), made) == (PARTITIONS, [])


class Looking(share_fetch._ShareFetch):
    """It waits for more bytes than come, and each look is followed by a record at once."""

    def __init__(self, partitions: int, ends_early_after: int) -> None:
        self.now_ms = self.looks = 0
        self._ends_early_after = ends_early_after
        clock = SimpleNamespace(monotonic_ms=lambda: self.now_ms)
        self.parts = cast(Any, SimpleNamespace(runtime=SimpleNamespace(clock=clock)))
        self.request = cast(Any, SimpleNamespace(connection=Connection()))
        self.results, self._has_ended_early, self._bytes_min = {}, False, 1_000
        self._led = {
            TopicIdPartition(topic_id_of(TOPIC), index): cast(Any, None) for index in range(partitions)
        }

    def _reader(self) -> Any:
        return SimpleNamespace(begin=list, bytes_read=0, max_bytes=0, has_cold=False, drop=lambda: None)

    async def _prepare(self) -> None:
        self.looks += 1

    async def _acquire(self, reader: Any) -> bool:
        return False

    async def _wait(self, wait: Any, seconds: float) -> None:
        is_pause = wait is not WATCHED
        self.now_ms += int(1000 * seconds) if is_pause else 1
        self._has_ended_early = self.looks >= self._ends_early_after


ALLOWED = rights_of(SimpleNamespace(allows=lambda *_: True))
WATCHED = cast(Any, SimpleNamespace(begin=lambda: None))


@pytest.mark.parametrize(("partitions", "looks"), [(1_000, 42), (10_000, 7), (1, 5_001)])
def test_a_fetch_that_waits_for_many_bytes_does_not_look_again_for_each_record(
    partitions: int, looks: int
) -> None:
    """One that waited, of 1,000 partitions, took half of the processor time beside 60 records a second."""
    fetch = Looking(partitions, ends_early_after=10**9)
    asyncio.run(fetch._acquire_until(10_000, WATCHED))
    assert looks / 2 < fetch.looks <= 2 * looks
    early = Looking(partitions, ends_early_after=3)
    asyncio.run(early._acquire_until(10_000, WATCHED))
    assert early.looks <= 4


class Held:
    """A share partition, and which members were released."""

    core = SimpleNamespace(ranges=0)

    def __init__(self, released: list[str]) -> None:
        self._released = released

    def release_member(self, member_id: str) -> None:
        self._released.append(member_id)


def session_of(
    member: MemberKey, partitions: SharePartitions, count: int, released: list[str]
) -> ShareSession:
    session = ShareSession(member, None)
    for index in range(count):
        key = TopicIdPartition(topic_id_of(TOPIC), index)
        session.partitions[key] = None
        partitions._led.setdefault(key, {})[member.group_id] = cast(Any, Held(released))
    return session


def test_what_a_lost_connection_held_is_released_before_its_members_come_again() -> None:
    async def scenario() -> None:
        turns, released = CountedTurns(), list[str]()
        spawned: list[asyncio.Task[None]] = []

        def spawn(work: Coroutine[Any, Any, None], name: str) -> None:
            spawned.append(asyncio.ensure_future(work))

        partitions = share_partitions(turns, SimpleNamespace(spawn=spawn))
        one, two = MemberKey("g", "one"), MemberKey("g", "two")
        partitions.release_all([session_of(one, partitions, RELEASED_AT_ONCE, released)])
        assert (len(released), spawned) == (RELEASED_AT_ONCE, [])
        partitions.release_all([session_of(two, partitions, PARTITIONS, released)])
        assert len(released) == RELEASED_AT_ONCE
        await asyncio.sleep(0)
        await partitions.wait_released(one)
        assert len(released) == RELEASED_AT_ONCE + ELEMENTS_MAX
        await partitions.wait_released(two)
        assert len(released) == RELEASED_AT_ONCE + PARTITIONS
        assert turns.waits == PARTITIONS // ELEMENTS_MAX
        await asyncio.gather(*spawned)

    asyncio.run(scenario())


def led_with_ranges(partitions: SharePartitions, index: int, count: int) -> LedSharePartition:
    """Return a share partition of which the member ``m`` has locked ``count`` records, each on its own."""
    log = SimpleNamespace(log_start_offset=0)
    partition = SimpleNamespace(leader_epoch=0, leader=SimpleNamespace(leader_epoch=0), log=log)
    key = TopicIdPartition(topic_id_of(TOPIC), index)
    led = LedSharePartition(partitions, SharePartitionKey("g", *key), cast(Any, partition))
    partitions._led[key] = {"g": led}
    by_id = cast(Any, partitions)._replicas
    by_id.partition_by_raw_id = lambda _, at: partitions._led[key._replace(partition=at)]["g"].partition
    core = SharePartition(ShareSettings(), SharePartitionState(0, 0, 0, 0))
    led.use(core)
    lock(led, count)
    return led


def lock(led: LedSharePartition, count: int) -> int:
    """Lock more records, each on its own; return how many members hold then."""
    core = led.core
    assert core is not None
    offsets = tuple(OffsetRange(at, at) for at in range(core.end_offset, core.end_offset + count))
    fetched = Fetched(core.end_offset, offsets)
    mode = AcquireMode.BATCH_OPTIMIZED
    _, effects = core.acquire("m", fetched, max_records=count, batch_size=1, mode=mode, now_ms=0)
    led.carry_out(effects, has_acquired=True)
    return core.acquired


def test_a_share_partition_is_kept_until_all_its_dead_letters_are_written() -> None:
    dropped: list[LedSharePartition] = []
    host = SimpleNamespace(
        drop=dropped.append,
        counts=SimpleNamespace(of=lambda _: ()),
        dead_letters=SimpleNamespace(bury=lambda *_: None),
    )
    key = SharePartitionKey("g", *TopicIdPartition(topic_id_of(TOPIC), 0))
    led = LedSharePartition(cast(Any, host), key, cast(Any, SimpleNamespace(leader_epoch=0)))
    led.carry_out([Dead(3, 5, 2, DeadReason.REJECTED, has_letters=True)])
    for written in ([OffsetRange(4, 4)], [OffsetRange(3, 3), OffsetRange(5, 5)]):
        led.drop_if_unused()
        assert dropped == []
        led.on_buried(written)
    led.drop_if_unused()
    assert dropped == [led]


def test_what_members_take_record_by_record_has_a_limit_on_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(share_partitions_module, "RANGES_MAX", 300)
        monkeypatch.setattr(share_partitions_module, "share_settings", lambda _: ShareSettings())
        partitions = share_partitions(CountedTurns())
        one, two, three = (led_with_ranges(partitions, index, 100) for index in range(3))
        led = await partitions.get("g", TopicIdPartition(topic_id_of(TOPIC), 0))
        assert led is one
        assert lock(one, 1) == 101
        few = led_with_ranges(partitions, 3, 10)
        for index in (0, 3):
            await partitions.get("g", TopicIdPartition(topic_id_of(TOPIC), index))
        assert lock(one, 1) == 101, "memory is short"
        assert lock(few, 40) == LOCKS_WHEN_SHORT, "but each may have some"
        four = led_with_ranges(partitions, 4, 200)
        assert not any(each.is_dropped for each in (one, two, three, four))
        five = led_with_ranges(partitions, 5, 200)
        dropped = [each for each in (one, two, three, few, four, five) if each.is_dropped]
        assert dropped == [four], "the first of the largest"
        for each in (one, two, three, five):
            each.drop()
        assert partitions._ranges == LOCKS_WHEN_SHORT
        await partitions.get("g", TopicIdPartition(topic_id_of(TOPIC), 3))
        assert lock(few, 1) == LOCKS_WHEN_SHORT + 1

    asyncio.run(scenario())


def test_what_a_lost_connection_held_record_by_record_is_released_slice_by_slice() -> None:
    async def scenario() -> None:
        turns, spawned = CountedTurns(), list[asyncio.Task[None]]()

        def spawn(work: Coroutine[Any, Any, None], name: str) -> None:
            spawned.append(asyncio.ensure_future(work))

        partitions = share_partitions(turns, SimpleNamespace(spawn=spawn))
        cast(Any, partitions).persister = SimpleNamespace(write=lambda *_: None)
        member = MemberKey("g", "m")
        session = ShareSession(member, None)
        led = [led_with_ranges(partitions, index, 1_000) for index in range(4)]
        for one in led:
            session.partitions[TopicIdPartition(one.key.topic_id, one.key.partition)] = None
        partitions.release_all([session])
        await asyncio.gather(*spawned)
        assert [one.core is not None and one.core.release_member("m") for one in led] == [()] * 4
        assert turns.waits == 2, "of 4 x 1,001 elements"

    asyncio.run(scenario())


class Asked(SharePersister):
    """Its coordinator is asked, and says ``errors`` one after the other."""

    def __init__(self, turns: Turns, *errors: ErrorCode) -> None:
        super().__init__(*(cast(Any, one) for one in (1, None, None, None, None, None, turns)))
        self.asked: list[StateRequest] = []
        self._errors = list(errors)

    async def ask(self, request: StateRequest) -> StateResult:
        self.asked.append(request)
        return StateResult(request.key, self._errors.pop(0) if self._errors else NONE)


def batches(*offsets: int) -> tuple[StateBatch, ...]:
    return tuple(StateBatch(offset, offset, DeliveryState.ACKNOWLEDGED, 1) for offset in offsets)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_many_batches_are_written_some_after_the_others(failing: int) -> None:
    errors = [ErrorCode.fenced_leader_epoch if index == failing else NONE for index in range(3)]
    persister = Asked(CountedTurns(), *errors)
    odd = Write(1, batches(*range(1, 2 * BATCHES_AT_ONCE, 2)), 0, 1)
    even = Write(2, batches(*range(0, 2 * BATCHES_AT_ONCE + 2, 2)), 0, 7)
    error = asyncio.run(persister._write_together(KEY, (3, 4), [odd, even]))
    assert error is ErrorCode.fenced_leader_epoch
    writes = [one for one in persister.asked if isinstance(one, WriteState)]
    assert len(writes) == failing + 1, "none follows one that failed"
    assert {(one.state_epoch, one.leader_epoch, one.delivery_complete_count) for one in writes} == {(3, 4, 7)}
    offsets = [batch.first_offset for one in writes for batch in one.batches]
    assert offsets == sorted(offsets)
    assert max(len(one.batches) for one in writes) <= BATCHES_AT_ONCE


def test_others_are_served_while_thousands_of_batches_are_written() -> None:
    turns, told = CountedTurns(), list[str]()

    def done(error: ErrorCode) -> Generator[int, None, None]:
        told.append(f"{error.name} after {turns.waits} waits")
        for _ in range(3):
            yield ELEMENTS_MAX

    async def scenario() -> None:
        spawned: list[asyncio.Task[None]] = []
        persister = Asked(turns)
        persister._tasks = cast(
            Any, SimpleNamespace(spawn=lambda work, name: spawned.append(asyncio.ensure_future(work)))
        )
        persister.write(KEY, (3, 4), Write(1, batches(*range(8 * ELEMENTS_MAX)), 0, 1), done)
        await asyncio.gather(*spawned)

    asyncio.run(scenario())
    before = 8 * ELEMENTS_MAX // BATCHES_AT_ONCE // (1 + ELEMENTS_MAX // BATCHES_AT_ONCE)
    assert told == [f"none after {before} waits"]
    assert turns.waits >= before + 3


def test_a_write_without_batches_is_written_too() -> None:
    persister = Asked(CountedTurns())
    assert asyncio.run(persister._write_together(KEY, (3, 4), [Write(1, (), 50, 0)])) is NONE
    (written,) = persister.asked
    assert isinstance(written, WriteState)
    assert (written.start_offset, written.batches) == (50, ())


def test_one_request_has_few_batches_and_few_share_partitions() -> None:
    def write(index: int, count: int) -> Any:
        return persisting._Asked(
            WriteState(KEY._replace(partition=index), 1, 1, 0, 0, batches(*range(count))), cast(Any, None)
        )

    half = BATCHES_AT_ONCE // 2
    together = persisting._together([write(0, half), write(1, half), write(2, 1), write(3, 10 * half)])
    assert [[one.request.key.partition for one in request] for request in together] == [[0, 1], [2], [3]]
    many = persisting._together([write(index, 1) for index in range(persisting.PER_REQUEST_MAX + 1)])
    assert list(map(len, many)) == [persisting.PER_REQUEST_MAX, 1]


def test_a_group_begins_its_share_partitions_slice_by_slice() -> None:
    turns = CountedTurns()
    persister = Asked(turns)
    count = 10 * ELEMENTS_MAX // DECISION_ELEMENTS
    action = InitializeShareState("g", 1, {TOPIC: dict.fromkeys(range(count), -1)})
    result = asyncio.run(persister.carry_out(action))
    assert (len(persister.asked), result.errors, turns.waits) == (count, {}, 10)


def test_offsets_of_thousands_of_partitions_are_altered_slice_by_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, key = CountedTurns(), ApiKey.ALTER_SHARE_GROUP_OFFSETS
    codec = api(key, 0)
    parts = tuple(
        codec.make_request("AlterShareGroupOffsetsRequestPartition", partition_index=index, start_offset=0)
        for index in range(PARTITIONS)
    )
    topics = (codec.make_request("AlterShareGroupOffsetsRequestTopic", topic_name="t", partitions=parts),)
    parts_used = SimpleNamespace(
        turns=turns,
        groups=SimpleNamespace(serves=lambda kind: True),
        metadata=SimpleNamespace(image=SimpleNamespace(topic=lambda _: None)),
        rights=ALLOWED,
    )
    body = codec.request(group_id="g", topics=topics)
    request = Request(
        RequestHeader(key, 0, 1, "c", 0), body, codec, cast(Any, Connection()), RequestContext()
    )

    async def run() -> bytes:
        reply = await share_offsets._alter(cast(Any, parts_used), request)
        return await wait_whole(cast(Any, reply), turns)

    (topic,) = decode_response(key, 0, asyncio.run(run())[4:])[1].responses
    assert [part.partition_index for part in topic.partitions] == list(range(PARTITIONS))
    assert {part.error_code for part in topic.partitions} == {ErrorCode.unknown_topic_or_partition}
    assert turns.waits >= 2 * PARTITIONS // ELEMENTS_MAX, "in the request, and in the response"


def test_groups_whose_offsets_are_described_are_parts_of_their_own_and_each_is_described_twice() -> None:
    codec = api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1)
    name = "DescribeShareGroupOffsetsRequestGroup"
    groups = [codec.make_request(name, group_id=each, topics=None) for each in ("g", "h", "g", "g", "g")]
    (division,) = APIS[ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS].divisions
    body = codec.request(groups=tuple(groups))
    parts = [part for part, _ in divide(body, division) if part is not None]
    assert [[group.group_id for group in part.groups] for part in parts] == [["g"], ["h"], ["g"]]
