"""What was read in the last minutes, for the charts: so many samples of so many subjects, and no more.

A subject is read on for a while after it was last looked at, so that a page that is opened again has no gap.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from nilometer.console.views.chart import Chart, Sample, chart
from nilometer.runtime import Clock
from nilometer.wire.errors import KafkaError

logger = logging.getLogger("nilometer.console")

SAMPLE_MS = 5_000
SPAN_MS = 15 * 60_000
SUBJECTS_MAX = 32
SHARE = 10
"""After a reading of t seconds the next begins after at least ``SHARE`` * t."""

Read = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class _Subject:
    read: Read
    looked_at_ms: int
    samples: dict[str, deque[Sample]] = field(default_factory=dict[str, deque[Sample]])
    """By the name of what is measured."""


class History:
    """Invariant: of each name there is at most one sample in SAMPLE_MS, and none older than SPAN_MS."""

    def __init__(self, clock: Clock, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._subjects: dict[str, _Subject] = {}
        self._task: asyncio.Task[None] | None = None

    def look(self, subject: str, read: Read) -> None:
        """Have ``subject`` read for SPAN_MS from now on; ``read`` must call :meth:`add`."""
        found = self._subjects.pop(subject, None) or _Subject(read, 0)
        found.looked_at_ms = self._clock.monotonic_ms()
        self._subjects[subject] = found  # the last one
        if len(self._subjects) > SUBJECTS_MAX:
            del self._subjects[next(iter(self._subjects))]
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read_on(), name="console-history")

    def add(self, subject: str, name: str, value: float | None) -> None:
        """Take a value, unless the last one was just before, or it is not known."""
        found = self._subjects.get(subject)
        if found is None or value is None:
            return
        now_ms = self._clock.monotonic_ms()
        samples = found.samples.setdefault(name, deque())
        if samples and now_ms - samples[-1].at_ms < SAMPLE_MS:
            return
        samples.append(Sample(now_ms, value))
        while samples[0].at_ms < now_ms - SPAN_MS:
            samples.popleft()

    def chart(self, subject: str, name: str, *, is_bytes: bool = False) -> Chart | None:
        """Return the chart of a name, which is its label; None without two samples."""
        found = self._subjects.get(subject)
        samples = () if found is None else found.samples.get(name, ())
        return chart(name, tuple(samples), span_ms=SPAN_MS, gap_ms=3 * SAMPLE_MS, is_bytes=is_bytes)

    @property
    def subjects(self) -> list[str]:
        """What is read on."""
        return list(self._subjects)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _read_on(self) -> None:
        while self._subjects:
            began_ms = self._clock.monotonic_ms()
            for subject, found in list(self._subjects.items()):
                if began_ms - found.looked_at_ms > SPAN_MS:
                    self._subjects.pop(subject, None)
                    continue
                try:
                    await found.read()
                except KafkaError as error:  # a gap in the chart; the page says why
                    logger.debug("%s is not read: %s", subject, error)
            took_ms = self._clock.monotonic_ms() - began_ms
            await self._sleep(max(SAMPLE_MS, SHARE * took_ms) / 1000)
