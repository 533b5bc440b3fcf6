"""A store is copied to ZooKeeper as a whole or not at all, at whichever request the connection is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from nilometer.coordination.copying import Contents, copy
from nilometer.coordination.store import (
    ENTRY_SIZE_MAX,
    Entry,
    Snapshot,
    StoreDamaged,
    StoredSecret,
    StoreMoved,
    StoreRefused,
    StoreUnavailable,
)
from nilometer.coordination.zookeeper.copying import STEPS_AT_ONCE, ZooKeeperSource, ZooKeeperTarget, in_parts
from nilometer.coordination.zookeeper.ensemble import Connect, Disconnected, Ensemble, Step
from nilometer.coordination.zookeeper.store import ZooKeeperStore
from nilometer.runtime import Runtime
from nilometer.simulation.world import Process
from support.simulation.zookeeper_stage import Stage, played

CLUSTER = "5L6g3nShT-eMCtK--X86sw"
INCARNATIONS = {1: 1 << 40, 2: 7}
HOSTS = "zk:2181/nilometer"
CONTENTS = Contents(
    cluster_id=CLUSTER,
    snapshot=Snapshot(2 * STEPS_AT_ONCE + 3, b"snapshot" * (ENTRY_SIZE_MAX // 4)),
    entries=tuple(Entry(2 * STEPS_AT_ONCE + 3 + number, b"entry %d" % number) for number in range(4)),
    secret=StoredSecret(3, b"secret"),
)


class KeptStore:
    """A store to copy from, in memory."""

    name = "local:/former"
    cluster_id = CLUSTER

    def __init__(self, kept: Contents = CONTENTS) -> None:
        self.kept = kept
        self.moved_to = ""

    async def open(self) -> None:
        """Nothing to do."""

    async def users(self) -> list[str]:
        return []

    async def note_moved(self, target: str) -> None:
        self.moved_to = target

    async def contents(self) -> Contents:
        return self.kept

    async def close(self) -> None:
        """Nothing to do."""


WRITES = ("create", "ensure", "set", "delete", "commit")


class LosingEnsemble:
    """Loses the connection at one of its writes, before or after that was executed, and at all later ones."""

    def __init__(self, ensemble: Ensemble, lost_at: int, is_executed: bool) -> None:
        self._ensemble = ensemble
        self._lost_at = lost_at
        self._is_executed = is_executed
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ensemble, name)
        if name not in WRITES:
            return found

        async def write(*arguments: Any, **more: Any) -> Any:
            self.writes += 1
            if self.writes == self._lost_at and self._is_executed:
                await found(*arguments, **more)
            if self.writes >= self._lost_at:
                raise Disconnected("the connection was cut")
            return await found(*arguments, **more)

        return write


class WaitingEnsemble:
    """Lets ``meanwhile`` come before its first transaction."""

    def __init__(self, ensemble: Ensemble, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._ensemble = ensemble
        self._meanwhile = meanwhile
        self._is_first = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ensemble, name)

    async def commit(self, steps: Sequence[Step]) -> None:
        if self._is_first:
            self._is_first = False
            await self._meanwhile()
        await self._ensemble.commit(steps)


def on_stage(scenario: Callable[[Runtime, Connect], Awaitable[None]], chroot: str = "/nilometer") -> None:
    """Run a scenario in a process that can connect to an ensemble."""

    async def play(stage: Stage) -> None:
        done = stage.world.loop.create_future()
        started = stage.world.loop.create_future()

        async def main(runtime: Runtime) -> None:
            process: Process = await started
            try:
                await scenario(runtime, stage.ensemble.connect(process, chroot))
            except (Exception, pytest.fail.Exception) as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        started.set_result(stage.world.host("tool").start("tool", main))
        await done

    played(play)


async def copied(
    source: KeptStore, runtime: Runtime, connect: Connect, wrapped: Callable[[Ensemble], Any] | None = None
) -> Contents:
    target = ZooKeeperTarget(runtime, HOSTS, connect)
    if wrapped is not None:
        target._ensemble = wrapped(target._ensemble)
    try:
        return await copy(source, target, lambda _: INCARNATIONS)
    finally:
        await target.close()


async def contents(runtime: Runtime, connect: Connect) -> Contents:
    source = ZooKeeperSource(ZooKeeperStore(runtime, HOSTS, connect, create=False), HOSTS)
    await source.open()
    try:
        return await source.contents()
    finally:
        await source.close()


async def check_goes_on(runtime: Runtime, connect: Connect) -> None:
    store = ZooKeeperStore(runtime, HOSTS, connect, cluster_id=CLUSTER)
    await store.open()
    end = CONTENTS.next_number
    name = (await store.register(1, b"")).name
    assert name.incarnation > max(INCARNATIONS.values())
    assert [one.incarnation for one in await store.sessions()] == [name.incarnation]
    assert await store.claim_controller() and await store.controller() == name
    assert not await store.append(end - 1, b"again") and await store.append(end, b"next")
    assert not await store.put_secret(3, b"again") and await store.put_secret(4, b"next")
    assert await store.write_snapshot(end + 1, b"newer")
    await store.close()


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_store_goes_to_zookeeper_and_goes_on_there(has_snapshot: bool) -> None:
    few = Contents(cluster_id=CLUSTER, snapshot=None, entries=(Entry(0, b"first"),), secret=None)
    kept = CONTENTS if has_snapshot else few

    async def scenario(runtime: Runtime, connect: Connect) -> None:
        source = KeptStore(kept)
        assert await copied(source, runtime, connect) == kept == await contents(runtime, connect)
        assert source.moved_to == f"zookeeper://{HOSTS}"
        if has_snapshot:
            await check_goes_on(runtime, connect)

    on_stage(scenario)


@pytest.mark.parametrize("is_executed", [False, True])
def test_a_copy_counts_for_nothing_at_whichever_write_it_ends(is_executed: bool) -> None:
    outcomes: list[str] = []

    async def scenario(runtime: Runtime, connect: Connect) -> None:
        source = KeptStore()

        def wrapped(ensemble: Ensemble) -> LosingEnsemble:
            return LosingEnsemble(ensemble, len(outcomes) + 1, is_executed)

        try:
            await copied(source, runtime, connect, wrapped)
        except StoreUnavailable as error:
            outcomes.append(str(error))
            assert bool(source.moved_to) == ("could not be opened again" in str(error))
            if source.moved_to and await is_complete(runtime, connect):
                with pytest.raises(StoreRefused, match="has all the metadata of local:/former already"):
                    await copied(source, runtime, connect)
                outcomes.append("published")
            else:
                assert await copied(source, runtime, connect) == CONTENTS
        else:
            outcomes.append("through")
        assert await contents(runtime, connect) == CONTENTS

    while not outcomes or outcomes[-1] not in ("published", "through"):
        on_stage(scenario)
    assert outcomes[-1] == ("published" if is_executed else "through")
    assert len(outcomes) > 8


async def is_complete(runtime: Runtime, connect: Connect) -> bool:
    try:
        return await contents(runtime, connect) == CONTENTS
    except StoreRefused:
        return False


async def removed(connect: Connect) -> None:
    """Delete the tree."""
    client = connect(6000, lambda: None, lambda: None)
    await client.start(10)

    async def remove(path: str) -> None:
        for name in await client.children(path):
            await remove(f"{path.rstrip('/')}/{name}")
        if path != "/":
            await client.delete(path)

    await remove("/")
    await client.stop()


def test_what_is_there_is_refused_and_not_changed() -> None:
    async def scenario(runtime: Runtime, connect: Connect) -> None:
        await copied(KeptStore(), runtime, connect)
        other = KeptStore()
        with pytest.raises(StoreRefused, match=f"has the metadata of {CLUSTER}"):
            await copied(other, runtime, connect)
        assert other.moved_to == "" and await contents(runtime, connect) == CONTENTS
        await removed(connect)
        client = connect(6000, lambda: None, lambda: None)
        await client.start(10)
        await client.create("/someone", b"")
        with pytest.raises(StoreRefused, match="it contains someone"):
            await copied(other, runtime, connect)
        assert await client.children("/") == ["someone"]
        await client.stop()

    on_stage(scenario)


def test_brokers_refuse_an_incomplete_copy_and_a_second_command_waits() -> None:
    async def scenario(runtime: Runtime, connect: Connect) -> None:
        target = ZooKeeperTarget(runtime, HOSTS, connect)
        await target.open("local:/former", CLUSTER)
        await target.write(CONTENTS, INCARNATIONS)
        for options in ({}, {"create": False}, {"create": False, "admits_moved": True}):
            store = ZooKeeperStore(runtime, HOSTS, connect, **options)
            with pytest.raises(StoreRefused, match="an incomplete copy of the metadata of local:/former"):
                await store.open()
        with pytest.raises(StoreRefused, match="another command copies metadata"):
            await copied(KeptStore(), runtime, connect)
        await target.close()
        third = KeptStore()
        third.name = "local:/third"
        with pytest.raises(StoreRefused, match="an incomplete copy of the metadata of local:/former"):
            await copied(third, runtime, connect)
        assert await copied(KeptStore(), runtime, connect) == CONTENTS

    on_stage(scenario)


async def end_session_of_copy(connect: Connect) -> None:
    """Do what the servers do when a command's session ends."""
    client = connect(6000, lambda: None, lambda: None)
    await client.start(10)
    await client.delete("/copying")
    await client.stop()


