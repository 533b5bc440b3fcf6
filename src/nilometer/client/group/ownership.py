"""The partitions assigned to a consumer, and the user's callbacks when they change.

Adds and removes the consumer's positions around the callbacks: a partition is still assigned while the
callback for its revocation runs, and is assigned before the callback for its assignment runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.offsets.positions import Positions


class RebalanceListener:
    """The user's callbacks for assigned and revoked partitions; override them, as coroutines if needed.

    They run within ``poll``, ``unsubscribe`` or ``close``, and may commit and seek, but not poll. That call
    raises their exceptions, after it has changed the assignment.
    """

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Called after each rebalance with the newly assigned partitions, possibly none.

        With an eager assignor these are all assigned partitions.
        """

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Called before ``partitions`` are given up: the last chance to commit their offsets."""

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Called for partitions that another member may own already: a commit would fail.

        By default calls :meth:`on_partitions_revoked`.
        """
        return self.on_partitions_revoked(partitions)


class Ownership:
    def __init__(self, positions: Positions, on_changed: Callable[[Collection[str]], None]) -> None:
        """``on_changed`` is called with the topics of all assigned partitions after each change."""
        self.listener: RebalanceListener | None = None
        self.in_callback = False
        self.revocations = 0
        """How often partitions were given up."""
        self._positions = positions
        self._on_changed = on_changed

    def owned(self) -> list[TopicPartition]:
        return sorted(partition for partition, _ in self._positions.entries())

    async def give_up(self, partitions: Collection[TopicPartition], *, lost: bool = False) -> None:
        """Call the revocation callback (``lost``: the one for lost partitions) and remove ``partitions``.

        They are removed even if the callback raises; its exception is passed on.
        """
        going = sorted(partitions)
        if not going:
            return
        listener = self.listener
        try:
            if listener is not None:
                tell = listener.on_partitions_lost if lost else listener.on_partitions_revoked
                await self._call(tell, going)
        finally:
            self.revocations += 1
            self._assign([one for one in self.owned() if one not in partitions])

    async def take(self, partitions: Collection[TopicPartition]) -> None:
        """Assign ``partitions``, which include all owned ones, and call the callback with the new ones."""
        owned = self.owned()
        added = sorted(set(partitions) - set(owned))
        self._assign(sorted(partitions))
        if self.listener is not None:
            await self._call(self.listener.on_partitions_assigned, added)

    def _assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._positions.assign(partitions)
        self._on_changed({partition.topic for partition in partitions})

    async def _call(self, callback: Callable[..., Any], partitions: Sequence[TopicPartition]) -> None:
        self.in_callback = True
        try:
            result = callback(partitions)
            if inspect.isawaitable(result):
                await result
        finally:
            self.in_callback = False
