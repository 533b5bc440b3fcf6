"""Tells at the end of a test run what the model check has seen."""

from __future__ import annotations

import pytest

from support.simulation import model_check_tally


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if (told := model_check_tally.summary()) is not None:
        terminalreporter.write_line(told)
