"""A partition with many segments to copy to remote storage takes turns with the others."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Generator
from typing import Any

import pytest
from msgspec import structs

from nilometer.broker.tiering import remote_partition
from nilometer.broker.tiering.remote_logs import RemoteLogs
from nilometer.broker.turns import Turns
from nilometer.simulation.loop import VirtualLoop
from nilometer.simulation.object_store import StoreFaults
from nilometer.steps import Pause, with_pauses
from nilometer.tier import chain
from nilometer.tier.chain import Chain
from nilometer.tier.format import SEGMENTS_OF_A_LINE, Manifest, encode_manifest, manifest_name
from nilometer.tier.lineage import LogLineage
from nilometer.wire.records import BatchBuilder
from support.step_clock import StepClock
from support.tier.changing_leaders import World
from support.tier.led_log import LedLog
from support.tier.remote_segments import TOPIC, manifest, segment

AT_ONCE = 10
"""So many partitions are copied at the same time."""


def led_with(sealed: int) -> LedLog:
    led = LedLog()
    for _ in range(sealed):
        builder = BatchBuilder()
        builder.append(1, None, b"v")
        led.append(bytes(builder.build(0)))
        led.log.roll_now(1)
    return led


def test_a_round_copies_one_segment_and_says_whether_there_are_more() -> None:
    async def main() -> None:
        led = led_with(3)
        has_more, ends, lags = True, list[int](), list[int]()
        while has_more:
            has_more = await led.remote.run_round()
            assert led.remote.manifest is not None
            ends.append(led.remote.manifest.end_offset)
            lags.append(led.remote.lag.sealed)
        assert (ends, lags) == ([1, 2, 3], [2, 1, 0])

    asyncio.run(main())


def test_others_have_their_turn_between_two_segments() -> None:
    rounds: list[str] = []

    class Remote:
        error = None
        is_queued = True

        def __init__(self, name: str, count: int) -> None:
            self.name, self.left = name, count
            self.partition = type("Partition", (), {"key": name, "on_success": lambda _work: None})

        async def run_round(self) -> bool:
            rounds.append(self.name)
            self.left -= 1
            return self.left > 0

    remotes = [Remote("a", 3), Remote("b", 1), Remote("gone", 2), Remote("c", 2)]
    logs: Any = RemoteLogs.__new__(RemoteLogs)
    logs._running, logs._workers, logs._due = {}, 1, deque(remotes)
    logs._replicas = [one.partition for one in remotes if one.name != "gone"]
    logs._by_key = {one.name: one for one in remotes}
    asyncio.run(logs._work())
    assert "".join(rounds) == "abcaca"
    assert not any(one.is_queued for one in remotes)
    assert logs._workers == 0


def test_what_another_leader_has_written_is_compared_even_if_it_ends_where_this_one_had_agreed() -> None:
    async def main() -> None:
        led = led_with(3)
        while await led.remote.run_round():
            pass
        agreed = led.remote.manifest
        assert agreed is not None
        between = Chain(led.store, led.remote.folder, "another")
        await between.read()
        theirs = tuple(structs.replace(one, epochs=((1, one.base_offset),)) for one in agreed.segments)
        assert await between.append(1, structs.replace(agreed, segments=theirs))
        led.leader_epoch = 2
        await led.remote.run_round()
        assert led.remote.manifest is not None
        assert led.remote.manifest.leader_epoch == 2
        assert not {one.attempt for one in led.remote.manifest.segments} & {one.attempt for one in theirs}

    asyncio.run(main())


def test_a_follower_that_has_caught_up_frees_what_the_tier_has() -> None:
    async def work(world: World) -> None:
        world.bucket.faults = StoreFaults()
        follower = world.brokers[1]
        follower.believed_epoch = -1
        for _ in range(4):
            world.produce(3)
            await world.replicate()
        follower.is_in_sync = False
        for _ in range(12):
            world.produce(3)
            await world.replicate()
        while await world.led.remote.run_round():
            pass
        await follower.remote.run_round()
        manifest = world.led.remote.manifest
        assert manifest is not None
        assert follower.log.tiered_offset <= follower.log.log_end_offset < manifest.end_offset
        follower.is_in_sync = True
        await world.replicate()
        for _ in range(2):
            world.clean(follower)
            await follower.remote.run_round()
        assert follower.log.tiered_offset == manifest.end_offset

    loop = VirtualLoop()
    loop.run_until_complete(work(World(loop, seed=1, is_unclean=False)))


class Steps:
    """Counts the steps of each iteration of the event loop."""

    def __init__(self) -> None:
        self.iteration = 0
        self.taken: Counter[int] = Counter()

    def counted(self, steps: Generator[int, None, Any]) -> Generator[int, None, Any]:
        while True:
            self.taken[self.iteration] += 1
            try:
                elements = next(steps)
            except StopIteration as done:
                return done.value
            yield elements

    async def count_iterations(self) -> None:
        while True:
            self.iteration += 1
            await asyncio.sleep(0)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Count the steps of what walks over all segments: reading, writing, and comparing manifests."""

        async def counting_pauses(taken: Generator[int, None, Any], pause: Pause) -> Any:
            return await with_pauses(self.counted(taken), pause)

        for module in (chain, remote_partition):
            patch.setattr(module, "with_pauses", counting_pauses)
        compare = LogLineage.compare_some

        def compare_some(*of: Any) -> bool:
            self.taken[self.iteration] += 1
            return compare(*of)

        patch.setattr(LogLineage, "compare_some", compare_some)


def many_segments(lines: int) -> Manifest:
    return manifest(*(segment(base, base) for base in range(lines * SEGMENTS_OF_A_LINE)))


def test_partitions_whose_tiers_have_many_segments_take_one_step_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten in one iteration of the event loop would serve no one else for as long as ten steps take."""

    async def main() -> None:
        turns, steps = Turns(StepClock()), Steps()
        leds = [
            LedLog(facts=structs.replace(TOPIC, partition=number), pause=turns.wait_next)
            for number in range(AT_ONCE)
        ]
        for led in leds:
            held = structs.replace(many_segments(3), number=0, leader_epoch=0, topic=led.facts)
            led.store.bucket.objects[led.remote.folder + manifest_name(0)] = encode_manifest(held)
            led.store.bucket.objects[led.remote.folder + "head"] = b"0"
            led.log.epochs.begin(0, 0)
            led.leader_epoch = 1
        steps.watch(monkeypatch)
        counting = asyncio.create_task(steps.count_iterations())
        await asyncio.gather(*(led.remote.run_round() for led in leds))
        counting.cancel()
        assert sum(steps.taken.values()) > 3 * AT_ONCE
        assert max(steps.taken.values()) == 1

    asyncio.run(main())
