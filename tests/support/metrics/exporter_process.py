"""`nilometer exporter` as a process."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from ..brokers.cluster_shell import COMMAND


@contextmanager
def exporter(*arguments: str) -> Iterator[int]:
    """Run the command; yield the port that it prints."""
    process = subprocess.Popen(
        [str(COMMAND), "exporter", "--listen", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/metrics\n", process.stdout.readline())
        assert match is not None
        yield int(match[1])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, "it ends by a signal as it should"
    finally:
        process.kill()
        process.wait()
