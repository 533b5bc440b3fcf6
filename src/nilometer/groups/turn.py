"""A turn of a group shard: one call, with the records, replies and notes it collects."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from nilometer.coordinators import effects, turn
from nilometer.groups.records import CoordinatorRecord
from nilometer.groups.requests import Reply


class RebalanceNote(msgspec.Struct, frozen=True):
    """An action of a group shard: write to the log that a group rebalances, and why."""

    group_id: str
    generation: int
    """The generation before the rebalance; of a consumer group its new group epoch."""
    cause: str


Effects: TypeAlias = effects.Effects[CoordinatorRecord, Reply, RebalanceNote]


class Turn(turn.Turn[CoordinatorRecord, Reply, RebalanceNote]):
    __slots__ = ()
