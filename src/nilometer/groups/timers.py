"""The timers of a group shard, by kind."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from nilometer.coordinators import timers


class TimerKind(Enum):
    CLASSIC_HEARTBEAT = auto()
    """The session timeout of a member, or of one that has an id but has not joined yet."""
    CLASSIC_JOIN = auto()
    """The end of the join phase: members that have not rejoined are removed."""
    CLASSIC_INITIAL_JOIN = auto()
    """The end of the initial rebalance delay, which may then be extended."""
    CLASSIC_SYNC = auto()
    """The end of the sync phase: members that have sent no SyncGroup are removed."""
    CONSUMER_SESSION = auto()
    CONSUMER_REBALANCE = auto()
    """Until when a member must confirm that it has revoked partitions."""
    CONSUMER_JOIN = auto()
    """Until when a member of the classic protocol must rejoin."""
    CONSUMER_SYNC = auto()
    """Until when a member of the classic protocol that has joined must send SyncGroup."""
    CONSUMER_ASSIGNMENT = auto()
    CONSUMER_REGEX = auto()
    OFFSETS_EXPIRY = auto()
    OFFSETS_PURGE = auto()
    """More offsets of deleted topics are to be removed than fit into one batch."""


CLASSIC_KINDS = frozenset(
    {
        TimerKind.CLASSIC_HEARTBEAT,
        TimerKind.CLASSIC_JOIN,
        TimerKind.CLASSIC_INITIAL_JOIN,
        TimerKind.CLASSIC_SYNC,
    }
)


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


Timers: TypeAlias = timers.Timers[TimerKey]
