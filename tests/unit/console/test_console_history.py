"""The history of the charts: what is read on, for how long, and how much of it is kept."""

from __future__ import annotations

import asyncio

from nilometer.console.reading.cluster_reader import SAMPLE_MS, SPAN_MS, SUBJECTS_MAX, History
from nilometer.wire.errors import ErrorCode, KafkaError
from support.console.sessions import Sleeps
from support.eventually import becomes
from support.step_clock import StepClock


def test_a_sample_in_five_seconds_is_kept_for_fifteen_minutes() -> None:
    async def scenario() -> None:
        clock = StepClock()
        history = History(clock)
        history.look("g", _nothing)
        for _ in range(3 * SPAN_MS // 1_000):
            history.add("g", "lag", clock.monotonic_ms())
            history.add("g", "lag", None)
            clock.us += 1_000_000
        found = history.chart("g", "lag")
        assert found is not None
        assert [len(line.split()) for line in found.lines] == [SPAN_MS // SAMPLE_MS + 1]
        assert history.chart("other", "lag") is None
        await history.close()

    asyncio.run(scenario())


def test_a_subject_is_read_until_no_browser_has_shown_it_for_long() -> None:
    async def scenario() -> None:
        clock, sleeps, reads = StepClock(), Sleeps(), 0
        history = History(clock, sleeps.sleep)

        async def read() -> None:
            nonlocal reads
            reads += 1
            clock.us += 1_000 * (SPAN_MS // 2 + 1)
            raise KafkaError(ErrorCode.coordinator_not_available, "a gap")

        history.look("g", read)
        await becomes(lambda: history.subjects == [], "no browser shows it any more")
        assert reads == 2
        await history.close()

    asyncio.run(scenario())


def test_the_number_of_subjects_is_bounded() -> None:
    async def scenario() -> None:
        history = History(StepClock())
        for number in range(3 * SUBJECTS_MAX):
            history.look(str(number), _nothing)
        history.add("0", "lag", 1)
        assert history.subjects == [str(number) for number in range(2 * SUBJECTS_MAX, 3 * SUBJECTS_MAX)]
        await history.close()

    asyncio.run(scenario())


async def _nothing() -> None:
    pass
