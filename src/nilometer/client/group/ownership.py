"""Which partitions a member has, and telling its user when they come and go.

The place where an assignment meets the consumer: positions are made and dropped here, around the user's
callbacks, in this order: a partition is still assigned while the callback for its revocation runs, and is
assigned before the callback for its assignment runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.offsets.positions import Positions


class RebalanceListener:
    """Called when partitions are assigned and revoked; its methods may be coroutines. To be subclassed.

    They are called from within ``poll`` (``unsubscribe``, ``close``) and may commit and seek, but not poll.
    What they raise comes out of that call, once the rebalance is done with.
    """

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """New ones (all of them, with an eager assignor), after each rebalance, be there any or not."""

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """About to go: the last moment to commit."""

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Gone already, and perhaps another's: it is too late to commit. By default as if revoked."""
        return self.on_partitions_revoked(partitions)


class Ownership:
    def __init__(self, positions: Positions, on_changed: Callable[[Collection[str]], None]) -> None:
        """``on_changed`` is called with the topics that are assigned now."""
        self.listener: RebalanceListener | None = None
        self.in_callback = False
        self.revocations = 0
        """How often partitions were given up."""
        self._positions = positions
        self._on_changed = on_changed

    def owned(self) -> list[TopicPartition]:
        return sorted(partition for partition, _ in self._positions.entries())

    async def give_up(self, partitions: Collection[TopicPartition], *, lost: bool = False) -> None:
        """Tell the user and let them go. Raises what the callback raises, with the partitions gone."""
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
        """Have exactly ``partitions`` from now on, which include all that are owned; tell what is new."""
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
