"""Brokers with several log directories, of which single ones fail, fill and come back with a restart."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from nilometer.broker.replicas import log_directories
from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.runtime import Runtime
from nilometer.simulation.checkers import running_brokers
from nilometer.simulation.checkers.failed_disks import FailedDisks, not_failed_over
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.disk import DiskUser, FileNode
from nilometer.simulation.fault_kinds import LOG_DIR_KINDS, Fault, Kind
from nilometer.simulation.faults import FaultDriver, wait_until
from nilometer.simulation.plan import Plan, draw
from nilometer.simulation.run import Exit, run
from nilometer.simulation.world import World

MINUTES = 0.3


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "seed"), [(Kind.LOG_DIR_ERROR, 1), (Kind.LOG_DIR_FULL, 2)])
def test_log_directories_that_fail_are_survived(kind: Kind, seed: int) -> None:
    verdict = run(draw(seed, MINUTES, [kind]))
    assert verdict.findings == [], (
        f"nilometer simulate --seed {seed} --minutes {MINUTES} --faults {kind.value}"
    )
    assert verdict.exit is Exit.CLEAN
    assert verdict.faults[kind] > 0


def test_the_last_log_directory_that_fails_does_so_until_all_else_is_healed() -> None:
    for seed in range(20):
        plan = draw(seed, 1.0, LOG_DIR_KINDS | {Kind.CRASH})
        failing = [fault for fault in plan.faults if fault.kind in LOG_DIR_KINDS]
        assert min(plan.folders) > 1
        assert not failing or failing[-1].at_s + failing[-1].duration_s > plan.fault_phase_s


def test_leadership_moves_from_one_folder_that_fails_and_stays_with_the_others() -> None:
    fault = Fault(number=0, at_s=0.5, kind=Kind.LOG_DIR_ERROR, target=1, other=2, duration_s=20.0, size=0.9)

    async def scenario(world: World) -> None:
        cluster = Cluster(world, folders=(2,))
        await cluster.set_up()

        async def create(runtime: Runtime) -> None:
            async with Admin(runtime, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
                await admin.create_topic(NewTopic("t", 6, 3))

        await world.host("clients").start("admin", create).exited
        node = cluster.nodes[1]

        def used() -> set[str]:
            return {place.rpartition("/")[0] for name in range(6) for place in node.places_of(f"t-{name}")}

        assert await wait_until(lambda: used() == {"/data/1", "/data/1-b"}, 60)
        driver = FaultDriver(cluster, [], plan_of(fault))
        driver.start()
        await asyncio.sleep(15)
        assert node.failed_folders == ["/data/1-b"]
        assert not_failed_over(cluster) == []
        image = cluster.newest_image
        assert image is not None
        led = {key.partition for key, state in image.partitions() if state.leader == 1}
        assert led, "the other folder is in order"
        assert all(node.places_of(f"t-{index}") == [f"/data/1/t-{index}"] for index in led)
        await driver.heal()
        driver.heal_folders()
        while not all(each.is_in_sync() for each in cluster.nodes.values()) or node.failed_folders:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        await driver.stop()

    world = World(4)
    world.run(scenario)
    assert world.failures == []


def test_a_cluster_in_which_a_replica_is_in_two_directories_is_not_at_rest() -> None:
    async def scenario(world: World) -> None:
        cluster = Cluster(world, brokers=1, folders=(2,))
        await cluster.set_up()

        async def create(runtime: Runtime) -> None:
            async with Admin(runtime, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
                await admin.create_topic(NewTopic("t", 1, 1))

        await world.host("clients").start("admin", create).exited
        node = cluster.nodes[1]
        assert await wait_until(lambda: len(node.places_of("t-0")) == 1, 60)
        assert await wait_until(lambda: not running_brokers.not_converged(cluster), 60)
        assert node.process is not None
        for folder in node.folders:  # as it is between the exchange and the end of a move
            node.process.runtime.disk.make_directories(f"{folder}/t-0")
        [found] = running_brokers.not_converged(cluster)
        assert found.endswith("is in ['/data/1/t-0', '/data/1-b/t-0'] of broker-1")

    World(5).run(scenario)


def test_a_broker_that_keeps_using_a_directory_after_its_error_is_found() -> None:
    async def scenario(world: World) -> list[str]:
        cluster = Cluster(world, brokers=1, folders=(2,))
        await cluster.set_up()
        judge = FailedDisks(cluster)
        disk, process = cluster.nodes[1].host.disk, cluster.nodes[1].process
        assert process is not None
        disk.on_error = judge.on_error
        disk.failed(process, errno.ENOSPC, "No space left on device", f"/data/1/t-0.{'0' * 32}-future/0.log")
        own = disk.failed(process, errno.EIO, "Input/output error", "/data/1-b/t-0/0.log")
        stores = disk.failed(process, errno.EIO, "Input/output error", "/coordination/entries")
        assert judge.excuses(stores) and not judge.excuses(own) and not judge.excuses(OSError(errno.EIO, "?"))
        judge.look()
        assert judge.violations == [], "it has a moment"
        await asyncio.sleep(3)
        judge.look()
        return judge.violations

    [violation] = World(6).run(scenario)
    assert violation.startswith("failed disk: broker-1 continues to use /data/1-b after")


@pytest.mark.parametrize("is_opened", [True, False])
def test_a_directory_that_fails_before_it_is_opened_may_be_used_when_it_works_again(is_opened: bool) -> None:
    async def scenario(world: World) -> list[str]:
        cluster = Cluster(world, brokers=1, folders=(2,))
        await cluster.set_up()
        judge = FailedDisks(cluster)
        disk, process = cluster.nodes[1].host.disk, cluster.nodes[1].process
        lock = disk.find("/data/1-b/.lock")
        assert process is not None and isinstance(lock, FileNode)
        disk.on_error = judge.on_error
        holder = disk.locks.pop(lock)
        disk.failed(process, errno.EIO, "Input/output error", "/data/1-b")
        if is_opened:
            disk.locks[lock] = holder
        await asyncio.sleep(3)
        judge.look()
        return judge.violations

    assert bool(World(6).run(scenario)) is not is_opened


Strike = Callable[[DiskUser, str, str], None]


def strike_marker(*verbs: str, also: str = "") -> Strike:
    """One operation on the marker of the last incarnation fails; ``also``: a directory that fails for
    good."""
    left = [1]

    def strike(process: DiskUser, verb: str, path: str) -> None:
        is_marker = bool(left) and path.startswith(f"/data/1/{log_directories.MARKER_NAME}") and verb in verbs
        if is_marker:
            left.clear()
        if is_marker or (also and f"{path}/".startswith(f"{also}/")):
            raise OSError(errno.ENOSPC, "No space left on device", path)

    return strike


@pytest.mark.parametrize(
    ("strike", "failed"),
    [
        (strike_marker("read"), ["/data/1"]),
        (strike_marker("read", also="/data/1-b"), ["/data/1", "/data/1-b"]),
        (strike_marker("create", also="/data/1-b"), ["/data/1", "/data/1-b"]),
    ],
    ids=["unreadable", "unreadable and in doubt", "in doubt and cannot say so"],
)
def test_a_directory_whose_marker_of_the_last_incarnation_cannot_be_used_is_out_of_use(
    strike: Strike, failed: list[str]
) -> None:
    """It would say later on that this incarnation lost nothing, though that was in doubt."""

    async def scenario(world: World) -> list[str]:
        cluster = Cluster(world, brokers=1, folders=(3,))
        await cluster.set_up()
        node = cluster.nodes[1]
        node.crash()

        def strike_at_start(process: DiskUser, verb: str, path: str) -> None:
            if not node.is_serving:
                strike(process, verb, path)

        node.host.disk.strike = strike_at_start
        node.start()
        while not node.is_serving:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return node.failed_folders

    assert World(7).run(scenario) == failed


def plan_of(fault: Fault) -> Plan:
    return replace(draw(0, 1.0, [Kind.RESET]), faults=(fault,), kinds=(fault.kind,), folders=(2,))
