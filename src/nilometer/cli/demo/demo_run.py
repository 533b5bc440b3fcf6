"""One run of the demo: its folders and topic, and its messages on the terminal."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from rich.console import Console

from nilometer.local.secure_cluster import SecureFolder

DATA_DIR = Path(".nilometer/demo")
SECURE_DATA_DIR = Path(".nilometer/secure-demo")
TOPIC_PREFIX = "demo-"


class DemoFailed(Exception):
    """The demo failed; the message is for the user."""


@dataclass(slots=True)
class Demo:
    """One run of the demo."""

    console: Console
    began: datetime = field(default_factory=datetime.now)
    bootstrap: str = ""
    secure: bool = False
    """Whether the brokers have TLS, users and ACLs."""
    zookeeper: str | None = None
    """The brokers' ZooKeeper as ``host:port,…/chroot``; None: a folder is the coordination store."""

    @property
    def data_dir(self) -> Path:
        return SECURE_DATA_DIR if self.secure else DATA_DIR

    @property
    def security(self) -> SecureFolder | None:
        """The folder with the settings of clients; None if they need none."""
        return SecureFolder(self.data_dir) if self.secure else None

    @property
    def topic(self) -> str:
        return f"{TOPIC_PREFIX}{self.began:%Y%m%d-%H%M%S}"

    @property
    def run_dir(self) -> Path:
        return self.data_dir / "runs" / self.topic

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
