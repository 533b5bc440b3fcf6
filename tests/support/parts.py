"""A plugin of pytest: ``--parts`` prints how long each part of the tests took, and no letters and dots.

A part is a folder below ``tests/``. Its seconds are those of its tests, which workers run side by side.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

REPOSITORY = "repository"
"""The tests that stand in ``tests/`` itself."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--parts", action="store_true", help="print how long each part took, and what fails")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.parts and not hasattr(config, "workerinput"):
        config.pluginmanager.set_blocked("terminaldistreporter")
        config.pluginmanager.register(Parts())


class Parts:
    def __init__(self) -> None:
        self._seconds = Counter[str]()
        self._tests = Counter[str]()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """With its terminal, xdist says how many workers it starts."""
        xdist: Any = session.config.pluginmanager.getplugin("dsession")
        if xdist is not None:
            xdist.terminal = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No letter for what passes."""
        return (report.outcome if report.when == "call" else "", "", "") if report.passed else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        part = part_of(report.nodeid)
        self._seconds[part] += report.duration
        self._tests[part] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for part, seconds in sorted(self._seconds.items()):
            terminalreporter.write_line(f"{part:<14}{self._tests[part]:>6} tests{seconds:>8.0f} s")


def part_of(nodeid: str) -> str:
    folders = nodeid.partition("::")[0].split("/")
    return folders[1] if len(folders) > 2 else REPOSITORY
