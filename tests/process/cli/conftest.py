"""One broker for all tests of a module, and the command line on it: as a process, or in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nilometer.cli.main import run
from support.brokers.nilometer_broker import NilometerBroker
from support.command_line import Nilometer, Outcome
from support.command_shell import CommandShell


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with NilometerBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap


@pytest.fixture
def shell(bootstrap: str) -> CommandShell:
    return CommandShell(bootstrap)


@pytest.fixture
def nilometer(
    bootstrap: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Nilometer:
    """The command line in this process, which is faster than a process for each command."""
    monkeypatch.setenv("NILOMETER_BOOTSTRAP_SERVER", bootstrap)

    def command(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run([*arguments])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return command
