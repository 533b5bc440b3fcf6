"""The shipped ZooKeeper store on the virtual ensemble, where servers tell falsehoods."""

from __future__ import annotations

import asyncio

import pytest

from nilometer.coordination.store import BrokerIdInUse, Session
from nilometer.coordination.zookeeper.registration import Registration, vanish_timeout_ms
from nilometer.coordination.zookeeper.store import ZooKeeperStore
from nilometer.runtime import Runtime
from nilometer.simulation.stores import VirtualEnsemble
from nilometer.simulation.world import World
from nilometer.simulation.zookeeper.server import Settings
from support.coordination.virtual_cluster import VirtualCluster

TIMEOUT_MS = 3000


def _former_node_stands(seed: int) -> float | None:
    """A leader is stopped and thaws. How long its broker takes to register again, if it is told that its
    session has ended while its node still stands at the others; None in the many worlds where it is not."""
    world = World(seed)
    ensemble = VirtualEnsemble(world, settings=Settings(tick_ms=500, sync_limit=4))
    took: list[float] = []
    opened: asyncio.Future[Session] = world.loop.create_future()

    async def broker(runtime: Runtime) -> None:
        store = ZooKeeperStore(runtime, "servers", ensemble.connect(process), session_timeout_ms=TIMEOUT_MS)
        await store.open()
        session = await store.register(1, b"first")
        opened.set_result(session)
        await session.wait_lost()
        node = ensemble.tree.nodes.get("/brokers/ids/1")
        if node is None or node.created_zxid != session.name.incarnation:
            return
        begun = world.loop.time()
        again = await store.register(1, b"second")
        assert again.name.incarnation > session.name.incarnation
        took.append(world.loop.time() - begun)

    async def scenario(world: World) -> None:
        ensemble.start()
        await opened
        assert ensemble.leader is not None
        leader = ensemble.leader
        leader.pause()
        await asyncio.sleep(world.chance.uniform(3, 4.5))
        leader.resume()
        await asyncio.sleep(20)

    process = world.host("machine").start("broker", broker)
    world.run(scenario)
    assert world.failures == []
    return took[0] if took else None


def test_a_broker_does_not_wait_for_its_own_former_node() -> None:
    took = [each for seed in range(40) if (each := _former_node_stands(seed)) is not None]
    assert took, "no world of these shows it"
    assert max(took) < TIMEOUT_MS / 1000 / 2


def test_without_that_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: a broker that does not know its own nodes waits for their end."""

    async def wait(self: Registration, name: object, nonce: str) -> None:
        await asyncio.sleep(0.2)

    monkeypatch.setattr(Registration, "_remove_former", wait)
    took = [each for seed in range(40) if (each := _former_node_stands(seed)) is not None]
    assert max(took) > TIMEOUT_MS / 1000 / 2


class Contender:
    """A process that registers as broker 1, and what became of that."""

    def __init__(self, world: World, ensemble: VirtualEnsemble, machine: str) -> None:
        self._ensemble = ensemble
        self.outcome: asyncio.Future[str] = world.loop.create_future()
        self.process = world.host(machine).start(f"broker on {machine}", self._main)

    async def _main(self, runtime: Runtime) -> None:
        connect = self._ensemble.connect(self.process)
        store = ZooKeeperStore(runtime, "servers", connect, session_timeout_ms=TIMEOUT_MS)
        await store.open()
        try:
            await store.register(1, b"payload")
        except BrokerIdInUse:
            self.outcome.set_result("in use")
        else:
            self.outcome.set_result("registered")
        await asyncio.get_running_loop().create_future()


def _registered_again(
    seed: int, *, dies_after_s: float | None = None, elections: int = 0, tick_ms: int = 500
) -> tuple[str, float]:
    """What a second process with the id of a registered broker is told, and after how many seconds. The first
    one dies just before, or runs on; the leader of the ensemble is killed meanwhile, ``elections`` times."""
    world = World(seed)
    ensemble = VirtualEnsemble(world, settings=Settings(tick_ms=tick_ms, sync_limit=4))

    async def scenario(world: World) -> tuple[str, float]:
        ensemble.start()
        first = Contender(world, ensemble, "first")
        assert await first.outcome == "registered"
        if dies_after_s is not None:
            await asyncio.sleep(dies_after_s)
            first.process.crash()
        second, begun = Contender(world, ensemble, "second"), world.loop.time()
        for _ in range(elections):
            await asyncio.sleep(TIMEOUT_MS / 1000 / 2)
            leader = ensemble.leader
            assert leader is not None
            leader.kill()
            await asyncio.sleep(1)
            leader.start()
        return await second.outcome, world.loop.time() - begun

    found = world.run(scenario)
    assert world.failures == []
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_restarted_broker_waits_for_its_former_session_while_the_ensemble_changes_its_leader(
    seed: int,
) -> None:
    """Each new leader gives every session its whole timeout again, those of dead processes too."""
    outcome, took_s = _registered_again(seed, dies_after_s=0, elections=4)
    assert outcome == "registered"
    assert took_s > vanish_timeout_ms(TIMEOUT_MS) / 1000, "elections made it longer than the patience"


def test_a_restarted_broker_waits_as_long_as_its_former_session_can_stand() -> None:
    """Of two ticks, the least that servers grant: they hear of it late, and end it at a whole tick."""
    tick_ms = TIMEOUT_MS // 2
    moments_s = [tick_ms / 1000 * eighth / 8 for eighth in range(16)]
    outcomes = [_registered_again(1, dies_after_s=moment, tick_ms=tick_ms) for moment in moments_s]
    assert [outcome for outcome, _ in outcomes] == ["registered"] * len(moments_s)
    assert max(took_s for _, took_s in outcomes) > 1.5 * TIMEOUT_MS / 1000, "no moment of these shows it"


@pytest.mark.parametrize("elections", [0, 1])
def test_the_id_of_a_broker_that_runs_is_refused_to_another_one(elections: int) -> None:
    outcome, took_s = _registered_again(1, elections=elections)
    assert outcome == "in use"
    assert took_s < (1 + elections) * (vanish_timeout_ms(TIMEOUT_MS) / 1000 + 1)


def test_a_reader_learns_from_which_snapshot_to_go_on() -> None:
    cluster = VirtualCluster(1)

    async def scenario(_cluster: VirtualCluster) -> None:
        member = await cluster.start()
        for number in range(5):
            assert await member.call("append", number, "entry") is True
        assert await member.call("write_snapshot", 3, "") is True
        retired = await member.refusal("read", 2, 10)
        assert (retired.kind, retired.number) == ("EntriesRetired", 3)
        assert await member.call("read", 3, 10) == [[3, "entry"], [4, "entry"]]

    cluster.run(scenario)