@pytest.mark.parametrize("has_written", [False, True])
def test_a_command_whose_session_has_ended_changes_nothing_of_what_another_one_copied(
    has_written: bool,
) -> None:
    async def scenario(runtime: Runtime, connect: Connect) -> None:
        late = ZooKeeperTarget(runtime, HOSTS, connect)
        await late.open("local:/former", CLUSTER)
        if has_written:
            await late.write(CONTENTS, INCARNATIONS)
        await end_session_of_copy(connect)
        assert await copied(KeptStore(), runtime, connect) == CONTENTS
        for step in (lambda: late.write(CONTENTS, INCARNATIONS), late.publish, late.discard):
            with pytest.raises(StoreDamaged, match="changed by another process"):
                await step()
        await late.close()
        assert await contents(runtime, connect) == CONTENTS

    on_stage(scenario)


def test_a_copy_that_becomes_complete_while_another_command_begins_is_not_begun_again() -> None:
    async def scenario(runtime: Runtime, connect: Connect) -> None:
        first = ZooKeeperTarget(runtime, HOSTS, connect)
        await first.open("local:/former", CLUSTER)
        await first.close()

        async def other() -> None:
            assert await copied(KeptStore(), runtime, connect) == CONTENTS

        with pytest.raises(StoreRefused, match=f"has the metadata of {CLUSTER}"):
            await copied(KeptStore(), runtime, connect, lambda one: WaitingEnsemble(one, other))
        assert await contents(runtime, connect) == CONTENTS

    on_stage(scenario)


