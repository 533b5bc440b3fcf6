"""What the parts of one shard share: a turn, the timers, the groups, and the interface of a group of either
protocol.

A turn is one call of the shard, with the records, results and notes that it collects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from nilometer import coordinators
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.coordinators import Token
from nilometer.groups.records import CoordinatorRecord
from nilometer.groups.requests import (
    ConsumerGroupHeartbeat,
    DescribedConsumerGroup,
    GroupResult,
    Heartbeat,
    HeldBytes,
    JoinGroup,
    LeaveGroup,
    ListedGroup,
    OffsetCommit,
    OffsetFetch,
    SyncGroup,
)
from nilometer.groups.settings import GroupConfig, config_of_group
from nilometer.groups.topics import Assignment, Topics
from nilometer.wire.errors import ErrorCode


class TimerKey(NamedTuple):
    kind: Enum
    """Of an enumeration of the timers of one kind of group, or of offsets."""
    group_id: str = ""
    member_id: str = ""


Timers: TypeAlias = coordinators.Timers[TimerKey]


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
    compute: Callable[[], Mapping[str, object]]
    """Returns, by member id, the partitions of each topic; the tasks, in a streams group. Any thread may call
    it: it shares nothing with the shard."""


A = TypeVar("A")
"""What a member is assigned."""

WRITTEN_AT_ONCE_MAX: Final = 1_000
"""So many members, and topics and partitions of those whose assignment changes, are written in one turn."""


class UnwrittenTarget(Generic[A]):
    """A target assignment that was computed outside of the shard: each turn writes a part of it.

    Until the last one writes the assignment epoch, the group is Assigning, and a coordinator that takes over
    computes the target again.
    """

    __slots__ = ("_left", "_weigh", "assigned", "epoch")

    def __init__(self, epoch: int, assigned: Mapping[str, A], weigh: Callable[[A], int]) -> None:
        """``weigh``: returns how many topics, partitions and tasks a member's assignment has."""
        self._weigh = weigh
        self.epoch = epoch
        """The group epoch that it is for."""
        self.assigned = assigned
        self._left = deque(assigned.items())

    @property
    def is_written(self) -> bool:
        """Whether only the assignment epoch is left."""
        return not self._left

    def next_part(self, members: Container[str], target: Mapping[str, A]) -> Iterator[tuple[str, A]]:
        """Yield the next members that are still there and have another assignment, each with its new one."""
        weight = 0
        while self._left and weight < WRITTEN_AT_ONCE_MAX:
            member_id, assignment = self._left.popleft()
            weight += 1
            if member_id in members and target.get(member_id) != assignment:
                yield member_id, assignment
                weight += self._weigh(assignment)


class GroupWithTarget(Protocol[A]):
    unwritten: UnwrittenTarget[A] | None
    assigning_epoch: int | None

    @property
    def members(self) -> Mapping[str, object]: ...

    @property
    def target(self) -> Mapping[str, A]: ...

    @property
    def assignment_epoch(self) -> int: ...


class TargetWriter(Protocol[A]):
    """Writes the records of a group."""

    @property
    def group(self) -> GroupWithTarget[A]: ...

    @property
    def turn(self) -> Turn: ...

    def target(self, member_id: str, assignment: A, /) -> None: ...

    def assignment_epoch(self, epoch: int, wall_ms: int) -> None: ...


def write_on(writer: TargetWriter[A]) -> bool:
    """Write the next part of a group's target; return whether there is more of it.

    Unchanged members get no record, and those that have left no target; those that have joined get theirs
    with the next one. If a static member has been replaced since, or all have left, the target is given up: a
    successor has the former target already.
    """
    group, target = writer.group, writer.group.unwritten
    if target is None:
        return False
    if target.epoch > group.assignment_epoch and not any(
        group.target.get(member_id) for member_id in group.members.keys() - target.assigned.keys()
    ):
        for member_id, assignment in target.next_part(group.members, group.target):
            writer.target(member_id, assignment)
        if not target.is_written:
            return True
        writer.assignment_epoch(target.epoch, writer.turn.wall_ms)
    group.unwritten = group.assigning_epoch = None
    return False


