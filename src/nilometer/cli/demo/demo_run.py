"""One run of the demo: where things are, and what is said about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from rich.console import Console

DATA_DIR = Path(".nilometer/demo")
TOPIC_PREFIX = "demo-"


class DemoFailed(Exception):
    """What went wrong, in words for the person at the terminal."""


@dataclass(slots=True)
class Demo:
    """One run: where things are, and what has been started."""

    console: Console
    began: datetime = field(default_factory=datetime.now)
    bootstrap: str = ""

    @property
    def topic(self) -> str:
        return f"{TOPIC_PREFIX}{self.began:%Y%m%d-%H%M%S}"

    @property
    def run_dir(self) -> Path:
        return DATA_DIR / "runs" / self.topic

    def say(self, what: str) -> None:
        self.console.print(
            f"[bold]{(datetime.now() - self.began).total_seconds():5.1f} s[/bold]  {what}", highlight=False
        )

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A long step: shown while it runs, with what it does and for how long."""
        self.say(what)
        with self.console.status(what):
            yield
