"""The consumer groups of a shard (KIP-848): turns requests and timers into records and results.

The modules beside it decide what a heartbeat, a member of the classic protocol and a departure change; here
the group is found, the timers are set, and the result is sent.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from nilometer.coordinators import Token
from nilometer.groups.classic_group import ClassicGroup
from nilometer.groups.classic_groups import ClassicGroups
from nilometer.groups.consumer.classic_members import ClassicMembers
from nilometer.groups.consumer.context import ConsumerTimer, Context
from nilometer.groups.consumer.departures import leave, remove, upgrade
from nilometer.groups.consumer.group import ConsumerGroup, Member, MemberState
from nilometer.groups.consumer.heartbeat import check_request, check_room, heartbeat, is_leaving, sender_of
from nilometer.groups.consumer.rebalance import Draft, assign_if_due, write_matches, write_target
from nilometer.groups.records import CoordinatorRecord
from nilometer.groups.requests import (
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResult,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    Heartbeat,
    HeartbeatResult,
    JoinGroup,
    JoinGroupResult,
    LeaveGroup,
    SyncGroup,
    SyncGroupResult,
)
from nilometer.groups.settings import GroupConfig
from nilometer.groups.topics import NO_PARTITIONS, Assignment, Topics, described_partitions
from nilometer.groups.turn import AssignmentNeeded, Computation, ShardState, TimerKey, Turn, write_on
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import KafkaError

CLASSIC_MEMBER_TYPE = 0
CONSUMER_MEMBER_TYPE = 1


def described(group: ConsumerGroup, topics: Topics, config: GroupConfig) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(
        group.group_id,
        group_state=group.state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor() or config.group_consumer_assignors[0],
        members=LazySequence(
            functools.partial(_member, topics, dict(group.target)), tuple(group.members.values())
        ),
    )


def _member(topics: Topics, target: Mapping[str, Assignment], member: Member) -> DescribedConsumerGroupMember:
    return DescribedConsumerGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscribed_topic_names)),
        subscribed_topic_regex=member.subscribed_topic_regex or None,
        assignment=described_partitions(_owned(member), topics),
        target_assignment=described_partitions(target.get(member.member_id, NO_PARTITIONS), topics),
        member_type=CLASSIC_MEMBER_TYPE if member.uses_classic_protocol else CONSUMER_MEMBER_TYPE,
    )


def _owned(member: Member) -> dict[UUID, set[int]]:
    """Return the partitions that the member owns: the assigned ones and those it must still revoke."""
    found: dict[UUID, set[int]] = {}
    for owned in (member.assigned, member.pending_revocation):
        for topic_id, partitions in owned.items():
            found.setdefault(topic_id, set()).update(partitions)
    return found


_REASONS: Mapping[Enum, str] = {
    ConsumerTimer.SESSION: "its session timed out",
    ConsumerTimer.REBALANCE: "it did not revoke partitions within its rebalance timeout",
    ConsumerTimer.JOIN: "it did not rejoin within its rebalance timeout",
    ConsumerTimer.SYNC: "it did not request its assignment within its rebalance timeout",
}


class ConsumerGroups:
    def __init__(self, state: ShardState, classic_groups: ClassicGroups) -> None:
        self._context = Context(state)
        self._state = state
        self._classic_groups = classic_groups
        self._classic_members = ClassicMembers(self._context, classic_groups)

    # ── loading ─────────────────────────────────────────────────────────────────────────────────
    def replay(self, record: CoordinatorRecord) -> None:
        self._context.replay(record)

    def on_loaded(self, turn: Turn) -> Iterator[int]:
        """Start every member's timers with full timeouts: session, and revocation if it must revoke."""
        for group in self._context.all():
            for member in group.members.values():
                self._context.expect_heartbeat(turn, group, member)
                self._context.expect_revocation(turn, group, None, member)
                yield 1
            self._context.expect_assignment(turn, group)
            yield 1

    def on_computed(self, turn: Turn, needed: Computation, result: Any) -> None:
        """Write what was computed outside, and begin with the next target assignment if one is due."""
        context, group = self._context, self._context.find(needed.group_id)
        if group is None:
            return
        draft = Draft(group, turn)
        if isinstance(needed, AssignmentNeeded):
            if group.assigning_epoch != needed.epoch:
                return  # the group was deleted and created again
            write_target(draft, needed.epoch, result)
        elif group.matching.issuperset(needed.kept):
            write_matches(draft, context.topics, needed, result)
        self._assign_if_due(draft)

    def _assign_if_due(self, draft: Draft) -> None:
        assign_if_due(draft, self._context.topics, self._context.config_of(draft.group))
        self._context.expect_assignment(draft.turn, draft.group)

    # ── time ────────────────────────────────────────────────────────────────────────────────────
    def on_timer(self, turn: Turn, key: TimerKey) -> None:
        group = self._context.find(key.group_id)
        if group is None:
            return
        if key.kind is ConsumerTimer.ASSIGNMENT:
            draft = Draft(group, turn)
            write_on(draft)
            self._assign_if_due(draft)
            return
        member = group.members.get(key.member_id)
        if member is None:
            return
        if key.kind is ConsumerTimer.REBALANCE and member.state is not MemberState.UNREVOKED_PARTITIONS:
            return
        self._remove(turn, group, member, f"member {member.member_id} was fenced: {_REASONS[key.kind]}")

    def _remove(self, turn: Turn, group: ConsumerGroup, member: Member, reason: str) -> None:
        remove(self._context, self._classic_groups, turn, group, [member], reason)

    # ── members of the consumer protocol ──────────────────────────────────────────────────────────
    def heartbeat(self, turn: Turn, token: Token, request: ConsumerGroupHeartbeat) -> None:
        try:
            result = self._heartbeat(turn, request)
        except KafkaError as refusal:
            result = ConsumerGroupHeartbeatResult(refusal.code, refusal.message or None)
        turn.resolve(token, result)

    def _heartbeat(self, turn: Turn, request: ConsumerGroupHeartbeat) -> ConsumerGroupHeartbeatResult:
        context = self._context
        check_request(request, context.config)
        if is_leaving(request):
            group = context.get(request.group_id)
            return leave(context, self._classic_groups, turn, group, request)
        if not request.member_id:
            request = replace(request, member_id=self._state.new_member_id(request.client_id))
        group = (
            self._group_to_join(turn, request) if request.member_epoch == 0 else context.get(request.group_id)
        )
        check_room(group, request.member_id, request.instance_id, context.config)
        sender = sender_of(group, request)
        result = heartbeat(Draft(group, turn), sender, request, context.topics, context.config_of(group))
        if sender.replaces is not None:
            context.forget_member(group, sender.replaces.member_id)
        member = group.members[sender.member.member_id]
        self._set_timers(turn, group, sender.member, member)
        return result

    def _set_timers(self, turn: Turn, group: ConsumerGroup, before: Member, after: Member) -> None:
        context = self._context
        context.expect_heartbeat(turn, group, after)
        if before is not after:
            context.expect_revocation(turn, group, before, after)
            context.cancel_timer(ConsumerTimer.JOIN, group, after.member_id)
            context.cancel_timer(ConsumerTimer.SYNC, group, after.member_id)
        context.expect_assignment(turn, group)

    def _group_to_join(self, turn: Turn, request: ConsumerGroupHeartbeat) -> ConsumerGroup:
        """Return the group that the sender of a valid request joins; create it, or upgrade a classic
        group."""
        found = self._state.groups.get(request.group_id)
        if isinstance(found, ConsumerGroup):
            return found
        if isinstance(found, ClassicGroup):
            if not found.is_empty:
                return upgrade(self._context, self._classic_groups, turn, found, request.instance_id)
            self._classic_groups.remove(turn, found)
        elif found is not None:
            return self._context.get(request.group_id)
        group = self._state.groups[request.group_id] = ConsumerGroup(request.group_id)
        return group

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        try:
            return described(self._context.get(group_id), self._context.topics, self._context.config)
        except KafkaError as refusal:
            return DescribedConsumerGroup(group_id, refusal.code, refusal.message)

    # ── members of the classic protocol ───────────────────────────────────────────────────────────
    def classic_join(self, turn: Turn, token: Token, request: JoinGroup) -> None:
        try:
            result = self._classic_members.join(turn, self._context.get(request.group_id), request)
        except KafkaError as refusal:
            result = JoinGroupResult(refusal.code, request.member_id)
        turn.resolve(token, result)

    def classic_sync(self, turn: Turn, token: Token, request: SyncGroup) -> None:
        try:
            result = self._classic_members.sync(turn, self._context.get(request.group_id), request)
        except KafkaError as refusal:
            result = SyncGroupResult(refusal.code)
        turn.resolve(token, result)

    def classic_heartbeat(self, turn: Turn, token: Token, request: Heartbeat) -> None:
        try:
            result = self._classic_members.heartbeat(turn, self._context.get(request.group_id), request)
        except KafkaError as refusal:
            result = HeartbeatResult(refusal.code)
        turn.resolve(token, result)

    def classic_leave(self, turn: Turn, token: Token, request: LeaveGroup) -> None:
        turn.resolve(token, self._classic_members.leave(turn, self._context.get(request.group_id), request))
