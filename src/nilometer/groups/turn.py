"""A turn of a group shard: one call, with the records and replies it collects. It has no actions."""

from __future__ import annotations

from typing import Never, TypeAlias

from nilometer.coordinators import effects, turn
from nilometer.groups.records import CoordinatorRecord
from nilometer.groups.requests import Reply

Effects: TypeAlias = effects.Effects[CoordinatorRecord, Reply, Never]


class Turn(turn.Turn[CoordinatorRecord, Reply, Never]):
    __slots__ = ()
