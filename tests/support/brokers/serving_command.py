"""A command of `nilometer` that serves until a signal, as a process."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from .cluster_shell import COMMAND


@contextmanager
def serving(*arguments: str, prints: str, logs: str | None = "") -> Iterator[str]:
    """Run the command; yield the group of the pattern `prints` in the line that it prints.

    A signal must end it as it should. `logs`: a pattern of what it writes to standard error; None: anything.
    """
    errors = subprocess.DEVNULL if logs is None else subprocess.PIPE
    process = subprocess.Popen([str(COMMAND), *arguments], stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        match = re.fullmatch(prints, process.stdout.readline())
        assert match is not None
        yield match[1]
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, "it ends by a signal as it should"
        assert logs is None or re.fullmatch(logs, said), f"nothing else failed: {said}"
    finally:
        process.kill()
        process.wait()
