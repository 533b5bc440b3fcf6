"""Ends a process that a test started."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable


def end_process(
    process: subprocess.Popen[bytes], how: signal.Signals, timeout_s: float, describe: Callable[[], str]
) -> int:
    """Send ``how``, wait for the end and return the exit code.

    Raises RuntimeError with ``describe()`` if the process ends only by SIGKILL, after ``timeout_s``.
    """
    process.send_signal(how)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise RuntimeError(f"the process did not end on {how.name}:\n{describe()}") from None
