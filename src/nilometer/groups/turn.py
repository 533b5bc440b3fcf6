"""One call of a group shard, and what comes of it. A group shard asks for no actions."""

from __future__ import annotations

from typing import Never, TypeAlias

from nilometer.coordinators import effects, turn
from nilometer.groups.records import CoordinatorRecord
from nilometer.groups.requests import Reply

Effects: TypeAlias = effects.Effects[CoordinatorRecord, Reply, Never]


class Turn(turn.Turn[CoordinatorRecord, Reply, Never]):
    __slots__ = ()
