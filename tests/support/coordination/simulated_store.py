"""Brokers that append to the folder store in a simulated world, and the history that they may read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nilometer.coordination.local.store import LocalSession, LocalStore
from nilometer.coordination.store import (
    CoordinationError,
    EntriesRetired,
    OutcomeUnknown,
    Session,
    SessionName,
    StoreUnavailable,
)
from nilometer.runtime import Runtime
from nilometer.simulation.world import Process, World

HEALED_S = 3.0
"""A hanging disk may hold work for two seconds after it is well."""
TIMEOUT_MS = 1000


class History:
    """What the brokers of one world were told, and what must follow from it."""

    def __init__(self) -> None:
        self.won: dict[int, bytes] = {}
        self.refused: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.seen: dict[int, bytes] = {}
        self.tokens = 0
        self.cluster_ids: set[str] = set()
        self.sessions_seen: set[SessionName] = set()

    def on_open(self, cluster_id: str) -> None:
        self.cluster_ids.add(cluster_id)
        assert len(self.cluster_ids) == 1, "the cluster changed its id"

    def on_registered(self, name: SessionName) -> None:
        assert name not in self.sessions_seen, f"{name} lived before"
        self.sessions_seen.add(name)

    def token(self) -> bytes:
        self.tokens += 1
        return b"entry %d" % self.tokens

    def on_won(self, number: int, data: bytes) -> None:
        assert self.won.get(number, data) == data, f"two writers were told they hold number {number}"
        self.won[number] = data
        self.on_seen(number, data)

    def on_seen(self, number: int, data: bytes) -> None:
        """Once a reader was shown an entry, no reader is ever shown another of its number."""
        assert self.seen.setdefault(number, data) == data, f"number {number} changed"
        assert data not in self.refused, f"{data!r} was refused, and yet it is number {number}"

    def on_refused(self, data: bytes) -> None:
        assert data not in self.seen.values()
        self.refused.add(data)


class Broker:
    """Appends, follows, snapshots, claims, all at random, and notes what it was told."""

    def __init__(self, broker_id: int, history: History, *, snapshots: bool = True) -> None:
        self._id = broker_id
        self._history = history
        self._snapshots = snapshots
        self.next_number = 0

    async def main(self, runtime: Runtime) -> None:
        self.next_number = 0
        store = LocalStore(runtime, "/data/store", session_timeout_ms=TIMEOUT_MS)
        await self._patiently(runtime, store.open)
        self._history.on_open(store.cluster_id)
        session = await self._register(runtime, store)
        while True:
            await asyncio.sleep(runtime.entropy.uniform(0.0, 0.02))
            if session.lost:
                session = await self._register(runtime, store)
            try:
                await self._act(runtime, store)
            except EntriesRetired as retired:
                assert retired.snapshot_number > self.next_number
                self.next_number = retired.snapshot_number
            except CoordinationError:
                continue

    async def _register(self, runtime: Runtime, store: LocalStore) -> Session:
        session = await self._patiently(runtime, lambda: store.register(self._id, b"p"))
        assert isinstance(session, LocalSession)
        self._history.on_registered(session.name)
        return session

    async def _patiently(self, runtime: Runtime, call: Callable[[], object]) -> object:
        while True:
            try:
                return await call()  # type: ignore[misc]
            except StoreUnavailable:
                await asyncio.sleep(0.05)

    async def _act(self, runtime: Runtime, store: LocalStore) -> None:
        for entry in await store.read(self.next_number, 50):
            assert entry.number == self.next_number
            self._history.on_seen(entry.number, entry.data)
            self.next_number += 1
        match runtime.entropy.below(10):
            case 0 if self._snapshots and self.next_number:
                await store.write_snapshot(self.next_number, b"s%d" % self.next_number)
            case 1:
                await store.claim_controller()
            case 2:
                snapshot = await store.read_snapshot()
                assert snapshot is None or snapshot.data == b"s%d" % snapshot.number
            case _:
                await self._append(store)

    async def _append(self, store: LocalStore) -> None:
        data = self._history.token()
        number = self.next_number
        self._history.unknown.add(data)
        try:
            won = await store.append(number, data)
        except OutcomeUnknown:
            return
        except CoordinationError:
            self._history.unknown.discard(data)
            self._history.on_refused(data)
            raise
        self._history.unknown.discard(data)
        if won:
            self._history.on_won(number, data)
        else:
            self._history.on_refused(data)


async def read_all(store: LocalStore, history: History) -> dict[int, bytes]:
    snapshot = await store.read_snapshot()
    number = snapshot.number if snapshot else 0
    found: dict[int, bytes] = {}
    while batch := await store.read(number, 1000):
        for entry in batch:
            assert entry.number == number
            history.on_seen(number, entry.data)
            found[number] = entry.data
            number += 1
    for missing in [number for number in history.seen if number not in found]:
        assert snapshot is not None and missing < snapshot.number, f"number {missing} was shown and is gone"
    return found


async def judge(world: World, history: History) -> None:
    """A fresh process finds all that any process was shown or promised."""
    verdict: list[dict[int, bytes]] = []

    async def main(runtime: Runtime) -> None:
        store = LocalStore(runtime, "/data/store", session_timeout_ms=TIMEOUT_MS)
        await store.open()
        history.on_open(store.cluster_id)
        verdict.append(await read_all(store, history))
        await store.close()

    error = await world.host("m").start("judge", main).exited
    if error is not None:
        raise error
    assert verdict


def start(world: World, broker_id: int, history: History) -> Process:
    return world.host("m").start(f"broker-{broker_id}", Broker(broker_id, history).main)


def stop_on_failure(world: World, process: Process) -> None:
    def check(exited: asyncio.Future[BaseException | None]) -> None:
        if exited.result() is not None:
            world.failures.append(exited.result())  # type: ignore[arg-type]

    process.exited.add_done_callback(check)
