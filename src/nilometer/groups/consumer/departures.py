"""Members that leave, are fenced, or (static members) leave temporarily."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from nilometer.groups.classic.groups import ClassicGroups
from nilometer.groups.classic.rebalance_causes import RebalanceCause
from nilometer.groups.consumer.context import Context
from nilometer.groups.consumer.draft import Draft
from nilometer.groups.consumer.group import ConsumerGroup
from nilometer.groups.consumer.heartbeat import check_instance, unknown_member
from nilometer.groups.consumer.member import LEAVE_GROUP_STATIC_MEMBER_EPOCH, NOTHING_OWNED, Member
from nilometer.groups.consumer.migration import downgrade, plan_downgrade
from nilometer.groups.consumer.rebalance import assign_if_due, refresh
from nilometer.groups.requests import ConsumerGroupHeartbeat, ConsumerGroupHeartbeatReply
from nilometer.groups.timers import TimerKind
from nilometer.groups.turn import Turn
from nilometer.wire.errors import ErrorCode, KafkaError


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
) -> ConsumerGroupHeartbeatReply:
    """Process a heartbeat with which a member leaves. Raises KafkaError before any record is written."""
    member = leaver_of(group, request)
    if request.instance_id is not None and request.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        leave_group(context, turn, group, member)
    else:
        remove(context, classic_groups, turn, group, [member], f"member {member.member_id} left")
    return ConsumerGroupHeartbeatReply(member_id=member.member_id, member_epoch=request.member_epoch)


def leave_group(context: Context, turn: Turn, group: ConsumerGroup, member: Member) -> None:
    """Mark a static member as temporarily away: it keeps its place and its assigned partitions until its
    session ends, which is not extended. Partitions that it had to revoke are released."""
    away = replace(member, member_epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH, pending_revocation=NOTHING_OWNED)
    Draft(group, turn).member_assignment(away)
    context.cancel_timer(TimerKind.CONSUMER_REBALANCE, group, member.member_id)


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
    assign_if_due(draft, context.topics, context.config_of(group))
    context.expect_assignment(turn, group)
