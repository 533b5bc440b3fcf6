"""One run of the demo: its folders and topic, and its messages on the terminal."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from rich.console import Console

DATA_DIR = Path(".nilometer/demo")
TOPIC_PREFIX = "demo-"


class DemoFailed(Exception):
    """The demo failed; the message is for the user."""


@dataclass(slots=True)
class Demo:
    """One run of the demo."""

    console: Console
    began: datetime = field(default_factory=datetime.now)
    bootstrap: str = ""

    @property
    def topic(self) -> str:
        return f"{TOPIC_PREFIX}{self.began:%Y%m%d-%H%M%S}"

    @property
    def run_dir(self) -> Path:
        return DATA_DIR / "runs" / self.topic

    def print_step(self, what: str) -> None:
        self.console.print(
            f"[bold]{(datetime.now() - self.began).total_seconds():5.1f} s[/bold]  {what}", highlight=False
        )

    @contextmanager
    def step(self, what: str) -> Generator[None, None, None]:
        """Show ``what`` while the block runs."""
        self.print_step(what)
        with self.console.status(what):
            yield
