"""Every code block of docs/python.md is a program that runs without an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nilometer.testing import Cluster
from support.documentation.code_blocks import code_blocks

ADDRESS = "127.0.0.1:9092"
BLOCKS = code_blocks("python.md", "python")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(settings={"log.cleaner.enable": False}) as started:
        yield started


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_example_runs(cluster: Cluster, number: int):
    block = BLOCKS[number]
    assert block.count(ADDRESS) == 1
    code = compile(
        block.replace(ADDRESS, cluster.bootstrap_servers), f"docs/python.md, block {number}", "exec"
    )
    exec(code, {"__name__": "__main__"})


def test_there_are_examples():
    assert len(BLOCKS) == 6
