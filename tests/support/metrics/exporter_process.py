"""`nilometer exporter` as a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..brokers.serving_command import serving


@contextmanager
def exporter(*arguments: str) -> Iterator[int]:
    """Run the command; yield the port that it prints."""
    line = r"http://127\.0\.0\.1:(\d+)/metrics\n"
    with serving("exporter", "--listen", "0", *arguments, prints=line, logs=None) as port:
        yield int(port)
