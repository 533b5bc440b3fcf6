"""The `nilometer` process: its standard streams, what they print, and its signals.

Invariant: text that a client of the cluster chose (ids, names, messages, values) never controls the terminal.
Bytes that a command writes to the buffer itself, as ``consume`` does with values, are left as they are.

With its handlers of signals, a process that runs brokers or Spark exits normally and removes its temporary
files; a process killed by a signal does not.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from typing import Any, TextIO, cast

# --- standard streams: closed, full and non-UTF-8 ones, and what they print

_closed: set[int] = set()
"""The numbers of the standard streams that were closed when the process started."""
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\udc80-\udc9f]")
"""Terminals act on them, and do not show them: escapes, and what changes lines or the order of letters. The
last ones are bytes of 0x80 to 0x9F that are not UTF-8."""


def printable(text: str) -> str:
    """Return ``text`` with control characters spelled, as ``\\x1b``; newlines and tabs stay."""
    return _CONTROLS.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code & 0xFF:02x}" if code < 0x100 or code >= 0xDC00 else f"\\u{code:04x}"


class _PrintableStream:
    """A text stream that prints text by ``printable``.

    rich takes ``rich_proxied_file`` for its own escapes: ``OutputConsole`` makes what it prints printable.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(printable(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def prepare_standard_streams() -> None:
    """Open /dev/null for standard streams that are closed, and have output keep bytes that are not UTF-8.

    Without it the next file or socket would get the number of the closed stream. Output is printable.
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
    sys.stdout = cast("TextIO", _PrintableStream(sys.stdout))
    sys.stderr = cast("TextIO", _PrintableStream(sys.stderr))


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


# --- signals


def exit_on_sigterm() -> None:
    """Have SIGTERM raise SystemExit, so that the process cleans up as after Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def stop_on_signals() -> list[int]:
    """Return a list to which the first Ctrl-C or SIGTERM is added; a second one exits at once."""
    received: list[int] = []

    def receive(number: int, _frame: object) -> None:
        if received:
            sys.exit(128 + number)
        received.append(number)

    signal.signal(signal.SIGINT, receive)
    signal.signal(signal.SIGTERM, receive)
    return received
