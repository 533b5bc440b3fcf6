"""Members that leave, are fenced, or (static members) leave temporarily; and the change of a group's protocol
while it has members.

The change follows ``group.consumer.migration.policy``: a consumer group whose last member of the consumer
protocol leaves may become a classic group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from nilometer.groups.classic_group import ClassicGroup, ClassicMember, RebalanceCause
from nilometer.groups.classic_groups import ClassicGroups
from nilometer.groups.consumer.context import ConsumerTimer, Context
from nilometer.groups.consumer.group import (
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    NOTHING_OWNED,
    ConsumerGroup,
    Member,
    newly_owned,
    protocol_names,
)
from nilometer.groups.consumer.heartbeat import check_instance, unknown_member
from nilometer.groups.consumer.rebalance import Draft, assign_if_due, refresh
from nilometer.groups.records import ClassicMemberMetadata, ClassicProtocol
from nilometer.groups.requests import (
    RECORD_BYTES_MAX,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResult,
    JoinGroupProtocol,
)
from nilometer.groups.topics import Assignment, Topics
from nilometer.groups.turn import Turn
from nilometer.wire.errors import ErrorCode, KafkaError, MalformedMessage
from nilometer.wire.value_bytes import (
    PROTOCOL_TYPE,
    Partitions,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    subscription_version,
)
from nilometer.wire.value_bytes import Assignment as WireAssignment

UPGRADE_ELEMENTS_MAX: Final = 100_000
"""Topics and partitions that the members of a classic group subscribe to, own and are assigned, all together:
one with more stays classic, since all are read at once."""
UPGRADE_BYTES_MAX: Final = 2 * RECORD_BYTES_MAX
"""Of what these members have sent, for all their protocols: it is written again. A consumer group of classic
members with more stays one."""


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
        members = _upgraded_members(context.topics, classic)
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
    draft.assignment_epoch(generation, turn.wall_ms)
    for member in members:
        draft.member_assignment(member)
        context.expect_heartbeat(turn, group, member)
    return group


def _check_upgrade(context: Context, classic: ClassicGroup, instance_id: str | None) -> None:
    if not context.config.group_consumer_migration_policy.allows_upgrade:
        raise _stays_classic(classic, "online upgrade is disabled")
    if not classic.uses_consumer_protocol:
        raise _stays_classic(classic, "its members are not consumers")
    if classic.members_bytes > UPGRADE_BYTES_MAX:
        raise _stays_classic(classic, f"its members have sent more than {UPGRADE_BYTES_MAX} bytes")
    room = context.config.group_consumer_max_size - len(classic.members)
    if room < 0:
        raise _stays_classic(classic, "it has more members than a consumer group may have")
    if room == 0 and instance_id not in classic.static_members:
        raise KafkaError(ErrorCode.group_max_size_reached, "The group has reached its maximum capacity.")


def _stays_classic(classic: ClassicGroup, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.group_id_not_found, f"Group {classic.group_id} is not a consumer group, and {why}."
    )


def _upgraded_members(topics: Topics, group: ClassicGroup) -> list[Member]:
    """Raises MalformedMessage."""
    taken: set[tuple[UUID, int]] = set()
    members: list[Member] = []
    left = UPGRADE_ELEMENTS_MAX
    for member in group.members.values():
        protocols = member.protocols
        chosen = member.metadata(group.protocol_name) or (protocols[0].metadata if protocols else b"")
        subscription = decode_subscription(chosen, left)
        left -= len(subscription.topics) + len(subscription.owned)
        given = decode_assignment(member.assignment, left).partitions
        left -= len(given)
        members.append(_upgraded(topics, group, member, subscription, given, taken))
    return members


def _upgraded(
    topics: Topics,
    group: ClassicGroup,
    member: ClassicMember,
    subscription: Subscription,
    given: Partitions,
    taken: set[tuple[UUID, int]],
) -> Member:
    """Convert a classic member. A partition that the leader gave to two members stays with the first;
    ``taken`` collects the assigned ones."""
    assigned: dict[UUID, set[int]] = {}
    for name, partition in given:
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
        classic=classic_metadata(member.session_timeout_ms, member.protocols),
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
    if group.metadata_bytes() > UPGRADE_BYTES_MAX or not group.has_common_protocol(protocol_names(rest[0])):
        return None
    try:
        members = tuple(_downgraded(context.topics, group, member) for member in rest)
    except MalformedMessage:
        return None
    if sum(len(one.protocols[0].metadata) + len(one.assignment) for one in members) > RECORD_BYTES_MAX:
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
    version = subscription_version(member.classic.supported_protocols[0].metadata)
    found: list[tuple[str, int]] = []
    for topic_id, partitions in assignment.items():
        name = topics.name_of(topic_id)
        if name is not None:
            found += [(name, partition) for partition in partitions]
    return encode_assignment(WireAssignment(tuple(sorted(found)), version=version))


def leaver_of(group: ConsumerGroup, request: ConsumerGroupHeartbeat) -> Member:
    """Return the member that leaves; its epoch is not checked. Raises KafkaError if there is no such
    member."""
    if request.instance_id is None:
        member = group.members.get(request.member_id)
        if member is None:
            raise unknown_member(group, request.member_id)
        return member
    member = group.static_member(request.instance_id)
    if member is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {request.instance_id} is unknown.")
    check_instance(member, request.member_id, request.instance_id)
    return member


def leave(
    context: Context,
    classic_groups: ClassicGroups,
    turn: Turn,
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeat,
) -> ConsumerGroupHeartbeatResult:
    """Process a heartbeat with which a member leaves. Raises KafkaError before any record is written."""
    member = leaver_of(group, request)
    if request.instance_id is not None and request.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        leave_group(context, turn, group, member)
    else:
        remove(context, classic_groups, turn, group, [member], f"member {member.member_id} left")
    return ConsumerGroupHeartbeatResult(member_id=member.member_id, member_epoch=request.member_epoch)


def leave_group(context: Context, turn: Turn, group: ConsumerGroup, member: Member) -> None:
    """Mark a static member as temporarily away: it keeps its place and its assigned partitions until its
    session ends, which is not extended. Partitions that it had to revoke are released."""
    away = replace(member, member_epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH, pending_revocation=NOTHING_OWNED)
    Draft(group, turn).member_assignment(away)
    context.cancel_timer(ConsumerTimer.REBALANCE, group, member.member_id)


def remove(
    context: Context,
    classic_groups: ClassicGroups,
    turn: Turn,
    group: ConsumerGroup,
    members: Sequence[Member],
    reason: str,
) -> None:
    """Remove ``members`` and rebalance the group; downgrade it if only classic members remain.

    ``reason``: for the cause of the rebalance.
    """
    plan = None
    if any(not member.uses_classic_protocol for member in members):
        plan = plan_downgrade(context, group, without={member.member_id for member in members})
    if plan is not None:
        first = members[0]
        cause = RebalanceCause(
            f"downgraded to the classic protocol: {reason}",
            first.member_id,
            first.instance_id,
            first.client_id,
            first.client_host,
        )
        downgrade(context, classic_groups, turn, plan, cause)
        return
    draft = Draft(group, turn)
    for member in members:
        context.forget_member(group, member.member_id)
        draft.remove_member(member.member_id)
    refresh(draft, context.topics, subscription_changed=True, cause=reason)
    if not group.members:
        draft.assignment_epoch(group.group_epoch, turn.wall_ms)  # nothing to assign (Kafka 4.4)
    assign_if_due(draft, context.topics, context.config_of(group))
    context.expect_assignment(turn, group)
