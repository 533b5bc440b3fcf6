"""Which tests execute which lines: a plugin of pytest, ``-p mutants.covered_lines``, and its reader."""

from __future__ import annotations

import os
from pathlib import Path

import coverage
import pytest

DATA = "NILOMETER_COVERED_LINES"
"""The environment variable with the path of the data file. Each process writes one of its own beside it."""


class _Plugin:
    def __init__(self, source: Path, data_file: str) -> None:
        self._coverage = coverage.Coverage(data_file, data_suffix=True, source=[str(source)])
        self._coverage.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid.partition("[")[0])

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._coverage.save()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # this process only gives tests to the others
    config.pluginmanager.register(_Plugin(config.rootpath / "src" / "nilometer", os.environ[DATA]))


def combine(data_file: Path) -> None:
    """Make one file of those that processes wrote."""
    whole = coverage.Coverage(str(data_file))
    whole.combine([str(data_file.parent)])
    whole.save()


def tests_by_line(data_file: Path, source: Path) -> dict[int, list[str]]:
    """Return the tests, as pytest names them, that execute each line of a source file."""
    data = coverage.CoverageData(str(data_file))
    data.read()
    return {
        line: [one for one in tests if one] for line, tests in data.contexts_by_lineno(str(source)).items()
    }
