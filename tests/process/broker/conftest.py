from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.brokers.cluster_shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path / "cluster")
    yield shell
    if shell.data_dir.exists():
        shell.run("down")
        assert [broker["state"] for broker in shell.brokers()] == ["down"] * len(shell.brokers())
    assert not shell.processes(), "none runs that the folder does not know of"
