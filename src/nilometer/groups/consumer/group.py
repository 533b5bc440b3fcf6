"""A consumer group and its members, whose state is computed from their records.

Who may commit and fetch offsets is decided here: a member, with its current epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import UUID

import msgspec
from msgspec.structs import replace

from nilometer.groups.group_with_epochs import DELETED_EPOCH, GroupWithEpochs
from nilometer.groups.records import (
    AssignedTopicPartitions,
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CoordinatorRecord,
    RecordKey,
)
from nilometer.groups.requests import OffsetCommit, OffsetFetch, protocol_bytes, subscription_bytes
from nilometer.groups.topics import BY_NUMBER, NO_PARTITIONS, Assignment, assignment_of
from nilometer.groups.turn import SINCE_COMMIT, RetentionStart, UnwrittenTarget
from nilometer.wire.errors import ErrorCode
from nilometer.wire.value_bytes import PROTOCOL_TYPE

LEAVE_GROUP_MEMBER_EPOCH: Final = -1
LEAVE_GROUP_STATIC_MEMBER_EPOCH: Final = -2

Owned: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic id, each with the epoch in which it was assigned; without empty mappings."""

NOTHING_OWNED: Final[Owned] = MappingProxyType({})


class MemberState(IntEnum):
    STABLE = 0
    """The member owns exactly its target assignment, as of its epoch."""
    UNREVOKED_PARTITIONS = 1
    """The member must revoke partitions and has not confirmed it; until then its epoch does not advance."""
    UNRELEASED_PARTITIONS = 2
    """The member is in the target's epoch, but other members still own some of its target partitions."""
    UNKNOWN = 127
    """The state in a record of a later version is not known: the member must join again."""


_STATES = {state.value: state for state in MemberState}


class Member(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str = ""
    """Empty: no regular expression."""
    server_assignor: str | None = None
    assigned: Owned = msgspec.field(default_factory=lambda: NOTHING_OWNED)
    pending_revocation: Owned = msgspec.field(default_factory=lambda: NOTHING_OWNED)
    classic: ClassicMemberMetadata | None = None
    """The session timeout and protocols of a member that uses the classic protocol; else None."""

    @property
    def uses_classic_protocol(self) -> bool:
        return self.classic is not None

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> Member:
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=frozenset(value.subscribed_topic_names),
            subscribed_topic_regex=value.subscribed_topic_regex or "",
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def bytes(self) -> int:
        """Return about how much memory it takes."""
        names = (self.member_id, self.client_id, self.instance_id, self.rack_id, self.subscribed_topic_regex)
        protocols = () if self.classic is None else self.classic.supported_protocols
        held = sum(protocol_bytes(protocol.name, protocol.metadata) for protocol in protocols)
        return subscription_bytes(self.subscribed_topic_names, *names) + held

    def metadata_value(self) -> ConsumerGroupMemberMetadataValue:
        return ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=tuple(sorted(self.subscribed_topic_names)),
            subscribed_topic_regex=self.subscribed_topic_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic_member_metadata=self.classic,
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> Member:
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=_STATES.get(value.state, MemberState.UNKNOWN),
            assigned=_owned_of(value.assigned_partitions, value.member_epoch),
            pending_revocation=_owned_of(value.partitions_pending_revocation, value.member_epoch),
        )

    def assignment_value(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state.value,
            assigned_partitions=_owned_in_record(self.assigned),
            partitions_pending_revocation=_owned_in_record(self.pending_revocation),
        )


