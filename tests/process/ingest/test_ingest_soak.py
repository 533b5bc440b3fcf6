"""Every line once: ingest while logs rotate, processes die and stop, and the folder of the logs goes away.

NILOMETER_INGEST_SEED=17 NILOMETER_INGEST_MINUTES=3 pytest -m soak -k local tests/process/ingest
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from support.coordination import zookeeper_server
from support.coordination.zookeeper_server import running_ensemble
from support.ingest.rotated_logs import COPIED, NAMES, PACKED, RENAMED
from support.ingest.soak import IngestSoak

MINUTES = float(os.environ.get("NILOMETER_INGEST_MINUTES", "15"))
SEED = int(os.environ.get("NILOMETER_INGEST_SEED", "1"))


@pytest.mark.soak
@pytest.mark.timeout(int(MINUTES * 60) + 900)
@pytest.mark.parametrize("store", ["local", "zookeeper"])
def test_soak(store: str, tmp_path: Path) -> None:
    print(
        f"NILOMETER_INGEST_SEED={SEED} NILOMETER_INGEST_MINUTES={MINUTES:g} "
        f"pytest -m soak -k {store} tests/process/ingest/test_ingest_soak.py"
    )
    with contextlib.ExitStack() as stack:
        coordination = None
        if store == "zookeeper":
            if not zookeeper_server.is_installed():
                pytest.skip("ZooKeeper is not installed")
            coordination = f"zookeeper://{stack.enter_context(running_ensemble()).hosts}"
        soak = stack.enter_context(IngestSoak(tmp_path, SEED, coordination=coordination))
        soak.play(MINUTES)
        soak.finish()


@pytest.mark.soak
def test_each_kind_of_fault_once(tmp_path: Path) -> None:
    """The same faults in a fixed order."""
    with IngestSoak(tmp_path, 1, by_folder=False) as soak:
        logs, cluster = soak.logs, soak.cluster
        logs.write(50)
        soak.start_ingest()
        soak.wait_first_look()
        for name in NAMES:
            logs.rotate(name)
            logs.write(20)
        soak.write_for(0.5)
        soak.kill_ingest()
        for name in (*NAMES, RENAMED, PACKED):
            logs.write(20)
            logs.rotate(name)
        leader = cluster.leader_of("lines", 0) or 1
        cluster.pause(leader)
        soak.start_ingest()
        soak.write_for(0.5)
        soak.kill_ingest()
        cluster.resume(leader)
        soak.start_ingest()
        soak.wait_ingest()
        soak.write_for(0.5)
        cluster.kill(leader)
        logs.rotate(COPIED)
        logs.write(20)
        soak.kill_ingest()
        logs.take_away()
        soak.start_ingest()
        cluster.start(leader)
        soak.wait_ingest()
        logs.bring_back()
        soak.write_for(0.5)
        soak.finish()
