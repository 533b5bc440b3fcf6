"""The brokers of a simulated cluster are recorded, each start in memory; after the run each recording is
replayed, and must be equal up to its end.

Replay equals the recording if a broker asks for everything through its runtime, and does nothing that depends
on more than what it is told: not on addresses, on the order of a set, or on what another broker left in the
process.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from typing import Any

from typing_extensions import Buffer

from nilometer.broker.broker import Broker, StartFailed
from nilometer.broker.settings.config import BrokerConfig
from nilometer.coordination.local.store import LocalStore
from nilometer.coordination.store import CoordinationStore
from nilometer.recorder.recording import OnHost, record
from nilometer.recorder.replaying import NOT_AS_WRITTEN, Diverged, Replay
from nilometer.recorder.tape import Header, MemoryFile, Tape
from nilometer.runtime import Clock, Runtime
from nilometer.simulation.loop import CURRENT, adopting_factory
from nilometer.simulation.stores import COORDINATION
from nilometer.simulation.world import Process

Tell = Callable[[Broker | None], object]
"""Told of a broker when it serves, and of none before it stops."""


async def serve(
    config: BrokerConfig, runtime: Runtime, store: CoordinationStore, stop: asyncio.Event, tell: Tell
) -> None:
    """Run a broker until ``stop``, which SIGTERM sets. Raises what ended it."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    broker = Broker(config, runtime, store)
    try:
        await broker.start()
        tell(broker)
        await broker.wait_stopped(stop)
    finally:
        tell(None)
        await broker.stop()
    if broker.failure:
        raise StartFailed(broker.failure)


class _ProcessFile(MemoryFile):
    """What a process records while it is alive: what it does while it is taken down is not its own."""

    def __init__(self, process: Process) -> None:
        super().__init__(
            Header(
                source="",
                version="",
                python="",
                settings={},
                started_ms=0,
                started_monotonic_ms=0,
                open_files_max=0,
            )
        )
        self._process = process

    def write(self, entries: bytes, data: Buffer = b"") -> None:
        if self._process.alive:
            super().write(entries, data)

    def finish(self, entry: bytes) -> None:
        self.write(entry)


class _Clock:
    """The recorded clock for the process itself, its machine's for checkers that look at its state."""

    def __init__(self, process: Process, recorded: Clock) -> None:
        self._process = process
        self._recorded = recorded

    @property
    def _clock(self) -> Clock:
        return self._recorded if CURRENT.get() is self._process else self._process.runtime.clock

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def monotonic_us(self) -> int:
        return self._clock.monotonic_us()

    def thread_cpu_us(self) -> int:
        return self._clock.thread_cpu_us()


class RecordedStart:
    """One start of a broker, and what it was told until its process ended."""

    def __init__(self, process: Process, config: BrokerConfig) -> None:
        self.name = f"{process.name} ({process.pid})"
        self.file = _ProcessFile(process)
        self._process = process
        self._config = config

    async def run(self, main: Callable[[Runtime], Coroutine[Any, Any, None]]) -> None:
        process = self._process

        def recorded(runtime: Runtime, _on_host: OnHost) -> Coroutine[Any, Any, None]:
            loop, host = asyncio.get_running_loop(), process.world.loop
            loop.set_task_factory(adopting_factory)  # type: ignore[arg-type]
            loop.set_exception_handler(
                lambda _, context: host.call_exception_handler(context) if process.alive else None
            )
            return main(dataclasses.replace(runtime, clock=_Clock(process, runtime.clock)))

        await record(recorded, process.runtime, Tape(self.file), self._config.log_dirs)

    def frames(self) -> Iterator[bytes]:
        return iter(self.file.frames[1:])

    def difference(self) -> str | None:
        """Replay it; return where replay is not equal, or None."""
        config = self._config

        async def again(runtime: Runtime) -> None:
            store = LocalStore(runtime, COORDINATION)
            await serve(config, runtime, store, asyncio.Event(), lambda _: None)

        with closing(Replay(self.frames(), config.log_dirs)) as replay:
            try:
                replay.run(again, self._process.runtime.open_files_max)
            except Diverged as diverged:
                return f"replay differs in {self.name}: {diverged}"
        return None


class RecordedStarts:
    """All starts of a cluster's brokers."""

    def __init__(self) -> None:
        self.starts: list[RecordedStart] = []

    def new(self, process: Process, config: BrokerConfig) -> RecordedStart:
        self.starts.append(RecordedStart(process, config))
        return self.starts[-1]

    def differences(self, *, is_damaged: bool = False) -> Iterator[str]:
        """``is_damaged``: files were changed past the brokers. What they read there then is not recorded."""
        for start in self.starts:
            found = start.difference()
            if found is not None and not (is_damaged and NOT_AS_WRITTEN in found):
                yield found
