"""What a group shard waits for, by kind."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from nilometer.coordinators import timers


class TimerKind(Enum):
    CLASSIC_HEARTBEAT = auto()
    """A member, or a pending one, has sent no request for its session timeout."""
    CLASSIC_JOIN = auto()
    """Members that have not rejoined by now are removed."""
    CLASSIC_INITIAL_JOIN = auto()
    """The initial rebalance delay is over, or is drawn out."""
    CLASSIC_SYNC = auto()
    """Members that have not asked for their assignment by now are removed."""
    CONSUMER_SESSION = auto()
    CONSUMER_REBALANCE = auto()
    """A member must revoke partitions and has not confirmed that yet."""
    CONSUMER_JOIN = auto()
    """A member of the classic protocol must rejoin."""
    CONSUMER_SYNC = auto()
    """A member of the classic protocol has joined and is to ask for its assignment."""
    CONSUMER_ASSIGNMENT = auto()
    CONSUMER_REGEX = auto()
    OFFSETS_EXPIRY = auto()
    OFFSETS_PURGE = auto()
    """More offsets of deleted topics are to go than fit into one batch."""


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
