"""Changes the protocol of a group that has members (``group.consumer.migration.policy``).

A classic group of consumers is upgraded when the first member of the consumer protocol joins. A consumer
group is downgraded when the last such member has left. Assignments survive: a member keeps its partitions
until its next response.

Invariant: a group that cannot be converted is left unchanged; all checks come before the first record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from uuid import UUID

import msgspec

from nilometer.groups.classic.group import ClassicGroup
from nilometer.groups.classic.groups import ClassicGroups
from nilometer.groups.classic.member import ClassicMember
from nilometer.groups.classic.rebalance_causes import RebalanceCause
from nilometer.groups.consumer.assignment import Assignment
from nilometer.groups.consumer.context import Context
from nilometer.groups.consumer.draft import Draft
from nilometer.groups.consumer.group import ConsumerGroup
from nilometer.groups.consumer.member import Member, newly_owned
from nilometer.groups.consumer.topics import Topics
from nilometer.groups.records import ClassicMemberMetadata, ClassicProtocol
from nilometer.groups.requests import JoinGroupProtocol
from nilometer.groups.turn import Turn
from nilometer.wire.consumer_protocol import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from nilometer.wire.consumer_protocol import Assignment as WireAssignment
from nilometer.wire.errors import ErrorCode, KafkaError, MalformedMessage


def upgrade(
    context: Context,
    classic_groups: ClassicGroups,
    turn: Turn,
    classic: ClassicGroup,
    instance_id: str | None,
) -> ConsumerGroup:
    """Convert a classic group into a consumer group, and return that.

    ``instance_id``: that of the member that joins, if it is static. Raises KafkaError if the group has to
    stay classic.
    """
    _check_upgrade(context, classic, instance_id)
    generation = classic.generation
    try:
        taken: set[tuple[UUID, int]] = set()
        members = [_upgraded(context.topics, classic, member, taken) for member in classic.members.values()]
    except MalformedMessage as error:
        raise _stays_classic(
            classic, f"its embedded consumer protocol is malformed: {error.message}"
        ) from None

    classic_groups.give_up(turn, classic)
    group = ConsumerGroup(classic.group_id)
    context.state.groups[group.group_id] = group
    draft = Draft(group, turn)
    for member in members:
        draft.member_metadata(member)
    draft.group_epoch(generation, context.topics.hash_of(group.subscribed_topics(context.topics.names())))
    for member in members:
        draft.target(
            member.member_id, {topic_id: frozenset(owned) for topic_id, owned in member.assigned.items()}
        )
    draft.assignment_epoch(generation)
    for member in members:
        draft.member_assignment(member)
        context.expect_heartbeat(turn, group, member)
    return group


def _check_upgrade(context: Context, classic: ClassicGroup, instance_id: str | None) -> None:
    if not context.config.group_consumer_migration_policy.allows_upgrade:
        raise _stays_classic(classic, "online upgrade is disabled")
    if not classic.uses_consumer_protocol:
        raise _stays_classic(classic, "its members are not consumers")
    room = context.config.group_consumer_max_size - len(classic.members)
    if room < 0:
        raise _stays_classic(classic, "it has more members than a consumer group may have")
    if room == 0 and instance_id not in classic.static_members:
        raise KafkaError(ErrorCode.group_max_size_reached, "The group has reached its maximum capacity.")


def _stays_classic(classic: ClassicGroup, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.group_id_not_found, f"Group {classic.group_id} is not a consumer group, and {why}."
    )


def _upgraded(
    topics: Topics, group: ClassicGroup, member: ClassicMember, taken: set[tuple[UUID, int]]
) -> Member:
    """Convert a classic member. A partition that the leader gave to two members stays with the first;
    ``taken`` collects the assigned ones. Raises MalformedMessage."""
    protocols = member.protocols
    chosen = member.metadata(group.protocol_name) or (protocols[0].metadata if protocols else b"")
    subscription = decode_subscription(chosen)
    assigned: dict[UUID, set[int]] = {}
    for name, partition in decode_assignment(member.assignment).partitions:
        topic_id = topics.id_of(name)
        if topic_id is not None and (topic_id, partition) not in taken:
            taken.add((topic_id, partition))
            assigned.setdefault(topic_id, set()).add(partition)
    owned: Assignment = {topic_id: frozenset(partitions) for topic_id, partitions in assigned.items()}
    return Member(
        member.member_id,
        member_epoch=group.generation,
        previous_member_epoch=group.generation,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=frozenset(subscription.topics),
        assigned=newly_owned(owned, group.generation),
        classic=classic_metadata(member.session_timeout_ms, protocols),
    )


def classic_metadata(
    session_timeout_ms: int, protocols: tuple[JoinGroupProtocol, ...]
) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(
        session_timeout_ms, tuple(ClassicProtocol(each.name, each.metadata) for each in protocols)
    )


class Downgrade(msgspec.Struct, frozen=True):
    """The classic group into which ``group`` can be converted: its members and generation."""

    group: ConsumerGroup
    members: tuple[ClassicMember, ...]
    generation: int


def plan_downgrade(
    context: Context, group: ConsumerGroup, without: Set[str] = frozenset()
) -> Downgrade | None:
    """Plan the downgrade of the group after the members ``without`` are removed.

    None if members of the consumer protocol remain, or the group cannot be a classic group.
    """
    rest = [member for member_id, member in group.members.items() if member_id not in without]
    if not rest or not all(member.uses_classic_protocol for member in rest):
        return None
    config = context.config
    if not config.group_consumer_migration_policy.allows_downgrade or len(rest) > config.group_max_size:
        return None
    if not group.classic_protocols():
        return None
    try:
        members = tuple(_downgraded(context.topics, group, member) for member in rest)
    except MalformedMessage:
        return None
    return Downgrade(group, members, group.group_epoch)


def _downgraded(topics: Topics, group: ConsumerGroup, member: Member) -> ClassicMember:
    """Convert a member with its target assignment. Raises MalformedMessage."""
    assert member.classic is not None
    return ClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        PROTOCOL_TYPE,
        tuple(JoinGroupProtocol(each.name, each.metadata) for each in member.classic.supported_protocols),
        assignment_bytes(topics, member, group.target_of(member.member_id)),
    )


def downgrade(
    context: Context,
    classic_groups: ClassicGroups,
    turn: Turn,
    plan: Downgrade,
    cause: RebalanceCause | None,
) -> None:
    """Replace the consumer group by the planned classic group, which rebalances at once if there is a
    ``cause``."""
    group = plan.group
    turn.write_all(group.tombstones())
    context.forget_group(group)
    del context.state.groups[group.group_id]
    classic_groups.take_over(turn, group.group_id, plan.generation, plan.members, cause)


def assignment_bytes(topics: Topics, member: Member, assignment: Mapping[UUID, Iterable[int]]) -> bytes:
    """Encode an assignment for a classic member, in the version of its own subscription.

    Raises MalformedMessage.
    """
    assert member.classic is not None
    version = decode_subscription(member.classic.supported_protocols[0].metadata).version
    found: list[tuple[str, int]] = []
    for topic_id, partitions in assignment.items():
        name = topics.name_of(topic_id)
        if name is not None:
            found += [(name, partition) for partition in partitions]
    return encode_assignment(WireAssignment(tuple(sorted(found)), version=version))
