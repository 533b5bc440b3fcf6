"""Every Python block of these pages of the documentation is a program that runs without an error."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nilometer
from nilometer.testing import Cluster
from support.documentation.code_blocks import code_blocks
from support.stub_registry import StubRegistry

ADDRESS = "127.0.0.1:9092"
REGISTRY = "http://127.0.0.1:8081"
PAGES = (
    "../README.md",
    "python.md",
    "transactions.md",
    "how-to/from-other-clients.md",
    "how-to/work-queue.md",
    "how-to/from-celery.md",
)
BLOCKS = {page: code_blocks(page, "python") for page in PAGES}
FIXTURE = BLOCKS["../README.md"].pop()  # a test, of a file of its own
EXAMPLES = [
    pytest.param(f"docs/{page}, block {number}", block, id=f"{page}-{number}")
    for page, blocks in BLOCKS.items()
    for number, block in enumerate(blocks)
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(settings={"log.cleaner.enable": False}) as started:
        asyncio.run(send_orders(started.bootstrap_servers))
        yield started


async def send_orders(bootstrap_servers: str) -> None:
    """Two examples read orders."""
    async with nilometer.connect(bootstrap_servers) as kafka:
        for number in range(3):
            await kafka.send("orders", f"of {number}")


@pytest.mark.parametrize(("where", "block"), EXAMPLES)
def test_the_example_runs(cluster: Cluster, where: str, block: str):
    assert ADDRESS in block
    with StubRegistry() as registry:
        text = block.replace(ADDRESS, cluster.bootstrap_servers).replace(REGISTRY, registry.url)
        exec(compile(text, where, "exec", dont_inherit=True), {"__name__": "__main__"})


def test_there_are_examples():
    assert {page: len(blocks) for page, blocks in BLOCKS.items()} == {
        "../README.md": 1,
        "python.md": 12,
        "transactions.md": 3,
        "how-to/from-other-clients.md": 4,
        "how-to/work-queue.md": 4,
        "how-to/from-celery.md": 2,
    }


def test_the_fixture_of_the_first_page_starts_a_cluster(tmp_path: Path):
    (tmp_path / "test_orders.py").write_text(FIXTURE, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
