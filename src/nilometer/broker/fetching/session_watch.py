"""Notifies a fetch session of changes of its partitions, between and during fetches.

A session's *watch* is an object that is registered in the ``fetch_waiters`` of every partition of the
session, for as long as the session has the partition. A change marks the partition dirty in the session, and
is passed on to the waiting fetch, if there is one. So neither an idle partition nor a waiting fetch costs
anything, however many partitions a session has.
"""

from __future__ import annotations

from nilometer.broker.fetching.fetch_session import FetchSession, PartitionKey
from nilometer.broker.replicas.delayed_fetch import FetchWaiter, FetchWatchable


class SessionWatch:
    """Invariant: registered with exactly the partitions in ``_keys``, each of which the session has."""

    def __init__(self, session: FetchSession, *, for_replica: bool) -> None:
        self._session = session
        self.for_replica = for_replica
        self.fetch_waiters: dict[FetchWaiter, None] = {}
        """The waiting fetch of this session; one at most."""
        self._keys: dict[FetchWatchable, PartitionKey] = {}
        self._partitions: dict[PartitionKey, FetchWatchable] = {}
        session.watcher = self

    def watch(self, key: PartitionKey, partition: FetchWatchable) -> None:
        """Watch ``partition``, which ``key`` names now. It is another object than before if its topic was
        created again. A partition that has left the session meanwhile is not watched."""
        if key not in self._session.partitions or self._partitions.get(key) is partition:
            return
        self.forget(key)
        self._partitions[key] = partition
        self._keys[partition] = key
        partition.fetch_waiters[self] = None

    def on_readable(self, source: FetchWatchable, byte_count: int) -> None:
        self._session.mark_dirty(self._keys[source])
        for waiter in list(self.fetch_waiters):
            waiter.on_readable(source, byte_count)

    def on_watermark_advanced(self, source: FetchWatchable) -> None:
        self._session.mark_dirty(self._keys[source])
        for waiter in list(self.fetch_waiters):
            waiter.on_watermark_advanced(source)

    def complete(self, source: FetchWatchable) -> None:
        self._session.mark_dirty(self._keys[source])
        for waiter in list(self.fetch_waiters):
            waiter.complete(source)

    def forget(self, key: PartitionKey) -> None:
        partition = self._partitions.pop(key, None)
        if partition is not None:
            del self._keys[partition]
            partition.fetch_waiters.pop(self, None)


def watch_of(session: FetchSession, *, for_replica: bool) -> SessionWatch:
    """Return the session's watch; if it has none yet (at its first fetch), create it.

    ``for_replica``: whether the session's reader is a follower. A watch that exists keeps its own value.
    """
    if isinstance(session.watcher, SessionWatch):
        return session.watcher
    return SessionWatch(session, for_replica=for_replica)
