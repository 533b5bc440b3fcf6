"""The console on which commands print tables. Importing it imports rich, which takes a while."""

from __future__ import annotations

import sys

from rich.console import Console

PIPED_WIDTH = 200
"""The width of a table that is written to a file or a pipe: rows do not wrap."""


class OutputConsole(Console):
    """Writes to standard output, as wide as the terminal or, without one, ``piped_width``."""

    def __init__(self, piped_width: int = PIPED_WIDTH) -> None:
        super().__init__(width=None if sys.stdout.isatty() else piped_width)

    def on_broken_pipe(self) -> None:
        """Raise the error for the command line to handle; rich would exit with code 1."""
        raise BrokenPipeError
