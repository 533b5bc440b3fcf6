"""The newest snapshot, in chunks that fit into a node, and the removal of the entries that it replaces.

A reader always finds a complete snapshot: its chunks are written before the node ``/snapshot`` names them,
and removed after that node names a newer snapshot.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from nilometer.coordination.store import ENTRY_SIZE_MAX, Snapshot, new_id
from nilometer.coordination.zookeeper.ensemble import BadVersion, CheckExists, Delete, Ensemble, Node, NoNode
from nilometer.coordination.zookeeper.layout import SnapshotNode, chunk_path, decoded, entry_path
from nilometer.runtime import Entropy

SWEEP_AT_ONCE = 200


class Snapshots:
    def __init__(self, ensemble: Ensemble, get: Callable[[str], Awaitable[Node]], entropy: Entropy) -> None:
        """``get`` returns a node that must exist, or raises StoreDamaged."""
        self._ensemble = ensemble
        self._get = get
        self._entropy = entropy

    async def read(self) -> Snapshot | None:
        """Return the newest snapshot, None if there is none. Raises Disconnected, StoreDamaged."""
        while True:
            await self._ensemble.commit([CheckExists("/snapshot")])  # later reads see all earlier writes
            node = await self.newest()
            if node.number == 0:
                return None
            try:
                paths = [chunk_path(node.folder, chunk) for chunk in range(node.chunks)]
                chunks = [(await self._ensemble.get(path)).data for path in paths]
            except NoNode:
                continue  # replaced by a newer one meanwhile
            return Snapshot(node.number, b"".join(chunks))

    async def write(self, number: int, data: bytes) -> bool:
        """Write a snapshot that replaces the entries below ``number``; return False if a newer one exists.

        Raises Disconnected, StoreDamaged; ValueError if some of these entries do not exist.
        """
        await self._ensemble.commit([CheckExists("/snapshot")])  # later reads see all earlier writes
        old = await self._get("/snapshot")
        old_node = decoded("/snapshot", old.data, SnapshotNode)
        if number > (await self._get("/next")).version:
            raise ValueError(f"a snapshot of {number} covers entries that do not exist")
        if number <= old_node.number:
            return False
        folder = f"{number:020d}.{new_id(self._entropy)}"
        chunks = [data[at : at + ENTRY_SIZE_MAX] for at in range(0, len(data), ENTRY_SIZE_MAX)]
        await self._ensemble.create(f"/snapshots/{folder}", b"")
        for i, chunk in enumerate(chunks):
            await self._ensemble.create(chunk_path(folder, i), chunk)
        node = SnapshotNode(number=number, chunks=len(chunks), folder=folder, swept=old_node.swept)
        try:
            await self._ensemble.set("/snapshot", msgspec.json.encode(node), old.version)
        except BadVersion:
            await self._remove(folder)
            return False
        await self._sweep(node)
        return True

    async def _sweep(self, node: SnapshotNode) -> None:
        """Delete the entries and older snapshots that this snapshot replaces.

        Starts at ``node.swept``, below which an earlier sweep deleted all entries.
        """
        for start in range(node.swept, node.number, SWEEP_AT_ONCE):
            numbers = range(start, min(start + SWEEP_AT_ONCE, node.number))
            try:
                await self._ensemble.commit([Delete(entry_path(number)) for number in numbers])
            except NoNode:  # an earlier sweep ended among them
                for number in numbers:
                    await delete_if_there(self._ensemble, entry_path(number))
        for folder in await self._ensemble.children("/snapshots"):
            if int(folder.partition(".")[0]) < node.number:
                await self._remove(folder)
        current = await self._get("/snapshot")
        swept = msgspec.structs.replace(node, swept=node.number)
        if decoded("/snapshot", current.data, SnapshotNode) == node:
            try:
                await self._ensemble.set("/snapshot", msgspec.json.encode(swept), current.version)
            except BadVersion:
                pass  # there is a newer snapshot, whose sweep includes these entries

    async def _remove(self, folder: str) -> None:
        try:
            for chunk in await self._ensemble.children(f"/snapshots/{folder}"):
                await delete_if_there(self._ensemble, f"/snapshots/{folder}/{chunk}")
        except NoNode:
            return
        await delete_if_there(self._ensemble, f"/snapshots/{folder}")

    async def newest(self) -> SnapshotNode:
        return decoded("/snapshot", (await self._get("/snapshot")).data, SnapshotNode)


async def delete_if_there(ensemble: Ensemble, path: str) -> None:
    try:
        await ensemble.delete(path)
    except NoNode:
        pass
