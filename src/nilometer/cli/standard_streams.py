"""The standard streams of the `nilometer` process: closed, full and non-UTF-8 ones."""

from __future__ import annotations

import io
import os
import sys

_closed: set[int] = set()
"""The numbers of the standard streams that were closed when the process started."""


def prepare_standard_streams() -> None:
    """Open /dev/null for standard streams that are closed, and have output keep bytes that are not UTF-8.

    Without it the next file or socket would get the number of the closed stream.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            _closed.add(descriptor)
    sys.stdin = sys.stdin or _stream(0, "r")
    sys.stdout = sys.stdout or _stream(1, "w")
    sys.stderr = sys.stderr or _stream(2, "w")
    output: object = sys.stdout
    if isinstance(output, io.TextIOWrapper):
        is_utf8 = output.encoding.lower().replace("-", "") == "utf8"
        # File names may have any bytes; a stream of another encoding lacks the signs of tables.
        output.reconfigure(errors="surrogateescape" if is_utf8 else "replace")


def output_is_closed() -> bool:
    """Whether the process was started without standard output: what it prints is lost."""
    return 1 in _closed


def _stream(descriptor: int, mode: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(os.fdopen(descriptor, mode + "b", closefd=False), encoding="utf-8")


def drop_unwritten_output() -> None:
    """Redirect standard output to /dev/null if it cannot be written, for Python's flush at exit."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
