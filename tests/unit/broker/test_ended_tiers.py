"""What a topic had in remote storage is removed when it is tiered no more, also after a restart."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from nilometer.broker.tiering.remote_logs import RemoteLogs
from nilometer.runtime.object_store import ObjectStoreError
from nilometer.simulation.loop import VirtualLoop
from nilometer.simulation.object_store import StoreFaults, VirtualObjectStore
from nilometer.steps import at_once
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.tier import format as tier_format
from nilometer.tier import plan
from nilometer.tier.chain import MANIFESTS_KEPT, Deposed
from nilometer.tier.format import Manifest, manifest_number
from nilometer.wire.records import BatchBuilder
from support.tier.changing_leaders import GRACE_MS, World
from support.tier.led_log import CONFIG, LedLog
from support.tier.remote_segments import TOPIC


def test_a_leader_that_has_restarted_removes_what_is_left() -> None:
    async def work() -> None:
        world = World(loop, 2, is_unclean=False)
        world.bucket.faults = StoreFaults()
        for _ in range(40):
            world.produce(2)
            await world.replicate()
        led = world.led
        while await led.remote.run_round():
            pass
        world.clean(led)
        local_start = led.log.local_start_offset
        assert local_start > 0
        led.log.configure(replace(world.config, remote_storage_enable=False))
        world.elect(led.number)
        led.remote = world.remote_of(led)
        await led.remote.run_round()
        assert led.log.log_start_offset == local_start
        await asyncio.sleep(2 * GRACE_MS / 1000)
        await led.remote.run_round()
        await led.remote.run_round()
        assert [name for name in world.bucket.objects if name.endswith((".log", ".index"))] == []
        world.bucket.faults = StoreFaults(is_reachable=False)
        await led.remote.run_round()  # nothing is asked of the store any more

    loop = VirtualLoop()
    loop.run_until_complete(work())


@pytest.mark.parametrize(
    "end", [replace(CONFIG, remote_storage_enable=False), replace(CONFIG, retention_ms=1)]
)
def test_one_manifest_gives_up_all_and_a_few_forget_it(
    end: LogConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the names of what is still to be removed: a hundred would be a hundred times as much."""
    monkeypatch.setattr(plan, "REMOVED_AT_ONCE", 4)

    async def work() -> None:
        led = led_log()
        await led.tier()
        written = noted(led, monkeypatch)
        led.log.configure(end)
        await led.remote.run_round()
        assert written == [(0, 10)]
        del written[:]
        led.now_ms += 10
        rounds = 1
        while await led.remote.run_round():
            rounds += 1
        assert written == [(0, 6), (0, 2), (0, 0)]
        assert rounds == 3, "other partitions have their turn between"
        assert objects_of(led) == []

    asyncio.run(work())


def test_what_was_removed_before_the_store_failed_is_not_removed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove, failing = VirtualObjectStore.remove, [3]

    async def failing_once(self: VirtualObjectStore, name: str) -> None:
        if name.endswith((".log", ".index")):
            failing[0] -= 1
            if failing[0] == 0:
                raise ObjectStoreError("busy")
        await remove(self, name)

    async def work() -> None:
        led = led_log()
        await led.tier()
        led.log.configure(replace(CONFIG, remote_storage_enable=False))
        await led.remote.run_round()
        led.now_ms += 10
        written = noted(led, monkeypatch)
        monkeypatch.setattr(VirtualObjectStore, "remove", failing_once)
        with pytest.raises(ObjectStoreError, match="busy"):
            await led.remote.run_round()
        assert written == [(0, 8)]
        assert (led.remote.traffic.deleted_segments, led.remote.traffic.delete_errors) == (1, 1)
        await led.remote.run_round()
        assert (written, objects_of(led)) == ([(0, 8), (0, 0)], [])

    asyncio.run(work())


