"""The console on which commands print tables. Importing it imports rich, which takes a while."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from nilometer.cli.process import printable

PIPED_WIDTH = 200
"""The width of a table that is written to a file or a pipe: rows do not wrap."""
PIPELINES_PIPED_WIDTH = 160


class OutputConsole(Console):
    """Writes to standard output, as wide as the terminal or, without one, ``piped_width``; or to ``stderr``.

    Text is shown as it is, control characters by ``printable``: it may be what a client of the cluster chose.
    """

    def __init__(self, piped_width: int = PIPED_WIDTH, *, stderr: bool = False) -> None:
        width = None if stderr or sys.stdout.isatty() else piped_width
        super().__init__(width=width, stderr=stderr, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text that a string is, printable: columns are as wide as what is shown."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text is segment.text else Segment(text, segment.style)

    def on_broken_pipe(self) -> None:
        """Raise the error for the command line to handle; rich would exit with code 1."""
        raise BrokenPipeError


def pipeline_console() -> OutputConsole:
    """Return the console for tables of pipelines, which are narrower than those of a cluster."""
    return OutputConsole(PIPELINES_PIPED_WIDTH)
