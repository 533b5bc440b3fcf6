"""A share group (KIP-932): its members, who of them reads which partitions, and the partitions that have a
state at the share coordinator.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from nilometer.groups.consumer.assignors import MemberSpec, subscribers_of
from nilometer.groups.consumer.group import LEAVE_GROUP_MEMBER_EPOCH
from nilometer.groups.group_with_epochs import DELETED_EPOCH, GroupWithEpochs
from nilometer.groups.records import (
    CoordinatorRecord,
    RecordKey,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicInfo,
    TopicPartitionsInfo,
)
from nilometer.groups.requests import OffsetCommit, OffsetFetch, subscription_bytes
from nilometer.groups.topics import BY_NUMBER, NO_PARTITIONS, Assignment, assignment_of, topic_partitions
from nilometer.groups.turn import (
    DeleteShareState,
    InitializeShareState,
    RetentionStart,
    UnwrittenTarget,
)
from nilometer.wire.errors import ErrorCode

# The simple assignor of share groups (KIP-932): a partition may have several members.
#
# Every partition has a member, and every member a partition of what it subscribes to. With more members than
# partitions, each partition has the same number of members, rounded up. Members keep what they have as far as
# the numbers allow.


class _Partition(NamedTuple):
    topic_id: UUID
    partition: int


def assign_simply(
    members: Mapping[str, MemberSpec], assignable: Mapping[UUID, frozenset[int]]
) -> dict[str, Assignment]:
    """Return each member's assignment.

    ``assignable``: the partitions that may be assigned, by topic. Members with equal subscriptions share all
    partitions; with different ones, the partitions of each topic.
    """
    given: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in sorted(members)}
    if len({spec.subscribed for spec in members.values()}) == 1:
        shared = [(sorted(members), sorted(next(iter(members.values())).subscribed))]
    else:
        shared = [(subscribers, [topic_id]) for topic_id, subscribers in subscribers_of(members).items()]
    for subscribers, topic_ids in shared:
        partitions = [
            _Partition(topic_id, partition)
            for topic_id in topic_ids
            for partition in sorted(assignable.get(topic_id, ()))
        ]
        if partitions:
            for member_id, mine in _Sharing(subscribers, partitions, members).result().items():
                for topic_id, partition in mine:
                    given[member_id].setdefault(topic_id, set()).add(partition)
    return {
        member_id: {topic_id: frozenset(mine) for topic_id, mine in topics.items()}
        for member_id, topics in given.items()
    }


class _Sharing:
    """Shares some partitions among members that subscribe to all of them.

    After each step no partition has more members than ``_members_each``; and each member has at most the
    number of partitions in ``_sizes`` for it.
    """

    def __init__(
        self, member_ids: Sequence[str], partitions: Sequence[_Partition], specs: Mapping[str, MemberSpec]
    ) -> None:
        self._members_each = -(-len(member_ids) // len(partitions))
        self._owned = {member_id: _kept(specs[member_id].previous, partitions) for member_id in member_ids}
        self._holders: dict[_Partition, set[str]] = {partition: set() for partition in partitions}
        for member_id, mine in self._owned.items():
            for partition in mine:
                self._holders[partition].add(member_id)
        size, larger = divmod(self._members_each * len(partitions), len(member_ids))
        # Those that have most keep the larger shares, so that few partitions move.
        ranked = sorted(member_ids, key=lambda member_id: (-len(self._owned[member_id]), member_id))
        self._sizes = {member_id: size + (rank < larger) for rank, member_id in enumerate(ranked)}

    def result(self) -> dict[str, set[_Partition]]:
        self._take_from_members()
        self._take_from_partitions()
        self._give()
        return self._owned

    def _take_from_members(self) -> None:
        for member_id, mine in self._owned.items():
            excess = len(mine) - self._sizes[member_id]
            if excess > 0:
                ranked = sorted(mine, key=lambda partition: (-len(self._holders[partition]), partition))
                for partition in ranked[:excess]:
                    self._take(member_id, partition)

    def _take_from_partitions(self) -> None:
        for partition, holders in self._holders.items():
            excess = len(holders) - self._members_each
            if excess > 0:
                ranked = sorted(holders, key=lambda member_id: (-len(self._owned[member_id]), member_id))
                for member_id in ranked[:excess]:
                    self._take(member_id, partition)

    def _give(self) -> None:
        """Give each partition to members that have too few, one after the other."""
        waiting = deque(
            member_id for member_id, mine in self._owned.items() if len(mine) < self._sizes[member_id]
        )
        for partition, holders in self._holders.items():
            passed: list[str] = []
            while waiting and len(holders) < self._members_each:
                member_id = waiting.popleft()
                if member_id in holders:
                    passed.append(member_id)
                    continue
                self._owned[member_id].add(partition)
                holders.add(member_id)
                if len(self._owned[member_id]) < self._sizes[member_id]:
                    passed.append(member_id)
            waiting.extend(passed)

    def _take(self, member_id: str, partition: _Partition) -> None:
        self._owned[member_id].remove(partition)
        self._holders[partition].remove(member_id)


def _kept(previous: Assignment, partitions: Iterable[_Partition]) -> set[_Partition]:
    none = frozenset[int]()
    return {each for each in partitions if each.partition in previous.get(each.topic_id, none)}


# A share group (KIP-932), its members, and the partitions that have a state at the share coordinator.
#
# All of it is computed from records. Members commit no offsets, and revoke nothing: several may read a
# partition.

STABLE: Final = 0
"""The only state of a member in its record."""


class ShareMember(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    assigned: Assignment = msgspec.field(default_factory=lambda: NO_PARTITIONS)

    def with_metadata(self, value: ShareGroupMemberMetadataValue) -> ShareMember:
        return replace(
            self,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=frozenset(value.subscribed_topic_names),
        )

    def metadata_value(self) -> ShareGroupMemberMetadataValue:
        return ShareGroupMemberMetadataValue(
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=tuple(sorted(self.subscribed_topic_names)),
        )

    def with_assignment(self, value: ShareGroupCurrentMemberAssignmentValue) -> ShareMember:
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            assigned=assignment_of(value.assigned_partitions),
        )

    def bytes(self) -> int:
        """Return about how much memory it takes."""
        return subscription_bytes(self.subscribed_topic_names, self.member_id, self.client_id, self.rack_id)

    def assignment_value(self) -> ShareGroupCurrentMemberAssignmentValue:
        return ShareGroupCurrentMemberAssignmentValue(
            self.member_epoch, self.previous_member_epoch, STABLE, topic_partitions(self.assigned)
        )


_NO_NAMES: Final[Mapping[UUID, str]] = MappingProxyType({})


class StatePartitions(msgspec.Struct, frozen=True):
    """The partitions for which the share coordinator keeps a state of the group, or is to."""

    initializing: Assignment = msgspec.field(default_factory=lambda: NO_PARTITIONS)
    """The share coordinator was asked, or is to be asked again, to begin a state for them."""
    initialized: Assignment = msgspec.field(default_factory=lambda: NO_PARTITIONS)
    """They have a state, and may be assigned."""
    deleting: frozenset[UUID] = frozenset()
    """Topics whose state is being deleted."""
    names: Mapping[UUID, str] = msgspec.field(default_factory=lambda: _NO_NAMES)
    """Of all these topics."""

    @classmethod
    def from_record(cls, value: ShareGroupStatePartitionMetadataValue) -> StatePartitions:
        topics = (*value.initializing_topics, *value.initialized_topics, *value.deleting_topics)
        return cls(
            _partitions_of(value.initializing_topics),
            _partitions_of(value.initialized_topics),
            frozenset(topic.topic_id for topic in value.deleting_topics),
            {topic.topic_id: topic.topic_name for topic in topics},
        )

    def to_record(self) -> ShareGroupStatePartitionMetadataValue:
        return ShareGroupStatePartitionMetadataValue(
            self._with_names(self.initializing),
            self._with_names(self.initialized),
            tuple(
                TopicInfo(topic_id, self.names[topic_id]) for topic_id in sorted(self.deleting, key=BY_NUMBER)
            ),
        )

    def _with_names(self, partitions: Assignment) -> tuple[TopicPartitionsInfo, ...]:
        return tuple(
            TopicPartitionsInfo(topic_id, self.names[topic_id], tuple(sorted(partitions[topic_id])))
            for topic_id in sorted(partitions, key=BY_NUMBER)
        )

    @property
    def topic_ids(self) -> frozenset[UUID]:
        return self.deleting.union(self.initializing, self.initialized)

    def begun(self, topics: Assignment, names: Mapping[UUID, str]) -> StatePartitions:
        """Return it after the share coordinator was asked to begin a state for ``topics``."""
        return replace(
            self,
            initializing=_joined(self.initializing, topics),
            deleting=self.deleting.difference(topics),
            names={**self.names, **names},
        )

    def ended(self, asked: Assignment, begun: Assignment) -> StatePartitions:
        """Return it after the share coordinator was asked for ``asked``, and has begun a state for
        ``begun``."""
        return replace(
            self,
            initializing=_without(self.initializing, asked),
            initialized=_joined(self.initialized, begun),
        )

    def deleted_with(self, topic_ids: Iterable[UUID]) -> StatePartitions:
        """Return it without these topics."""
        gone = frozenset(topic_ids)
        return replace(
            self,
            initializing={each: found for each, found in self.initializing.items() if each not in gone},
            initialized={each: found for each, found in self.initialized.items() if each not in gone},
            deleting=self.deleting - gone,
        )


def _partitions_of(topics: Iterable[TopicPartitionsInfo]) -> Assignment:
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions}


def _joined(first: Assignment, second: Assignment) -> Assignment:
    return {
        topic_id: first.get(topic_id, frozenset()) | second.get(topic_id, frozenset())
        for topic_id in first.keys() | second.keys()
    }


def _without(all_of: Assignment, some: Assignment) -> Assignment:
    rest = {topic_id: found - some.get(topic_id, frozenset()) for topic_id, found in all_of.items()}
    return {topic_id: found for topic_id, found in rest.items() if found}


class ShareGroup(GroupWithEpochs[ShareMember, Assignment]):
    """One share group; see the module."""

    kind = "share"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.partitions = StatePartitions()
        self.subscribers: Counter[str] = Counter()
        """How many members subscribe to each topic."""
        self.targeted: dict[UUID, dict[int, int]] = {}
        """To how many members the target assignment gives each partition."""
        self._usual_names: frozenset[str] = frozenset()
        """Of the last member that joined: most members name the same, and then have the same object."""
        self.unwritten: UnwrittenTarget[Assignment] | None = None
        """Soft state: the target assignment that is being written."""
        self.asked: InitializeShareState | DeleteShareState | None = None
        """Soft state: what the share coordinator was asked, and has not answered."""
        self.next_request_ms = 0
        """Soft state: the share coordinator is not asked before this time, unless it has answered."""
        self.version = 0
        """Soft state: rises with every change of the subscribed topics and of the state partitions."""
        self.all_assigned_in = -1
        """Soft state: the ``version`` in which the target has all initialized partitions. A later target has
        them, too."""
        self.all_begun_in: tuple[int, int] = (-1, -1)
        """Soft state: the ``version``, and that of the topics, in which every partition has a state."""
        self.hashed: tuple[int, int, int] = (-1, -1, 0)
        """Soft state: a ``version``, one of the topics, and the hash of the subscribed topics in them."""

    # ── reading ─────────────────────────────────────────────────────────────────────────────────
    @property
    def is_replaceable(self) -> bool:
        return False

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"

    def target_of(self, member_id: str) -> Assignment:
        return self.target.get(member_id, NO_PARTITIONS)

    # ── the interface of any group ──────────────────────────────────────────────────────────────
    def check_offset_commit(self, request: OffsetCommit) -> ErrorCode:
        return ErrorCode.group_id_not_found

    def check_offset_fetch(self, request: OffsetFetch) -> ErrorCode:
        return ErrorCode.none  # it has none, as a group that does not exist

    def check_offset_delete(self) -> ErrorCode:
        return ErrorCode.group_id_not_found

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribers

    def retention_start(self) -> RetentionStart | None:
        """None: a share group stays until it is deleted."""
        return None

    def _keys(self) -> Iterator[RecordKey]:
        for member_id in sorted(self.members):
            yield ShareGroupCurrentMemberAssignmentKey(self.group_id, member_id)
        for member_id in sorted(self.target):
            yield ShareGroupTargetAssignmentMemberKey(self.group_id, member_id)
        yield ShareGroupTargetAssignmentMetadataKey(self.group_id)
        for member_id in sorted(self.members):
            yield ShareGroupMemberMetadataKey(self.group_id, member_id)
        yield ShareGroupStatePartitionMetadataKey(self.group_id)
        yield ShareGroupMetadataKey(self.group_id)

    # ── applying records ────────────────────────────────────────────────────────────────────────
    def apply(self, record: CoordinatorRecord) -> None:
        key, value = record.key, record.value
        match key:
            case ShareGroupCurrentMemberAssignmentKey():
                assert value is None or isinstance(value, ShareGroupCurrentMemberAssignmentValue)
                self._apply_assignment(key.member_id, value)
            case ShareGroupMemberMetadataKey():
                assert value is None or isinstance(value, ShareGroupMemberMetadataValue)
                self._apply_metadata(key.member_id, value)
            case ShareGroupTargetAssignmentMemberKey():
                assert value is None or isinstance(value, ShareGroupTargetAssignmentMemberValue)
                self._apply_target(key.member_id, value)
            case ShareGroupStatePartitionMetadataKey():
                assert value is None or isinstance(value, ShareGroupStatePartitionMetadataValue)
                self.version += 1
                self.partitions = StatePartitions() if value is None else StatePartitions.from_record(value)
            case ShareGroupTargetAssignmentMetadataKey():
                assert value is None or isinstance(value, ShareGroupTargetAssignmentMetadataValue)
                self._apply_assignment_epoch(value)
            case ShareGroupMetadataKey():
                assert value is None or isinstance(value, ShareGroupMetadataValue)
                self.group_epoch = DELETED_EPOCH if value is None else value.epoch
                self.metadata_hash = 0 if value is None else value.metadata_hash
            case _:
                raise AssertionError(f"not a record of a share group: {record}")

    def _apply_metadata(self, member_id: str, value: ShareGroupMemberMetadataValue | None) -> None:
        before = self.members.get(member_id)
        names_before = before.subscribed_topic_names if before is not None else frozenset[str]()
        if value is not None:
            after = (before or ShareMember(member_id)).with_metadata(value)
            if after.subscribed_topic_names == self._usual_names:
                after = replace(after, subscribed_topic_names=self._usual_names)
            self._usual_names = after.subscribed_topic_names
            self.members[member_id] = after
            self._held.note(member_id, after.bytes())
            self._count_subscribers(names_before, after.subscribed_topic_names)
        elif before is not None:
            del self.members[member_id]
            self._held.forget(member_id)
            self._count_subscribers(names_before, frozenset())

    def _count_subscribers(self, before: frozenset[str], after: frozenset[str]) -> None:
        if before is after:
            return
        topics = len(self.subscribers)
        gained = after - before
        self.subscribers.update(gained)
        changed = len(self.subscribers) > topics
        for name in before - after:
            self.subscribers[name] -= 1
            if not self.subscribers[name]:
                del self.subscribers[name]
                changed = True
        self.version += changed

    def _apply_target(self, member_id: str, value: ShareGroupTargetAssignmentMemberValue | None) -> None:
        before = self.target.pop(member_id, NO_PARTITIONS)
        after = NO_PARTITIONS if value is None else assignment_of(value.topic_partitions)
        if value is not None:
            self.target[member_id] = after
        for topic_id, partitions in after.items():
            counts = self.targeted.setdefault(topic_id, {})
            for partition in partitions:
                counts[partition] = counts.get(partition, 0) + 1
        for topic_id, partitions in before.items():
            counts = self.targeted[topic_id]
            for partition in partitions:
                counts[partition] -= 1
                if not counts[partition]:
                    del counts[partition]
            if not counts:
                del self.targeted[topic_id]

    def _apply_assignment(self, member_id: str, value: ShareGroupCurrentMemberAssignmentValue | None) -> None:
        before = self.members.get(member_id)
        if value is not None:
            self.members[member_id] = (before or ShareMember(member_id)).with_assignment(value)
        elif before is not None:
            self.members[member_id] = replace(
                before,
                member_epoch=LEAVE_GROUP_MEMBER_EPOCH,
                previous_member_epoch=LEAVE_GROUP_MEMBER_EPOCH,
                assigned=NO_PARTITIONS,
            )

    # ── comparing ───────────────────────────────────────────────────────────────────────────────
    def hard_state(self) -> tuple[object, ...]:
        """Return all state that comes from records, for comparison: equal after the same records."""
        return (
            self.group_epoch,
            self.metadata_hash,
            self.members,
            self.target,
            self.assignment_epoch,
            self.assignment_timestamp,
            self.partitions.to_record(),
            dict(self.subscribers),
        )
