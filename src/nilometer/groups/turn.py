"""A turn of a group shard: one call, with the records, replies and notes it collects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias
from uuid import UUID

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


class AssignmentNeeded(msgspec.Struct, frozen=True):
    """An action of a group shard: compute a target assignment that takes long, and pass it to
    ``GroupShard.on_computed``."""

    group_id: str
    epoch: int
    """The group epoch that it is for."""
    compute: Callable[[], Mapping[str, Mapping[UUID, frozenset[int]]]]
    """Returns, by member id, the partitions of each topic. Any thread may call it: it shares nothing with the
    shard."""


class MatchesNeeded(msgspec.Struct, frozen=True):
    """An action of a group shard: match a regular expression against many topic names, and pass those that
    match to ``GroupShard.on_computed``."""

    group_id: str
    regex: str
    names: frozenset[str]
    """All topics' names at that time."""
    kept: frozenset[str]
    """Names that are known to match."""
    compute: Callable[[], frozenset[str]]
    """Returns which of the other names match. Any thread may call it."""


Computation: TypeAlias = AssignmentNeeded | MatchesNeeded
GroupAction: TypeAlias = RebalanceNote | Computation
Effects: TypeAlias = effects.Effects[CoordinatorRecord, Reply, GroupAction]


class Turn(turn.Turn[CoordinatorRecord, Reply, GroupAction]):
    __slots__ = ()