def partition_count(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


class MatchesNeeded(msgspec.Struct, frozen=True):
    """An action of a group shard: match regular expressions against topic names, and pass those that match to
    ``GroupShard.on_computed``."""

    group_id: str
    kept: Mapping[str, frozenset[str]]
    """By expression, the names that are known to match."""
    names: frozenset[str]
    """All topics' names at that time."""
    compute: Callable[[], Mapping[str, frozenset[str]]]
    """Returns, by expression, which of the other names match. Any thread may call it."""
    weight: int
    """How much it takes, as ``match_weight`` says."""


class InitializeShareState(msgspec.Struct, frozen=True):
    """An action of a group shard: have the share coordinator begin a state for partitions of a share group
    (KIP-932), and pass its answer to ``GroupShard.on_share_state``."""

    group_id: str
    state_epoch: int
    """The group epoch: it fences those that use an earlier state."""
    topics: Mapping[UUID, Mapping[int, int]]
    """The start offset of each partition; or -1: ``share.auto.offset.reset`` of the group decides."""


class DeleteShareState(msgspec.Struct, frozen=True):
    """An action of a group shard: have the share coordinator delete the state of partitions of a share group,
    and pass its answer to ``GroupShard.on_share_state``."""

    group_id: str
    topics: Mapping[UUID, frozenset[int]]


class ShareStateResult(msgspec.Struct, frozen=True):
    """The share coordinator's answer to an action."""

    action: InitializeShareState | DeleteShareState
    errors: Mapping[UUID, Mapping[int, ErrorCode]] = msgspec.field(
        default_factory=dict[UUID, Mapping[int, ErrorCode]]
    )
    """Those of the partitions for which it failed."""

    @classmethod
    def failed(cls, action: InitializeShareState | DeleteShareState, error: ErrorCode) -> ShareStateResult:
        """Return the result of an action that failed for all its partitions."""
        return cls(
            action, {topic_id: dict.fromkeys(found, error) for topic_id, found in action.topics.items()}
        )


ShareStateAction: TypeAlias = InitializeShareState | DeleteShareState
Computation: TypeAlias = AssignmentNeeded | MatchesNeeded
GroupAction: TypeAlias = RebalanceNote | Computation | ShareStateAction
Effects: TypeAlias = coordinators.Effects[CoordinatorRecord, GroupResult, GroupAction]


class Turn(coordinators.Turn[CoordinatorRecord, GroupResult, GroupAction]):
    __slots__ = ()


class RetentionStart(msgspec.Struct, frozen=True):
    """The time from which the retention of a group's offsets is counted."""

    wall_ms: int | None
    """Since the epoch; None: for each offset, the time of its commit."""


SINCE_COMMIT = RetentionStart(None)


class Group(Protocol):
    @property
    def group_id(self) -> str: ...

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members: it may be deleted."""
        ...

    @property
    def is_replaceable(self) -> bool:
        """Whether a classic group with the same id may take the place of this one."""
        ...

    def check_offset_commit(self, request: OffsetCommit) -> ErrorCode:
        """Check that the sender is a member of this generation, or may commit without being one."""
        ...

    def check_offset_fetch(self, request: OffsetFetch) -> ErrorCode: ...

    def check_offset_delete(self) -> ErrorCode: ...

    def check_delete(self) -> ErrorCode: ...

    def subscription(self) -> Callable[[str], bool]:
        """Return what says of a topic whether a member is subscribed to it, or may be: its offsets neither
        expire nor may be deleted. To make it takes some milliseconds; it holds until the group changes."""
        ...

    def retention_start(self) -> RetentionStart | None:
        """Return from when the retention of offsets is counted; None if none may expire in this state."""
        ...

    def tombstones(self) -> list[CoordinatorRecord]:
        """Return the tombstones of all records of the group, except its offsets."""
        ...

    def listed(self) -> ListedGroup: ...

    def metadata_bytes(self) -> int:
        """Return how much memory is taken by what the members have sent of themselves, about: a sum that is
        kept, since it is asked for after each request of a member."""
        ...


def unlimited(size: int) -> bool:
    return True


class ShardState(msgspec.Struct):
    config: GroupConfig
    """The broker's settings; `config_of` has those in force for one group."""
    new_member_id: Callable[[str], str]
    """Makes a unique member id from a client id or a group instance id."""
    image: ClusterImage
    topics: Topics
    """Those of ``image``."""
    groups: dict[str, Group] = msgspec.field(default_factory=dict[str, Group])
    """By group id."""
    timers: Timers = msgspec.field(default_factory=Timers)
    has_room: Callable[[int], bool] = unlimited
    """Whether the broker has room for so many bytes more that stay in memory."""
    held: HeldBytes = msgspec.field(default_factory=HeldBytes)
    """By group id, what the members hold; groups without members are not in it."""

    def count(self, group_id: str) -> None:
        """Count again what the members of one group hold, if there is such a group: they may have changed."""
        group = self.groups.get(group_id)
        size = 0 if group is None else group.metadata_bytes()
        if size:
            self.held.note(group_id, size)
        else:
            self.held.forget(group_id)

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

    def on_loaded(self, turn: Turn) -> Iterator[int]:
        """Start the timers, in steps."""
        ...

    def on_computed(self, turn: Turn, needed: Computation, result: Any) -> None:
        """Process what ``needed.compute`` has returned, outside of the shard."""
        ...

    def on_timer(self, turn: Turn, key: TimerKey) -> None:
        """Process a timer that is due, a ``ConsumerTimer``."""
        ...

    def heartbeat(self, turn: Turn, token: Token, request: ConsumerGroupHeartbeat) -> None:
        """Process a heartbeat; it may create the group, or upgrade a classic group."""
        ...

    def describe(self, group_id: str) -> DescribedConsumerGroup: ...

    def classic_join(self, turn: Turn, token: Token, request: JoinGroup) -> None: ...

    def classic_sync(self, turn: Turn, token: Token, request: SyncGroup) -> None: ...

    def classic_heartbeat(self, turn: Turn, token: Token, request: Heartbeat) -> None: ...

    def classic_leave(self, turn: Turn, token: Token, request: LeaveGroup) -> None: ...
