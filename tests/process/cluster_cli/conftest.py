"""One cluster of three brokers for all tests of the folder that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nilometer.cli.main import run
from support.brokers.nilometer_cluster import NilometerCluster
from support.command_line import Nilometer, Outcome


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    with NilometerCluster(
        tmp_path_factory.mktemp("cluster-cli"), 3, {"replica.lag.time.max.ms": "3000"}
    ) as running:
        yield running


@pytest.fixture
def nilometer(cluster: NilometerCluster, capsys: pytest.CaptureFixture[str]) -> Nilometer:
    """The command line, its `--bootstrap-server` given where ``bootstrap`` is not switched off."""

    def command(*arguments: str, bootstrap: bool = True) -> Outcome:
        capsys.readouterr()
        servers = ["--bootstrap-server", cluster.bootstrap] if bootstrap else []
        code = run([*arguments, *servers])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return command
