"""A simulation (``World``): machines, processes on them, one network, one clock, one seed.

A *process* is a coroutine started on a host with its own runtime. It can be crashed (its memory is lost and
its code never continues), paused, and resumed; a machine can lose power and be powered on again. Data written
by a crashed process survives; unsynced data of a machine that lost power may not.

Everything that happens depends only on the seed and on the calls made on the World.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import logging
import random
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from nilometer.invariants import check
from nilometer.runtime import Runtime
from nilometer.runtime.runtime import SeededEntropy
from nilometer.simulation.disk import HostDisk, VirtualDisk
from nilometer.simulation.loop import CURRENT, Callback, OffloadedJob, ProcessGone, VirtualLoop, context_of
from nilometer.simulation.network import Fabric, VirtualNetwork
from nilometer.simulation.object_store import Bucket, VirtualObjectStore

# The clocks of simulated machines, each with its own rate and skew.

EPOCH_MS = 1_700_000_000_000
"""The true wall clock time at which every simulation starts."""


@dataclass(slots=True)
class HostClock:
    """A machine's clock.

    ``rate`` is seconds shown per true second; ``skew_ms`` is the error of the wall clock, and may be
    changed at any time: then wall time jumps, monotonic time does not.
    """

    loop: VirtualLoop
    rate: float = 1.0
    skew_ms: int = 0
    boot_ms: int = 0

    def wall_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int(self.loop.time() * 1000 * self.rate)

    def monotonic_ms(self) -> int:
        return self.boot_ms + int(self.loop.time() * 1000 * self.rate)

    def monotonic_us(self) -> int:
        return self.boot_ms * 1000 + int(self.loop.time() * 1_000_000 * self.rate)

    def thread_cpu_us(self) -> int:
        """Return 0: what code computes takes no time in a simulation."""
        return 0


# The trace of a simulation: one line for each event, and one hash of all lines.
#
# Two simulations that ran the same way have the same hash; different traces show where they diverged. The
# hash covers every line, but only the last lines are kept; a sink can get all.

LINES_KEPT = 5_000


class Trace:
    def __init__(self, now: Callable[[], float], sink: Callable[[str], object] | None = None) -> None:
        self._now = now
        self._sink = sink
        self._hash = hashlib.blake2b(digest_size=16)
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.count = 0
        self.observer: Callable[[str, str], object] | None = None
        """Called with the parts of each line."""

    def note(self, who: str, what: str) -> None:
        """Add the line "``who`` ``what``" with the current time.

        A line must not depend on object addresses or hash order.
        """
        line = f"{self._now():.6f} {who} {what}"
        self._hash.update(f"{line}\n".encode())
        self.lines.append(line)
        self.count += 1
        if self._sink is not None:
            self._sink(line)
        if self.observer is not None:
            self.observer(who, what)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def of(self, who: str, limit: int = 50) -> list[str]:
        """Return the last lines about processes or hosts whose name starts with ``who``."""
        return [line for line in self.lines if line.split(" ", 2)[1].startswith(who)][-limit:]


logger = logging.getLogger("nilometer.simulation.world")

T = TypeVar("T")
Main = Callable[[Runtime], Coroutine[Any, Any, None]]

TASKS_BEFORE_SWEEP = 16


class Process:
    """One process of a program on a host."""

    def __init__(self, world: World, host: Host, name: str, pid: int) -> None:
        self.world = world
        self.host = host
        self.name = name
        self.pid = pid
        self.alive = True
        self.paused = False
        self.failed_places: set[str] = set()
        """The places where it got disk errors: the first two names of each path."""
        self.held: list[Callback] = []
        self.jobs: dict[OffloadedJob, None] = {}
        self.signal_handlers: dict[int, Callable[[], object]] = {}
        self.context = context_of(self)
        self.exited: asyncio.Future[BaseException | None] = world.loop.create_future()
        """Done when the process has ended, with the exception of its main function or None."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._sweep_at = TASKS_BEFORE_SWEEP
        chance = random.Random(f"{world.seed}/{name}/{pid}")
        self.runtime = Runtime(
            host.clock,
            VirtualDisk(host.disk, self, EPOCH_MS),
            VirtualNetwork(world.network, self),
            SeededEntropy(chance),
            open_object_store=lambda _uri, _writer: VirtualObjectStore(
                world.bucket, random.Random(f"{world.seed}/object store/{name}/{pid}"), host.clock
            ),
        )

    def adopt(self, task: asyncio.Task[Any]) -> None:
        if not self.alive:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._tasks.append(task)
        if len(self._tasks) >= self._sweep_at:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._sweep_at = 2 * len(self._tasks) + TASKS_BEFORE_SWEEP

    @property
    def unfinished_tasks(self) -> int:
        return sum(not task.done() for task in self._tasks)

    def view_of(self, disk: HostDisk) -> VirtualDisk:
        """Return this process's view of a shared disk that is not its machine's."""
        return VirtualDisk(disk, self, EPOCH_MS)

    def run(self, main: Main) -> None:
        def begin() -> None:
            task = self.world.loop.create_task(main(self.runtime))
            task.add_done_callback(self._on_main_done)

        self.world.loop.in_process(0.0, self, begin)

    def pause(self) -> None:
        if self.alive and not self.paused:
            self.world.trace.note(self.name, "pauses")
            self.paused = True

    def resume(self) -> None:
        if self.alive and self.paused:
            self.world.trace.note(self.name, "resumes")
            self.paused = False
            held, self.held = self.held, []
            self.world.loop.release(held)

    def signal(self, number: int) -> None:
        """Send it a signal; without a handler nothing happens."""
        if (handler := self.signal_handlers.get(number)) is not None:
            self.world.loop.in_process(0.0, self, handler)

    def crash(self) -> None:
        """Kill the process, as ``kill -9``. If called inside the process, raises ProcessGone."""
        inside = CURRENT.get() is self
        if self.alive:
            self.world.trace.note(self.name, "crashes")
            self._end(None)
        if inside:
            raise ProcessGone

    def _on_main_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self.alive:
            self.world.trace.note(self.name, f"exits {type(error).__name__ if error else 'normally'}")
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self.alive = False
        self.held.clear()
        self.world.network.forget(self)
        self.host.disk.forget(self)
        for disk in self.world.shared_disks.values():
            disk.forget(self)
        self.host.processes.remove(self)
        self.world.loop.in_process(0.0, None, self._unwind, error)

    def _unwind(self, error: BaseException | None) -> None:
        """End the dead process's jobs and close its coroutines now, in order, not at garbage collection.

        All operations that they still try raise ProcessGone.
        """
        for job in list(self.jobs):
            job.kill()
        self.jobs.clear()
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                context = contextvars.copy_context()
                context.run(CURRENT.set, self)
                context.run(_close, task.get_coro())
        self._tasks.clear()
        if not self.exited.done():
            self.exited.set_result(error)


