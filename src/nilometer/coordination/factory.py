"""Creating the store for a value of ``nilometer.coordination``.

local                             a local store in the default folder
local:/some/folder                a local store in that folder
zookeeper://host:port,…[/chroot]  a ZooKeeper ensemble
quorum:/log/directory             what a node of a metadata quorum has there: only to be read, by tools
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any, Protocol

from nilometer.coordination.copying import Source, Target
from nilometer.coordination.local import layout
from nilometer.coordination.local.copying import LocalSource, LocalTarget
from nilometer.coordination.local.store import LocalReader, LocalStore
from nilometer.coordination.store import CoordinationStore, Entry, Snapshot, StoreRefused
from nilometer.coordination.zookeeper.connect import (
    OPEN,
    ConnectString,
    ZooKeeperSecurity,
    parse_connect_string,
)
from nilometer.runtime import Disk, Runtime

if TYPE_CHECKING:
    from nilometer.coordination.zookeeper.store import ZooKeeperStore


def make_store(
    setting: str,
    runtime: Runtime,
    *,
    local_folder: str,
    session_timeout_ms: int = 6000,
    cluster_id: str | None = None,
    zookeeper: ZooKeeperSecurity = OPEN,
    create: bool = True,
) -> CoordinationStore:
    """Return a store that is not open yet. Raises StoreRefused if the setting is invalid.

    ``local_folder``: the default folder; ``cluster_id``: the id that the store must have, if known;
    ``zookeeper``: the credentials for ZooKeeper, if the store is there. Without ``create`` a missing store is
    not created: ``open`` raises StoreAbsent.
    """
    scheme, colon, rest = setting.partition(":")
    if scheme == "local" and (not colon or rest):
        folder = rest or local_folder
        return LocalStore(
            runtime, folder, session_timeout_ms=session_timeout_ms, cluster_id=cluster_id, create=create
        )
    if scheme == "zookeeper" and rest.startswith("//"):
        where = _parsed(setting, rest[2:])
        return _zookeeper_store(
            runtime,
            where,
            zookeeper,
            session_timeout_ms=session_timeout_ms,
            cluster_id=cluster_id,
            create=create,
        )
    raise _invalid(setting)


class StoreReader(Protocol):
    """The read operations of a store, for tools; CoordinationStore describes them."""

    async def read(self, from_number: int, limit: int) -> list[Entry]: ...

    async def read_snapshot(self) -> Snapshot | None: ...

    async def close(self) -> None: ...


async def open_reader(setting: str, runtime: Runtime, zookeeper: ZooKeeperSecurity = OPEN) -> StoreReader:
    """Open an existing store for reading, without a session. Raises StoreRefused if there is no store."""
    scheme, _, rest = setting.partition(":")
    if scheme == "local" and rest:
        return LocalReader(runtime.disk, rest)
    if scheme == "quorum" and rest:
        from nilometer.coordination.quorum.folder_reader import FolderReader  # loads the quorum

        return FolderReader(runtime.disk, rest)
    if scheme == "zookeeper" and rest.startswith("//"):
        where = _parsed(setting, rest[2:])
        store = _zookeeper_store(runtime, where, zookeeper, create=False, admits_moved=True)
        await store.open()
        return store
    raise _invalid(setting)


def is_moved(disk: Disk, folder: str) -> bool:
    """Whether a folder is a local store that is closed, because another store has its content. Blocks.

    Raises StoreRefused, StoreDamaged, OSError.
    """
    found = layout.describe(disk, folder)
    return found is not None and bool(found.moved_to)


def copy_source(setting: str, runtime: Runtime, zookeeper: ZooKeeperSecurity = OPEN) -> Source:
    """Return a store to copy from, not open yet. Raises StoreRefused if the setting is invalid."""
    scheme, _, rest = setting.partition(":")
    if scheme == "local" and rest:
        return LocalSource(runtime, posixpath.abspath(rest))
    if scheme == "quorum" and rest:
        from nilometer.coordination.quorum.copying import QuorumSource  # loads the quorum

        return QuorumSource(runtime, posixpath.abspath(rest))
    if scheme == "zookeeper" and rest.startswith("//"):
        from nilometer.coordination.zookeeper.copying import ZooKeeperSource

        where = _parsed(setting, rest[2:])
        store = _zookeeper_store(runtime, where, zookeeper, create=False, admits_moved=True)
        return ZooKeeperSource(store, f"zookeeper://{where}")
    raise _not_copied(setting)


def copy_target(
    setting: str, runtime: Runtime, node_id: int | None, zookeeper: ZooKeeperSecurity = OPEN
) -> Target:
    """Return a store to make by a copy, not open yet. Raises StoreRefused if the setting is invalid.

    ``node_id``: whose log directory that of a quorum is, if the directory does not say it.
    """
    scheme, _, rest = setting.partition(":")
    if scheme == "local" and rest:
        return LocalTarget(runtime, posixpath.abspath(rest))
    if scheme == "quorum" and rest:
        from nilometer.coordination.quorum.copying import QuorumTarget  # loads the quorum

        return QuorumTarget(runtime, posixpath.abspath(rest), node_id)
    if scheme == "zookeeper" and rest.startswith("//"):
        from nilometer.coordination.zookeeper.copying import ZooKeeperTarget
        from nilometer.coordination.zookeeper.kazoo_bridge import connector

        where = _parsed(setting, rest[2:])
        return ZooKeeperTarget(runtime, str(where), connector(where, zookeeper))
    raise _not_copied(setting)


def _not_copied(setting: str) -> StoreRefused:
    return StoreRefused(
        f"{setting} is no store: use local:/folder, quorum:/log/directory, or "
        "zookeeper://host:port,host:port/chroot"
    )


def _zookeeper_store(
    runtime: Runtime, where: ConnectString, security: ZooKeeperSecurity, **options: Any
) -> ZooKeeperStore:
    from nilometer.coordination.zookeeper.kazoo_bridge import zookeeper_store  # loads kazoo

    return zookeeper_store(runtime, where, security, **options)


def _parsed(setting: str, text: str) -> ConnectString:
    try:
        return parse_connect_string(text)
    except ValueError as error:
        raise StoreRefused(f"invalid value nilometer.coordination={setting}: {error}") from None


def _invalid(setting: str) -> StoreRefused:
    if setting.partition(":")[0] == "quorum":
        return StoreRefused(
            "the metadata is in a quorum of the brokers: this command cannot write it there. To read it, "
            "give the log directory of a node: quorum:/log/directory"
        )
    return StoreRefused(
        f"invalid value nilometer.coordination={setting}: use local, local:/folder, "
        "or zookeeper://host:port,host:port/chroot"
    )
