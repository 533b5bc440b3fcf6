"""How busy a client is while it loads a broker, and what is left of the machine.

A client that has no more time to give limits what is measured, whichever broker it talks to. Its threads are
looked at from outside twice a second, so that every client is judged in the same way; the numbers are medians
over these intervals, and the first of them, in which it starts, does not count.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
EVERY_S = 0.5
_IDLE, _IOWAIT = 3, 4
"""Where they are in the first line of /proc/stat."""


class ClientWatch:
    """Use as ``with ClientWatch(pid) as watch: ...``; then ``watch.numbers()``."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="client-watch")
        self._intervals: list[dict[str, float]] = []

    def __enter__(self) -> ClientWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def numbers(self) -> dict[str, float]:
        """Per cent of one core, the machine's of all cores; nothing if the client ran too briefly."""
        counted = self._intervals[1:]
        if not counted:
            return {}
        return {key: statistics.median(each[key] for each in counted) for key in counted[0]}

    def _run(self) -> None:
        before = self._look()
        while not self._ended.wait(EVERY_S):
            now = self._look()
            if before is not None and now is not None:
                self._intervals.append(_shares(before, now))
            before = now

    def _look(self) -> tuple[float, dict[str, int], list[int]] | None:
        """When, the ticks of each thread, the machine's. None once the client has ended."""
        threads = _thread_ticks(self._pid)
        if not threads:
            return None
        machine = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return time.monotonic(), threads, machine


def _thread_ticks(pid: int) -> dict[str, int]:
    found: dict[str, int] = {}
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            found[task.name] = int(fields[11]) + int(fields[12])
    except (FileNotFoundError, ProcessLookupError):
        return {}  # it, or one of its threads, has ended meanwhile: the next look counts
    return found


def _shares(
    before: tuple[float, dict[str, int], list[int]], now: tuple[float, dict[str, int], list[int]]
) -> dict[str, float]:
    seconds = now[0] - before[0]
    threads = [ticks - before[1].get(task, 0) for task, ticks in now[1].items()]
    machine = [new - old for old, new in zip(before[2], now[2], strict=True)]
    return {
        "client_cpu_percent": 100 * sum(threads) / _TICKS_PER_S / seconds,
        "client_busiest_percent": 100 * max(threads) / _TICKS_PER_S / seconds,
        "machine_percent": 100 * (1 - (machine[_IDLE] + machine[_IOWAIT]) / max(sum(machine), 1)),
        "machine_waits_for_disk_percent": 100 * machine[_IOWAIT] / max(sum(machine), 1),
    }
