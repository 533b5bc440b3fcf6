"""Everything that can go wrong, in an order drawn from a seed, for as long as is asked.

With ZooKeeper, its three servers are killed, stopped and cut from each other as well.

    NILOMETER_CHAOS_SEED=17 NILOMETER_CHAOS_MINUTES=3 pytest tests/process/chaos -m soak -k zookeeper

Brokers, store and clients have a network of their own where the machine allows it.
"""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import pytest

from support.brokers.nilometer_broker import Place
from support.chaos.administration import Mover, TopicReuse
from support.chaos.disks import SharedFolder, SmallDisk, can_mount
from support.chaos.network import ChaosNetwork, is_available
from support.chaos.run import TOPIC, ChaosRun, seed_from_environment
from support.chaos.schedule import BROKERS, CLIENTS, SECOND_DISK_OF, STORES, Schedule, node
from support.coordination import zookeeper_server
from support.coordination.zookeeper_server import ZooKeeperEnsemble

MINUTES = float(os.environ.get("NILOMETER_CHAOS_MINUTES", "10"))
SEED = seed_from_environment(1)
AWAY_MINUTES = float(os.environ.get("NILOMETER_CHAOS_AWAY_MINUTES", "5"))
DISK_BYTES = 1 << 30
IN_REMOTE_STORAGE = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "300",
    "nilometer.tier.grace.ms": "2000",
    "log.retention.check.interval.ms": "300",
    "log.segment.delete.delay.ms": "0",
}
TIERED = {
    "remote.storage.enable": "true",
    "segment.ms": "1500",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
JOINING = {"controller.quorum.auto.join.enable": "true"}
"""A voter that has lost its disk makes itself one again."""


@pytest.mark.soak
@pytest.mark.timeout(int(MINUTES * 60) + 900)
@pytest.mark.parametrize("store", ["local", "zookeeper", "quorum"])
def test_soak(store: str, tmp_path: Path) -> None:
    _play(store, tmp_path, SEED, MINUTES)


@pytest.mark.soak
@pytest.mark.timeout(int((MINUTES + AWAY_MINUTES) * 60) + 900)
def test_tiered_topics(tmp_path: Path) -> None:
    """Segments leave the brokers' disks within seconds. In the middle, remote storage is away for minutes; at
    the end everything is read from the first record on."""
    with contextlib.ExitStack() as stack:
        network = _network(stack)
        tier = SharedFolder(tmp_path / "tier")
        run = ChaosRun(
            "tiered",
            tmp_path,
            SEED,
            outside_faults=[network] if network is not None else [],
            places=_places(network),
            watch_leaders=True,
            quorum=True,
            overrides={**JOINING, **IN_REMOTE_STORAGE, "nilometer.tier.uri": tier.folder.as_uri()},
            configs=TIERED,
        )
        with run:
            schedule = Schedule(run, network, tier=tier)
            moves = _play_with_moves(schedule, MINUTES / 2, SEED + 2)
            tier.hide()
            run.record("remote storage is away")
            run.faults["remote storage away for minutes"] += 1
            Schedule(run, network, loses_disks=False).play(AWAY_MINUTES)
            tier.heal()
            run.record("remote storage is back")
            moves += _play_with_moves(schedule, MINUTES / 2, SEED + 3)
            run.record(f"rounds: {dict(run.faults)}, {moves} moves")
        objects = [path for path in tier.folder.rglob("*.log") if path.is_file()]
        run.record(
            f"{len(objects)} segments, {sum(path.stat().st_size for path in objects)} bytes in the tier"
        )
        assert len(objects) > 10 * MINUTES
        print("\n".join(run.timeline[-6:]))


def _play_with_moves(schedule: Schedule, minutes: float, seed: int) -> int:
    """Replicas move meanwhile, and are all in sync afterwards; return how many have moved."""
    run = schedule.run
    mover = Mover(run.cluster.bootstrap, TOPIC, run.partitions, BROKERS, random.Random(seed))
    run.administer(mover)
    schedule.play(minutes)
    run.heal()
    mover.stop()
    run.heal()
    return mover.moves


def _play(store: str, folder: Path, seed: int, minutes: float) -> None:
    with contextlib.ExitStack() as stack:
        network = _network(stack)
        ensemble = _ensemble(stack, folder, network) if store == "zookeeper" else None
        disk = second = None
        if can_mount(folder):
            disk = stack.enter_context(SmallDisk(folder / "broker-2", DISK_BYTES))
            second = stack.enter_context(SmallDisk(_second_folder(folder, SECOND_DISK_OF), DISK_BYTES))
        run = ChaosRun(
            f"soak-{store}",
            folder,
            seed,
            outside_faults=[one for one in (network, ensemble, disk, second) if one is not None],
            places=_places(network),
            watch_leaders=True,
            own_overrides={one: {"log.dirs": _log_dirs(folder, one)} for one in BROKERS},
            quorum=store == "quorum",
            overrides=JOINING if store == "quorum" else None,
            **({} if ensemble is None else {"coordination": f"zookeeper://{ensemble.hosts}"}),
        )
        with run:
            reuse = TopicReuse(run.cluster.bootstrap, len(BROKERS), random.Random(seed + 1), run.record)
            mover = Mover(run.cluster.bootstrap, TOPIC, run.partitions, BROKERS, random.Random(seed + 2))
            run.administer(reuse, mover)
            schedule = Schedule(run, network, ensemble, disk, second)
            schedule.play(minutes)
            run.record(
                f"rounds: {dict(run.faults)}, folders that failed under leaders: {schedule.outages_seen}"
            )
        run.record(f"{reuse.cycles} topics reused, {reuse.abandoned} names abandoned, {mover.moves} moves")
        assert reuse.cycles and mover.moves, "an administrator who did nothing proves nothing"
        print("\n".join(run.timeline[-6:]))


def _log_dirs(folder: Path, broker_id: int) -> str:
    return f"{folder / f'broker-{broker_id}'},{_second_folder(folder, broker_id)}"


def _second_folder(folder: Path, broker_id: int) -> Path:
    return folder / f"broker-{broker_id}-b"


def _network(stack: contextlib.ExitStack) -> ChaosNetwork | None:
    if not is_available():
        return None
    network = stack.enter_context(ChaosNetwork([*map(node, BROKERS), *STORES, CLIENTS]))
    stack.enter_context(network.entered(CLIENTS))
    return network


def _places(network: ChaosNetwork | None) -> dict[int, Place]:
    if network is None:
        return {}
    return {
        one: Place(network.address(node(one)), lambda one=one: network.entered(node(one))) for one in BROKERS
    }


def _ensemble(stack: contextlib.ExitStack, folder: Path, network: ChaosNetwork | None) -> ZooKeeperEnsemble:
    if not zookeeper_server.is_installed():
        pytest.skip("ZooKeeper is not installed")
    places = None
    if network is not None:
        places = [Place(network.address(one), lambda one=one: network.entered(one)) for one in STORES]
    ensemble = ZooKeeperEnsemble(folder / "zookeeper", 3, places=places, sync_limit=30)
    stack.callback(ensemble.stop)
    ensemble.start()
    return ensemble
