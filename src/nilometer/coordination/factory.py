"""From the value of ``nilometer.coordination`` to a store.

local                             the folder given as default
local:/some/folder                that folder
zookeeper://host:port,…[/chroot]  an ensemble
"""

from __future__ import annotations

from nilometer.coordination.local import LocalStore
from nilometer.coordination.store import CoordinationStore, StoreRefused
from nilometer.runtime import Runtime


def make_store(
    setting: str,
    runtime: Runtime,
    *,
    local_folder: str,
    session_timeout_ms: int = 6000,
    cluster_id: str | None = None,
) -> CoordinationStore:
    """A store, not yet open. Raises StoreRefused where the setting cannot be understood."""
    scheme, colon, rest = setting.partition(":")
    if scheme == "local" and (not colon or rest):
        folder = rest or local_folder
        return LocalStore(runtime, folder, session_timeout_ms=session_timeout_ms, cluster_id=cluster_id)
    if scheme == "zookeeper" and rest.startswith("//") and len(rest) > 2:
        from nilometer.coordination.zookeeper import ZooKeeperStore  # kazoo is loaded where it is used only

        return ZooKeeperStore(runtime, rest[2:], session_timeout_ms=session_timeout_ms, cluster_id=cluster_id)
    raise StoreRefused(
        f"nilometer.coordination={setting} is not understood; say local, local:/folder "
        "or zookeeper://host:port,host:port/chroot"
    )
