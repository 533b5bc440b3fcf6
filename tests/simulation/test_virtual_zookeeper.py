"""The virtual ensemble under servers that die, stop, lag and are cut off: what ZooKeeper promises.

And what it does not promise, which the store has to live with: each of ZooKeeper's weak sides is shown once.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from nilometer.coordination.zookeeper.ensemble import (
    BadVersion,
    CheckExists,
    Create,
    Disconnected,
    Ensemble,
    NodeExists,
    NoNode,
    SessionEnded,
    SetVersion,
)
from nilometer.simulation.zookeeper.server import Settings
from support.simulation.zookeeper_stage import SETTINGS, Stage, played

# ---- what is promised, under everything at once


class Ledger:
    """One node whose version is moved by many: each number is won at most once, and what was told stays."""

    def __init__(self) -> None:
        self.won: dict[int, str] = {}
        self.refused: set[str] = set()

    def on_won(self, number: int, name: str) -> None:
        assert number not in self.won, f"{number} was won by {self.won[number]} and by {name}"
        self.won[number] = name


async def _contend(stage: Stage, client: Ensemble, name: str, ledger: Ledger, chance: random.Random) -> None:
    seen = 0
    for attempt in range(1_000_000):
        await asyncio.sleep(chance.uniform(0, 0.3))
        entry = f"{name}-{attempt}"
        try:
            node = await client.get("/next")
            assert node.version >= seen or client.session_id == 0, "a session never goes back"
            number = node.version
            await client.commit([SetVersion("/next", number), Create(f"/entries/{number}", entry.encode())])
            ledger.on_won(number, entry)
            seen = number + 1
        except BadVersion:
            ledger.refused.add(entry)
        except SessionEnded:
            seen = 0
        except (Disconnected, NodeExists):
            continue


async def _inject_faults(stage: Stage, chance: random.Random, until_s: float) -> None:
    """At most one server at a time is down or stopped; links are cut as they come."""
    servers = stage.ensemble.servers
    while stage.world.loop.time() < until_s:
        await asyncio.sleep(chance.uniform(0.2, 3))
        server, other = chance.sample(servers, 2)
        length_s = chance.uniform(0.1, 8)
        match chance.randrange(5):
            case 0:
                server.kill()
                await asyncio.sleep(length_s)
                server.start()
            case 1:
                server.pause()
                await asyncio.sleep(length_s)
                server.resume()
            case 2:
                stage.cut(server.name, other.name)
                await asyncio.sleep(length_s)
            case 3:
                stage.cut_off(server)
                await asyncio.sleep(length_s)
            case _:
                server.lag_s = chance.uniform(0, 2)
                await asyncio.sleep(length_s)
        stage.world.network.heal_all()
        server.lag_s = 0.0


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_to_servers_what_was_told_is_so(seed: int) -> None:
    async def scenario(stage: Stage) -> None:
        chance = random.Random(seed)
        ledger = Ledger()
        first, _ = await stage.client("first")
        await first.create("/next", b"")
        await first.create("/entries", b"")
        contenders: list[asyncio.Task[None]] = []
        for name in ("a", "b", "c"):
            client, process = await stage.client(name)
            work = _contend(stage, client, name, ledger, chance)
            made: list[asyncio.Task[None]] = []
            stage.world.loop.in_process(
                0.0, process, lambda work=work, made=made: made.append(asyncio.ensure_future(work))
            )
            await asyncio.sleep(0.001)
            contenders += made
        await _inject_faults(stage, chance, 90)
        stage.ensemble.heal()
        before = len(ledger.won)
        await asyncio.sleep(30)
        assert len(ledger.won) > before > 50, "it goes on"
        for each in contenders:
            each.cancel()
        await asyncio.sleep(20)
        trees = [server.database.tree for server in stage.ensemble.servers]
        assert trees[0].nodes == trees[1].nodes == trees[2].nodes
        found = {path: node.data.decode() for path, node in trees[0].nodes.items() if "/entries/" in path}
        assert {f"/entries/{number}": entry for number, entry in ledger.won.items()}.items() <= found.items()
        assert ledger.refused.isdisjoint(found.values())
        assert sorted(int(path.rpartition("/")[2]) for path in found) == list(range(len(found)))

    played(scenario, seed)


# ---- the weak sides


def test_a_server_cut_off_from_the_others_answers_reads_and_no_writes() -> None:
    async def scenario(stage: Stage) -> None:
        client, _ = await stage.client("client")
        other, _ = await stage.client("other")
        leader = await stage.leader()
        while stage.server_of(client) is leader or stage.server_of(other) is stage.server_of(client):
            client, _ = await stage.client("client")
            other, _ = await stage.client("other")
        await client.create("/x", b"old")
        stage.cut_off(stage.server_of(client))
        await other.set("/x", b"new", -1)
        assert (await client.get("/x")).data == b"old"
        with pytest.raises(Disconnected):
            await client.set("/x", b"newer", 0)
        await asyncio.sleep(5)
        assert (await client.get("/x")).data == b"new", "it has moved to another server"

    played(scenario)


def test_a_client_never_goes_back_behind_what_it_saw() -> None:
    async def scenario(stage: Stage) -> None:
        client, _ = await stage.client("client")
        for server in stage.ensemble.servers:
            server.lag_s = 0.0 if server is stage.server_of(client) else 5.0
        leader = await stage.leader()
        if stage.server_of(client) is leader:
            return
        await client.create("/x", b"")
        stage.world.network.reset("client", stage.server_of(client).name)
        with pytest.raises(Disconnected):
            await client.exists("/x")
        assert await client.exists("/x") is not None

    for seed in range(6):
        played(scenario, seed)


def test_a_session_ends_at_the_servers_and_its_owner_learns_of_it_later() -> None:
    async def scenario(stage: Stage) -> None:
        lost: list[str] = []
        owner, process = await stage.client("owner", on_lost=lambda: lost.append("lost"))
        witness, _ = await stage.client("witness")
        await owner.create("/mine", b"", ephemeral=True)
        gone: asyncio.Future[None] = stage.world.loop.create_future()
        assert await witness.exists("/mine", lambda: gone.set_result(None)) is not None
        process.pause()
        begun = stage.world.loop.time()
        await gone
        assert 3.0 <= stage.world.loop.time() - begun < 3.0 + 2 * SETTINGS.tick_s + 1.0
        assert await witness.exists("/mine") is None
        assert lost == []
        process.resume()
        while not lost:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    played(scenario)


def test_a_session_outlives_its_server_and_the_leader() -> None:
    async def scenario(stage: Stage) -> None:
        lost: list[str] = []
        owner, _ = await stage.client("owner", on_lost=lambda: lost.append("lost"))
        await owner.create("/mine", b"", ephemeral=True)
        session = owner.session_id
        for _ in range(4):
            for server in (stage.server_of(owner), await stage.leader()):
                server.kill()
                await asyncio.sleep(6)
                server.start()
                await asyncio.sleep(2)
        assert lost == []
        node = await owner.exists("/mine")
        assert node is not None
        assert node.owner == session == owner.session_id

    played(scenario)


def test_a_leader_that_thaws_ends_sessions_that_go_on_elsewhere() -> None:
    """Its clock ran on while it stood still: the first client gets a false answer."""

    def told(seed: int) -> bool:
        standing: list[bool] = []

        async def scenario(stage: Stage) -> None:
            def on_lost() -> None:
                standing.append("/mine" in stage.ensemble.tree.nodes)

            leader = await stage.leader()
            owner, _ = await stage.client("owner", on_lost=on_lost)
            await owner.create("/mine", b"", ephemeral=True)
            leader.pause()
            await asyncio.sleep(stage.world.chance.uniform(3, 4.5))
            leader.resume()
            await asyncio.sleep(20)

        played(scenario, seed)
        return any(standing)

    assert any(told(seed) for seed in range(40))


@pytest.mark.parametrize("seed", range(6))
def test_a_session_that_moved_by_a_late_question_costs_one_connection_and_goes_on(seed: int) -> None:
    """A follower stops with a client's greeting, and asks the leader after the client went elsewhere
    (ZOOKEEPER-710): the leader takes the session for the follower's."""

    async def scenario(stage: Stage) -> None:
        client, _ = await stage.client("client")
        await client.create("/mine", b"", ephemeral=True)
        session, leader = client.session_id, await stage.leader()
        follower = next(each for each in stage.ensemble.servers if each is not leader)
        follower.pause()
        greeted_s, loop = 1.0, stage.world.loop  # a third of the session timeout
        reconnected_s = 0.0
        while reconnected_s < greeted_s:  # until it has tried the follower, and another one then
            begun = loop.time()
            stage.world.network.reset("client", stage.server_of(client).name)
            await asyncio.sleep(0.05)
            assert await client.exists("/mine") is not None
            reconnected_s = loop.time() - begun
        follower.resume()
        await asyncio.sleep(0.5)
        try:
            await client.set("/mine", b"lost", -1)
        except Disconnected:
            pass  # the one that tells it
        await client.set("/mine", b"changed", -1)
        node = await client.get("/mine")
        assert (node.data, node.owner) == (b"changed", session)
        assert client.session_id == session

    played(scenario, seed, Settings(tick_ms=500, sync_limit=20))


