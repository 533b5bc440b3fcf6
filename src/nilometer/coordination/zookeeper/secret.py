"""The cluster's secret in a separate node, whose *version* is the secret's number."""

from __future__ import annotations

from nilometer.coordination.store import OutcomeUnknown, StoredSecret
from nilometer.coordination.zookeeper.ensemble import (
    BadVersion,
    Disconnected,
    Ensemble,
    NodeExists,
    NoNode,
)

PATH = "/secret"


async def read_secret(bridge: Ensemble) -> StoredSecret | None:
    """Return the newest secret, None if there is none. Raises Disconnected."""
    try:
        node = await bridge.get(PATH)
    except NoNode:
        return None
    return StoredSecret(node.version, node.data)


async def put_secret(bridge: Ensemble, number: int, data: bytes) -> bool:
    """Store the secret with this number; return False if it is not the next one. Raises OutcomeUnknown."""
    try:
        if number == 0:
            await bridge.create(PATH, data)
        else:
            await bridge.set(PATH, data, number - 1)
    except (NodeExists, NoNode, BadVersion):
        return False
    except Disconnected as error:
        raise OutcomeUnknown(f"it is not known whether secret {number} was written: {error}") from error
    return True
