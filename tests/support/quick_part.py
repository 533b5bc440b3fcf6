"""Run the quick tests and print what they cost: `make test`.

With ``--budget``, as in `make test-all`, they fail if they need much more processor time than `BUDGET_S`.
It is the time of all processes that the tests start, compared with that of a loop that runs beside them: on a
slow or busy machine this takes longer, too.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time

BUDGET_S = 320.0
"""Processor time of the quick tests, where `reference` takes `REFERENCE_S` beside them."""
TOLERANCE = 1.5
REFERENCE_S = 0.0065
PAUSE_S = 2.0
END_S = 60.0
"""How long processes may run on that the tests have left: Spark's ends after the test process."""
PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> int:
    within_budget = "--budget" in arguments
    command = [sys.executable, "-m", "pytest", "-m", "quick", "--parts", "-rfEs"]
    command += [argument for argument in arguments if argument != "--budget"]
    loop = Reference()
    started = time.monotonic()
    code = run(command)
    wall_s = time.monotonic() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    reference_s = loop.stop()
    print(
        f"{wall_s:.0f} s, with {cpu_s / 60:.1f} minutes of processor time; "
        f"{scaled(cpu_s, reference_s):.0f} s on a machine as fast as that of the budget"
    )
    if within_budget and code == 0 and (excess := over_budget(cpu_s, reference_s)) is not None:
        print(excess)
        return 1
    return code


def over_budget(cpu_s: float, reference_s: float) -> str | None:
    """Return what is wrong with tests that took ``cpu_s`` where the loop took ``reference_s``."""
    if scaled(cpu_s, reference_s) <= TOLERANCE * BUDGET_S:
        return None
    return (
        f"More than {TOLERANCE:g} x {BUDGET_S:.0f} s of processor time are too many there. Mark what "
        "is expensive as `thorough`."
    )


def scaled(cpu_s: float, reference_s: float) -> float:
    """Return how long ``cpu_s`` would be where the loop takes `REFERENCE_S`."""
    return cpu_s * REFERENCE_S / reference_s


def run(command: list[str]) -> int:
    """Run ``command`` and what it leaves running to their ends: `RUSAGE_CHILDREN` counts what has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, lambda *_: None)  # pytest gets it, and reports what it has done
    process = subprocess.Popen(command)
    while (ended := os.wait())[0] != process.pid:
        pass
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.05)
        except ChildProcessError:  # all have ended
            return process.returncode
    print("A process that the tests started still runs.")
    return process.returncode or 1


class Reference(threading.Thread):
    """Measures the processor time of `reference` again and again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._times: list[float] = []
        self._stopping = threading.Event()
        self.start()

    def run(self) -> None:
        while True:
            started = time.thread_time()
            reference()
            self._times.append(time.thread_time() - started)
            if self._stopping.wait(PAUSE_S):
                return

    def stop(self) -> float:
        self._stopping.set()
        self.join()
        return statistics.median(self._times)


def reference() -> int:
    """What Python spends its time on: calls, objects, strings, dictionaries."""
    counts: dict[str, int] = {}
    for number in range(50_000):
        key = f"key-{number % 1000}"
        counts[key] = counts.get(key, 0) + number
    return max(counts.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
