"""The ZooKeeper store when servers, not brokers, fail: a lost leader, servers that hang, no server at all."""

from __future__ import annotations

import asyncio
import signal

from support.coordination.cluster import PATIENCE_S, ZOOKEEPER_SESSION_MS, Cluster, Member, Refused, Zygote
from support.coordination.zookeeper_server import ZooKeeperEnsemble, running_ensemble


async def _append_all(cluster: Cluster, ensemble: ZooKeeperEnsemble) -> None:
    """Two writers go on while the ensemble loses its leader; what they were told must be what is there."""
    members = [await cluster.start(1), await cluster.start(2)]
    told: dict[int, str] = {}
    refused: set[str] = set()
    loop = asyncio.get_running_loop()

    async def write(name: str, count: int) -> None:
        member = members[int(name)]
        number = 0
        for attempt in range(1_000_000):
            if sum(data.startswith(name) for data in told.values()) >= count:
                return
            data = f"{name}-{attempt}"
            try:
                number += len(await member.call("read", number, 1000))
                won = await member.call("append", number, data)
            except Refused as error:
                assert error.kind in ("OutcomeUnknown", "StoreUnavailable"), error
                continue
            if won:
                assert told.setdefault(number, data) == data
            else:
                refused.add(data)

    writing = [loop.create_task(write(name, 60)) for name in ("0", "1")]
    while len(told) < 20:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    leader = await asyncio.to_thread(ensemble.leader)
    await asyncio.to_thread(leader.kill)
    for task in writing:
        await task
    reader = await cluster.start()
    found = dict(await reader.call("read", 0, 100_000))
    assert list(found) == list(range(len(found)))
    assert told.items() <= found.items(), "what was acknowledged is there"
    assert refused.isdisjoint(found.values()), "what was refused is not"
    for member in members:
        assert await member.call("is_live") is True, "sessions outlive the leader"
    await asyncio.to_thread(leader.start)
    await asyncio.to_thread(leader.wait_ready)


def test_an_ensemble_that_loses_its_leader_loses_nothing(zygote: Zygote) -> None:
    with running_ensemble(3) as ensemble:
        cluster = Cluster(zygote, "zookeeper", f"zookeeper://{ensemble.hosts}/fail-over", 6000)
        cluster.run(lambda cluster: _append_all(cluster, ensemble))


