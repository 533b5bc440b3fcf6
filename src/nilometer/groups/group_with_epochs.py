"""What the kinds of groups have in common whose members send heartbeats, and whose coordinator assigns: the
state of one group, the records that a turn writes of it, and the groups of one kind in a shard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from nilometer.groups.records import (
    CoordinatorRecord,
    GroupMetadataKey,
    OffsetCommitKey,
    RecordKey,
    RecordValue,
)
from nilometer.groups.requests import HeldBytes, ListedGroup
from nilometer.groups.turn import Group, ShardState, Turn
from nilometer.wire.errors import ErrorCode, KafkaError

DELETED_EPOCH: Final = -1
FIRST_EPOCH: Final = 1
"""The epoch of a group before its first member, and of its target assignment, so that the first member gets
an epoch above 0."""

MemberT = TypeVar("MemberT")
AssignmentT = TypeVar("AssignmentT")


class GroupWithEpochs(ABC, Generic[MemberT, AssignmentT]):
    """One group. Callers must not change its fields, except soft state."""

    kind: str
    """The name of its type and of its protocol."""
    noun: str = "Group"
    """What the error for one that does not exist calls it, as Kafka's does."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = FIRST_EPOCH
        self.metadata_hash = 0
        """The hash of the topics that the members read when the group epoch was last raised."""
        self.members: dict[str, MemberT] = {}
        self.target: dict[str, AssignmentT] = {}
        self.assignment_epoch = FIRST_EPOCH
        """The group epoch that the target assignment was made for."""
        self.assignment_timestamp = 0
        self.assigning_epoch: int | None = None
        """Soft state: the group epoch for which a target assignment is being computed, or written; None: for
        none."""
        self.metadata_version_seen = -1
        """Soft state: the ``Topics.version`` at which the topics were last looked at."""
        self._held = HeldBytes()

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_replaceable(self) -> bool:
        return self.is_empty

    @property
    @abstractmethod
    def state(self) -> str:
        """Kafka's name of the state."""

    @abstractmethod
    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member is subscribed to ``topic``."""

    def subscription(self) -> Callable[[str], bool]:
        return self.is_subscribed_to

    def check_delete(self) -> ErrorCode:
        return ErrorCode.non_empty_group if self.members else ErrorCode.none

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, self.kind, self.state, self.kind)

    def metadata_bytes(self) -> int:
        return self._held.total

    def tombstones(self) -> list[CoordinatorRecord]:
        """Return the tombstones of all records of the group: assignments first, then members, then the group,
        so that a reader of only a part of them has a consistent group."""
        return [CoordinatorRecord(key, None) for key in self._keys()]

    @abstractmethod
    def _keys(self) -> Iterator[RecordKey]: ...

    @abstractmethod
    def apply(self, record: CoordinatorRecord) -> None:
        """Apply one record of this group. A tombstone of an unknown key changes nothing."""

    def _apply_assignment_epoch(self, value: AssignmentEpoch | None) -> None:
        self.assignment_epoch = DELETED_EPOCH if value is None else value.assignment_epoch
        self.assignment_timestamp = 0 if value is None else value.assignment_timestamp


class AssignmentEpoch(Protocol):
    """The value of a record: the epoch and the time of a target assignment."""

    @property
    def assignment_epoch(self) -> int: ...

    @property
    def assignment_timestamp(self) -> int: ...


class MemberInRecords(Protocol):
    @property
    def member_id(self) -> str: ...

    def metadata_value(self) -> RecordValue: ...

    def assignment_value(self) -> RecordValue: ...


class GroupOfKind(Group, Protocol):
    """A :class:`GroupWithEpochs` with the rest of the interface of any group."""

    kind: str
    noun: str

    def __init__(self, group_id: str) -> None: ...

    def apply(self, record: CoordinatorRecord) -> None: ...


GroupT = TypeVar("GroupT", bound=GroupOfKind)


class RecordTypes(NamedTuple):
    """What makes the records that every kind of group has: their keys, and one value."""

    member_metadata: Callable[[str, str], RecordKey]
    member_assignment: Callable[[str, str], RecordKey]
    member_target: Callable[[str, str], RecordKey]
    assignment_epoch: Callable[[str], RecordKey]
    assignment_epoch_value: Callable[[int, int], RecordValue]


class Draft(Generic[GroupT]):
    """Writes the records of one group in one turn, and applies each of them at once."""

    __slots__ = ("group", "turn")
    types: ClassVar[RecordTypes]

    def __init__(self, group: GroupT, turn: Turn) -> None:
        self.group = group
        self.turn = turn

    def _write(self, key: RecordKey, value: RecordValue | None) -> None:
        record = CoordinatorRecord(key, value)
        self.group.apply(record)
        self.turn.write(record)

    def member_metadata(self, member: MemberInRecords) -> None:
        key = self.types.member_metadata(self.group.group_id, member.member_id)
        self._write(key, member.metadata_value())

    def member_assignment(self, member: MemberInRecords) -> None:
        key = self.types.member_assignment(self.group.group_id, member.member_id)
        self._write(key, member.assignment_value())

    def assignment_epoch(self, epoch: int, wall_ms: int) -> None:
        key = self.types.assignment_epoch(self.group.group_id)
        self._write(key, self.types.assignment_epoch_value(epoch, wall_ms))

    def remove_member(self, member_id: str) -> None:
        """Write the tombstones of a member: its assignments first, its metadata last."""
        group_id, types = self.group.group_id, self.types
        for key_of in (types.member_assignment, types.member_target, types.member_metadata):
            self._write(key_of(group_id, member_id), None)


class GroupsOfKind(Generic[GroupT]):
    """The groups of one kind in a shard, by what makes a group and the type of its last record."""

    def __init__(self, state: ShardState, make: type[GroupT], group_key: type) -> None:
        self._state = state
        self._make = make
        self._group_key = group_key

    def all(self) -> Iterator[GroupT]:
        return (group for group in self._state.groups.values() if isinstance(group, self._make))

    def find(self, group_id: str) -> GroupT | None:
        group = self._state.groups.get(group_id)
        return group if isinstance(group, self._make) else None

    def get(self, group_id: str) -> GroupT:
        """Return the group. Raises KafkaError (GROUP_ID_NOT_FOUND) if there is none of this kind."""
        group = self.find(group_id)
        if group is not None:
            return group
        kind, noun = self._make.kind, self._make.noun
        if group_id in self._state.groups:
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} is not a {kind} group.")
        raise KafkaError(ErrorCode.group_id_not_found, f"{noun} {group_id} not found.")

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply a record while loading. (Those that the shard writes are applied by the :class:`Draft`.)"""
        key = record.key
        assert not isinstance(key, OffsetCommitKey | GroupMetadataKey)
        group = self.find(key.group_id)
        if group is None:
            if record.value is None:
                return
            # It replaces the simple group that offset records before this one may have created.
            group = self._make(key.group_id)
            self._state.groups[key.group_id] = group
        group.apply(record)
        if record.value is None and isinstance(key, self._group_key):
            del self._state.groups[key.group_id]
