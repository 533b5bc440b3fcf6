"""The state that the parts of one shard share, and the interface of the part for consumer groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.coordinators.effects import Token
from nilometer.groups.config import GroupConfig
from nilometer.groups.group import Group
from nilometer.groups.group_settings import config_of_group
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
from nilometer.groups.turn import Computation, Turn


class ShardState(msgspec.Struct):
    config: GroupConfig
    """The broker's settings; `config_of` has those in force for one group."""
    new_member_id: Callable[[str], str]
    """Makes a unique member id from a client id or a group instance id."""
    image: ClusterImage
    groups: dict[str, Group] = msgspec.field(default_factory=dict[str, Group])
    """Classic and consumer groups, by group id."""
    timers: Timers = msgspec.field(default_factory=Timers)

    def config_of(self, group_id: str) -> GroupConfig:
        """Return the settings in force for the group: its own, else the broker's."""
        texts = self.image.config(ConfigResourceType.GROUP, group_id)
        return config_of_group(self.config, texts) if texts else self.config


class ConsumerGroupHandler(Protocol):
    """Handles requests to groups of the consumer protocol (KIP-848).

    A classic member's requests come here if their group is a consumer group; a JoinGroup only if the group
    has members (an empty one is replaced by a classic group first).
    """

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply a record of key type 3 to 8 or 16, while loading."""
        ...

    def on_loaded(self, turn: Turn) -> None: ...

    def on_image(self, turn: Turn) -> None: ...

    def on_computed(self, turn: Turn, needed: Computation, result: Any) -> None:
        """Process what ``needed.compute`` has returned, outside of the shard."""
        ...

    def on_timer(self, turn: Turn, key: TimerKey) -> None:
        """Process a timer that is due, of one of the kinds whose name begins with CONSUMER."""
        ...

    def heartbeat(self, turn: Turn, token: Token, request: ConsumerGroupHeartbeat) -> None:
        """Process a heartbeat; it may create the group, or upgrade a classic group."""
        ...

    def describe(self, group_id: str) -> DescribedConsumerGroup: ...

    def classic_join(self, turn: Turn, token: Token, request: JoinGroup) -> None: ...

    def classic_sync(self, turn: Turn, token: Token, request: SyncGroup) -> None: ...

    def classic_heartbeat(self, turn: Turn, token: Token, request: Heartbeat) -> None: ...

    def classic_leave(self, turn: Turn, token: Token, request: LeaveGroup) -> None: ...
