"""The tier of a deleted topic is removed by who has led it, also while rounds, replicas and metadata change;
and rounds that wait hold up no others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from nilometer.broker.tiering import remote_logs
from nilometer.broker.tiering.remote_logs import RemoteLogs
from nilometer.broker.turns import Turns
from nilometer.identifiers import TopicIdPartition
from nilometer.runtime.object_store import ObjectStoreError
from nilometer.wire.records import BatchBuilder
from support.step_clock import StepClock
from support.tier.led_log import LedLog
from support.tier.remote_segments import TOPIC

STEPS = 200
"""More steps of the event loop than anything here takes."""


class Hosted(LedLog):
    def __init__(self, **of: Any) -> None:
        super().__init__(**of)
        self.key: Any = TopicIdPartition(self.facts.topic_id, self.facts.partition)

    is_fenced = False
    """Whether its session is not live, though it has the role of a leader."""

    @property
    def has_leader_role(self) -> bool:
        return self.is_led_here or self.is_fenced

    def on_success(self, _work: str) -> None: ...


def with_segments(hosted: Hosted) -> Hosted:
    for _ in range(3):
        builder = BatchBuilder()
        builder.append(1, None, b"v")
        hosted.append(bytes(builder.build(0)))
        hosted.log.roll_now(1)
    return hosted


class Replicas(list[Hosted]):
    def __init__(self, *hosted: Hosted) -> None:
        super().__init__(hosted)
        self.offline: set[TopicIdPartition] = set()


class Broker:
    """The tiers of a broker that hosts one partition, with three segments to copy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_logs, "Partition", LedLog)
        self.led = with_segments(Hosted())
        self.hosted = Replicas(self.led)
        self.tasks = list[asyncio.Task[None]]()
        self.topic: Any = SimpleNamespace(
            id=self.led.key.topic_id, name="events", partitions=[SimpleNamespace(leader_epoch=0)]
        )
        self.is_known = True
        image = SimpleNamespace(topic_by_id=lambda _: self.topic if self.is_known else None)
        self.logs: Any = RemoteLogs.__new__(RemoteLogs)
        self.logs._turns = Turns(StepClock())
        self.logs._running, self.logs._workers, self.logs._due = {}, 0, deque()
        self.logs._removers, self.logs._removals, self.logs._unremoved = 0, deque(), list[Any]()
        self.logs._by_key, self.logs.traffic = {}, {}
        self.logs._parts, self.logs._facts = self.led.remote._parts, lambda hosted: hosted.facts
        self.logs._replicas = self.hosted
        self.logs._config = SimpleNamespace(copies_at_once=2)
        self.logs._metadata = SimpleNamespace(image=image)
        self.logs._tasks = SimpleNamespace(spawn=self._spawn)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))

    async def rest(self) -> None:
        """Let everything that was begun come to its end."""
        for _ in range(STEPS):
            await asyncio.sleep(0)
        assert [task.get_name() for task in self.tasks if not task.done()] == []
        await asyncio.gather(*self.tasks)

    async def round(self) -> None:
        await self.logs.begin_round()
        await self.rest()

    def tell(self) -> None:
        """Tell of the topic's deletion."""
        deleted: Any = SimpleNamespace(configs={}, topics_deleted={self.topic.id: self.topic})
        self.logs._on_delta(deleted, self.logs._metadata.image)

    @property
    def objects(self) -> list[str]:
        return list(self.led.store.bucket.objects)


async def test_the_tiers_of_many_partitions_are_removed_a_few_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One task for each of thousands held the event loop for 90 ms when their topic was deleted."""
    broker = Broker(monkeypatch)
    going, going_max, removed = 0, 0, list[int]()

    class Remote:
        had_led, newest_epoch, error = True, 0, None

        def __init__(self, index: int) -> None:
            self.partition = SimpleNamespace(key=TopicIdPartition(broker.topic.id, index))

        async def delete(self) -> None:
            nonlocal going, going_max
            going += 1
            going_max = max(going_max, going)
            await asyncio.sleep(0)
            going -= 1
            removed.append(self.partition.key.partition)

    broker.topic.partitions = [SimpleNamespace(leader_epoch=0)] * 50
    remotes = [Remote(index) for index in range(50)]
    broker.logs._by_key = {one.partition.key: one for one in remotes}
    broker.tell()
    assert len(broker.tasks) == broker.logs._config.copies_at_once == 2
    await broker.rest()
    assert (sorted(removed), going_max) == (list(range(50)), 2)


async def test_a_tier_that_cannot_be_removed_is_tried_again_and_keeps_no_other_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(monkeypatch)
    await broker.round()
    remove = broker.led.store.remove

    async def refused(name: str) -> None:
        raise ObjectStoreError("objects are locked")

    monkeypatch.setattr(broker.led.store, "remove", refused)
    broker.hosted.clear()
    broker.tell()
    for _ in range(3):
        await broker.round()
    said = f"The tier of {broker.led} is not removed yet: objects are locked"
    assert [one.message for one in caplog.records if "locked" in one.message] == [said]
    assert broker.objects and not broker.logs._removers, "no task waits for it"
    monkeypatch.setattr(broker.led.store, "remove", remove)
    await broker.round()
    assert broker.objects == []


@pytest.mark.parametrize("is_told", [True, False], ids=["later", "with-the-image-only"])
def test_a_round_that_finds_the_partition_gone_removes_its_tier(
    is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion of many partitions is told when all have been deleted, and not at all to who begins again
    with a snapshot of the metadata."""

    async def main() -> None:
        broker = Broker(monkeypatch)
        await broker.round()
        assert broker.objects
        broker.is_known = False
        broker.hosted.clear()
        await broker.round()
        if is_told:
            broker.tell()
            await broker.rest()
        assert broker.objects == []

    asyncio.run(main())


