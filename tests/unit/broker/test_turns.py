"""Long work runs slice by slice, one slice in each iteration of the event loop; each turn is measured."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref

import pytest

from nilometer.broker.turns import (
    ARRIVED_US,
    ELEMENTS_MAX,
    HAVE_TO_WAIT,
    LOGGED_US,
    NOTED_US,
    SLICE_US,
    LongWork,
    Turns,
)
from support.step_clock import StepClock


class Buffer:
    """Of a request."""


class Answering:
    kind = "Metadata"

    def describe(self) -> str:
        return "Metadata of 9 bytes"


async def test_one_slice_of_all_long_work_runs_in_an_iteration() -> None:
    turns, iteration, ran = Turns(StepClock()), 0, list[tuple[str, int]]()

    async def work(name: str) -> None:
        slices = LongWork(turns)
        for _ in range(3):
            await slices.step(ELEMENTS_MAX)
            ran.append((name, iteration))

    tasks = [asyncio.create_task(work(name)) for name in "abc"]
    while not all(task.done() for task in tasks):
        iteration += 1
        await asyncio.sleep(0)
    assert [name for name, _ in ran] == list("abcabcabc"), "they take turns"
    assert len({when for _, when in ran}) == len(ran), "never two in one iteration"


async def test_a_slice_ends_by_time_or_by_elements() -> None:
    clock = StepClock()
    work = LongWork(Turns(clock))
    assert not work.is_slice_over
    clock.us += SLICE_US
    assert work.is_slice_over
    await work.step(1)
    assert not work.is_slice_over, "the next slice has begun"
    await work.step(ELEMENTS_MAX - 1)
    assert not work.is_slice_over
    await work.step(1)
    assert not work.is_slice_over


async def test_what_arrives_in_one_iteration_waits_when_its_time_is_used_up() -> None:
    clock = StepClock()
    turns, handled = Turns(clock), list[int]()

    def handle(number: int) -> None:
        handled.append(number)
        clock.us += ARRIVED_US // 2

    for number in range(7):
        if turns.arrive() != HAVE_TO_WAIT:
            handle(number)
        else:
            turns.call_in_turn("client", "id", lambda number=number: handle(number))
    assert handled == [0, 1]
    assert turns.arrive() == HAVE_TO_WAIT, "who comes later waits beside those who wait"
    turns.call_in_turn("other", "id", lambda: handle(7))
    for last in (2, 7, 3, 4, 5, 6):
        assert turns.arrive() == HAVE_TO_WAIT
        await asyncio.sleep(0)
        assert handled[-1] == last
    assert handled == [0, 1, 2, 7, 3, 4, 5, 6]
    assert turns.arrive() == clock.us


async def test_what_arrives_goes_on_after_a_failure() -> None:
    turns, handled = Turns(StepClock()), list[str]()
    failed = list[object]()
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: failed.append(context["exception"])
    )

    def fail() -> None:
        raise ValueError("a defect")

    turns.call_in_turn("client", "id", fail)
    turns.call_in_turn("client", "id", lambda: handled.append("next"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert handled == ["next"]
    assert [str(error) for error in failed] == ["a defect"]


async def test_a_slice_that_fails_does_not_end_the_others() -> None:
    turns, ran = Turns(StepClock()), list[str]()
    loop = asyncio.get_running_loop()
    failed = list[object]()
    loop.set_exception_handler(lambda _loop, context: failed.append(context["exception"]))

    def fail() -> None:
        raise ValueError("a defect")

    turns.call(fail)
    turns.call(lambda: ran.append("next"))
    for _ in range(4):
        await asyncio.sleep(0)
    assert ran == ["next"]
    assert [str(error) for error in failed] == ["a defect"]


async def test_a_turn_has_all_processor_time_since_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    clock = StepClock()
    turns = Turns(clock)
    clock.work(NOTED_US - 1)
    turns.note("Fetch")
    assert turns.longest_of == {}, "it was short"
    clock.work(3 * NOTED_US)
    turns.note(Answering())
    assert turns.longest_of == {"Metadata": 3 * NOTED_US}
    assert turns.longest.work == "Metadata of 9 bytes"
    clock.work(LOGGED_US)
    with caplog.at_level(logging.WARNING):
        turns.note("housekeeping")
    assert "held for 100 ms of processor time: housekeeping" in caplog.text
    assert turns.durations.count == 2
    turns.begin()
    assert (turns.longest_of, turns.longest.cpu_us) == ({}, 0)


async def test_short_turns_are_not_taken_for_one_long_turn() -> None:
    clock = StepClock()
    turns = Turns(clock)
    for _ in range(20):
        clock.work(NOTED_US // 2)
        turns.note("Fetch")
    clock.us += 10 * NOTED_US  # nothing arrives
    clock.work(NOTED_US // 4)
    turns.note("Produce")
    assert turns.longest_of == {}
    clock.us += 10 * NOTED_US
    clock.work(NOTED_US // 4)
    turns.note("Produce")
    clock.work(2 * NOTED_US)
    turns.note("Produce")
    assert turns.longest_of == {"Produce": 2 * NOTED_US}


async def test_time_in_which_the_machine_ran_others_is_not_counted() -> None:
    clock = StepClock()
    turns = Turns(clock)
    clock.us += 50 * NOTED_US
    clock.work(NOTED_US // 2)
    turns.note("Fetch")
    assert turns.longest_of == {}


async def test_each_step_of_a_task_is_noted_and_its_outcome_is_passed_on() -> None:
    clock = StepClock()
    turns = Turns(clock)

    async def work(fails: bool) -> str:
        clock.work(5 * NOTED_US)
        await asyncio.sleep(0)
        clock.work(7 * NOTED_US)
        if fails:
            raise ValueError("a defect")
        return "done"

    assert await turns.noted(work(fails=False), "one") == "done"
    assert turns.longest_of == {"one": 7 * NOTED_US}
    assert turns.durations.count == 2
    with pytest.raises(ValueError, match="a defect"):
        await turns.noted(work(fails=True), "two")
    assert turns.longest_of["two"] == 7 * NOTED_US


async def test_a_noted_task_can_be_cancelled() -> None:
    turns, cleaned = Turns(StepClock()), list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            cleaned.append("up")

    task = asyncio.create_task(turns.noted(work(), "work"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == ["up"]


@pytest.mark.filterwarnings("error")
async def test_a_noted_task_that_is_cancelled_before_it_begins_leaves_nothing() -> None:
    begun = list[str]()

    async def work() -> None:
        begun.append("it")

    waiting = work()
    task = asyncio.create_task(Turns(StepClock()).noted(waiting, "work"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert begun == []
    with pytest.raises(RuntimeError, match="cannot reuse"):
        waiting.send(None)


async def test_a_noted_task_that_was_cancelled_is_freed_at_once() -> None:
    """Not by the garbage collection, which rarely looks at the oldest objects."""
    kept = list[weakref.ref[Buffer]]()

    async def work() -> None:
        buffer = Buffer()
        kept.append(weakref.ref(buffer))
        await asyncio.sleep(3_600)

    gc.disable()
    try:
        task = asyncio.create_task(Turns(StepClock()).noted(work(), "work"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        del task
        await asyncio.sleep(0)
        assert [buffer() for buffer in kept] == [None]
    finally:
        gc.enable()


async def test_elements_are_counted_by_turn() -> None:
    turns = Turns(StepClock())
    turns.count(10)
    turns.count(20)
    turns.note("Metadata")
    turns.count(5)
    turns.note("Metadata")
    assert turns.elements_longest == 30
