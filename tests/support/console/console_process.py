"""`nilometer console` as a process."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ..brokers.serving_command import serving


def console(*arguments: str, logs: str = "") -> AbstractContextManager[str]:
    """Run the command on a free port; yield the URL that it prints, without the slash at its end.

    ``logs``: a pattern of what it writes to standard error.
    """
    line = r"Console: (https?://[0-9.]+:\d+)/\n"
    return serving("console", "--port", "0", *arguments, prints=line, logs=logs)