def test_a_partition_that_is_hosted_no_more_keeps_its_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        broker = Broker(monkeypatch)
        await broker.round()
        before = broker.objects
        broker.hosted.clear()
        await broker.round()
        assert broker.objects == before != []

    asyncio.run(main())


async def test_a_topic_that_is_known_keeps_segments_whose_manifests_are_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader that has begun since knows nothing of them: its own first manifest does not name them."""
    broker = Broker(monkeypatch)
    await broker.round()
    bucket = broker.led.store.bucket
    segments = [name for name in broker.objects if name.endswith((".log", ".index"))]
    bucket.objects = {name: bucket.objects[name] for name in segments}
    begun = Hosted(log=broker.led.log, store=broker.led.store)
    broker.hosted[:] = [begun]
    for _ in range(4):
        broker.led.now_ms += 1_000
        await broker.round()
    assert broker.objects == segments != []
    state = broker.logs.state_of(begun)
    assert "all manifests that named them are lost" in state.error and state.failing_ms == 3_000
    assert [one.message for one in caplog.records if state.error in one.message] == [
        f"The tier of {begun} cannot be used, and is tried again: {state.error}"
    ]
    bucket.objects.clear()
    await broker.round()
    assert len(broker.objects) > len(segments), "all of the log, once they were removed"
    assert broker.logs.state_of(begun).error == ""


async def test_operators_are_told_of_a_topic_that_is_tiered_no_more_and_cannot_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker(monkeypatch)
    await broker.round()
    bucket = broker.led.store.bucket
    bucket.objects = {
        name: data for name, data in bucket.objects.items() if name.endswith((".log", ".index"))
    }
    begun = Hosted(log=broker.led.log, store=broker.led.store)
    begun.log.configure(replace(begun.log.config, remote_storage_enable=False))
    broker.hosted[:] = [begun]
    await broker.round()
    state = broker.logs.state_of(begun)
    assert "all manifests that named them are lost" in state.error
    assert (state.missing_records, state.lag_segments) == (0, 0), "nothing of it is to be copied"
    bucket.objects.clear()
    await broker.round()
    assert broker.logs.state_of(begun) is None


def test_a_topic_is_deleted_while_the_round_of_a_replica_that_was_replaced_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        broker = Broker(monkeypatch)
        may_read = asyncio.Event()

        async def wait() -> None:
            await may_read.wait()

        broker.led.store.on_get = wait
        await broker.logs.begin_round()
        await asyncio.sleep(0)
        broker.hosted[:] = [Hosted(log=broker.led.log, store=broker.led.store)]
        await broker.logs.begin_round()
        await asyncio.sleep(0)
        broker.tell()
        broker.hosted.clear()
        broker.is_known = False
        may_read.set()
        await broker.rest()
        assert broker.objects == []

    asyncio.run(main())


def test_a_round_that_waits_for_the_store_holds_up_no_other_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        broker = Broker(monkeypatch)
        may_read = asyncio.Event()

        async def wait() -> None:
            await may_read.wait()

        broker.led.store.on_get = wait
        await broker.logs.begin_round()
        await asyncio.sleep(0)
        other = with_segments(Hosted(store=broker.led.store, facts=structs.replace(TOPIC, partition=1)))
        broker.hosted.append(other)
        await broker.logs.begin_round()
        for _ in range(STEPS):
            await asyncio.sleep(0)
        copied = {name for name in broker.objects if name.endswith(".log")}
        assert len(copied) == 3
        assert all(name.startswith(other.remote.folder) for name in copied)
        may_read.set()
        await broker.rest()
        assert len(broker.objects) > 2 * len(copied)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("leads", "is_removed"),
    [
        ("from-the-start", True),
        ("since-an-election", True),
        ("with-a-session-that-was-over-for-a-moment", True),
        ("before-it-was-replaced", True),
        ("never", False),
    ],
)
def test_who_has_led_removes_the_tier_though_no_round_has_begun(
    leads: str, is_removed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        broker = Broker(monkeypatch)
        await broker.led.tier()  # another process has copied it
        broker.led.is_led_here = leads in ("from-the-start", "before-it-was-replaced")
        broker.led.is_fenced = leads == "with-a-session-that-was-over-for-a-moment"
        broker.logs._of(broker.led)
        broker.led.is_fenced = False
        if leads == "since-an-election":
            broker.led.is_led_here = True
            broker.logs._on_role_changed(broker.led)
        elif leads == "before-it-was-replaced":
            broker.hosted[:] = [Hosted(log=broker.led.log, store=broker.led.store)]
            broker.hosted[0].is_led_here = False
            broker.logs._of(broker.hosted[0])
        broker.led.is_led_here = False  # it has resigned
        broker.tell()
        await broker.rest()
        assert (broker.objects == []) is is_removed

    asyncio.run(main())


def test_a_replica_that_is_offline_has_led(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk has failed, and no other replica has led since."""

    async def main() -> None:
        broker = Broker(monkeypatch)
        await broker.round()
        broker.hosted.clear()
        broker.hosted.offline.add(broker.led.key)
        broker.led.is_led_here = False
        broker.logs._by_key[broker.led.key].fail("its disk has failed")
        await broker.round()
        assert list(broker.logs) == []  # what it last met is no failure of a tier in use
        assert broker.objects
        broker.tell()
        await broker.rest()
        assert broker.objects == []

    asyncio.run(main())


