"""A store in ZooKeeper as the source of a copy (:mod:`nilometer.coordination.copying`)."""

from __future__ import annotations

from nilometer.coordination.copying import Contents, read_all
from nilometer.coordination.zookeeper.store import ZooKeeperStore


class ZooKeeperSource:
    def __init__(self, store: ZooKeeperStore, name: str) -> None:
        """``store``: not open yet, of a tool, that also opens a store that was moved."""
        self._store = store
        self.name = name

    @property
    def cluster_id(self) -> str:
        return self._store.cluster_id

    @property
    def moved_to(self) -> str:
        return self._store.moved_to

    async def open(self) -> None:
        await self._store.open()

    async def users(self) -> list[str]:
        return [f"broker {session.broker_id}" for session in await self._store.sessions()]

    async def note_moved(self, target: str) -> None:
        await self._store.note_moved(target)

    async def contents(self) -> Contents:
        await self._store.sync()
        return await read_all(self._store, self.cluster_id, await self._store.read_secret())

    async def close(self) -> None:
        await self._store.close()
