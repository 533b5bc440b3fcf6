"""The store for several machines: an ensemble of ZooKeeper servers, with the client library kazoo."""

from nilometer.coordination.zookeeper.session import ZooKeeperSession
from nilometer.coordination.zookeeper.store import ZooKeeperStore

__all__ = ["ZooKeeperSession", "ZooKeeperStore"]
