"""A bit is turned over at rest, under load: the replica gives up its place, fetches again, and comes back."""

from __future__ import annotations

from pathlib import Path

from support.chaos.crash_load import Reader
from support.chaos.disks import flip_bit
from support.chaos.run import TOPIC, ChaosRun, seed_from_environment
from support.eventually import eventually
from support.logs.segments import stored_batches

SEED = seed_from_environment(13)


def _read_all(run: ChaosRun, name: str) -> None:
    """From the beginning, so that every reader meets the damage."""
    load = run.load
    assert load is not None
    reader = Reader(name, run.cluster.bootstrap, TOPIC, run.partitions, load.history)
    reader.read_past(reader.ends())
    reader.close()


def _damage(run: ChaosRun, broker_id: int) -> None:
    data_dir = run.cluster.brokers[broker_id].data_dir
    below = stored_batches(data_dir, TOPIC, 0)[-1].last_offset
    batch = flip_bit(data_dir, TOPIC, 0, below, run.chance)
    run.record(
        f"a bit of {TOPIC}-0 at broker {broker_id} is turned over, in the batch of {batch.base_offset}"
    )


def _is_whole(run: ChaosRun, broker_id: int) -> bool:
    return all(batch.crc_valid for batch in stored_batches(run.cluster.brokers[broker_id].data_dir, TOPIC, 0))


def test_damaged_leader(tmp_path: Path) -> None:
    """It resigns first; no reader misses a record or gets a wrong one."""
    with ChaosRun("damaged_leader", tmp_path, SEED) as run:
        leader = run.leader(0)
        _damage(run, leader)
        assert not _is_whole(run, leader)
        _read_all(run, "finder")
        eventually(lambda: run.leader(0) != leader, "another leader", 20)
        eventually(lambda: _is_whole(run, leader), "what was damaged is fetched again", 20)
        run.wait_in_sync()
        assert "Damage found" in run.cluster.brokers[leader].output


def test_damaged_follower(tmp_path: Path) -> None:
    """Found by a consumer that reads from the follower in its own rack; the leader keeps its leadership."""
    racks = {one: {"broker.rack": f"rack-{one}"} for one in (1, 2, 3)}
    overrides = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    with ChaosRun("damaged_follower", tmp_path, SEED, overrides=overrides, own_overrides=racks) as run:
        leader, follower = run.leader(0), run.followers(0)[0]
        _damage(run, follower)
        load = run.load
        assert load is not None
        rack = {"client.rack": f"rack-{follower}"}
        reader = Reader("finder", run.cluster.bootstrap, TOPIC, run.partitions, load.history, rack)
        reader.read_past(reader.ends())
        reader.close()
        eventually(lambda: _is_whole(run, follower), "what was damaged is fetched again", 20)
        run.wait_in_sync()
        assert run.leader(0) == leader
        assert "Damage found" in run.cluster.brokers[follower].output


def test_damage_found_at_a_start(tmp_path: Path) -> None:
    """Recovery cuts the log at the damage: such a broker does not return as one that lost nothing."""
    with ChaosRun("damage_found_at_a_start", tmp_path, SEED) as run:
        victim = run.leader(0)
        run.kill(*run.cluster.brokers)
        _damage(run, victim)
        run.start(victim)
        run.start_down()
        run.wait_load()
        assert "Damage found" in run.cluster.brokers[victim].output
