"""Commands copy one store in ZooKeeper to another while they wait, are cut off and lose their sessions, and
while brokers start: never are both stores open and complete, and nothing that a broker wrote is lost."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from nilometer.coordination.copying import Contents, copy
from nilometer.coordination.store import CoordinationError, StoredSecret
from nilometer.coordination.zookeeper.copying import ZooKeeperSource, ZooKeeperTarget
from nilometer.coordination.zookeeper.ensemble import Connect, Disconnected, Ensemble, NoNode
from nilometer.coordination.zookeeper.store import ZooKeeperStore
from nilometer.runtime import Runtime
from nilometer.simulation.world import Process
from support.simulation.zookeeper_stage import Stage

CLUSTER = "5L6g3nShT-eMCtK--X86sw"
FORMER, NEXT = "/former", "/next/one"
NAMED = b"incarnation "
SECRET = StoredSecret(1, b"second")
WRITES = ("create", "ensure", "set", "delete", "commit")
READS = ("get", "children")


class FaultyEnsemble:
    """Waits before some requests, and loses the connection at some writes, executed or not."""

    def __init__(self, ensemble: Ensemble, chance: random.Random, waits: float, loses: float) -> None:
        self._ensemble = ensemble
        self._chance = chance
        self._waits = waits
        self._loses = loses

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ensemble, name)
        if name not in (*WRITES, *READS):
            return found

        async def request(*arguments: Any, **more: Any) -> Any:
            if self._chance.random() < self._waits:
                await asyncio.sleep(self._chance.choice((0.05, 0.5, 3)))
            is_lost = name in WRITES and self._chance.random() < self._loses
            if not is_lost or self._chance.random() < 0.5:
                response = await found(*arguments, **more)
                if not is_lost:
                    return response
            raise Disconnected("the connection was cut")

        return request


def incarnations(contents: Contents) -> dict[int, int]:
    named = [int(one.data.removeprefix(NAMED)) for one in contents.entries if one.data.startswith(NAMED)]
    return {1: max(named, default=0)}


class Play:
    """One run: a store at FORMER, commands that copy it to NEXT, and brokers at both."""

    _runtime: Runtime
    _connects: dict[str, Connect]

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._chance = random.Random(seed)
        self._waits = self._chance.choice((0.0, 0.1, 0.3))
        self._loses = self._chance.choice((0.0, 0.0, 0.02, 0.1))
        self.written: list[tuple[int, bytes]] = []
        """What brokers have written: numbers and entries."""
        self.log: list[str] = []

    def run(self) -> None:
        Stage(self._seed).run(self._play)

    async def _play(self, stage: Stage) -> None:
        done: asyncio.Future[None] = stage.world.loop.create_future()
        started: asyncio.Future[Process] = stage.world.loop.create_future()

        async def main(runtime: Runtime) -> None:
            process = await started
            self._runtime = runtime
            self._connects = {chroot: stage.ensemble.connect(process, chroot) for chroot in (FORMER, NEXT)}
            try:
                await self._scenario()
            except (Exception, pytest.fail.Exception) as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        started.set_result(stage.world.host("tools").start("tools", main))
        await done

    async def _scenario(self) -> None:
        store = self._store(FORMER)
        await store.open()
        for number in range(4):
            assert await store.append(number, b"first")
        for number in range(2):
            assert await store.put_secret(number, (b"first", b"second")[number])
        if self._chance.random() < 0.5:
            assert await store.write_snapshot(2, b"snapshot")
        await store.close()
        commands = [self._command(self._loses) for _ in range(self._chance.choice((1, 2, 3)))]
        brokers = [self._broker(chroot) for chroot in (FORMER, FORMER, NEXT)]
        await asyncio.gather(*commands, *brokers, self._end_sessions())
        await self._check()

    def _store(self, chroot: str, **options: Any) -> ZooKeeperStore:
        return ZooKeeperStore(
            self._runtime, chroot, self._connects[chroot], **{"cluster_id": CLUSTER, **options}
        )

    def _faulty(self, ensemble: Ensemble, loses: float) -> Ensemble:
        return cast(Ensemble, FaultyEnsemble(ensemble, self._chance, self._waits, loses))

    def _source(self, **options: Any) -> tuple[ZooKeeperStore, ZooKeeperSource]:
        store = self._store(FORMER, create=False, **options)
        return store, ZooKeeperSource(store, f"zookeeper:/{FORMER}")

    async def _command(self, loses: float) -> bool:
        """Copy the store; return whether that ended well."""
        await asyncio.sleep(self._chance.random() * self._chance.choice((0.5, 4, 12)))
        store, source = self._source(admits_moved=True)
        target = ZooKeeperTarget(self._runtime, NEXT, self._connects[NEXT])
        await source.open()
        store._ensemble = self._faulty(store._ensemble, loses)
        target._ensemble = self._faulty(target._ensemble, loses)
        try:
            await copy(source, target, incarnations)
        except CoordinationError as error:
            self.log.append(str(error))
            return False
        finally:
            await target.close()
            await source.close()
        self.log.append("copied")
        return True

    async def _end_sessions(self) -> None:
        """Do what the servers do when a command's session ends."""
        client = self._connects[NEXT](6000, lambda: None, lambda: None)
        await client.start(10)
        for _ in range(self._chance.choice((0, 2, 6))):
            await asyncio.sleep(3 * self._chance.random())
            try:
                await client.delete("/copying")
            except NoNode:
                continue
            self.log.append("a session has ended")
        await client.stop()

    async def _broker(self, chroot: str) -> None:
        """Start a broker a few times, and let it write which incarnation it has."""
        for _ in range(self._chance.choice((1, 3))):
            await asyncio.sleep(self._chance.random() * self._chance.choice((1, 5, 15)))
            store = self._store(chroot, create=chroot == FORMER and self._chance.random() < 0.7)
            try:
                await store.open()
            except CoordinationError:
                continue
            store._registration._ensemble = self._faulty(store._ensemble, 0.0)
            try:
                name = (await store.register(1, b"")).name
                await asyncio.sleep(self._chance.random())
                entry = NAMED + b"%d" % name.incarnation
                number = (await store._get("/next")).version
                if await store.append(number, entry):
                    self.written.append((number, entry))
            except CoordinationError as error:
                self.log.append(f"no broker at {chroot}: {error}")
            finally:
                await store.close()

    async def _contents(self, chroot: str) -> Contents | None:
        """Return what a store has; None if brokers do not open it."""
        store = self._store(chroot, create=False)
        try:
            await store.open()
        except CoordinationError:
            return None
        try:
            return await ZooKeeperSource(store, chroot).contents()
        finally:
            await store.close()

    async def _check(self) -> None:
        former, found = await self._contents(FORMER), await self._contents(NEXT)
        assert former is None or found is None, "two stores are open"
        if former is None and found is None:
            await self._finish()
            found = await self._contents(NEXT)
        kept = former or found
        assert kept is not None and kept.secret == SECRET
        below = 0 if kept.snapshot is None else kept.snapshot.number
        entries = {(one.number, one.data) for one in kept.entries}
        assert {one for one in self.written if one[0] >= below} <= entries, "an entry is lost"
        assert len({entry for _, entry in self.written}) == len(self.written), "an incarnation is given twice"

    async def _finish(self) -> None:
        """Do what the errors tell to do: repeat the copy, or open the former store and copy it."""
        await asyncio.sleep(10)
        if not await self._command(0.0):
            _, source = self._source(admits_moved=True)
            await source.open()
            await source.note_moved("")
            await source.close()
            assert await self._command(0.0)


@pytest.mark.parametrize("seed", range(150))
def test_commands_that_copy_at_once_leave_one_store(seed: int) -> None:
    """Replay one: pytest tests/simulation/test_copies_at_once.py -k "one_store[SEED]"."""
    play = Play(seed)
    try:
        play.run()
    except Exception as error:
        replay = f'pytest tests/simulation/test_copies_at_once.py -k "one_store[{seed}]"'
        raise AssertionError(f"{error}; replay: {replay}\n" + "\n".join(play.log)) from error
