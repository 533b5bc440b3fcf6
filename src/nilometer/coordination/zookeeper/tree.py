"""The store's tree in ZooKeeper: its paths and contents, how it is found or created, and its snapshots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from nilometer.coordination.store import (
    ENTRY_SIZE_MAX,
    Snapshot,
    StoreAbsent,
    StoreDamaged,
    StoreRefused,
    new_id,
)
from nilometer.coordination.zookeeper.ensemble import (
    BadVersion,
    CheckExists,
    Create,
    Delete,
    Ensemble,
    Node,
    NodeExists,
    NoNode,
    Step,
)
from nilometer.runtime import Entropy

# The paths in ZooKeeper, and the content of the nodes.
#
# /store                       {"format": 1, "cluster_id": …}; 2 with "moved_to", 3 with "copied_from" or
#                              "incarnations_above": earlier versions refuse what they do not know
# /next                        its *version* is the next number: setting it at an expected version is the
#                              compare-and-set, and no number is used twice, whatever nodes are deleted
# /entries/<number>            created in the same transaction that increments the version of /next
# /snapshot                    {"number", "chunks", "folder", "swept"}: the newest one
# /snapshots/<folder>/<chunk>  its content, in pieces that a node can hold
# /brokers/ids/<id>            ephemeral: the payload and a nonce; its creation zxid makes the incarnation
# /brokers/incarnations/<id>.<nonce>
#                              ephemeral, empty: created and deleted together with /brokers/ids/<id>. Its name
#                              is never used again, so a transaction that checks it is of that incarnation
#                              only
# /secret                      the cluster's secret; its version is the secret's number
# /controller                  ephemeral: the name of the session that claimed it
# /copying                     ephemeral: of the command that copies another store's content to this one

T = TypeVar("T")

STORE = "/store"
CONTROLLER = "/controller"
COPYING = "/copying"


class StoreNode(msgspec.Struct, frozen=True, omit_defaults=True):
    format: int
    cluster_id: str
    moved_to: str = ""
    """The store that has the content now: brokers refuse this one."""
    copied_from: str = ""
    """The store whose content is being copied to this one: brokers refuse it until all is there."""
    incarnations_above: int = 0
    """Added to a creation zxid: the content was copied from a store that has given incarnations up to it."""


class SnapshotNode(msgspec.Struct, frozen=True):
    number: int
    chunks: int
    folder: str
    swept: int


class BrokerNode(msgspec.Struct, frozen=True):
    payload: bytes
    nonce: str = ""
    """A random id, chosen by the process that registered; empty in nodes of older versions."""
    session_timeout_ms: int = 0
    """The session timeout of the broker: how long the node may remain after its process died."""


class ControllerNode(msgspec.Struct, frozen=True):
    broker_id: int
    incarnation: int


NO_SNAPSHOT = SnapshotNode(number=0, chunks=0, folder="", swept=0)
EMPTY_STORE = (
    ("/next", b""),
    ("/entries", b""),
    ("/snapshots", b""),
    ("/snapshot", msgspec.json.encode(NO_SNAPSHOT)),
    ("/brokers", b""),
    ("/brokers/ids", b""),
    ("/brokers/incarnations", b""),
)


def entry_path(number: int) -> str:
    return f"/entries/{number:020d}"


def chunk_path(folder: str, chunk: int) -> str:
    return f"/snapshots/{folder}/{chunk:06d}"


def broker_path(broker_id: int) -> str:
    return f"/brokers/ids/{broker_id}"


def incarnation_path(broker_id: int, nonce: str) -> str:
    return f"/brokers/incarnations/{broker_id}.{nonce}"


def decoded(path: str, data: bytes, kind: type[T]) -> T:
    """Parse the content of a node as ``kind``. Raises StoreDamaged."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(
            f"{path} in ZooKeeper has content that nilometer did not write: {error}"
        ) from error


# Opening the store: find it, or create it in an empty tree; reject a tree of another system.
#
# The nodes of an empty store are created in one transaction: a tree with nodes but without ``/store`` is not
# a store.

# Gives the nodes of an existing store their ACL: those that were created without one, or got another one.

logger = logging.getLogger("nilometer.coordination.zookeeper.protection")

