from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.coordination_cluster import Cluster, Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def local(zygote: Zygote, tmp_path: Path) -> Cluster:
    return Cluster(zygote, "local", f"local:{tmp_path}/store", 1000)


@pytest.fixture(params=["local"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """One cluster per kind of store: the conformance suite."""
    return request.getfixturevalue(request.param)