def test_the_servers_grant_a_timeout_within_their_bounds() -> None:
    async def scenario(stage: Stage) -> None:
        for asked_ms, granted_ms in ((10, 1000), (3000, 3000), (120_000, 10_000)):
            client, _ = await stage.client("client", timeout_ms=max(asked_ms, 200))
            assert client.session_timeout_ms == granted_ms

    played(scenario)


def test_without_a_majority_no_server_serves_and_all_come_back() -> None:
    async def scenario(stage: Stage) -> None:
        client, _ = await stage.client("client")
        await client.create("/x", b"")
        leader = await stage.leader()
        others = [server for server in stage.ensemble.servers if server is not leader]
        for server in others:
            server.kill()
        await asyncio.sleep(3)
        assert stage.ensemble.leader is None
        with pytest.raises(Disconnected):
            await client.get("/x")
        others[0].start()
        await stage.leader()
        await asyncio.sleep(1)
        assert (await client.get("/x")).version == 0

    played(scenario)


def test_all_steps_or_none() -> None:
    async def scenario(stage: Stage) -> None:
        client, _ = await stage.client("client")
        await client.create("/x", b"")
        fired: list[str] = []
        await client.exists("/x", lambda: fired.append("x"))
        with pytest.raises(NoNode):
            await client.commit([SetVersion("/x", 0), Create("/y", b""), CheckExists("/none")])
        with pytest.raises(NodeExists):
            await client.commit([SetVersion("/x", 0), Create("/y", b""), Create("/x", b"")])
        assert await client.exists("/y") is None
        assert (await client.get("/x")).version == 0
        assert fired == []
        await client.commit([SetVersion("/x", 0), Create("/y", b"")])
        assert (await client.get("/x")).version == 1
        assert fired == ["x"]

    played(scenario)