NODES_AT_ONCE = 200


async def protect_tree(ensemble: Ensemble) -> None:
    """Protect every node of the store that is not protected: parents first, so that others add none below.

    Brokers that do not set ACLs yet may create more meanwhile: each broker does this when it opens the store.
    Raises Disconnected, AccessDenied.
    """
    protected = 0
    level = ["/"]
    while level:
        deeper: list[str] = []
        for start in range(0, len(level), NODES_AT_ONCE):
            paths = level[start : start + NODES_AT_ONCE]
            protected += sum(await asyncio.gather(*(_protect(ensemble, path) for path in paths)))
            for names in await asyncio.gather(*(_children(ensemble, path) for path in paths)):
                deeper += names
        level = deeper
    if protected:
        logger.info("%d nodes in ZooKeeper had no ACL or another one, and got that of the user", protected)


async def _protect(ensemble: Ensemble, path: str) -> bool:
    """Protect one node; return whether it was not protected."""
    try:
        if await ensemble.is_protected(path):
            return False
        await ensemble.protect(path)
    except NoNode:
        return False  # deleted meanwhile
    return True


async def _children(ensemble: Ensemble, path: str) -> list[str]:
    try:
        names = await ensemble.children(path)
    except NoNode:
        return []
    return [f"{path.rstrip('/')}/{name}" for name in names]


OTHER_NODES = frozenset({"zookeeper", COPYING.strip("/")})
"""ZooKeeper's own, and that of a command whose copy has failed and whose session has not ended yet."""
KAFKA_NODES = frozenset(
    {"admin", "cluster", "config", "consumers", "controller_epoch", "isr_change_notification"}
)
NAMES_SHOWN = 8


class StoreFound(msgspec.Struct, frozen=True):
    """What ``/store`` says, and its creation zxid. :class:`StoreNode` describes the fields."""

    cluster_id: str
    created_zxid: int
    moved_to: str = ""
    copied_from: str = ""
    incarnations_above: int = 0

    @property
    def format(self) -> int:
        """The first one that has these fields."""
        if self.copied_from or self.incarnations_above:
            return 3
        return 2 if self.moved_to else 1

    def encoded(self) -> bytes:
        return msgspec.json.encode(
            StoreNode(self.format, self.cluster_id, self.moved_to, self.copied_from, self.incarnations_above)
        )

    def incarnation(self, node: Node) -> int:
        """Return the incarnation of the session that created a broker's node."""
        return self.incarnations_above + node.created_zxid


async def find_or_make(
    ensemble: Ensemble, hosts: str, cluster_id: str | None, entropy: Entropy
) -> StoreFound:
    """Return the store; create it if the tree is empty. ``cluster_id``: the id it must have, if known.

    Raises StoreRefused, StoreDamaged, Disconnected.
    """
    if not await is_there(ensemble, hosts):
        await _make(ensemble, cluster_id or new_id(entropy))
        if not await is_there(ensemble, hosts):
            raise StoreDamaged(f"the coordination store at {hosts} was deleted while it was opened")
    found = await find(ensemble, hosts, cluster_id)
    if found.copied_from:
        return found  # what is in it belongs to the command that copies
    for path, data in EMPTY_STORE:  # an earlier version created fewer nodes
        if await ensemble.exists(path) is None:
            await _create_if_absent(ensemble, path, data)
    if ensemble.protects:
        await protect_tree(ensemble)
    return found


async def find(ensemble: Ensemble, hosts: str, cluster_id: str | None) -> StoreFound:
    """Return the existing store. Raises StoreAbsent, StoreRefused, Disconnected."""
    try:
        node = await ensemble.get(STORE)
        found = msgspec.json.decode(node.data, type=StoreNode)
    except NoNode:
        raise StoreAbsent(f"{hosts} contains no coordination store") from None
    except msgspec.MsgspecError as error:
        raise StoreRefused(f"{STORE} at {hosts} is not a store's description: {error}") from error
    described = StoreFound(
        found.cluster_id, node.created_zxid, found.moved_to, found.copied_from, found.incarnations_above
    )
    if found.format > described.format:
        raise StoreRefused(
            f"the store at {hosts} has format {found.format}, but this version reads formats "
            f"up to {described.format}: upgrade nilometer"
        )
    if cluster_id is not None and found.cluster_id != cluster_id:
        raise StoreRefused(
            f"{hosts} belongs to cluster {found.cluster_id}, but this broker to cluster "
            f"{cluster_id}; give each cluster its own chroot, and each broker its own log.dirs"
        )
    return described