def test_a_former_leader_removes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = VirtualObjectStore.remove

    async def work() -> None:
        led = led_log()
        await led.tier()
        led.log.configure(replace(CONFIG, remote_storage_enable=False))
        await led.remote.run_round()
        led.now_ms += 10

        async def replaced(self: VirtualObjectStore, name: str) -> None:
            led.is_led_here, led.leader_epoch = False, 1
            await remove(self, name)

        monkeypatch.setattr(VirtualObjectStore, "remove", replaced)
        count = len(objects_of(led))
        with pytest.raises(Deposed):
            await led.remote.run_round()
        assert len(objects_of(led)) == count - 1

    asyncio.run(work())


def test_what_begins_with_a_cut_and_ends_with_all_given_up_pauses_between_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tier_format, "SEGMENTS_OF_A_LINE", 2)
    led = led_log()

    async def work() -> list[list[int]]:
        await led.tier()
        last = led.remote.manifest
        assert last is not None
        given_up = list(led.remote._emptied(last))
        led.leader_epoch = 1
        first, *rest = last.segments
        others = (structs.replace(one, epochs=((7, one.base_offset),)) for one in rest)
        return [given_up, list(led.remote._claimed(structs.replace(last, segments=(first, *others))))]

    assert asyncio.run(work()) == [[2, 2, 1, 2, 2, 1], [2, 2, 2, 2, 1]]


def led_log(segments: int = 5) -> LedLog:
    """Return a log with so many segments."""
    led = LedLog()
    for _ in range(segments):
        builder = BatchBuilder()
        builder.append(1, None, b"v")
        led.append(bytes(builder.build(0)))
        led.log.roll_now(1)
    return led


