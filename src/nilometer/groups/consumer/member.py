"""One member of a consumer group, with the content of its records.

Invariants:
- *a member owns the partitions assigned to it and those it must still revoke*; no partition is in both;
- ``previous_member_epoch`` is the epoch before the last change of the assignment. A member that missed the
  response with the change sends this epoch; it is accepted if the member claims only partitions assigned to
  it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import UUID

import msgspec
from msgspec.structs import replace

from nilometer.groups.consumer.assignment import Assignment
from nilometer.groups.records import (
    AssignedTopicPartitions,
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
)

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
    for topic_id in sorted(owned):
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
