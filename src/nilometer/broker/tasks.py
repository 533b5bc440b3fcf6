"""The broker's background tasks: supervised in one place, stopped together.

There are two kinds. A *job* ends, and its caller awaits the outcome; a named job's failure is logged. A
*service* runs as long as the broker: its failure is reported through ``on_service_died``, so that a broker
never runs without one of its services. A failed round of a periodic service is logged and counted, and the
next round follows later; only after too many failed rounds in a row does the service fail.

Errors of one log directory or one partition do not belong here: a service handles them and continues
(:mod:`nilometer.broker.replicas.replica_failures`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from nilometer.broker.turns import RELEASED_AT_ONCE, LongWork, Turns
from nilometer.runtime.gathering import gather

T = TypeVar("T")
logger = logging.getLogger("nilometer.broker")

FAILED_ROUNDS_MAX = 6
"""A periodic service fails after this many failed rounds in a row."""
RETRY_MIN_MS = 1_000
"""The pause after a failed round; it doubles with each one, unless the service's own interval is longer."""


class Service(msgspec.Struct):
    """The state of a service. Times are those of the event loop's clock, in milliseconds."""

    name: str
    started_ms: int
    interval_ms: int | None = None
    """The interval of a periodic service; None for a service without rounds."""
    rounds: int = 0
    """How many rounds were completed without a failure."""
    last_round_ms: int | None = None
    """When the last round was completed."""
    failures: int = 0
    failures_in_a_row: int = 0
    last_failure: str = ""
    is_alive: bool = True

    def note_round(self, now_ms: int) -> None:
        self.rounds += 1
        self.last_round_ms = now_ms
        self.failures_in_a_row = 0

    def note_failure(self, error: BaseException) -> None:
        self.failures += 1
        self.failures_in_a_row += 1
        self.last_failure = describe(error)

    @property
    def pause_ms(self) -> int:
        """The pause before the next round of a periodic service."""
        assert self.interval_ms is not None
        if not self.failures_in_a_row:
            return self.interval_ms
        return max(self.interval_ms, RETRY_MIN_MS << (self.failures_in_a_row - 1))


class Tasks:
    def __init__(
        self,
        on_service_died: Callable[[str, BaseException], None] | None = None,
        turns: Turns | None = None,
    ) -> None:
        """``turns`` measures each step of each task."""
        self.turns = turns
        self._tasks: dict[
            asyncio.Task[Any], None
        ] = {}  # ordered, so that they end in the same order in replay
        self._on_service_died = on_service_died
        self.is_stopping = False
        self.loading = asyncio.Lock()
        """Held while a piece of a coordinator's log is applied."""
        self.services: dict[str, Service] = {}
        """All services started so far, by name."""

    def spawn(
        self, work: Coroutine[Any, Any, T], *, name: str | None = None, kind: str | None = None
    ) -> asyncio.Task[T]:
        """Run ``work`` as a job, and return its task; the failure of a named job is logged.

        ``kind``: under what its turns are measured, if not under its name.
        """
        task = self._start(work, name, kind)
        task.add_done_callback(self._job_done if name else self._forget)
        return task

    def release(self, items: list[Any]) -> None:
        """Empty a list that nothing else refers to: to free hundreds of thousands of objects at once takes
        long."""
        if self.turns is not None and len(items) > RELEASED_AT_ONCE:
            self.spawn(LongWork(self.turns).release(items), name="release of memory")

    def service(
        self, name: str, work: Coroutine[Any, Any, None], *, interval_ms: int | None = None
    ) -> asyncio.Task[None]:
        """Run ``work`` as a service. It may return or be cancelled; an error makes it fail."""
        service = self.services[name] = Service(name, _now_ms(), interval_ms)
        task = self._start(work, name)

        def done(task: asyncio.Task[None]) -> None:
            self._service_done(service, task)

        task.add_done_callback(done)
        return task

    def periodic(self, name: str, interval_ms: int, work: Callable[[], object]) -> asyncio.Task[None]:
        """Run a service that calls ``work`` every ``interval_ms``, and awaits its result if that is a
        coroutine."""
        return self.service(name, self._run_rounds(name, work), interval_ms=interval_ms)

    async def stop(self) -> None:
        """Cancel all jobs and services, and wait until they have ended."""
        self.is_stopping = True
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await gather(*tasks, return_exceptions=True)

    async def _run_rounds(self, name: str, work: Callable[[], object]) -> None:
        service = self.services[name]
        while (
            not self.is_stopping
        ):  # an error met while a cancelled round cleans up replaces its cancellation
            await asyncio.sleep(service.pause_ms / 1000)
            try:
                outcome = work()
                if asyncio.iscoroutine(outcome):
                    await outcome
            except Exception as error:
                service.note_failure(error)
                if service.failures_in_a_row >= FAILED_ROUNDS_MAX:
                    raise
                logger.exception(
                    "A round of %s failed; the next one is in %d ms", service.name, service.pause_ms
                )
            else:
                service.note_round(_now_ms())

    def _start(
        self, work: Coroutine[Any, Any, T], name: str | None, kind: str | None = None
    ) -> asyncio.Task[T]:
        measured = work
        if self.turns is not None:
            measured = self.turns.noted(work, kind or name or work.__qualname__)
        task = asyncio.get_running_loop().create_task(measured, name=name)
        self._tasks[task] = None
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def _job_done(self, task: asyncio.Task[Any]) -> None:
        self._forget(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)

    def _service_done(self, service: Service, task: asyncio.Task[None]) -> None:
        self._forget(task)
        service.is_alive = False
        if task.cancelled() or (error := task.exception()) is None:
            return
        service.last_failure = describe(error)
        logger.error("The service %s failed", service.name, exc_info=error)
        if self._on_service_died is not None and not self.is_stopping:
            self._on_service_died(service.name, error)


def describe(error: BaseException) -> str:
    """Return the type and the message of an error, as text for operators."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


async def run_to_end(work: Awaitable[T]) -> T:
    """Return the result of ``work``, such as a job on a disk's thread.

    If the caller is cancelled, ``work`` is not: CancelledError is raised once it has ended.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
