"""ZooKeeper as the store: brokers die and pause, and so does the leader of a three-node ensemble."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.chaos.run import ChaosRun, seed_from_environment
from support.coordination import zookeeper_server
from support.coordination.zookeeper_server import ZooKeeperEnsemble, running_ensemble

SEED = seed_from_environment(11)


@pytest.fixture
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    if not zookeeper_server.is_installed():
        pytest.skip("ZooKeeper is not installed")
    with running_ensemble(3) as ensemble:
        yield ensemble


@pytest.mark.long
def test_leaders_of_both_kinds_killed(ensemble: ZooKeeperEnsemble, tmp_path: Path) -> None:
    coordination = f"zookeeper://{ensemble.hosts}"
    with ChaosRun("leaders_of_both_kinds_killed", tmp_path, SEED, coordination=coordination) as run:
        server = ensemble.leader()
        run.record("kills ZooKeeper's leader")
        server.kill()
        run.wait_load()
        run.kill(run.leader(0))
        run.wait_load()
        server.start()
        server.wait_ready()
        run.start_down()
        run.wait_in_sync()
        paused = run.controller()
        run.record("kills ZooKeeper's leader, and the controller is paused")
        server = ensemble.leader()
        run.pause(paused)
        server.kill()
        run.wait_replaced(paused)
        run.wait_load()
        run.resume(paused)
        server.start()
        server.wait_ready()