def _close(coroutine: Any) -> None:
    """Close a coroutine of a dead process, without logging anything."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        coroutine.close()
    except (ProcessGone, RuntimeError):
        pass  # it tried an operation, or awaited something again
    except Exception:  # any other error is irrelevant, since the process is dead
        pass
    finally:
        logging.disable(before)


class Host:
    """A machine: its clock and disk, which survive its processes."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.up = True
        chance = random.Random(f"{world.seed}/host/{name}")
        self.clock = HostClock(world.loop, boot_ms=chance.randrange(1_000, 10_000_000))
        self.disk = HostDisk(world.loop, chance, world.trace.note)
        self.processes: list[Process] = []

    def start(self, name: str, main: Main) -> Process:
        """Start ``main`` as a process called ``name``."""
        check(self.up, "a process starts on a machine that has power", self.name)
        process = Process(self.world, self, name, self.world.next_pid())
        self.processes.append(process)
        self.world.trace.note(name, f"starts as {process.pid} on {self.name}")
        process.run(main)
        return process

    def power_off(self) -> None:
        """Cut the power: all processes die, nothing is sent any more, unsynced data is lost or torn."""
        self.world.trace.note(self.name, "loses power")
        self.up = False
        for process in list(self.processes):
            process.crash()
        self.disk.power_loss()

    def power_on(self) -> None:
        self.world.trace.note(self.name, "has power")
        self.up = True
        self.world.network.on_host_up(self.name)