def _owned_of(topics: Iterable[AssignedTopicPartitions], member_epoch: int) -> Owned:
    """Convert from the form in records; without assignment epochs, partitions count as assigned in the
    member's epoch."""
    found: dict[UUID, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs or (member_epoch,) * len(topic.partitions)
        if topic.partitions:
            found.setdefault(topic.topic_id, {}).update(zip(topic.partitions, epochs, strict=True))
    return found


def _owned_in_record(owned: Owned) -> tuple[AssignedTopicPartitions, ...]:
    found: list[AssignedTopicPartitions] = []
    for topic_id in sorted(owned, key=BY_NUMBER):
        partitions = tuple(sorted(owned[topic_id]))
        epochs = tuple(owned[topic_id][partition] for partition in partitions)
        found.append(AssignedTopicPartitions(topic_id, partitions, epochs))
    return tuple(found)


def newly_owned(assignment: Assignment, epoch: int) -> Owned:
    return {topic_id: dict.fromkeys(sorted(partitions), epoch) for topic_id, partitions in assignment.items()}


def claims_only(claimed: Assignment, owned: Owned) -> bool:
    """Whether all claimed partitions are owned."""
    return all(partitions <= owned.get(topic_id, {}).keys() for topic_id, partitions in claimed.items())


def claims_any(claimed: Assignment, owned: Owned) -> bool:
    return any(not partitions.isdisjoint(owned.get(topic_id, {})) for topic_id, partitions in claimed.items())


def check_commit(member: Member | None, request: OffsetCommit) -> ErrorCode:
    if member is None:
        return ErrorCode.unknown_member_id
    knows = request.knows_member_epochs or request.is_transactional
    if not member.uses_classic_protocol and not knows:
        return ErrorCode.unsupported_version
    epoch = request.generation_id_or_member_epoch
    if epoch == member.member_epoch:
        return ErrorCode.none
    if epoch > member.member_epoch or not all(
        _owned_since(member, topic_id, partition, epoch) for topic_id, partition in _partitions(request)
    ):
        return _stale(member)
    return ErrorCode.none


def check_fetch(member: Member | None, request: OffsetFetch) -> ErrorCode:
    if member is None:
        return ErrorCode.unknown_member_id
    return ErrorCode.none if request.member_epoch == member.member_epoch else _stale(member)


def _partitions(request: OffsetCommit) -> Iterator[tuple[UUID | None, int]]:
    for topic in request.topics:
        for partition in topic.partitions:
            yield topic.topic_id, partition.partition_index


def _owned_since(member: Member, topic_id: UUID | None, partition: int, epoch: int) -> bool:
    if topic_id is None:
        return False
    since = member.assigned.get(topic_id, {}).get(partition)
    if since is None:
        since = member.pending_revocation.get(topic_id, {}).get(partition)
    return since is not None and since <= epoch


def _stale(member: Member) -> ErrorCode:
    return ErrorCode.illegal_generation if member.uses_classic_protocol else ErrorCode.stale_member_epoch


MATCHED_BYTES: Final = 125
"""About what a topic takes in memory for each expression that it matches."""


class ResolvedRegex(msgspec.Struct, frozen=True):
    topics: frozenset[str]
    version: int
    """The number of the image whose topics the expression was matched against."""
    timestamp: int


def topics_of(member: Member, regexes: Mapping[str, ResolvedRegex]) -> frozenset[str]:
    """Return the topic names that the member subscribes to, also those of missing topics."""
    regex = regexes.get(member.subscribed_topic_regex)
    if regex is None:
        return member.subscribed_topic_names
    names = member.subscribed_topic_names
    return names | regex.topics if names else regex.topics


def topics_count(member: Member, regexes: Mapping[str, ResolvedRegex]) -> int:
    """Return how many topics that are at most; a topic of both counts twice."""
    regex = regexes.get(member.subscribed_topic_regex)
    return len(member.subscribed_topic_names) + (0 if regex is None else len(regex.topics))


def protocol_names(member: Member | None) -> frozenset[str]:
    """Return the names of the protocols that a classic member supports."""
    if member is None or member.classic is None:
        return frozenset()
    return frozenset(protocol.name for protocol in member.classic.supported_protocols)


def _recount(counts: Counter[str], fewer: Iterable[str], more: Iterable[str]) -> None:
    """Count some texts once less, and others once more."""
    counts.update(more)
    for text in fewer:
        counts[text] -= 1
        if not counts[text]:
            del counts[text]


class ConsumerGroup(GroupWithEpochs[Member, Assignment]):
    """One consumer group; see the module."""

    kind = PROTOCOL_TYPE

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.unwritten: UnwrittenTarget[Assignment] | None = None
        """Soft state: the target assignment that is being written."""
        self.regexes: dict[str, ResolvedRegex] = {}
        self.matched_count = 0
        """Of the topics that match each of them."""
        self.has_partition_metadata = False
        """Whether the log has a partition metadata record of a Kafka before 4.1, which is to be removed."""
        self.topic_names_seen: frozenset[str] | None = None
        """Soft state: the topic names that the regular expressions were last matched against."""
        self.matching: set[str] = set()
        """Soft state: the regular expressions that are being matched outside of the shard."""
        self.peers: dict[str, tuple[str, int]] = {}
        """Soft state: the connection of each member's last heartbeat."""
        self._static: dict[str, str] = {}
        self._owners: dict[UUID, dict[int, str]] = {}
        self._classic_members = 0
        self._protocols: Counter[str] = Counter()
        """How many classic members support each protocol."""
        self._names: Counter[str] = Counter()
        self._expressions: Counter[str] = Counter()
        """How many members subscribe to each topic by name, and by each regular expression."""
        self._subscribed: frozenset[str] | None = None
        """The topics that members subscribe to; None: to be found again."""

    # ── reading ─────────────────────────────────────────────────────────────────────────────────
    @property
    def state(self) -> str:
        """Kafka's name of the state. A group is Reconciling also if a member in the newest epoch still waits
        for a partition."""
        if not self.members:
            return "Empty"
        if self.group_epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    @property
    def classic_members_count(self) -> int:
        return self._classic_members

    def static_member(self, instance_id: str) -> Member | None:
        member_id = self._static.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def owner(self, topic_id: UUID, partition: int) -> str | None:
        return self._owners.get(topic_id, {}).get(partition)

    def is_owned(self, topic_id: UUID, partition: int) -> bool:
        owners = self._owners.get(topic_id)
        return owners is not None and partition in owners

    def target_of(self, member_id: str) -> Assignment:
        return self.target.get(member_id, NO_PARTITIONS)

    def topics_of(self, member: Member) -> frozenset[str]:
        """Return the topic names that the member subscribes to, also those of missing topics."""
        return topics_of(member, self.regexes)

    def subscribed_topics(self, existing: frozenset[str]) -> set[str]:
        """Return the topics that the members subscribe to and that exist: of the others there may be
        many, since each member names its own."""
        found = self._names.keys() & existing
        for regex in self._expressions.keys() & self.regexes.keys():
            found |= self.regexes[regex].topics & existing
        return found

    def subscribed_regexes(self) -> set[str]:
        return set(self._expressions)

    def preferred_assignor(self) -> str | None:
        """Return the assignor that most members name (of several, the first by name); None if none does."""
        counts = Counter(m.server_assignor for m in self.members.values() if m.server_assignor is not None)
        return min(counts, key=lambda name: (-counts[name], name), default=None)

    def has_common_protocol(self, offered: Iterable[str]) -> bool:
        """Whether all classic members support one of these protocols; true if there are none."""
        everyone = self._classic_members
        return not everyone or any(self._protocols[name] == everyone for name in offered)

    # ── the interface of any group ──────────────────────────────────────────────────────────────
    def check_offset_commit(self, request: OffsetCommit) -> ErrorCode:
        if request.generation_id_or_member_epoch < 0 and not self.members:
            return ErrorCode.none
        if request.is_transactional and not request.names_member:
            return ErrorCode.none
        return check_commit(self.members.get(request.member_id), request)

    def check_offset_fetch(self, request: OffsetFetch) -> ErrorCode:
        if request.member_id is None and request.member_epoch < 0:
            return ErrorCode.none
        return check_fetch(self.members.get(request.member_id or ""), request)

    def check_offset_delete(self) -> ErrorCode:
        return ErrorCode.none

    def is_subscribed_to(self, topic: str) -> bool:
        if self._subscribed is None:
            by_regex = (self.regexes[each].topics for each in self._expressions if each in self.regexes)
            self._subscribed = frozenset(self._names).union(*by_regex)
        return topic in self._subscribed

    def metadata_bytes(self) -> int:
        return super().metadata_bytes() + MATCHED_BYTES * self.matched_count

    def retention_start(self) -> RetentionStart | None:
        return SINCE_COMMIT

    def _keys(self) -> Iterator[RecordKey]:
        for member_id in sorted(self.members):
            yield ConsumerGroupCurrentMemberAssignmentKey(self.group_id, member_id)
        for member_id in sorted(self.target):
            yield ConsumerGroupTargetAssignmentMemberKey(self.group_id, member_id)
        yield ConsumerGroupTargetAssignmentMetadataKey(self.group_id)
        for member_id in sorted(self.members):
            yield ConsumerGroupMemberMetadataKey(self.group_id, member_id)
        for regex in sorted(self.regexes):
            yield ConsumerGroupRegularExpressionKey(self.group_id, regex)
        if self.has_partition_metadata:
            yield ConsumerGroupPartitionMetadataKey(self.group_id)
        yield ConsumerGroupMetadataKey(self.group_id)

    # ── soft state ──────────────────────────────────────────────────────────────────────────────
    def note_peer(self, member_id: str, peer: tuple[str, int]) -> bool:
        """Note the connection of a member's heartbeat; return whether the last one came on another."""
        before = self.peers.get(member_id)
        self.peers[member_id] = peer
        return before != peer

    # ── applying records ────────────────────────────────────────────────────────────────────────
    def apply(self, record: CoordinatorRecord) -> None:
        key, value = record.key, record.value
        match key:
            case ConsumerGroupCurrentMemberAssignmentKey():
                assert value is None or isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
                self._apply_assignment(key.member_id, value)
            case ConsumerGroupTargetAssignmentMemberKey():
                if value is None:
                    self.target.pop(key.member_id, None)
                else:
                    assert isinstance(value, ConsumerGroupTargetAssignmentMemberValue)
                    self.target[key.member_id] = assignment_of(value.topic_partitions)
            case ConsumerGroupMemberMetadataKey():
                assert value is None or isinstance(value, ConsumerGroupMemberMetadataValue)
                self._apply_metadata(key.member_id, value)
                self._subscribed = None
            case ConsumerGroupTargetAssignmentMetadataKey():
                assert value is None or isinstance(value, ConsumerGroupTargetAssignmentMetadataValue)
                self._apply_assignment_epoch(value)
            case ConsumerGroupMetadataKey():
                assert value is None or isinstance(value, ConsumerGroupMetadataValue)
                self.group_epoch = DELETED_EPOCH if value is None else value.epoch
                self.metadata_hash = 0 if value is None else value.metadata_hash
            case ConsumerGroupRegularExpressionKey():
                assert value is None or isinstance(value, ConsumerGroupRegularExpressionValue)
                self._apply_regex(key.regular_expression, value)
            case ConsumerGroupPartitionMetadataKey():
                self.has_partition_metadata = value is not None
            case _:
                raise AssertionError(f"not a record of a consumer group: {record}")

    def _apply_regex(self, regex: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        self._subscribed = None
        before = self.regexes.pop(regex, None)
        self.matched_count -= 0 if before is None else len(before.topics)
        if value is not None:
            after = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
            self.regexes[regex] = after
            self.matched_count += len(after.topics)

    def _apply_metadata(self, member_id: str, value: ConsumerGroupMemberMetadataValue | None) -> None:
        before = self.members.get(member_id)
        if value is not None:
            after = (before or Member(member_id)).with_metadata(value)
            self._put(before, after)
            self._count(before, after)
            self._held.note(member_id, after.bytes())
        elif before is not None:
            self._held.forget(member_id)
            self._count(before, None)
            self._release(before)
            self._forget_static(before)
            self._classic_members -= before.uses_classic_protocol
            self.peers.pop(member_id, None)
            del self.members[member_id]

    def _count(self, before: Member | None, after: Member | None) -> None:
        """Count what a member subscribes to."""
        nothing = frozenset[str]()
        names = [nothing if each is None else each.subscribed_topic_names for each in (before, after)]
        regexes = ["" if each is None else each.subscribed_topic_regex for each in (before, after)]
        _recount(self._names, names[0] - names[1], names[1] - names[0])
        if protocol_names(before) != protocol_names(after):
            _recount(self._protocols, protocol_names(before), protocol_names(after))
        if regexes[0] != regexes[1]:
            _recount(self._expressions, filter(None, regexes[:1]), filter(None, regexes[1:]))

    def _apply_assignment(
        self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        before = self.members.get(member_id)
        if value is not None:
            self._put(before, (before or Member(member_id)).with_assignment(value))
        elif before is not None:
            gone = replace(
                before,
                member_epoch=LEAVE_GROUP_MEMBER_EPOCH,
                previous_member_epoch=LEAVE_GROUP_MEMBER_EPOCH,
                assigned=NOTHING_OWNED,
                pending_revocation=NOTHING_OWNED,
            )
            self._put(before, gone)

    def _put(self, before: Member | None, after: Member) -> None:
        if before is not None:
            self._release(before)
            self._forget_static(before)
            self._classic_members -= before.uses_classic_protocol
        self.members[after.member_id] = after
        self._classic_members += after.uses_classic_protocol
        if after.instance_id is not None:
            self._static[after.instance_id] = after.member_id
        for owned in (after.assigned, after.pending_revocation):
            for topic_id, partitions in owned.items():
                self._owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, after.member_id))

    def _release(self, member: Member) -> None:
        """Remove the member as owner of its partitions, except those that another member owns by now: in a
        compacted log the new owner's record may come first."""
        for owned in (member.assigned, member.pending_revocation):
            for topic_id, partitions in owned.items():
                owners = self._owners.get(topic_id, {})
                for partition in partitions:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self._owners.pop(topic_id, None)

    def _forget_static(self, member: Member) -> None:
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]

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
            self.regexes,
            self.has_partition_metadata,
            self._static,
            self._owners,
            self._classic_members,
        )
