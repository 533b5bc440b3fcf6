"""Opening the store: find it, or create it in an empty tree; reject a tree of another system.

The nodes of an empty store are created in one transaction: a tree with nodes but without ``/store`` is not a
store.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from nilometer.coordination.store import StoreAbsent, StoreDamaged, StoreRefused, new_id
from nilometer.coordination.zookeeper.ensemble import Create, Ensemble, NodeExists, NoNode, Step
from nilometer.coordination.zookeeper.layout import EMPTY_STORE, FORMAT, STORE, StoreNode
from nilometer.runtime import Entropy

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


ZOOKEEPER_NODE = "zookeeper"
KAFKA_NODES = frozenset(
    {"admin", "cluster", "config", "consumers", "controller_epoch", "isr_change_notification"}
)
NAMES_SHOWN = 8


class StoreFound(msgspec.Struct, frozen=True):
    cluster_id: str
    created_zxid: int


async def find_or_make(
    ensemble: Ensemble, hosts: str, cluster_id: str | None, entropy: Entropy
) -> StoreFound:
    """Return the store; create it if the tree is empty. ``cluster_id``: the id it must have, if known.

    Raises StoreRefused, StoreDamaged, Disconnected.
    """
    if not await _is_there(ensemble, hosts):
        await _make(ensemble, cluster_id or new_id(entropy))
        if not await _is_there(ensemble, hosts):
            raise StoreDamaged(f"the coordination store at {hosts} was deleted while it was opened")
    found = await find(ensemble, hosts, cluster_id)
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
    if found.format > FORMAT:
        raise StoreRefused(
            f"the store at {hosts} has format {found.format}, but this version reads formats "
            f"up to {FORMAT}: upgrade nilometer"
        )
    if cluster_id is not None and found.cluster_id != cluster_id:
        raise StoreRefused(
            f"{hosts} belongs to cluster {found.cluster_id}, but this broker to cluster "
            f"{cluster_id}; give each cluster its own chroot, and each broker its own log.dirs"
        )
    return StoreFound(found.cluster_id, node.created_zxid)


async def _is_there(ensemble: Ensemble, hosts: str) -> bool:
    """Return whether the tree has a store. Raises StoreRefused if it belongs to another system."""
    try:
        names = [name for name in await ensemble.children("/") if name != ZOOKEEPER_NODE]
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
    steps: list[Step] = [Create(STORE, msgspec.json.encode(StoreNode(FORMAT, cluster_id)))]
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