def test_a_broker_changes_nothing_in_an_incomplete_copy() -> None:
    async def scenario(runtime: Runtime, connect: Connect) -> None:
        target = ZooKeeperTarget(runtime, HOSTS, connect)
        await target.open("local:/former", CLUSTER)
        client = connect(6000, lambda: None, lambda: None)
        await client.start(10)
        before = await client.children("/")
        with pytest.raises(StoreRefused, match="an incomplete copy of the metadata of local:/former"):
            await ZooKeeperStore(runtime, HOSTS, connect).open()
        assert await client.children("/") == before == ["copying", "store"]
        await target.discard()
        other = ZooKeeperTarget(runtime, HOSTS, connect)
        with pytest.raises(StoreRefused, match="another command copies metadata"):
            await other.open("local:/former", CLUSTER)
        for one in (other, target):
            await one.close()
        await client.stop()
        assert await copied(KeptStore(), runtime, connect) == CONTENTS

    on_stage(scenario)


def test_a_transaction_fits_with_a_long_chroot() -> None:
    many = tuple(Entry(number, bytes(ENTRY_SIZE_MAX // STEPS_AT_ONCE)) for number in range(STEPS_AT_ONCE))
    kept = Contents(cluster_id=CLUSTER, snapshot=None, entries=many, secret=None)

    async def scenario(runtime: Runtime, connect: Connect) -> None:
        assert await copied(KeptStore(kept), runtime, connect) == kept

    on_stage(scenario, chroot="/a-folder-of-clusters" * 20)


async def opened(runtime: Runtime, connect: Connect) -> ZooKeeperSource:
    store = ZooKeeperStore(runtime, HOSTS, connect, create=False, admits_moved=True)
    source = ZooKeeperSource(store, HOSTS)
    await source.open()
    return source


def test_a_command_whose_copy_another_one_repeats_leaves_the_source_closed() -> None:
    async def scenario(runtime: Runtime, connect: Connect) -> None:
        other = ZooKeeperTarget(runtime, HOSTS, connect)
        source = KeptStore()

        async def meanwhile() -> Contents:
            await end_session_of_copy(connect)
            await other.open(source.name, CLUSTER, is_repeated=True)
            return CONTENTS

        source.contents = meanwhile
        with pytest.raises(StoreUnavailable, match="could not be opened again"):
            await copied(source, runtime, connect)
        assert source.moved_to == f"zookeeper://{HOSTS}"
        await other.write(CONTENTS, INCARNATIONS)
        await other.publish()
        await other.close()
        assert await contents(runtime, connect) == CONTENTS

    on_stage(scenario)


def test_a_source_that_another_command_has_closed_or_opened_is_not_opened_or_used() -> None:
    async def scenario(runtime: Runtime, connect: Connect) -> None:
        await copied(KeptStore(), runtime, connect)
        late = await opened(runtime, connect)
        await late.note_moved("local:/next")
        second = await opened(runtime, connect)
        await second.note_moved("local:/next")
        with pytest.raises(StoreDamaged, match="another command has changed /store meanwhile"):
            await late.note_moved("")
        assert await second.contents() == CONTENTS
        third = await opened(runtime, connect)
        await third.note_moved("")
        with pytest.raises(StoreRefused, match="another command has changed /store"):
            await second.contents()
        for one in (late, second, third):
            await one.close()

    on_stage(scenario)


def test_a_broker_is_not_registered_in_a_store_that_is_closed_while_it_starts() -> None:
    async def scenario(runtime: Runtime, connect: Connect) -> None:
        await copied(KeptStore(), runtime, connect)
        store = ZooKeeperStore(runtime, HOSTS, connect, cluster_id=CLUSTER)
        await store.open()
        source = await opened(runtime, connect)

        async def meanwhile() -> None:
            await source.note_moved("local:/next")
            assert await source.users() == []

        store._registration._ensemble = cast(Ensemble, WaitingEnsemble(store._ensemble, meanwhile))
        with pytest.raises(StoreMoved, match="local:/next"):
            await store.register(1, b"")
        assert await source.users() == []
        await source.note_moved("")
        assert (await store.register(1, b"")).is_live()
        assert await source.users() == ["broker 1"]
        for one in (store, source):
            await one.close()

    on_stage(scenario)


def test_a_copied_store_is_moved_on_and_opened_again() -> None:
    async def scenario(runtime: Runtime, connect: Connect) -> None:
        await copied(KeptStore(), runtime, connect)
        source = await opened(runtime, connect)
        await source.note_moved("local:/next")
        with pytest.raises(StoreMoved, match="local:/next"):
            await contents(runtime, connect)
        await source.note_moved("")
        await source.close()
        await check_goes_on(runtime, connect)

    on_stage(scenario)


def test_entries_are_created_in_transactions_that_fit() -> None:
    large = [Entry(number, bytes(ENTRY_SIZE_MAX)) for number in range(3)]
    small = [Entry(3 + number, b"x") for number in range(2 * STEPS_AT_ONCE)]
    parts = list(in_parts([*large, *small]))
    assert [len(part) for part in parts] == [1, 1, 1, STEPS_AT_ONCE, STEPS_AT_ONCE]
    flat: Sequence[Entry] = [one for part in parts for one in part]
    assert flat == [*large, *small]
    assert list(in_parts([])) == []