def incomplete_copy(hosts: str, found: StoreFound) -> StoreRefused:
    return StoreRefused(
        f"{hosts} has an incomplete copy of the metadata of {found.copied_from}: repeat the copy, or delete "
        "these nodes of ZooKeeper"
    )


async def write_moved(ensemble: Ensemble, found: StoreFound, moved_to: str, version: int | None) -> int:
    """Close the store, because ``moved_to`` has its content; "": open it again. Return the version of
    ``/store`` then. ``version``: the one that it must have before; None: any.

    Raises Disconnected, StoreDamaged.
    """
    noted = msgspec.structs.replace(found, moved_to=moved_to)
    try:
        before = await ensemble.get(STORE)
        target = decoded(STORE, before.data, StoreNode).moved_to
        if target and target != found.moved_to:
            raise StoreDamaged(f"another command copies the metadata to {target} at the same time")
        if version not in (None, before.version):
            raise StoreDamaged(f"another command has changed {STORE} meanwhile")
        await ensemble.set(STORE, noted.encoded(), before.version)
        return before.version + 1
    except (NoNode, BadVersion) as error:
        raise StoreDamaged(f"{STORE} was deleted or changed by another process") from error


async def is_there(ensemble: Ensemble, hosts: str) -> bool:
    """Return whether the tree has a store. Raises StoreRefused if it belongs to another system."""
    try:
        names = [name for name in await ensemble.children("/") if name not in OTHER_NODES]
    except NoNode:
        return False  # the chroot does not exist
    if STORE.strip("/") in names:
        return True
    if names:
        listed = ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")
        whose = "Apache Kafka's" if KAFKA_NODES & set(names) else "another application's"
        raise StoreRefused(
            f"the tree at {hosts} is {whose}: it contains {listed}, and no coordination store. Nothing was "
            "written. Give this cluster a chroot of its own, as in host:port,host:port/nilometer"
        )
    return False


async def _make(ensemble: Ensemble, cluster_id: str) -> None:
    await ensemble.ensure("/")
    steps: list[Step] = [Create(STORE, StoreFound(cluster_id, 0).encoded())]
    steps += [Create(path, data) for path, data in EMPTY_STORE]
    try:
        await ensemble.commit(steps)
    except NodeExists:
        pass  # another broker was faster, or the tree is not a store, which is checked next


async def _create_if_absent(ensemble: Ensemble, path: str, data: bytes) -> None:
    try:
        await ensemble.create(path, data)
    except NodeExists:
        pass  # created meanwhile


# The newest snapshot, in chunks that fit into a node, and the removal of the entries that it replaces.
#
# A reader always finds a complete snapshot: its chunks are written before the node ``/snapshot`` names them,
# and removed after that node names a newer snapshot.

SWEEP_AT_ONCE = 200


def in_chunks(number: int, data: bytes, swept: int, entropy: Entropy) -> tuple[SnapshotNode, list[Create]]:
    """Return the content of ``/snapshot`` for a snapshot, and the nodes to create before, one by one."""
    folder = f"{number:020d}.{new_id(entropy)}"
    chunks = [data[at : at + ENTRY_SIZE_MAX] for at in range(0, len(data), ENTRY_SIZE_MAX)]
    nodes = [Create(f"/snapshots/{folder}", b"")]
    nodes += [Create(chunk_path(folder, i), chunk) for i, chunk in enumerate(chunks)]
    return SnapshotNode(number=number, chunks=len(chunks), folder=folder, swept=swept), nodes


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
        node, chunks = in_chunks(number, data, old_node.swept, self._entropy)
        for chunk in chunks:
            await self._ensemble.create(chunk.path, chunk.data)
        try:
            await self._ensemble.set("/snapshot", msgspec.json.encode(node), old.version)
        except BadVersion:
            await self._remove(node.folder)
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
