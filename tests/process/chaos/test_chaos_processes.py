"""Brokers are killed, stopped and started under load; what they acknowledged stays, once and in order.

Each run follows from a seed: `NILOMETER_CHAOS_SEED=17 pytest tests/process/chaos -k NAME`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.chaos.run import SESSION_TIMEOUT_MS, ChaosRun, seed_from_environment

SEED = seed_from_environment(3)
STORES = pytest.mark.parametrize("quorum", [False, True], ids=["local", "quorum"])


@pytest.mark.quick
def test_leaders_killed_in_turn(tmp_path: Path) -> None:
    with ChaosRun("leaders_killed_in_turn", tmp_path, SEED) as run:
        for partition in range(run.partitions):
            leader = run.leader(partition)
            run.kill(leader)
            run.wait_load()
            run.start_down()
            run.wait_in_sync()


@STORES
def test_controller_killed(quorum: bool, tmp_path: Path) -> None:
    with ChaosRun("controller_killed", tmp_path, SEED, quorum=quorum) as run:
        for _ in range(2):
            controller = run.controller()
            run.kill(controller)
            run.wait_load()
            assert run.controller() != controller
            run.start_down()
            run.wait_in_sync()


@STORES
def test_all_brokers_killed_at_once(quorum: bool, tmp_path: Path) -> None:
    with ChaosRun("all_brokers_killed_at_once", tmp_path, SEED, quorum=quorum) as run:
        for _ in range(2):
            run.kill(*run.cluster.brokers)
            run.start_down()
            run.wait_load()


def test_two_of_three_killed(tmp_path: Path) -> None:
    """Below min.insync.replicas nothing is acknowledged; the last one standing loses nothing."""
    with ChaosRun("two_of_three_killed", tmp_path, SEED) as run:
        survivor = run.chance.choice(sorted(run.cluster.brokers))
        first, second = (one for one in run.cluster.brokers if one != survivor)
        run.kill(first)
        run.pass_time(run.chance.uniform(0.0, 0.3))
        run.kill(second)
        run.pass_time(run.chance.uniform(0.2, 1.0))
        run.kill(survivor)
        run.start_down()
        run.wait_in_sync()
        run.wait_load()


@STORES
def test_broker_paused_longer_than_its_session(quorum: bool, tmp_path: Path) -> None:
    with ChaosRun("broker_paused_longer_than_its_session", tmp_path, SEED, quorum=quorum) as run:
        for who in (run.leader(0), run.controller()):
            run.pause(who)
            run.wait_replaced(who)
            run.wait_load()
            run.pass_time(run.chance.uniform(0.0, 0.5) * SESSION_TIMEOUT_MS / 1000)
            run.resume(who)
            run.wait_in_sync()


def test_rolling_restart(tmp_path: Path) -> None:
    with ChaosRun("rolling_restart", tmp_path, SEED) as run:
        for broker_id in run.cluster.brokers:
            run.stop(broker_id)
            run.wait_load()
            run.start_down()
            run.wait_in_sync()