def test_too_large_a_request_costs_the_connection() -> None:
    async def scenario(stage: Stage) -> None:
        client, _ = await stage.client("client")
        with pytest.raises(Disconnected):
            await client.create("/x", bytes(1_048_576))
        assert await client.exists("/x") is None

    played(scenario)


def test_what_was_not_synced_is_not_acknowledged_and_a_restart_keeps_the_rest() -> None:
    async def scenario(stage: Stage) -> None:
        client, _ = await stage.client("client")
        for number in range(30):
            await client.create(f"/{number}", b"")
        for server in stage.ensemble.servers:
            server.kill()
        for server in stage.ensemble.servers:
            server.start()
        await asyncio.sleep(3)
        assert set(await client.children("/")) >= {str(number) for number in range(30)}

    played(scenario)


def test_a_server_that_lacks_more_than_the_log_holds_gets_a_snapshot() -> None:
    async def scenario(stage: Stage) -> None:
        leader = await stage.leader()
        behind = next(server for server in stage.ensemble.servers if server is not leader)
        behind.kill()
        client, _ = await stage.client("client")
        await client.create("/x", b"")
        for _ in range(40):
            await asyncio.gather(*(client.set("/x", b"", -1) for _ in range(100)))
        behind.start()
        await asyncio.sleep(5)
        assert behind.database.tree.nodes == leader.database.tree.nodes
        assert len(leader.database.log) < 2000

    played(scenario)


def test_servers_that_start_together_serve_soon__whichever_is_the_first_to_know_its_leader() -> None:
    for seed in range(60):
        stage = Stage(seed)

        async def scenario(stage: Stage) -> None:
            while not all(server.database.current_epoch for server in stage.ensemble.servers):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

        stage.run(scenario)
        assert stage.world.loop.time() < 2, f"seed {seed}: followers that came too early upset the election"


def test_the_same_seed_takes_the_same_course() -> None:
    def digest(seed: int) -> str:
        stage = Stage(seed)

        async def scenario(stage: Stage) -> None:
            client, _ = await stage.client("client")
            await client.create("/x", b"")
            await _inject_faults(stage, random.Random(seed), 20)

        stage.run(scenario)
        return stage.world.trace.digest

    assert digest(3) == digest(3) != digest(4)
