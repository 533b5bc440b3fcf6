"""Capturing the last log lines of each process, which are shown after a run.

While it is entered, it collects Nilometer's log messages with the simulated time and the process. Only the
last lines of each process are kept. Errors with a traceback are collected separately: an unexpected error is
a finding.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable
from types import TracebackType

from nilometer.simulation.loop import CURRENT
from nilometer.simulation.world import World

LINES_PER_PROCESS = 30


class LogCapture(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world
        self._lines: dict[str, deque[str]] = {}
        self.unexpected: list[str] = []
        self.excuse: Callable[[BaseException], bool] = lambda error: False
        """Returns whether an injected fault explains an error."""
        self._level = logging.NOTSET
        self._propagated = True

    def __enter__(self) -> LogCapture:
        product = logging.getLogger("nilometer")
        self._level, self._propagated = product.level, product.propagate
        product.setLevel(logging.INFO)
        product.propagate = False
        product.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        product = logging.getLogger("nilometer")
        product.removeHandler(self)
        product.setLevel(self._level)
        product.propagate = self._propagated

    def record(self, who: str, what: str) -> None:
        lines = self._lines.setdefault(who, deque(maxlen=LINES_PER_PROCESS))
        lines.append(f"{self._world.loop.time():10.3f} s  {what}")

    def emit(self, record: logging.LogRecord) -> None:
        who = getattr(CURRENT.get(), "name", "world")
        error = record.exc_info[1] if record.exc_info else None
        suffix = f" ({error!r})" if error is not None else ""
        self.record(who, f"{record.levelname.lower()}: {record.getMessage()}{suffix}")
        if error is None:
            return
        if not self.excuse(error):
            lines = "".join(traceback.format_exception(error))
            self.unexpected.append(f"{who}: {record.getMessage()}\n{lines}")

    def last(self, count: int = 12) -> dict[str, list[str]]:
        """Return the last log lines of each process, brokers first."""
        order = sorted(self._lines, key=lambda who: (not who.startswith("broker"), who))
        return {who: list(self._lines[who])[-count:] for who in order}
