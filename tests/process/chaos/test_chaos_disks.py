"""Disks fail brokers under load: full, empty, without the tail of their logs, one bit wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.chaos.disks import (
    SmallDisk,
    can_mount,
    lose_everything,
    lose_unsynced_tail,
)
from support.chaos.run import TOPIC, ChaosRun, seed_from_environment
from support.eventually import eventually

SEED = seed_from_environment(5)


def test_tail_lost_in_a_machine_crash(tmp_path: Path) -> None:
    with ChaosRun("tail_lost_in_a_machine_crash", tmp_path, SEED) as run:
        for broker_id in (run.leader(0), run.followers(1)[0]):
            run.kill(broker_id)
            lost = lose_unsynced_tail(
                run.cluster.brokers[broker_id].data_dir, TOPIC, run.partitions, run.chance
            )
            run.record(f"broker {broker_id} lost its tail: {lost}")
            run.wait_load()
            run.start_down()
            run.wait_in_sync()


def test_tail_lost_while_all_are_killed(tmp_path: Path) -> None:
    """One machine crashes, the other brokers are only killed: they have all records, whichever broker returns
    first."""
    with ChaosRun("tail_lost_while_all_are_killed", tmp_path, SEED) as run:
        run.wait_in_sync()
        victim = run.leader(0)
        run.kill(*run.cluster.brokers)
        lost = lose_unsynced_tail(run.cluster.brokers[victim].data_dir, TOPIC, run.partitions, run.chance)
        run.record(f"broker {victim} lost its tail: {lost}")
        run.start(victim)
        run.pass_time(run.chance.uniform(0.0, 0.5))
        run.start_down()
        run.wait_load()


def test_empty_disk(tmp_path: Path) -> None:
    with ChaosRun("empty_disk", tmp_path, SEED) as run:
        victim = run.leader(0)
        run.kill(victim)
        lose_everything(run.cluster.brokers[victim].data_dir)
        run.start_down()
        run.wait_load()
        run.wait_in_sync()
        run.record("again, with all brokers down")
        victim = run.controller()
        run.kill(*run.cluster.brokers)
        lose_everything(run.cluster.brokers[victim].data_dir)
        run.start(victim)
        run.start_down()


def test_disk_full(tmp_path: Path) -> None:
    if not can_mount(tmp_path):
        pytest.skip("mounting a small file system needs root")
    with (
        SmallDisk(tmp_path / "broker-2") as disk,
        ChaosRun("disk_full", tmp_path, SEED, outside_faults=[disk]) as run,
    ):
        broker = run.cluster.brokers[2]
        disk.fill(leave_bytes=100_000)
        run.record("the disk of broker 2 is nearly full")
        eventually(lambda: not broker.alive(), "broker 2 has noticed and stopped", 30)
        run.record("broker 2 has stopped")
        assert "No space left" in broker.output
        run.wait_load()
        disk.heal()
