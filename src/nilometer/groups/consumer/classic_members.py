"""Members of the classic protocol inside a consumer group.

To them it looks like a classic group without a leader. JoinGroup takes one step of the reconciliation and
returns the member's epoch as the generation; SyncGroup returns the assignment; Heartbeat returns
REBALANCE_IN_PROGRESS when the member must join for the next step. A member that does not do so within its
rebalance timeout is fenced.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from msgspec.structs import replace

from nilometer.groups.classic_group import RebalanceCause
from nilometer.groups.classic_groups import ClassicGroups
from nilometer.groups.consumer.context import ConsumerTimer, Context
from nilometer.groups.consumer.departures import (
    assignment_bytes,
    classic_metadata,
    downgrade,
    plan_downgrade,
    remove,
)
from nilometer.groups.consumer.group import ConsumerGroup, Member, MemberState
from nilometer.groups.consumer.heartbeat import (
    Sender,
    check_instance,
    check_room,
    reconcile,
    replace_member,
    successor,
    unknown_member,
    write_member,
)
from nilometer.groups.consumer.rebalance import Draft, assign_if_due, refresh, subscription_cause
from nilometer.groups.requests import (
    NO_MEMBER_ID,
    RECORD_BYTES_MAX,
    Heartbeat,
    HeartbeatResult,
    JoinGroup,
    JoinGroupResult,
    LeaveGroup,
    LeaveGroupMember,
    LeaveGroupMemberResult,
    LeaveGroupResult,
    SyncGroup,
    SyncGroupResult,
)
from nilometer.groups.settings import ConsumerGroupMigrationPolicy
from nilometer.groups.topics import Assignment
from nilometer.groups.turn import Turn
from nilometer.wire.errors import ErrorCode, KafkaError, MalformedMessage
from nilometer.wire.value_bytes import PROTOCOL_TYPE, Subscription, decode_subscription

SUBSCRIPTION_ELEMENTS_MAX: Final = 20_000
"""Topics that a member subscribes to, and partitions that it owns."""


class ClassicMembers:
    """Processes the requests of such members. The methods raise KafkaError only before they write a
    record."""

    def __init__(self, context: Context, classic_groups: ClassicGroups) -> None:
        self._context = context
        self._classic_groups = classic_groups

    # ── JoinGroup ───────────────────────────────────────────────────────────────────────────────
    def join(self, turn: Turn, group: ConsumerGroup, request: JoinGroup) -> JoinGroupResult:
        member_id = request.member_id
        if member_id == NO_MEMBER_ID:
            member_id = self._context.state.new_member_id(request.group_instance_id or request.client_id)
        self._check_join(group, member_id, request)
        subscription = _subscription(request)
        if (
            request.requires_known_member_id
            and request.member_id == NO_MEMBER_ID
            and request.group_instance_id is None
        ):
            return JoinGroupResult(ErrorCode.member_id_required, member_id)
        sender = _joiner(group, member_id, request)
        return self._joined(turn, group, request, sender, subscription)

    def _check_join(self, group: ConsumerGroup, member_id: str, request: JoinGroup) -> None:
        config = self._context.config
        low, high = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            raise KafkaError(ErrorCode.invalid_session_timeout)
        if config.group_consumer_migration_policy is ConsumerGroupMigrationPolicy.DISABLED:
            raise KafkaError(
                ErrorCode.inconsistent_group_protocol,
                f"Cannot join the consumer group {group.group_id} with the classic protocol because the "
                "group migration is disabled.",
            )
        check_room(group, member_id, request.group_instance_id, config)
        size = sum(len(protocol.metadata) for protocol in request.protocols)
        if size > RECORD_BYTES_MAX:
            # What Kafka answers if the member's record is too large for its topic.
            raise KafkaError(ErrorCode.unknown_server_error, f"The metadata of {member_id} has {size} bytes.")
        offered = {protocol.name for protocol in request.protocols}
        if request.protocol_type != PROTOCOL_TYPE or not offered or not group.has_common_protocol(offered):
            raise KafkaError(
                ErrorCode.inconsistent_group_protocol, f"Member {member_id}'s protocols are not supported."
            )

    def _joined(
        self, turn: Turn, group: ConsumerGroup, request: JoinGroup, sender: Sender, subscription: Subscription
    ) -> JoinGroupResult:
        context, draft, member = self._context, Draft(group, turn), sender.member
        wanted = _with_wishes(member, request, subscription)
        if sender.replaces is not None:
            context.forget_member(group, sender.replaces.member_id)
            replace_member(draft, sender.replaces, member)
        changed = write_member(draft, member, wanted)
        refresh(draft, context.topics, subscription_changed=changed, cause=subscription_cause(wanted))
        assign_if_due(draft, context.topics, context.config_of(group))
        claimed = self._claimed(subscription)
        after = reconcile(draft, context.topics, group.members[member.member_id], claimed)
        context.cancel_timer(ConsumerTimer.REBALANCE, group, after.member_id)
        context.cancel_timer(ConsumerTimer.JOIN, group, after.member_id)
        context.expect_heartbeat(turn, group, after)
        context.set_timer(turn, ConsumerTimer.SYNC, group, after.member_id, after.rebalance_timeout_ms)
        context.expect_assignment(turn, group)
        self._maybe_downgrade(turn, group, sender, after)
        return JoinGroupResult(
            ErrorCode.none, after.member_id, after.member_epoch, PROTOCOL_TYPE, request.protocols[0].name
        )

    def _maybe_downgrade(self, turn: Turn, group: ConsumerGroup, sender: Sender, after: Member) -> None:
        """Downgrade the group if the sender was its last member of the consumer protocol, and has now joined
        with the classic one."""
        before = sender.replaces or sender.member
        if before.uses_classic_protocol or before.member_epoch == 0:
            return
        plan = plan_downgrade(self._context, group)
        if plan is not None:
            cause = None
            if after.member_epoch != plan.generation:
                cause = RebalanceCause("downgraded to the classic protocol", after.member_id)
            downgrade(self._context, self._classic_groups, turn, plan, cause)

    def _claimed(self, subscription: Subscription) -> Assignment:
        """Return the partitions that the member owns by its subscription; none in versions without the field,
        whose members revoke all partitions before they join."""
        claimed: dict[UUID, set[int]] = {}
        for name, partition in subscription.owned:
            topic_id = self._context.topics.id_of(name)
            if topic_id is not None:
                claimed.setdefault(topic_id, set()).add(partition)
        return {topic_id: frozenset(partitions) for topic_id, partitions in claimed.items()}

    # ── SyncGroup ───────────────────────────────────────────────────────────────────────────────
    def sync(self, turn: Turn, group: ConsumerGroup, request: SyncGroup) -> SyncGroupResult:
        member = _member(group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
        assert member.classic is not None
        expected = member.classic.supported_protocols[0].name
        if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (
            None,
            expected,
        ):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if (
            member.member_epoch < group.assignment_epoch
            and member.state is not MemberState.UNREVOKED_PARTITIONS
        ):
            self._context.set_timer_unless_set(turn, ConsumerTimer.JOIN, group, member)
            raise KafkaError(ErrorCode.rebalance_in_progress)
        assignment = assignment_bytes(self._context.topics, member, member.assigned)
        self._context.cancel_timer(ConsumerTimer.SYNC, group, member.member_id)
        self._context.expect_heartbeat(turn, group, member)
        return SyncGroupResult(ErrorCode.none, request.protocol_type, request.protocol_name, assignment)

    # ── Heartbeat ───────────────────────────────────────────────────────────────────────────────
    def heartbeat(self, turn: Turn, group: ConsumerGroup, request: Heartbeat) -> HeartbeatResult:
        member = _member(group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
        self._context.expect_heartbeat(turn, group, member)
        if not _may_take_a_step(group, member):
            return HeartbeatResult(ErrorCode.none)
        self._context.set_timer_unless_set(turn, ConsumerTimer.JOIN, group, member)
        return HeartbeatResult(ErrorCode.rebalance_in_progress)

    # ── LeaveGroup ──────────────────────────────────────────────────────────────────────────────
    def leave(self, turn: Turn, group: ConsumerGroup, request: LeaveGroup) -> LeaveGroupResult:
        leaving: dict[str, Member] = {}
        results: list[LeaveGroupMemberResult] = []
        for identity in request.members:
            member_id = identity.member_id
            try:
                member = _leaver(group, identity)
                if member.member_id in leaving:
                    raise unknown_member(group, member_id)
                leaving[member.member_id] = member
                member_id, code = member.member_id, ErrorCode.none
            except KafkaError as refusal:
                code = refusal.code
            results.append(LeaveGroupMemberResult(member_id, identity.group_instance_id, code))
        if leaving:
            members = list(leaving.values())
            remove(self._context, self._classic_groups, turn, group, members, "left")
        return LeaveGroupResult(ErrorCode.none, tuple(results))


def _subscription(request: JoinGroup) -> Subscription:
    """Decode the subscription in the first protocol; a consumer has the same one in all protocols."""
    try:
        return decode_subscription(request.protocols[0].metadata, SUBSCRIPTION_ELEMENTS_MAX)
    except MalformedMessage as error:
        raise KafkaError(ErrorCode.inconsistent_group_protocol, error.message) from None


def _joiner(group: ConsumerGroup, member_id: str, request: JoinGroup) -> Sender:
    instance_id = request.group_instance_id
    if instance_id is None:
        return Sender(group.members.get(member_id) or Member(member_id))
    holder = group.static_member(instance_id)
    if request.member_id == NO_MEMBER_ID:
        return Sender(Member(member_id)) if holder is None else Sender(successor(holder, member_id), holder)
    if holder is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    check_instance(holder, member_id, instance_id)
    return Sender(holder)


def _with_wishes(member: Member, request: JoinGroup, subscription: Subscription) -> Member:
    return replace(
        member,
        instance_id=member.instance_id if request.group_instance_id is None else request.group_instance_id,
        rack_id=subscription.rack,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        server_assignor=None,
        subscribed_topic_names=frozenset(subscription.topics),
        subscribed_topic_regex="",
        client_id=request.client_id,
        client_host=request.client_host,
        classic=classic_metadata(request.session_timeout_ms, request.protocols),
    )


def _may_take_a_step(group: ConsumerGroup, member: Member) -> bool:
    """Whether the member must join again: there is a newer target, it must revoke partitions, or those that
    it waits for have been released."""
    match member.state:
        case MemberState.UNREVOKED_PARTITIONS:
            return True
        case MemberState.UNRELEASED_PARTITIONS:
            return member.member_epoch < group.assignment_epoch or not _waits(group, member)
        case _:
            return member.member_epoch < group.assignment_epoch


def _waits(group: ConsumerGroup, member: Member) -> bool:
    for topic_id, partitions in group.target_of(member.member_id).items():
        mine = member.assigned.get(topic_id, {})
        if any(partition not in mine and group.is_owned(topic_id, partition) for partition in partitions):
            return True
    return False


def _member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    """Return the member with this id. Raises KafkaError unless it is a member that uses the classic
    protocol."""
    if instance_id is None:
        member = group.members.get(member_id)
    else:
        member = group.static_member(instance_id)
        if member is not None:
            check_instance(member, member_id, instance_id)
    if member is None or not member.uses_classic_protocol:
        raise unknown_member(group, member_id)
    return member


def _leaver(group: ConsumerGroup, identity: LeaveGroupMember) -> Member:
    """Return the member to remove. An operator may name a static member by its instance id alone.

    Raises KafkaError if there is no such member.
    """
    instance_id = identity.group_instance_id
    if instance_id is None or identity.member_id != NO_MEMBER_ID:
        return _member(group, identity.member_id, instance_id)
    member = group.static_member(instance_id)
    if member is None or not member.uses_classic_protocol:
        raise KafkaError(ErrorCode.unknown_member_id)
    return member


def _check_generation(member: Member, generation: int) -> None:
    if generation != member.member_epoch:
        raise KafkaError(ErrorCode.illegal_generation)