def test_a_replica_that_is_offline_leaves_the_tier_to_the_leader_after_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of whose epoch it learns with the deletion only."""

    async def main() -> None:
        broker = Broker(monkeypatch)
        await broker.round()
        broker.hosted.clear()
        broker.hosted.offline.add(broker.led.key)
        later = Hosted(log=broker.led.log, store=broker.led.store)
        later.leader_epoch = 1
        later.remote.on_role_changed()
        await later.remote.run_round()
        broker.topic.partitions[0].leader_epoch = 1
        broker.tell()
        await broker.rest()
        assert broker.objects, "its writer removes it"
        assert caplog.messages == []
        await later.remote.delete()
        assert broker.objects == []

    asyncio.run(main())


def test_a_leader_whose_topic_is_deleted_before_the_first_round_removes_the_tier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker was started again, and becomes the leader of what an earlier process has copied."""

    async def main() -> None:
        broker = Broker(monkeypatch)
        await broker.led.tier()
        broker.logs._on_role_changed(broker.led)
        broker.led.is_led_here = False  # it has resigned
        broker.logs._on_role_changed(broker.led)
        broker.tell()
        await broker.rest()
        assert broker.objects == []

    asyncio.run(main())


def test_the_role_of_a_replica_is_not_that_of_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition was moved away and back, and leads and resigns before the next round."""

    async def main() -> None:
        broker = Broker(monkeypatch)
        await broker.led.tier()
        broker.led.is_led_here = False
        broker.logs._of(broker.led)
        present = replaced(broker)
        broker.logs._on_role_changed(present)
        present.is_led_here = False
        broker.logs._on_role_changed(present)
        broker.tell()
        await broker.rest()
        assert broker.objects == []

    asyncio.run(main())


def test_a_follower_without_a_tier_in_use_has_none_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch)
    broker.led.is_led_here = False
    broker.logs._on_role_changed(broker.led)
    assert broker.logs._by_key == {}


def replaced(broker: Broker) -> Hosted:
    """Have the partition moved away and back: return its new replica."""
    broker.hosted[:] = [Hosted(log=broker.led.log, store=broker.led.store)]
    return broker.hosted[0]


def test_a_read_of_a_replica_that_was_replaced_leaves_the_round_to_the_present_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The read had waited for its place. Two rounds of one partition would copy each segment twice."""

    async def main() -> None:
        broker = Broker(monkeypatch)
        broker.logs._of(broker.led)
        present = replaced(broker)
        await broker.logs.begin_round()
        assert broker.logs._of(broker.led).partition is broker.led
        assert broker.logs._by_key[present.key].partition is present
        await broker.logs.begin_round()
        await broker.rest()
        assert len([name for name in broker.objects if name.endswith(".log")]) == 3
        with_segments(present)
        await broker.round()
        assert len([name for name in broker.objects if name.endswith(".log")]) == 6

    asyncio.run(main())


def test_a_round_that_is_due_twice_runs_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        broker = Broker(monkeypatch)
        may_read = asyncio.Event()

        async def wait() -> None:
            await may_read.wait()

        broker.led.store.on_get = wait
        await broker.logs.begin_round()
        remote = broker.logs._by_key[broker.led.key]
        broker.logs._due.append(remote)
        await asyncio.sleep(0)
        await broker.logs.begin_round()
        await asyncio.sleep(0)
        may_read.set()
        await broker.rest()
        assert (remote.is_queued, remote.error, broker.logs._running) == (False, None, {})
        assert len([name for name in broker.objects if name.endswith(".log")]) == 3

    asyncio.run(main())
