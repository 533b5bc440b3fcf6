"""What is in remote storage only, in a fetch and in ListOffsets: what is here is served beside it, and waits
for remote storage are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from nilometer.broker.api import offsets
from nilometer.broker.api.spec import Request
from nilometer.broker.replicas.fetch_reader import ColdRead, FetchReader, ReaderIdentity
from nilometer.broker.replicas.fetch_session import FetchPartition, TopicKey
from nilometer.broker.replicas.remote_fetch import take_remote
from nilometer.broker.replicas.remote_reading import ORIGINS, SHARES, RemoteReader, RemoteReads
from nilometer.broker.replicas.replication_quota import ReplicationQuota
from nilometer.broker.rooms import Room
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.sharing.share_partitions import SharePartitions
from nilometer.broker.tasks import Tasks
from nilometer.runtime.runtime import SystemClock
from nilometer.storage.errors import OffsetOutOfRange
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.storage.time_search import TimestampOffset
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import batches
from nilometer.wire.records import BatchBuilder
from support.logs.memory_disk import MemoryDisk

TIERED = LogConfig(segment_bytes=200, retention_ms=-1, local_retention_ms=0, remote_storage_enable=True)
TIER = BrokerConfig(
    {
        "node.id": "1",
        "remote.log.storage.system.enable": "true",
        "nilometer.tier.uri": "file:///tier",
        "remote.log.reader.threads": "1",
        "remote.log.reader.max.pending.tasks": "1",
        "remote.fetch.max.wait.ms": "60000",
    }
).tier
END = 12
CLIENT, OTHER = ("User:a", "127.0.0.1"), ("User:b", "127.0.0.1")


def batch(offset: int) -> bytes:
    builder = BatchBuilder()
    builder.append(1_000 + offset, None, b"%d" % offset)
    return bytes(builder.build(offset, partition_leader_epoch=0))


def led(tiered: int = 7) -> Led:
    """Leads a log of twelve batches; the segments below ``tiered`` are in remote storage only."""
    options = OpenOptions(clean=True, wall_ms=1)
    log = Log.open(SegmentFiles.on(MemoryDisk()), "/t-0", TopicPartition("t", 0), TIERED, options)
    for offset in range(END):
        log.append_as_follower(batch(offset), wall_ms=1)
    log.note_tiered(tiered)
    while log.delete_old_segments(END, 10_000_000):
        pass
    return Led(log)


class Led:
    topic = "t"
    key = SimpleNamespace(partition=0)
    leader_epoch = 0

    def __init__(self, log: Log) -> None:
        self.log = log

    def check_reader(self, _epoch: int) -> Any:
        return SimpleNamespace(high_watermark=END)

    def on_follower_fetch(self, _role: Any, _fetch: Any) -> Any:
        return SimpleNamespace(end_offset=END, high_watermark=END, has_update=False)

    def latest_offset(self, *, read_committed: bool) -> int:
        return END

    def find_by_time(self, timestamp: int, _bound: int) -> Any:
        return self.log.offset_for_timestamp(timestamp)


class FakeStore:
    """Remote storage with all batches; ``before`` runs before each answer."""

    def __init__(self, before: Callable[[], Awaitable[None]] | None = None) -> None:
        self._before = before
        self.reads: list[tuple[int, int, bool]] = []

    async def read(
        self, partition: Any, offset: int, max_bytes: int, *, read_committed: bool
    ) -> tuple[bytes, Sequence[AbortedTxn]]:
        self.reads.append((offset, max_bytes, read_committed))
        if self._before is not None:
            await self._before()
        return batch(offset), [AbortedTxn(9, offset, offset, offset)]

    async def offset_for_timestamp(self, partition: Any, timestamp: int) -> TimestampOffset | None:
        if self._before is not None:
            await self._before()
        offset = timestamp - 1_000
        return TimestampOffset(timestamp, offset, 0) if offset < END else None

    async def state_at(self, partition: Any, offset: int) -> Any:
        return offset

    async def check_own(self, partition: Any) -> None:
        raise KafkaError(ErrorCode.kafka_storage_error, "another cluster writes there")


def store_of(reader: RemoteReader | None) -> RemoteReads:
    reads = RemoteReads(TIER if reader is not None else None, Tasks())
    reads.reader = reader
    return reads


def reader_of(
    partitions: Sequence[Any], offsets: Sequence[int], *, replica: int = -1, read_committed: bool = False,
    max_bytes: int = 10_000,
) -> FetchReader:  # fmt: skip
    replicas = SimpleNamespace(
        serves_from_followers=False,
        partition=lambda name, index: partitions[index],
        traffic=SimpleNamespace(failed_fetches=0),
    )
    asked = [FetchPartition(TopicKey.of("t"), index, offset, 10_000) for index, offset in enumerate(offsets)]
    return FetchReader(
        cast(Any, replicas),
        ReaderIdentity(replica, -1, read_committed, ""),
        lambda: asked,
        max_bytes,
        lambda asked, found: None,
        ReplicationQuota(SystemClock()),
        cpu_us=lambda: 0,
    )


def first_offsets(reader: FetchReader) -> list[list[int]]:
    return [[header.base_offset for _, header in batches(one.records)][:1] for one in reader.outcomes]


@pytest.mark.parametrize("read_committed", [False, True])
def test_a_fetch_gets_what_is_here_and_what_is_in_remote_storage(read_committed: bool) -> None:
    async def main() -> None:
        store = FakeStore()
        reader = reader_of([led(), led()], [2, 8], read_committed=read_committed)
        reader.read()
        assert (reader.has_cold, reader.has_local_cold, reader.is_urgent) == (True, False, False)
        await take_remote(store_of(store), CLIENT, reader)
        assert first_offsets(reader) == [[2], [8]]
        assert store.reads == [(2, 10_000, read_committed)]
        assert reader.outcomes[0].aborted == ([(9, 2)] if read_committed else None)
        assert reader.bytes_read == sum(len(one.records) for one in reader.outcomes)

    asyncio.run(main())


def test_a_fetch_whose_segment_is_deleted_while_it_waits_for_the_disk_reads_from_remote_storage() -> None:
    async def main() -> None:
        reader = reader_of([led()], [2])
        reader.read()
        (outcome,) = reader.outcomes
        outcome.cold = ColdRead(led(), 2, 10_000, END, True)
        reader.take_cold(reader.read_cold())
        await take_remote(store_of(FakeStore()), CLIENT, reader)
        assert first_offsets(reader) == [[2]]

    asyncio.run(main())


def test_a_fetch_that_has_waited_is_answered_without_and_the_next_one_gets_what_was_read() -> None:
    async def main() -> None:
        answer = asyncio.Event()
        store = FakeStore(lambda: wait_for(answer))
        reads, partition = store_of(store), led()
        first = reader_of([partition], [2])
        first.read()
        reads.fetch_wait_ms = 1
        await take_remote(reads, CLIENT, first)
        (outcome,) = first.outcomes
        assert (outcome.error, outcome.size, outcome.has_more) == (ErrorCode.none, 0, True)
        answer.set()
        reads.fetch_wait_ms = 60_000
        second = reader_of([partition], [2])
        second.read()
        await take_remote(reads, CLIENT, second)
        assert first_offsets(second) == [[2]]
        assert len(store.reads) == 1

    asyncio.run(main())


async def wait_for(event: asyncio.Event) -> None:
    await event.wait()


def test_more_reads_than_may_wait_are_passed_over_and_no_place_is_lost() -> None:
    async def main() -> None:
        answer = asyncio.Event()
        store = FakeStore(lambda: wait_for(answer))
        reads, partition = store_of(store), led()
        reader = reader_of([partition] * 3, [1, 2, 3], max_bytes=30_000)
        reader.read()
        reads.fetch_wait_ms = 1
        await take_remote(reads, CLIENT, reader)
        assert [one.error for one in reader.outcomes] == [ErrorCode.none] * 3
        assert [one.has_more for one in reader.outcomes] == [True] * 3
        assert [offset for offset, *_ in store.reads] == [1], "one at once, and one that waits"
        late = reader_of([partition], [4])
        late.read()
        await take_remote(reads, CLIENT, late)
        assert late.outcomes[0].has_more
        with pytest.raises(KafkaError, match="too many reads"):
            await reads.offset_for_timestamp(CLIENT, partition, 1_003, asyncio.get_running_loop().time() + 60)
        assert await reads.state_at(partition, 5) == 5, "what followers need takes no place of theirs"
        answer.set()
        reads.fetch_wait_ms = 60_000
        for _ in range(2):
            again = reader_of([partition] * 2, [1, 2], max_bytes=30_000)
            again.read()
            await take_remote(reads, CLIENT, again)
            assert first_offsets(again) == [[1], [2]]

    asyncio.run(main())


async def test_who_has_many_reads_waits_for_his_own() -> None:
    """With ten at once: five go on of one origin, and one of another that comes later begins at once."""
    begun, answer = list[int](), asyncio.Event()
    store = FakeStore(lambda: wait_for(answer))
    reads = RemoteReads(structs.replace(TIER, reads_at_once=10, pending_reads_max=100), Tasks())
    reads.reader = store
    partition: Any = led()

    def begin(origin: tuple[str, str], count: int) -> int:
        first = len(begun)
        begun.extend(range(first, first + count))
        return sum(
            reads.read(origin, partition, number, 1, read_committed=False) is not None
            for number in begun[first:]
        )

    assert begin(CLIENT, 200) == 110, "as many as may wait"
    await asyncio.sleep(0)
    assert len(store.reads) == 10 // SHARES
    assert begin(OTHER, 200) == 110 // ORIGINS, "though no more may wait"
    await asyncio.sleep(0)
    assert len(store.reads) == 10
    answer.set()
    await asyncio.gather(*reads._reads.values())  # pyright: ignore[reportPrivateUsage]
    firsts = [offset for offset, *_ in store.reads[:36]]
    assert sum(offset >= 200 for offset in firsts) == 110 // ORIGINS, "they take turns"
    assert not reads._begun  # pyright: ignore[reportPrivateUsage]


OUT_OF_RANGE = OffsetOutOfRange(2, 5, 12, "t-0")


@pytest.mark.parametrize(
    ("error", "log_start", "code"),
    [
        (KafkaError(ErrorCode.kafka_storage_error, "down"), 0, ErrorCode.kafka_storage_error),
        (OUT_OF_RANGE, 3, ErrorCode.offset_out_of_range),
        (
            OUT_OF_RANGE,
            0,
            ErrorCode.kafka_storage_error,
        ),  # they should be there: no consumer passes over them
    ],
)
def test_an_error_of_remote_storage_is_that_of_its_partition_alone(
    error: KafkaError, log_start: int, code: ErrorCode
) -> None:
    async def fail() -> None:
        raise error

    async def main() -> None:
        partition = led()
        reader = reader_of([partition, led()], [2, 8])
        reader.read()
        partition.log.advance_log_start_offset(log_start, END)
        await take_remote(store_of(FakeStore(fail)), CLIENT, reader)
        assert [one.error for one in reader.outcomes] == [code, ErrorCode.none]
        assert first_offsets(reader) == [[], [8]]

    asyncio.run(main())


def test_a_broker_without_remote_storage_says_so() -> None:
    async def main() -> None:
        reader = reader_of([led()], [2])
        reader.read()
        await take_remote(store_of(None), CLIENT, reader)
        assert reader.outcomes[0].error is ErrorCode.kafka_storage_error

    asyncio.run(main())


def test_no_more_is_read_at_once_than_the_fetch_may_have() -> None:
    async def main() -> None:
        store = FakeStore()
        reader = reader_of([led(), led()], [1, 2], max_bytes=100)
        reader.read()
        await take_remote(store_of(store), CLIENT, reader)
        assert store.reads == [(1, 100, False)]
        assert [one.has_more for one in reader.outcomes] == [False, True]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("is_short", "short_for", "is_read"), [(False, [], True), (True, [CLIENT], False), (True, [OTHER], True)]
)
def test_only_the_first_batch_of_a_fetch_may_be_larger_than_its_room(
    is_short: bool, short_for: list[tuple[str, str]], is_read: bool
) -> None:
    """Not if clients of its own origin do not read."""

    async def main() -> None:
        for first, sizes in (([2], [is_read]), ([2, 8], [is_read, True]), ([8, 2], [True, False])):
            reader = reader_of([led(), led()], first, max_bytes=2 * len(batch(8)))
            memory: Any = SimpleNamespace(
                is_short=lambda: is_short,
                is_short_for=lambda origin: origin in short_for,
                fetch_bytes_max=lambda: 10_000,
            )
            holder: Any = SimpleNamespace(origin=CLIENT)
            reader._memory, reader._holder = memory, holder  # pyright: ignore[reportPrivateUsage]
            for asked in reader._to_read():  # pyright: ignore[reportPrivateUsage]
                asked.max_bytes = len(batch(8)) - (asked.fetch_offset == 2)
            reader.read()
            await take_remote(store_of(FakeStore()), CLIENT, reader)
            assert [bool(one.size) for one in reader.outcomes] == sizes
            assert [one.has_more for one in reader.outcomes] == [not size for size in sizes]

    asyncio.run(main())


def test_a_disk_that_fails_here_while_remote_storage_is_read_is_this_brokers() -> None:
    async def fail() -> None:
        raise OSError("the disk")

    async def main() -> None:
        partition, failed = led(), list[OSError]()

        def on_read_error(error: OSError) -> KafkaError:
            failed.append(error)
            return KafkaError(ErrorCode.kafka_storage_error, "the disk")

        cast(Any, partition).on_read_error = on_read_error
        reader = reader_of([partition], [2])
        reader.read()
        await take_remote(store_of(FakeStore(fail)), CLIENT, reader)
        assert reader.outcomes[0].error is ErrorCode.kafka_storage_error
        assert len(failed) == 1

    asyncio.run(main())


def test_a_follower_is_told_that_its_records_are_in_remote_storage() -> None:
    reader = reader_of([led()], [2], replica=2)
    reader.read()
    (outcome,) = reader.outcomes
    assert outcome.error is ErrorCode.offset_moved_to_tiered_storage
    assert outcome.log_start_offset == 0
    assert not reader.has_cold


# ListOffsets


def look_up(
    partition: Any,
    timestamp: int,
    store: RemoteReader | None = None,
    *,
    timeout_ms: int = 0,
    is_broker: bool = False,
) -> tuple[ErrorCode, int]:
    """Return the error and the offset for ``timestamp``."""

    async def search(_origin: Any, steps: Any) -> TimestampOffset | None:
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                return ended.value

    async def main() -> tuple[ErrorCode, int]:
        parts: Any = SimpleNamespace(
            replicas=SimpleNamespace(partition=lambda name, index: partition, remote=store_of(store)),
            record_reading=SimpleNamespace(run=search),
        )
        body = SimpleNamespace(timeout=timedelta(milliseconds=timeout_ms))
        request: Any = SimpleNamespace(
            version=11,
            field=lambda _name, default: default,
            body=body,
            connection=SimpleNamespace(origin=CLIENT),
        )
        asked: Any = SimpleNamespace(timestamp=timestamp, partition_index=0, current_leader_epoch=-1)
        ends_s = offsets._ends_s(parts, cast(Request, request))  # pyright: ignore[reportPrivateUsage]
        error, found = await offsets._look_up(  # pyright: ignore[reportPrivateUsage]
            parts, cast(Request, request), "t", asked, ends_s, is_broker=is_broker
        )
        return error, found[1]

    return asyncio.run(main())


def test_where_records_are() -> None:
    partition = led()
    log = partition.log
    assert 0 < log.local_start_offset <= 7
    assert look_up(partition, -2) == (ErrorCode.none, 0)
    assert look_up(partition, -4) == (ErrorCode.none, log.local_start_offset)
    assert look_up(partition, -5) == (ErrorCode.none, 6)
    assert look_up(partition, -6) == (ErrorCode.none, 7)
    log.advance_log_start_offset(3, END)
    assert look_up(partition, -2) == (ErrorCode.none, 3)
    log.advance_log_start_offset(9, END)
    assert look_up(partition, -6) == (ErrorCode.none, 9)
    log.note_tiered(9)
    assert look_up(partition, -5) == (ErrorCode.none, -1), "the records that were copied are deleted"
    log.note_tiered(0)
    assert look_up(partition, -5) == (ErrorCode.none, -1)
    assert look_up(partition, -6) == (ErrorCode.none, 9), "its log begins here: nothing needs to be known"


def test_a_replica_is_not_told_where_to_begin_behind_another_clusters_records() -> None:
    partition, start = led(), led().log.local_start_offset
    assert look_up(partition, -4, FakeStore()) == (ErrorCode.none, start), "a client asks"
    assert look_up(partition, -4, is_broker=True) == (ErrorCode.none, start), "no remote storage"
    assert look_up(partition, -4, FakeStore(), is_broker=True) == (ErrorCode.kafka_storage_error, -1)


def test_a_leader_that_has_not_read_remote_storage_yet_does_not_say_what_is_not_there() -> None:
    partition = led()
    partition.log.note_tiered(0)
    assert look_up(partition, -6) == (ErrorCode.none, -1)


def test_of_a_topic_that_is_not_tiered_nothing_is_in_remote_storage() -> None:
    partition = led(tiered=0)
    assert look_up(partition, -6) == (ErrorCode.none, 0)
    partition.log.configure(replace(TIERED, remote_storage_enable=False))
    assert (look_up(partition, -5), look_up(partition, -6)) == ((ErrorCode.none, -1),) * 2
    assert look_up(partition, -4) == (ErrorCode.none, 0)


def test_a_record_is_found_by_its_time_wherever_it_is() -> None:
    partition = led()
    for offset in (0, 3, 8, 11):
        assert look_up(partition, 1_000 + offset, FakeStore()) == (ErrorCode.none, offset)
    assert look_up(partition, 2_000, FakeStore()) == (ErrorCode.none, -1)
    assert look_up(led(tiered=0), 1_003) == (ErrorCode.none, 3), "without remote storage"


def test_a_record_is_found_by_its_time_that_is_copied_and_deleted_here_meanwhile() -> None:
    partition, log = led(), led().log
    partition.log = log

    class Growing(FakeStore):
        end = 7

        async def offset_for_timestamp(self, partition: Any, timestamp: int) -> TimestampOffset | None:
            found = await super().offset_for_timestamp(partition, timestamp)
            if found is None or found.offset < self.end:
                return found
            self.end = 11
            log.note_tiered(self.end)
            assert log.delete_old_segments(END, 10_000_000)
            return None

    assert look_up(partition, 1_008, Growing()) == (ErrorCode.none, 8)


def test_a_share_group_that_begins_at_a_time_begins_in_remote_storage() -> None:
    settings: Any = SimpleNamespace(
        auto_offset_reset=SimpleNamespace(strategy="by_duration", ago_ms=500), read_committed=False
    )

    async def main() -> int:
        partitions: Any = SimpleNamespace(
            _runtime=SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: 1_503)),
            _replicas=SimpleNamespace(remote=store_of(FakeStore())),
            _reading=None,
        )
        led_partition: Any = SimpleNamespace(partition=led())
        return await SharePartitions._initial_offset(  # pyright: ignore[reportPrivateUsage]
            partitions, led_partition, settings
        )

    assert asyncio.run(main()) == 3


def test_a_search_in_remote_storage_ends_in_time() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    error, _ = look_up(led(), 1_003, FakeStore(hang), timeout_ms=10)
    assert error is ErrorCode.request_timed_out


def test_the_searches_of_a_request_go_on_at_once_and_end_together() -> None:
    going_on, peak = 0, 0

    async def hang() -> None:
        nonlocal going_on, peak
        going_on += 1
        peak = max(peak, going_on)
        try:
            await asyncio.Event().wait()
        finally:
            going_on -= 1

    async def main() -> dict[int, tuple[ErrorCode, tuple[int, int, int]]]:
        reads = store_of(FakeStore(hang))
        reads._places = Room(18, 2)  # pyright: ignore[reportPrivateUsage]
        reads._begun_max = 9  # pyright: ignore[reportPrivateUsage]
        partition = led()
        parts: Any = SimpleNamespace(
            replicas=SimpleNamespace(partition=lambda name, index: partition, remote=reads),
            record_reading=None,
        )
        request: Any = SimpleNamespace(
            version=9,
            field=lambda _name, default: default,
            connection=SimpleNamespace(origin=CLIENT),
        )
        wanted: Any = [
            SimpleNamespace(timestamp=1_003, partition_index=index, current_leader_epoch=-1)
            for index in range(12)
        ]
        ends_s = asyncio.get_running_loop().time() + 0.01
        return await offsets._look_up_all(  # pyright: ignore[reportPrivateUsage]
            parts, request, "t", wanted, ends_s, is_broker=False
        )

    found = asyncio.run(main())
    assert [error for error, _ in found.values()] == [ErrorCode.request_timed_out] * 12
    assert (going_on, peak) == (0, offsets.AT_ONCE)