async def test_old_manifests_that_could_not_be_removed_are_removed_in_a_later_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if no manifest follows, because nothing of the topic is left."""
    remove = VirtualObjectStore.remove

    async def failing(self: VirtualObjectStore, name: str) -> None:
        if manifest_number(name.rpartition("/")[2]) is not None:
            raise ObjectStoreError("busy")
        await remove(self, name)

    def manifests() -> int:
        return sum("/manifest-" in name for name in led.store.bucket.objects)

    led = led_log(MANIFESTS_KEPT)
    await led.tier()
    led.log.configure(replace(CONFIG, remote_storage_enable=False))
    with monkeypatch.context() as patch:
        patch.setattr(VirtualObjectStore, "remove", failing)
        await led.remote.run_round()
        led.now_ms += 10
        await led.remote.run_round()
        assert objects_of(led) == []
        assert manifests() > MANIFESTS_KEPT + 1
    await led.remote.run_round()
    assert manifests() == MANIFESTS_KEPT + 1
    led.store.bucket.faults = StoreFaults(is_reachable=False)
    await led.remote.run_round()  # nothing is asked of the store any more


async def test_what_failed_attempts_have_left_is_removed_also_if_no_segment_is_left() -> None:
    led = led_log(1)
    put = led.store.put

    async def failing(name: str, data: bytes) -> None:
        if name.endswith(".index"):
            raise ObjectStoreError("busy")
        await put(name, data)

    led.store.put = failing  # type: ignore[method-assign]
    with pytest.raises(ObjectStoreError, match="busy"):
        await led.remote.run_round()
    led.store.put = put  # type: ignore[method-assign]
    led.log.configure(replace(CONFIG, remote_storage_enable=False))
    assert len(objects_of(led)) == 1
    led.now_ms += 10
    await led.remote.run_round()
    assert objects_of(led) == []


async def test_what_a_former_leader_has_left_is_removed_also_within_the_grace_period_of_the_rest() -> None:
    led = led_log()
    led.remote._parts = structs.replace(led.remote._parts, grace_ms=1_000)
    await led.tier()
    led.log.configure(replace(CONFIG, remote_storage_enable=False))
    await led.remote.run_round()
    led.now_ms += 600
    await led.store.put(led.remote.folder + "00000000000000000005-abcdef.log", b"")
    led.leader_epoch = 1
    led.log.epochs.begin(1, led.log.log_end_offset)
    for _ in range(3):
        await led.remote.run_round()
        led.now_ms += 600
    assert objects_of(led) == []


async def test_of_a_chain_that_was_never_begun_the_names_are_asked_for_once() -> None:
    led = led_log(0)
    led.log.configure(replace(CONFIG, remote_storage_enable=False))
    await led.remote.run_round()
    led.now_ms += 10
    await led.remote.run_round()
    led.store.bucket.faults = StoreFaults(is_reachable=False)
    await led.remote.run_round()


@pytest.mark.parametrize("is_on_its_way", [True, False])
async def test_a_topic_that_is_tiered_again_deletes_nothing_by_what_its_tier_had_before(
    is_on_its_way: bool,
) -> None:
    """The manifest that gives all up may be on its way; or the leader has not begun to write it."""
    whole, none = replace(CONFIG, local_retention_ms=-1), replace(CONFIG, remote_storage_enable=False)
    led = led_log()
    led.log.configure(whole)
    while await led.remote.run_round():
        pass
    files, name = SegmentFiles.on(copy.deepcopy(led.disk)), TopicPartition("events", 0)
    log = Log.open(files, "/events-0", name, CONFIG, OpenOptions(clean=True, wall_ms=1))
    follower = LedLog(log=log, store=led.store, seed=2)
    follower.is_led_here = False
    create = led.store.create

    async def tiered_again() -> None:
        for one, config in ((led, whole), (follower, CONFIG)):
            one.log.configure(config)
            one.facts = structs.replace(TOPIC, metadata_entry=TOPIC.metadata_entry + 2)
            one.tiered_since = TOPIC.metadata_entry + 2
        await follower.remote.run_round()
        assert follower.log.tiered_offset == 0

    async def create_later(name: str, data: bytes) -> bool:
        led.store.create = create  # type: ignore[method-assign]
        await tiered_again()
        return await create(name, data)

    for one in (led, follower):
        one.log.configure(none)
    if is_on_its_way:
        led.store.create = create_later  # type: ignore[method-assign]
    else:
        await tiered_again()
    while await led.remote.run_round():
        pass
    await follower.remote.run_round()
    assert follower.log.tiered_offset == 5
    await led.remote.run_round()
    assert led.log.tiered_offset == 5


async def test_what_is_tiered_again_while_all_is_given_up_is_kept() -> None:
    led = led_log()
    await led.tier()
    last = led.remote.manifest
    assert last is not None
    led.log.configure(replace(CONFIG, remote_storage_enable=False))
    giving_up = led.remote._emptied(last)
    next(giving_up)
    led.log.configure(CONFIG)
    assert at_once(giving_up) is None


def noted(led: LedLog, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that gets, of each manifest, how many segments and names of dropped objects it has."""
    append, written = led.remote._chain.append, list[tuple[int, int]]()

    async def noting(epoch: int, following: Manifest) -> bool:
        written.append((len(following.segments), len(following.dropped)))
        return await append(epoch, following)

    monkeypatch.setattr(led.remote._chain, "append", noting)
    return written


def objects_of(led: LedLog) -> list[str]:
    return [name for name in led.store.bucket.objects if name.endswith((".log", ".index"))]


@pytest.mark.parametrize(
    ("is_tiered", "settings", "may_have"),
    [
        (True, {}, True),
        (False, {}, False),
        (False, {"remote.log.delete.on.disable": "true"}, True),
        (False, {"remote.log.delete.on.disable": "false"}, False),
    ],
)
def test_the_tiers_that_are_looked_at(is_tiered: bool, settings: dict[str, str], may_have: bool) -> None:
    logs: Any = RemoteLogs.__new__(RemoteLogs)
    logs._by_key = {}
    logs._metadata = SimpleNamespace(image=SimpleNamespace(config=lambda kind, name: settings))
    config = SimpleNamespace(remote_storage_enable=is_tiered)
    partition: Any = SimpleNamespace(topic="t", key="t-0", log=SimpleNamespace(config=config))
    assert logs._may_have_tier(partition) is may_have
