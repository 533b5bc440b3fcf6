"""Replicas move between the log directories of their brokers, again and again, under producers and
transactions, while brokers are killed; what was acknowledged is read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.brokers.nilometer_cluster import NilometerCluster
from support.chaos.administration import DirectoryMover
from support.chaos.run import ChaosRun, seed_from_environment
from support.transactions.committed_history import CommittedHistory
from support.transactions.families import Family, LibrdkafkaFamily
from support.transactions.run import TransactionalRun

SEED = seed_from_environment(11)
BROKERS = (1, 2, 3)
SLOW = {"replica.alter.log.dirs.io.max.bytes.per.second": "300000", "log.segment.delete.delay.ms": "100"}


def two_folders(folder: Path) -> dict[int, dict[str, str]]:
    return {one: {"log.dirs": f"{folder / f'broker-{one}'},{folder / f'broker-{one}-b'}"} for one in BROKERS}


def moved(cluster: NilometerCluster) -> int:
    """How often a replica was in its new folder."""
    return sum(" now, with offsets " in line for line in cluster.output().splitlines())


@pytest.mark.parametrize("speed", ["slow", "unlimited"])
def test_replicas_move_while_brokers_are_killed(tmp_path: Path, speed: str) -> None:
    with ChaosRun(
        "replicas_move_while_brokers_are_killed",
        tmp_path,
        SEED,
        overrides=SLOW if speed == "slow" else {},
        own_overrides=two_folders(tmp_path),
    ) as run:
        mover = DirectoryMover(run.cluster.bootstrap, BROKERS, random.Random(SEED + 1))
        run.administer(mover)
        for _ in range(4):
            run.pass_time(run.chance.uniform(0.5, 2.0))
            run.kill(*run.chance.sample(BROKERS, run.chance.randint(1, 3)))
            run.pass_time(run.chance.uniform(0.0, 0.5))
            run.start_down()
            run.wait_load()
    assert mover.moves > 5
    assert moved(run.cluster) > 3
    assert "stale copy" not in run.cluster.output()


def test_transactions_go_on_while_their_partitions_move(tmp_path: Path) -> None:
    def families(bootstrap: str, run: CommittedHistory, chance: random.Random) -> list[Family]:
        return [LibrdkafkaFamily(bootstrap, 1, run, chance)]

    with TransactionalRun(
        "transactions_go_on_while_their_partitions_move",
        tmp_path,
        SEED,
        families,
        own_overrides=two_folders(tmp_path),
    ) as run:
        mover = DirectoryMover(run.cluster.bootstrap, BROKERS, random.Random(SEED + 1))
        mover.start()
        try:
            run.play(kills=3)
        finally:
            mover.stop()
    assert mover.findings == []
    assert mover.moves > 5
    assert moved(run.cluster) > 3
