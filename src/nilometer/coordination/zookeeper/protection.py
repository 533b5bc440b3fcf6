"""Gives the nodes of an existing store their ACL: those that were created without one, or got another one."""

from __future__ import annotations

import asyncio
import logging

from nilometer.coordination.zookeeper.ensemble import Ensemble, NoNode

logger = logging.getLogger(__name__)

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
