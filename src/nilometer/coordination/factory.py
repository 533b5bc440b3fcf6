"""From the value of ``nilometer.coordination`` to a store.

local                             the folder given as default
local:/some/folder                that folder
zookeeper://host:port,…[/chroot]  an ensemble
"""

from __future__ import annotations

from typing import Protocol

from nilometer.coordination.connect_string import ConnectString, parse_connect_string
from nilometer.coordination.local import LocalStore
from nilometer.coordination.local.reader import LocalReader
from nilometer.coordination.store import CoordinationStore, Entry, Snapshot, StoreRefused
from nilometer.coordination.zookeeper import ZooKeeperStore
from nilometer.coordination.zookeeper.ensemble import Connect
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
    if scheme == "zookeeper" and rest.startswith("//"):
        where = _parsed(setting, rest[2:])
        return ZooKeeperStore(
            runtime,
            str(where),
            _connect(where),
            session_timeout_ms=session_timeout_ms,
            cluster_id=cluster_id,
        )
    raise _not_understood(setting)


class StoreReader(Protocol):
    """The read operations of a store, for tools: see CoordinationStore for their meaning."""

    async def read(self, from_number: int, limit: int) -> list[Entry]: ...

    async def read_snapshot(self) -> Snapshot | None: ...

    async def close(self) -> None: ...


async def open_reader(setting: str, runtime: Runtime) -> StoreReader:
    """Read a store without a session, creating nothing. Raises StoreRefused where there is none."""
    scheme, _, rest = setting.partition(":")
    if scheme == "local" and rest:
        return LocalReader(runtime.disk, rest)
    if scheme == "zookeeper" and rest.startswith("//"):
        where = _parsed(setting, rest[2:])
        store = ZooKeeperStore(runtime, str(where), _connect(where), create=False)
        await store.open()
        return store
    raise _not_understood(setting)


def _connect(where: ConnectString) -> Connect:
    from nilometer.coordination.zookeeper.kazoo_bridge import KazooBridge  # loaded only where it is used

    return lambda timeout_ms, on_connected, on_lost: KazooBridge(where, timeout_ms, on_connected, on_lost)


def _parsed(setting: str, text: str) -> ConnectString:
    try:
        return parse_connect_string(text)
    except ValueError as error:
        raise StoreRefused(f"nilometer.coordination={setting} is not understood: {error}") from None


def _not_understood(setting: str) -> StoreRefused:
    return StoreRefused(
        f"nilometer.coordination={setting} is not understood; say local, local:/folder "
        "or zookeeper://host:port,host:port/chroot"
    )
