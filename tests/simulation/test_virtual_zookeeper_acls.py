"""Users and ACLs at the virtual ensemble, and the shipped store with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from nilometer.coordination.store import StoreRefused
from nilometer.coordination.zookeeper.ensemble import (
    AccessDenied,
    CheckExists,
    Create,
    Delete,
    Disconnected,
    SetVersion,
)
from nilometer.coordination.zookeeper.store import ZooKeeperStore
from nilometer.runtime import Runtime
from support.simulation.zookeeper_stage import Stage, played

CHROOT = "/shared/cluster"


async def _denied(*requests: Callable[[], Awaitable[object]]) -> None:
    for number, request in enumerate(requests):
        with pytest.raises(AccessDenied):
            await request()
            pytest.fail(f"request {number} was executed")


def test_only_its_user_reads_and_changes_a_protected_node() -> None:
    async def scenario(stage: Stage) -> None:
        owner, _ = await stage.client("owner", user="brokers", protects=True)
        same, _ = await stage.client("same", user="brokers")
        other, _ = await stage.client("other", user="others", protects=True)
        anonymous, _ = await stage.client("anonymous")
        await owner.create("/x", b"secret")
        await owner.create("/x/leaf", b"")
        for stranger in (other, anonymous):
            await _denied(
                lambda stranger=stranger: stranger.get("/x"),
                lambda stranger=stranger: stranger.children("/x"),
                lambda stranger=stranger: stranger.is_protected("/x"),
                lambda stranger=stranger: stranger.set("/x", b"changed", -1),
                lambda stranger=stranger: stranger.create("/x/y", b""),
                lambda stranger=stranger: stranger.delete("/x/leaf"),
                lambda stranger=stranger: stranger.protect("/x"),
                lambda stranger=stranger: stranger.commit([CheckExists("/x")]),
                lambda stranger=stranger: stranger.commit([Create("/z", b""), SetVersion("/x", 0)]),
            )
            assert await stranger.exists("/z") is None, "all steps or none"
            assert await stranger.exists("/x") is not None, "existence is no secret, as at real servers"
        assert (await same.get("/x")).data == b"secret"
        await same.commit([SetVersion("/x", 0), Delete("/x/leaf")])

    played(scenario)


def test_an_acl_holds_on_every_server_and_survives_them() -> None:
    async def scenario(stage: Stage) -> None:
        owner, _ = await stage.client("owner", user="brokers", protects=True)
        await owner.create("/x", b"secret")
        anonymous, _ = await stage.client("anonymous")
        for server in stage.ensemble.servers:
            server.kill()
            await asyncio.sleep(6)
            server.start()
            await asyncio.sleep(2)
            with pytest.raises(AccessDenied):
                await anonymous.get("/x")
            assert (await owner.get("/x")).data == b"secret"

    played(scenario)


def test_an_acl_needs_a_user() -> None:
    async def scenario(stage: Stage) -> None:
        anonymous, _ = await stage.client("anonymous", protects=True)
        with pytest.raises(Disconnected, match="InvalidACL"):
            await anonymous.create("/x", b"")
        assert await anonymous.exists("/x") is None

    played(scenario)


def _store(
    stage: Stage, name: str, work: Callable[[ZooKeeperStore], Awaitable[None]], **access: object
) -> asyncio.Future[None]:
    """Open the store in a process of its own, and do ``work`` with it."""
    done: asyncio.Future[None] = stage.world.loop.create_future()

    async def main(runtime: Runtime) -> None:
        connect = stage.ensemble.connect(process, CHROOT, **access)  # type: ignore[arg-type]
        store = ZooKeeperStore(runtime, "servers", connect, session_timeout_ms=3000)
        try:
            await store.open()
            await work(store)
            await store.close()
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        await stage.world.loop.create_future()

    process = stage.world.host(name).start(name, main)
    return done


async def _fill(store: ZooKeeperStore) -> None:
    await store.register(1, b"payload")
    assert await store.put_secret(0, b"secret")
    for number in range(3):
        assert await store.append(number, b"entry")
    assert await store.write_snapshot(2, b"snapshot")
    assert await store.claim_controller()
    await asyncio.sleep(1)


async def _nothing(store: ZooKeeperStore) -> None:
    """Only open the store."""


def _unprotected(stage: Stage) -> set[str]:
    nodes = stage.ensemble.tree.nodes
    return {path for path, node in nodes.items() if path.startswith(CHROOT) and not node.user}


def test_a_store_with_acls_has_no_open_node() -> None:
    seen: list[set[str]] = []

    async def scenario(stage: Stage) -> None:
        async def work(store: ZooKeeperStore) -> None:
            await _fill(store)
            assert f"{CHROOT}/brokers/ids/1" in stage.ensemble.tree.nodes
            assert f"{CHROOT}/controller" in stage.ensemble.tree.nodes
            seen.append(_unprotected(stage))

        await _store(stage, "broker", work, user="brokers", protects=True)
        assert seen == [set()]
        assert not stage.ensemble.tree.nodes["/shared"].user, "others may have a chroot beside this one"
        await _store(stage, "second", _nothing, user="brokers", protects=True)
        for name, access in (("stranger", {}), ("other", {"user": "others", "protects": True})):
            with pytest.raises(StoreRefused, match=r"ACLs that do not permit.*nilometer\.zookeeper\.user"):
                await _store(stage, name, _nothing, **access)

    played(scenario)


def test_an_open_store_gets_acls_from_the_first_broker_that_has_them() -> None:
    async def scenario(stage: Stage) -> None:
        await _store(stage, "open", _fill)
        assert f"{CHROOT}/secret" in _unprotected(stage)
        await _store(stage, "first", _nothing, user="brokers", protects=True)
        assert _unprotected(stage) == set()

        # One that is not restarted yet authenticates already, and creates nodes that are open.
        async def append(store: ZooKeeperStore) -> None:
            assert await store.append(3, b"entry")

        await _store(stage, "earlier", append, user="brokers")
        assert len(_unprotected(stage)) == 1
        await _store(stage, "last", _nothing, user="brokers", protects=True)
        assert _unprotected(stage) == set()

    played(scenario)


def test_a_broker_whose_rights_are_taken_away_stops_serving_and_returns() -> None:
    """Its requests fail as if no server responded: its lease ends, and a repaired ACL is noticed."""
    states: list[bool] = []

    async def scenario(stage: Stage) -> None:
        admin, _ = await stage.client("admin", chroot=CHROOT, user="others")

        async def work(store: ZooKeeperStore) -> None:
            session = await store.register(1, b"payload")
            states.append(session.is_live())
            await admin.protect("/brokers/incarnations")
            await admin.protect(session.node)
            await asyncio.sleep(3)
            states.append(session.is_live())

        await _store(stage, "broker", work)
        assert states == [True, False]

    played(scenario)
