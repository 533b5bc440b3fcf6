"""A store in ZooKeeper whose client is kazoo, for brokers and tools that run outside a simulation.

It alone imports the bridge to kazoo: a broker with another store starts without that library.
"""

from __future__ import annotations

from nilometer.coordination.store import StoreRefused
from nilometer.coordination.zookeeper.connect import ConnectString, ZooKeeperSecurity
from nilometer.coordination.zookeeper.ensemble import Connect
from nilometer.coordination.zookeeper.kazoo_bridge import KazooBridge
from nilometer.coordination.zookeeper.store import ZooKeeperStore
from nilometer.runtime import Runtime
from nilometer.runtime.tls import TlsUnusable, client_context


def zookeeper_store(
    runtime: Runtime,
    where: ConnectString,
    security: ZooKeeperSecurity,
    *,
    session_timeout_ms: int = 6000,
    cluster_id: str | None = None,
    create: bool = True,
) -> ZooKeeperStore:
    """Return the store at ``where``, not open yet; :class:`ZooKeeperStore` describes the arguments.

    Raises StoreRefused if the credentials cannot be used.
    """
    return ZooKeeperStore(
        runtime,
        str(where),
        _connect(where, security),
        session_timeout_ms=session_timeout_ms,
        cluster_id=cluster_id,
        create=create,
    )


def _connect(where: ConnectString, security: ZooKeeperSecurity) -> Connect:
    """Raises StoreRefused if keys or certificates cannot be used."""
    if security.set_acl and not where.chroot:
        raise StoreRefused(
            f"zookeeper.set.acl needs a chroot, as in {where}/nilometer: the root of ZooKeeper's tree, "
            "which others use too, keeps its own ACL"
        )
    try:
        if security.tls is not None:
            client_context(security.tls)
    except TlsUnusable as error:
        raise StoreRefused(f"the connection to ZooKeeper has TLS, but {error}") from None
    return lambda timeout_ms, on_connected, on_lost: KazooBridge(
        where, timeout_ms, on_connected, on_lost, security
    )
