"""What the parts of one shard share, and what the shard asks of the part for consumer groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from nilometer.cluster.image import ClusterImage
from nilometer.coordinators.effects import Token
from nilometer.groups.config import GroupConfig
from nilometer.groups.group import Group
from nilometer.groups.records import CoordinatorRecord
from nilometer.groups.requests import (
    ConsumerGroupHeartbeat,
    DescribedConsumerGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)
from nilometer.groups.timers import TimerKey, Timers
from nilometer.groups.turn import Turn


@dataclass(slots=True)
class ShardState:
    config: GroupConfig
    new_member_id: Callable[[str], str]
    """From a client id, or a group instance id: a member id that no other member has."""
    image: ClusterImage
    groups: dict[str, Group] = field(default_factory=dict[str, Group])
    """Both types: a group id belongs to one of them at a time."""
    timers: Timers = field(default_factory=Timers)


class ConsumerGroupHandler(Protocol):
    """Groups of the protocol of KIP-848, as the shard sees them; built from the ShardState.

    A classic member's requests come here when the group found under their id is a consumer group; a JoinGroup
    only if it has members (an empty one is turned into a classic group first).
    """

    def replay(self, record: CoordinatorRecord) -> None:
        """Folds a record of key type 3 to 8 or 16; while loading, and with what was written live."""
        ...

    def on_loaded(self, turn: Turn) -> None: ...

    def on_image(self, turn: Turn) -> None: ...

    def on_timer(self, turn: Turn, key: TimerKey) -> None:
        """One of the kinds whose name begins with CONSUMER."""
        ...

    def heartbeat(self, turn: Turn, token: Token, request: ConsumerGroupHeartbeat) -> None:
        """Whatever the group is at present: this may found it, or take over a classic group."""
        ...

    def describe(self, group_id: str) -> DescribedConsumerGroup: ...

    def classic_join(self, turn: Turn, token: Token, request: JoinGroup) -> None: ...

    def classic_sync(self, turn: Turn, token: Token, request: SyncGroup) -> None: ...

    def classic_heartbeat(self, turn: Turn, token: Token, request: Heartbeat) -> None: ...

    def classic_leave(self, turn: Turn, token: Token, request: LeaveGroup) -> None: ...