def test_a_server_that_hangs_puts_the_owner_in_doubt_before_its_session_ends(zygote: Zygote) -> None:
    """No event shows it: the connection stands, and no server answers. The lease runs out."""

    async def scenario(cluster: Cluster) -> None:
        member = await cluster.start(1)
        assert await member.call("is_live") is True
        server.signal(signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE_S):
            while await member.call("is_live"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        refused = await member.refusal("append", 0, "x")
        assert refused.kind == "StoreUnavailable"
        assert "nothing was changed" in refused.message
        server.signal(signal.SIGCONT)
        async with asyncio.timeout(PATIENCE_S):
            while await appended(member) == []:
                pass
        assert await member.call("read", 0, 10) == [[0, "y"]]

    async def appended(member: Member) -> list[list[object]]:
        """One more try to append, whatever became of the one before; what is there then."""
        try:
            await member.call("append", 0, "y")
        except Refused as error:
            assert error.kind in ("StoreUnavailable", "OutcomeUnknown", "SessionLost"), error
            if error.kind == "SessionLost":
                await member.call("register", 1, "again")
            if error.kind == "StoreUnavailable":
                return []
        return await member.call("read", 0, 10)

    with running_ensemble(1) as ensemble:
        (server,) = ensemble.servers
        Cluster(zygote, "zookeeper", f"zookeeper://{ensemble.hosts}/hang", ZOOKEEPER_SESSION_MS).run(scenario)


def test_a_follower_that_is_cut_off_from_its_leader_renews_no_lease(zygote: Zygote) -> None:
    """It answers reads all the while; the others end the session meanwhile, and let another broker lead."""

    async def scenario(cluster: Cluster) -> None:
        member = await cluster.start(1)
        assert await member.call("is_live") is True
        for server in ensemble.servers:
            if server is not follower:
                server.signal(signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE_S):
            while await member.call("is_live"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await member.refusal("sync")).kind == "StoreUnavailable", "it may lag behind the others"
        assert await asyncio.to_thread(lambda: follower.mode) == "follower", "it serves on"
        assert (await member.refusal("append", 0, "x")).kind == "StoreUnavailable"

    with running_ensemble(3, sync_limit=150) as ensemble:
        follower = ensemble.followers()[0]
        setting = f"zookeeper://{follower.host}:{follower.port}/lease"
        Cluster(zygote, "zookeeper", setting, ZOOKEEPER_SESSION_MS).run(scenario)


def test_what_the_servers_grant_counts_not_what_was_asked(zygote: Zygote) -> None:
    async def restarts(cluster: Cluster) -> None:
        """Asked for less than the servers grant at least, a dead broker's node stays for longer."""
        first = await cluster.start(1)
        await first.kill()
        again = await cluster.start(1)
        assert await again.call("is_live") is True

    async def doubts(cluster: Cluster) -> None:
        """Asked for more than they grant at most, the session ends sooner, and the lease with it."""
        member = await cluster.start(1)
        server.signal(signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE_S):
            while await member.call("is_live"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    with running_ensemble(1, session_timeouts_ms=(2000, 2000)) as ensemble:
        (server,) = ensemble.servers
        setting = f"zookeeper://{ensemble.hosts}/granted"
        Cluster(zygote, "zookeeper", setting, 400).run(restarts)
        Cluster(zygote, "zookeeper", setting, 60_000).run(doubts)


async def _expired(member: Member) -> None:
    """Its session is over for it, not for the servers."""
    await member.call("expire_session_at_the_client")
    assert "ZooKeeper ended it" in await member.call("wait_lost")


def test_a_broker_removes_its_own_former_node(zygote: Zygote, zookeeper_server: ZooKeeperEnsemble) -> None:
    """The session goes on for the servers, for longer than this test waits for anything."""

    async def scenario(cluster: Cluster) -> None:
        member, other = await cluster.start(1), await cluster.start(2)
        ((_, former, _), _) = await other.call("sessions")
        assert await member.call("claim") is True
        await _expired(member)
        assert await member.call("register", 1, "again") != former
        assert [(one[0], one[2]) for one in await other.call("sessions")] == [
            (1, "again"),
            (2, "payload of 2"),
        ]
        assert await other.call("controller") is None, "what the former session held is gone with it"
        assert await other.call("claim") is True
        await _expired(member)
        assert await member.call("register", 1, "once more")
        assert (await other.call("controller"))[0] == 2, "what others hold is not"

    setting = f"zookeeper://{zookeeper_server.hosts}/former"
    Cluster(zygote, "zookeeper", setting, 60_000).run(scenario)


def test_a_broker_never_removes_the_node_of_another_process(
    zygote: Zygote, zookeeper_server: ZooKeeperEnsemble
) -> None:
    """Its own former session ends while it is away, and another process takes the id."""

    async def scenario(cluster: Cluster) -> None:
        member = await cluster.start(1)
        await _expired(member)
        other = await cluster.start(1)
        refused = await member.refusal("register", 1, "again")
        assert refused.kind == "BrokerIdInUse"
        assert await other.call("is_live") is True
        assert [(one[0], one[2]) for one in await other.call("sessions")] == [(1, "payload of 1")]

    setting = f"zookeeper://{zookeeper_server.hosts}/taken"
    Cluster(zygote, "zookeeper", setting, ZOOKEEPER_SESSION_MS).run(scenario)


def test_no_server_at_all_is_said_clearly(zygote: Zygote) -> None:
    async def scenario(cluster: Cluster) -> None:
        member = await cluster.start(opened=False)
        refused = await member.refusal("open")
        assert refused.kind == "StoreUnavailable"
        assert "ZooKeeper at 127.0.0.1:1/none cannot be reached" in refused.message

    Cluster(zygote, "zookeeper", "zookeeper://127.0.0.1:1/none", 1500).run(scenario)
