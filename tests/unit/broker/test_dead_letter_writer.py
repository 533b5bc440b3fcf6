"""The writer of dead letters: it tries again what may pass, gives up what does not, and stops when another
leader writes them.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.sharing import dead_letters
from nilometer.broker.sharing.counts import ShareCounts
from nilometer.broker.sharing.dead_letters import ATTEMPTS, LETTERS_MAX, DeadLetters
from nilometer.groups.settings import GroupConfig, share_group_config
from nilometer.identifiers import TopicId
from nilometer.share.partition_events import Dead, DeadReason, OffsetRange
from nilometer.share.state_records import SharePartitionKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import ApiKey, api
from nilometer.wire.record_batch import batches
from nilometer.wire.records import BatchBuilder, Record, decode_records

OTHER = 2
GROUP = {"errors.deadletterqueue.topic.name": "dlq.jobs"}


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "FIRST_PAUSE_MS", 0)


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Archiving:
    """A share partition with records that are archiving."""

    def __init__(self, cluster: Cluster, partition: int = 5) -> None:
        self.key = SharePartitionKey("g", TopicId("t"), partition)
        self.partition = cast(Any, SimpleNamespace(topic="jobs"))
        self.is_dropped = False
        self.buried: list[OffsetRange] = []
        self._cluster = cluster

    def on_buried(self, ranges: Sequence[OffsetRange]) -> None:
        self.buried += ranges


class Cluster:
    """Another broker leads the topic of letters, and answers what ``answers`` has, then that it is done."""

    def __init__(self, partitions: int = 3) -> None:
        self.answers: list[ErrorCode] = []
        self.texts: dict[str, str] = {"errors.deadletterqueue.group.enable": "true"}
        """Settings of the topic."""
        self.steps = 0
        """Of what was read: a batch takes one, and each letter of many a part of one."""
        self.asked: list[tuple[int, list[Record]]] = []
        """The partition and the letters of each request."""
        self.on_request: Callable[[], None] = lambda: None
        self.has_leader = True
        self.now_ms = 0
        topic = SimpleNamespace(
            name="dlq.jobs",
            partitions=[None] * partitions,
            partition=lambda _index: SimpleNamespace(has_leader=self.has_leader, leader=OTHER),
        )
        image = SimpleNamespace(
            config=lambda _kind, _name: {},
            topic={"dlq.jobs": topic}.get,
            topic_setting=lambda _topic, key: self.texts.get(key),
        )
        self.group = dict(GROUP)
        self.counts = ShareCounts()
        self.tasks: list[asyncio.Future[Any]] = []
        self.writer = DeadLetters(
            BrokerConfig({"node.id": "1"}),
            cast(
                Any,
                SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: 7, monotonic_ms=lambda: self.now_ms)),
            ),
            cast(Any, SimpleNamespace(spawn=self._spawn)),
            cast(Any, SimpleNamespace(image=image)),
            cast(Any, None),
            cast(Any, None),
            cast(Any, SimpleNamespace(run=self._run)),
            cast(Any, SimpleNamespace(to=self._connect)),
            self.counts,
            lambda _group: share_group_config(GroupConfig(), self.group, may_have_dead_letters=True),
        )

    def _spawn(self, work: Any, name: str) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def _run(self, _origin: Any, steps: Any) -> Any:
        while True:
            try:
                next(steps)
                self.steps += 1
            except StopIteration as ended:
                return ended.value

    async def _connect(self, broker_id: int) -> object:
        assert broker_id == OTHER

        async def request(key: ApiKey, build: Callable[[Any], Any], **_: object) -> object:
            codec = api(key, 12)
            ((part,),) = [topic.partition_data for topic in build(codec).topic_data]
            ((position, header),) = list(batches(part.records))
            self.asked.append((part.index, decode_records(part.records, position, header)))
            self.on_request()
            error = self.answers.pop(0) if self.answers else ErrorCode.none
            outcome = SimpleNamespace(error_code=error, error_message=None)
            return SimpleNamespace(responses=(SimpleNamespace(partition_responses=(outcome,)),))

        return SimpleNamespace(request=request)

    async def bury(self, archiving: Archiving, *dead: Dead) -> None:
        self.writer.bury(archiving, dead)
        await asyncio.gather(*self.tasks)


class Log:
    """A log of batches with three records each, whose values are their offsets."""

    def __init__(self, batch_count: int) -> None:
        self.log_end_offset = 3 * batch_count

    def read(self, offset: int, bytes_max: int, end: int, *, min_one: bool) -> object:
        assert min_one
        found = bytearray()
        for first in range(offset - offset % 3, end, 3):
            if len(found) >= bytes_max:
                break
            found += self._batch(first)
        return SimpleNamespace(records=bytes(found))

    def _batch(self, first: int) -> bytes:
        builder = BatchBuilder()
        for number in range(3):
            builder.append(7, b"", b"%d" % (first + number))
        return first.to_bytes(8, "big") + builder.build()[8:]


def dead(first: int, last: int) -> Dead:
    return Dead(first, last, 2, DeadReason.REJECTED, has_letters=True)


@on_a_loop
async def test_letters_of_a_share_partition_go_together() -> None:
    cluster = Cluster()
    archiving = Archiving(cluster)
    await cluster.bury(archiving, dead(1, 2), dead(4, 4))
    ((index, letters),) = cluster.asked
    assert index == 5 % 3
    assert [dict(letter.headers)["__dlq.errors.offset"] for letter in letters] == [b"1", b"2", b"4"]
    assert archiving.buried == [(1, 2), (4, 4)]
    assert cluster.counts.all.letters == 3


@on_a_loop
async def test_what_may_pass_is_tried_again() -> None:
    cluster = Cluster()
    archiving = Archiving(cluster)
    cluster.answers = [ErrorCode.not_leader_or_follower, ErrorCode.not_enough_replicas]
    await cluster.bury(archiving, dead(1, 1))
    assert len(cluster.asked) == 3
    assert archiving.buried == [(1, 1)]
    assert (cluster.counts.all.letters, cluster.counts.all.letters_failed) == (1, 0)


@on_a_loop
async def test_it_is_tried_so_many_times(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    archiving = Archiving(cluster)
    cluster.answers = [ErrorCode.not_leader_or_follower] * ATTEMPTS
    with caplog.at_level(logging.ERROR):
        await cluster.bury(archiving, dead(1, 3))
    assert (len(cluster.asked), archiving.buried) == (ATTEMPTS, [(1, 3)])
    assert (cluster.counts.all.letters, cluster.counts.all.letters_failed) == (0, 3)
    assert "3 records from offset 1 of" in caplog.text


@on_a_loop
async def test_what_does_not_pass_is_given_up_at_once() -> None:
    cluster = Cluster()
    archiving = Archiving(cluster)
    cluster.answers = [ErrorCode.message_too_large]
    await cluster.bury(archiving, dead(1, 1))
    assert (len(cluster.asked), archiving.buried) == (1, [(1, 1)])
    cluster.texts["errors.deadletterqueue.group.enable"] = "false"
    await cluster.bury(archiving, dead(2, 2))
    cluster.group.clear()
    await cluster.bury(archiving, dead(3, 3))
    assert (len(cluster.asked), archiving.buried) == (1, [(1, 1), (2, 2), (3, 3)])


@on_a_loop
async def test_a_failure_of_a_group_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.group.clear()
    archiving = Archiving(cluster)
    for now_ms, lines in ((0, 1), (59_999, 1), (60_000, 2)):
        cluster.now_ms = now_ms
        await cluster.bury(archiving, dead(1, 1))
        assert caplog.text.count("archived without dead letters") == lines


@on_a_loop
async def test_another_leader_writes_what_is_left() -> None:
    cluster = Cluster()
    archiving = Archiving(cluster)
    cluster.answers = [ErrorCode.not_leader_or_follower]

    def drop() -> None:
        archiving.is_dropped = True

    cluster.on_request = drop
    await cluster.bury(archiving, dead(1, 1), dead(3, 3))
    assert (len(cluster.asked), archiving.buried) == (1, [])
    assert cluster.counts.all.letters_failed == 0


@on_a_loop
async def test_many_letters_are_written_batch_by_batch() -> None:
    cluster = Cluster()
    archiving = Archiving(cluster)
    await cluster.bury(archiving, dead(0, LETTERS_MAX + 4))
    assert [len(letters) for _, letters in cluster.asked] == [LETTERS_MAX, 5]
    assert archiving.buried == [(0, LETTERS_MAX - 1), (LETTERS_MAX, LETTERS_MAX + 4)]
    cluster.texts["max.message.bytes"] = "400"
    await cluster.bury(archiving, dead(10_000, 10_002))
    assert [len(letters) for _, letters in cluster.asked[2:]] == [1, 1, 1]
    assert archiving.buried[2:] == [(10_000, 10_000), (10_001, 10_001), (10_002, 10_002)]


@on_a_loop
async def test_what_waits_is_in_order() -> None:
    cluster = Cluster()
    archiving = Archiving(cluster)
    cluster.on_request = lambda: (
        cluster.writer.bury(archiving, [dead(9, 9)]) if len(cluster.asked) == 1 else None
    )
    cluster.answers = [ErrorCode.not_leader_or_follower]
    await cluster.bury(archiving, dead(1, 2))
    offsets = [[dict(one.headers)["__dlq.errors.offset"] for one in letters] for _, letters in cluster.asked]
    assert offsets == [[b"1", b"2"], [b"1", b"2"], [b"9"]]


@on_a_loop
async def test_what_died_in_another_order_is_copied() -> None:
    cluster = Cluster()
    cluster.group["errors.deadletterqueue.copy.record.enable"] = "true"
    archiving = Archiving(cluster)
    archiving.partition.log = Log(100)
    await cluster.bury(archiving, dead(218, 218), dead(133, 134), dead(299, 299), dead(7, 7))
    ((_, letters),) = cluster.asked
    assert [letter.value for letter in letters] == [b"7", b"133", b"134", b"218", b"299"]
    assert archiving.buried == [(7, 7), (133, 134), (218, 218), (299, 299)]


@on_a_loop
async def test_a_record_that_is_too_large_with_its_headers_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()
    cluster.group["errors.deadletterqueue.copy.record.enable"] = "true"
    cluster.texts["max.message.bytes"] = "250"
    archiving = Archiving(cluster)
    archiving.partition.log = Log(100)
    await cluster.bury(archiving, dead(7, 7))
    ((_, [letter]),) = cluster.asked
    assert (letter.value, archiving.buried) == (None, [(7, 7)])
    assert re.search(r"offset 7 of jobs-5 in share group g has no copy .* and 250 are allowed", caplog.text)


@on_a_loop
async def test_a_new_leader_copies_what_is_above_the_high_watermark_that_it_knows() -> None:
    cluster = Cluster()
    cluster.group["errors.deadletterqueue.copy.record.enable"] = "true"
    archiving = Archiving(cluster)
    archiving.partition.log = Log(2)
    archiving.partition.replica = SimpleNamespace(high_watermark=3)
    await cluster.bury(archiving, dead(2, 4))
    ((_, letters),) = cluster.asked
    assert [letter.value for letter in letters] == [b"2", b"3", b"4"]


@on_a_loop
async def test_records_between_those_that_died_are_not_decoded() -> None:
    cluster = Cluster()
    cluster.group["errors.deadletterqueue.copy.record.enable"] = "true"
    archiving = Archiving(cluster)
    archiving.partition.log = Log(2_000)
    await cluster.bury(archiving, *(dead(offset, offset) for offset in (1, 300, 302, 4_000)))
    ((_, letters),) = cluster.asked
    assert [letter.value for letter in letters] == [b"1", b"300", b"302", b"4000"]
    assert cluster.steps == 3, "one for each batch that has some"