class World:
    def __init__(self, seed: int, *, sink: Callable[[str], object] | None = None) -> None:
        self.seed = seed
        self.chance = random.Random(f"{seed}/world")
        self.loop = VirtualLoop()
        self.trace = Trace(self.loop.time, sink)
        self.network = Fabric(self.loop, random.Random(f"{seed}/network"), self.trace.note)
        self.hosts: dict[str, Host] = {}
        self.shared_disks: dict[str, HostDisk] = {}
        """Disks that belong to no machine, so that they never lose power, by name."""
        self.bucket = Bucket(on_change=lambda name, _: self.trace.note("object store", name))
        """The object store of all processes."""
        self.failures: list[BaseException] = []
        """Exceptions in callbacks, and in tasks whose result was not retrieved: findings, in a test."""
        self.is_over = False
        """Whether all processes are being ended, because the run's main function has ended."""
        self._pids = 1000
        self.loop.set_exception_handler(self._on_failure)

    def host(self, name: str) -> Host:
        """Return the machine of that name, created at the first call."""
        if name not in self.hosts:
            self.hosts[name] = Host(self, name)
            self.network.hosts[name] = self.hosts[name]
        return self.hosts[name]

    def shared_disk(self, name: str) -> HostDisk:
        """Return the shared disk of that name, created at the first call; see :meth:`Process.view_of`."""
        if name not in self.shared_disks:
            chance = random.Random(f"{self.seed}/disk/{name}")
            self.shared_disks[name] = HostDisk(self.loop, chance, self.trace.note)
        return self.shared_disks[name]

    def next_pid(self) -> int:
        self._pids += 1
        return self._pids

    def run(self, main: Callable[[World], Awaitable[T]], limit_s: float = 86_400.0) -> T:
        """Run ``main`` to its end, within ``limit_s`` simulated seconds; then end all processes."""

        async def bounded() -> T:
            async with asyncio.timeout(limit_s):
                return await main(self)

        try:
            return self.loop.run_until_complete(bounded())
        finally:
            self._end()

    def _end(self) -> None:
        self.is_over = True

        async def end() -> None:
            for name in sorted(self.hosts):
                for process in list(self.hosts[name].processes):
                    process.crash()
            await asyncio.sleep(0.001)

        try:
            self.loop.run_until_complete(end())
        finally:
            self.loop.close()

    def _on_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        owner = getattr(context.get("future") or context.get("task"), "owner", None)
        if isinstance(error, ProcessGone) or (owner is not None and not owner.alive):
            return
        self.trace.note("world", f"failure {type(error).__name__}: {error} ({context.get('message')})")
        logger.error("In the simulation: %s", context.get("message"), exc_info=error)
        self.failures.append(error if error is not None else RuntimeError(str(context.get("message"))))


# A client process of the workload: it runs on its host until it is asked to stop.


class Program(ABC):
    def __init__(self, name: str, host: Host) -> None:
        self.name = name
        self.error_counts: Counter[str] = Counter()
        """The errors of its requests, by code."""
        self.process: Process | None = None
        self._host = host
        self._stopping = False

    def start(self) -> Process:
        """Start it, also again after its process has crashed."""
        self._stopping = False
        self.process = self._host.start(self.name, self._main)
        return self.process

    def stop(self) -> None:
        """Begin nothing more; the process ends once what it has begun has an outcome."""
        self._stopping = True

    @abstractmethod
    async def _main(self, runtime: Runtime) -> None: ...
