"""`nilometer console` as a process."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from ..brokers.cluster_shell import COMMAND


@contextmanager
def console(*arguments: str, logs: str = "") -> Iterator[str]:
    """Run the command on a free port; yield the URL that it prints, without the slash at its end.

    ``logs``: a pattern of what it writes to standard error.
    """
    process = subprocess.Popen(
        [str(COMMAND), "console", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        match = re.fullmatch(r"Console: (https?://[0-9.]+:\d+)/\n", process.stdout.readline())
        assert match is not None
        yield match[1]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, "it ends by a signal as it should"
        assert re.fullmatch(logs, errors), f"no reading of it failed: {errors}"
    finally:
        process.kill()
        process.wait()
