"""A heartbeat of a member of the consumer protocol, and how the member gets from its current to its target
assignment.

It revokes partitions first: another member gets a partition only when no member owns it any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from nilometer.groups.consumer.group import (
    LEAVE_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    NOTHING_OWNED,
    ConsumerGroup,
    Member,
    MemberState,
    Owned,
    claims_any,
    claims_only,
)
from nilometer.groups.consumer.rebalance import (
    MATCHED_MAX,
    Draft,
    assign_if_due,
    assignment_delay_ms,
    refresh,
    subscription_cause,
)
from nilometer.groups.requests import ConsumerGroupHeartbeat, ConsumerGroupHeartbeatResult, TopicPartitions
from nilometer.groups.settings import GroupConfig
from nilometer.groups.topics import (
    BY_NUMBER,
    Assignment,
    Topics,
    assignment_of,
    check_topic_regex,
    topic_partitions,
)
from nilometer.wire.errors import ErrorCode, KafkaError


class Target(msgspec.Struct, frozen=True):
    """The target assignment of a member, and the group epoch for which it was computed."""

    epoch: int
    assignment: Assignment
    subscribed: frozenset[UUID] | None = None
    """The topics that the member subscribes to now, if the target is older than the group epoch; else
    None."""

    def wants(self, topic_id: UUID) -> frozenset[int]:
        """Return the partitions of a topic in the assignment; none if the topic is not subscribed to now."""
        if self.subscribed is not None and topic_id not in self.subscribed:
            return frozenset()
        return self.assignment.get(topic_id, frozenset())


def check_state(member: Member, claimed: Assignment | None) -> None:
    """Raise KafkaError (FENCED_MEMBER_EPOCH) for a member whose state is unknown here and that claims
    partitions, or does not say which: it must join again."""
    if member.state is MemberState.UNKNOWN and (claimed is None or claimed):
        raise KafkaError(
            ErrorCode.fenced_member_epoch,
            "The consumer group member is in an unknown state. "
            "The member must abandon all its partitions and rejoin.",
        )


def reconciled(
    member: Member,
    target: Target,
    is_owned: Callable[[UUID, int], bool],
    claimed: Assignment | None,
) -> Member:
    """Return the member after its next step; the same object if nothing changes.

    ``is_owned``: whether any member owns a partition. ``claimed``: the partitions that the member says it
    owns, None if it does not say. The member has passed :func:`check_state`.
    """
    match member.state:
        case MemberState.STABLE if member.member_epoch == target.epoch and target.subscribed is None:
            return member
        case MemberState.UNREVOKED_PARTITIONS if _still_claims(claimed, member.pending_revocation):
            return member if target.subscribed is None else _without_unsubscribed(member, target.subscribed)
        case MemberState.UNKNOWN:
            return _towards(replace(member, member_epoch=target.epoch), target, is_owned, claimed)
        case _:
            return _towards(member, target, is_owned, claimed)


def _towards(
    member: Member, target: Target, is_owned: Callable[[UUID, int], bool], claimed: Assignment | None
) -> Member:
    kept: dict[UUID, dict[int, int]] = {}
    excess: dict[UUID, dict[int, int]] = {}
    for topic_id, partitions in member.assigned.items():
        wanted = target.wants(topic_id)
        for partition, epoch in partitions.items():
            place = kept if partition in wanted else excess
            place.setdefault(topic_id, {})[partition] = epoch
    if excess and _still_claims(claimed, excess):
        return _stepped(member, MemberState.UNREVOKED_PARTITIONS, member.member_epoch, kept, excess)

    waits = False
    for topic_id in sorted(target.assignment, key=BY_NUMBER):
        mine = member.assigned.get(topic_id, {})
        for partition in sorted(target.wants(topic_id)):
            if partition in mine:
                continue
            if is_owned(topic_id, partition):
                waits = True
            else:
                kept.setdefault(topic_id, {})[partition] = target.epoch
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return _stepped(member, state, target.epoch, kept, NOTHING_OWNED)


def _without_unsubscribed(member: Member, subscribed: frozenset[UUID]) -> Member:
    """Make a member that is still revoking also revoke the partitions of topics it has just unsubscribed
    from."""
    dropped = {
        topic_id: dict(partitions)
        for topic_id, partitions in member.assigned.items()
        if topic_id not in subscribed
    }
    if not dropped:
        return member
    kept = {
        topic_id: partitions for topic_id, partitions in member.assigned.items() if topic_id in subscribed
    }
    pending = {topic_id: dict(partitions) for topic_id, partitions in member.pending_revocation.items()}
    for topic_id, partitions in dropped.items():
        pending.setdefault(topic_id, {}).update(partitions)
    return _stepped(member, MemberState.UNREVOKED_PARTITIONS, member.member_epoch, kept, pending)


def _stepped(member: Member, state: MemberState, epoch: int, assigned: Owned, pending: Owned) -> Member:
    same = (state, epoch, assigned, pending) == (
        member.state,
        member.member_epoch,
        member.assigned,
        member.pending_revocation,
    )
    if same:
        return member
    return replace(
        member,
        state=state,
        previous_member_epoch=member.member_epoch,
        member_epoch=epoch,
        assigned=assigned,
        pending_revocation=pending,
    )


def _still_claims(claimed: Assignment | None, partitions: Owned) -> bool:
    """Whether the member may still own some of ``partitions``: it claims them, or does not say."""
    return claimed is None or claims_any(claimed, partitions)


HEARTBEAT_INTERVAL_MS_MIN: Final = 100
REGEXES_MAX: Final = 1_000
"""So many different regular expressions may the members of a group have: each is matched against the names of
all topics that come."""
COMPUTED_WITHIN_MS: Final = 1_000
"""What is being computed is asked for after this time."""


def check_request(request: ConsumerGroupHeartbeat, config: GroupConfig) -> None:
    """Check the fields of the request, without its group. Raises KafkaError."""
    joins = request.member_epoch == 0
    if request.requires_member_id or not joins:
        _not_blank(request.member_id, "MemberId")
    _not_blank(request.group_id, "GroupId")
    _not_blank(request.instance_id, "InstanceId")
    _not_blank(request.rack_id, "RackId")
    if joins:
        if request.rebalance_timeout_ms == -1:
            _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
        if request.subscribed_topic_regex:
            check_topic_regex(request.subscribed_topic_regex)
    elif request.member_epoch < LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        _invalid("MemberEpoch is invalid.")
    elif request.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH and request.instance_id is None:
        _invalid("InstanceId can't be null.")
    assignors = config.group_consumer_assignors
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def check_room(group: ConsumerGroup, member_id: str, instance_id: str | None, config: GroupConfig) -> None:
    """Raise KafkaError if the group is full and the sender neither is a member nor replaces a static one."""
    known = member_id in group.members or (
        instance_id is not None and group.static_member(instance_id) is not None
    )
    if not known and len(group.members) >= config.group_consumer_max_size:
        raise KafkaError(
            ErrorCode.group_max_size_reached,
            "The consumer group has reached its maximum capacity of "
            f"{config.group_consumer_max_size} members.",
        )


class Sender(msgspec.Struct, frozen=True):
    """The member that sent a request, as it is before the request."""

    member: Member
    """A new member has epoch 0."""
    replaces: Member | None = None
    """The static member that it replaces, if any."""


def sender_of(group: ConsumerGroup, request: ConsumerGroupHeartbeat) -> Sender:
    """Find the sender of a heartbeat. Raises KafkaError if it is unknown or fenced."""
    if request.instance_id is None:
        member = group.members.get(request.member_id)
        if member is None:
            if request.member_epoch != 0:
                raise unknown_member(group, request.member_id)
            return Sender(Member(request.member_id))
        check_epoch(member, request)
        return Sender(member)
    holder = group.static_member(request.instance_id)
    if request.member_epoch == 0:
        return _joining_static(group, holder, request)
    if holder is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {request.instance_id} is unknown.")
    check_instance(holder, request.member_id, request.instance_id)
    check_epoch(holder, request)
    return Sender(holder)


def _joining_static(group: ConsumerGroup, holder: Member | None, request: ConsumerGroupHeartbeat) -> Sender:
    if holder is None:
        return Sender(group.members.get(request.member_id) or Member(request.member_id))
    if holder.member_id == request.member_id:
        return Sender(holder)
    if not holder.uses_classic_protocol and holder.member_epoch != LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        raise KafkaError(
            ErrorCode.unreleased_instance_id,
            f"Static member {request.member_id} with instance id {request.instance_id} cannot join the group "
            f"because the instance id is owned by {holder.member_id} member.",
        )
    return Sender(successor(holder, request.member_id), holder)


def successor(holder: Member, member_id: str) -> Member:
    """Return ``holder`` with a new member id and epoch 0."""
    return replace(holder, member_id=member_id, member_epoch=0, previous_member_epoch=0)


def check_instance(holder: Member, member_id: str, instance_id: str) -> None:
    if holder.member_id != member_id:
        raise KafkaError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{holder.member_id}.",
        )


def claimed_by(member: Member, request: ConsumerGroupHeartbeat) -> Assignment | None:
    """Return the partitions that the member says it owns; None if it does not say.

    Of the topics that it never had, one is enough: it claims something else. A client may choose ids that all
    have the same hash.
    """
    if request.topic_partitions is None:
        return None
    had: list[TopicPartitions] = []
    others: list[TopicPartitions] = []
    for topic in request.topic_partitions:
        is_had = topic.topic_id in member.assigned or topic.topic_id in member.pending_revocation
        (had if is_had else others).append(topic)
    other = next((topic for topic in others if topic.partitions), None)
    return assignment_of(had if other is None else (*had, other))


def check_epoch(member: Member, request: ConsumerGroupHeartbeat) -> None:
    """Raise KafkaError (FENCED_MEMBER_EPOCH) if the request's epoch is not the member's.

    Epoch 0 (joining again) is accepted, and so is the previous epoch if the member claims only partitions
    that are assigned to it.
    """
    epoch = request.member_epoch
    if epoch in (0, member.member_epoch):
        return
    if epoch > member.member_epoch:
        raise _fenced("greater", epoch, member)
    claimed = claimed_by(member, request)
    if epoch != member.previous_member_epoch or claimed is None or not claims_only(claimed, member.assigned):
        raise _fenced("smaller", epoch, member)


def heartbeat(
    draft: Draft, sender: Sender, request: ConsumerGroupHeartbeat, topics: Topics, config: GroupConfig
) -> ConsumerGroupHeartbeatResult:
    """Process a checked heartbeat: write the records, and return the result.

    Raises KafkaError only before the first record.

    The first result on a connection has the assignment, though Kafka's has not: the response that had it may
    have been lost with the last connection, and librdkafka then does not ask for it. Such a member would
    neither revoke partitions, until its rebalance timeout ends, nor read those that it was given.
    """
    group, member = draft.group, sender.member
    wanted = _with_wishes(member, request)
    regex = wanted.subscribed_topic_regex
    if regex and regex != member.subscribed_topic_regex:
        known = group.subscribed_regexes()
        if regex not in known:
            check_topic_regex(regex, topics.names())
            if group.matched_count >= MATCHED_MAX:
                raise KafkaError(
                    ErrorCode.group_max_size_reached,
                    f"The regular expressions of the consumer group match {MATCHED_MAX} topics already.",
                )
            if len(known) >= REGEXES_MAX:
                raise KafkaError(
                    ErrorCode.group_max_size_reached,
                    f"The members of the consumer group have {REGEXES_MAX} regular expressions already.",
                )
    claimed = claimed_by(member, request)
    check_state(member, claimed)

    if sender.replaces is not None:
        replace_member(draft, sender.replaces, member)
    changed = write_member(draft, member, wanted)
    refresh(draft, topics, subscription_changed=changed, cause=subscription_cause(wanted))
    assign_if_due(draft, topics, config)
    after = reconcile(draft, topics, group.members[member.member_id], claimed)

    asks_for_all = request.member_epoch == 0 or (
        request.rebalance_timeout_ms != -1
        and claimed is not None
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
    )
    repeats = request.peer is not None and group.note_peer(request.member_id, request.peer)
    missed_response = request.member_epoch != member.member_epoch
    tell = asks_for_all or missed_response or after.assigned != member.assigned
    return ConsumerGroupHeartbeatResult(
        member_id=after.member_id,
        member_epoch=after.member_epoch,
        heartbeat_interval_ms=heartbeat_interval_ms(draft, config),
        assignment=topic_partitions(after.assigned) if tell or repeats else None,
        is_repeat=repeats and not tell,
    )


def heartbeat_interval_ms(draft: Draft, config: GroupConfig) -> int:
    """Return the member's heartbeat interval (ms): shorter than usual while a target assignment, or what it
    needs, is delayed or being computed, so that the member gets it soon."""
    usual = config.group_consumer_heartbeat_interval_ms
    if draft.group.assigning_epoch is not None or draft.group.matching:
        return min(usual, COMPUTED_WITHIN_MS)
    delay = assignment_delay_ms(draft.group, config.group_consumer_assignment_interval_ms, draft.turn.wall_ms)
    return usual if delay is None else min(usual, max(HEARTBEAT_INTERVAL_MS_MIN, delay))


def write_member(draft: Draft, before: Member, wanted: Member) -> bool:
    """Write the member's metadata if it changed; return whether its subscription changed."""
    is_new = wanted.member_id not in draft.group.members
    if is_new or wanted != before:
        draft.member_metadata(wanted)
    return (
        is_new
        or wanted.subscribed_topic_names != before.subscribed_topic_names
        or wanted.subscribed_topic_regex != before.subscribed_topic_regex
    )


def replace_member(draft: Draft, old: Member, new: Member) -> None:
    """Replace a static member ``old`` by ``new``, which gets its target assignment and partitions."""
    target = draft.group.target_of(old.member_id)
    draft.remove_member(old.member_id)
    draft.member_metadata(new)
    draft.target(new.member_id, target)
    draft.member_assignment(new)


def reconcile(draft: Draft, topics: Topics, member: Member, claimed: Assignment | None) -> Member:
    """Take the member's next step towards its target assignment; return the member after it.

    ``claimed``: the partitions that the member says it owns; None if it does not say.
    """
    group = draft.group
    outdated = group.group_epoch > group.assignment_epoch
    target = Target(
        group.assignment_epoch,
        group.target_of(member.member_id),
        topics.ids_of(group.topics_of(member)) if outdated else None,
    )
    after = reconciled(member, target, group.is_owned, claimed)
    if after is not member:
        draft.member_assignment(after)
    return after


def _with_wishes(member: Member, request: ConsumerGroupHeartbeat) -> Member:
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    wanted = replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms
            if request.rebalance_timeout_ms == -1
            else request.rebalance_timeout_ms
        ),
        server_assignor=member.server_assignor
        if request.server_assignor is None
        else request.server_assignor,
        subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
        subscribed_topic_regex=member.subscribed_topic_regex if regex is None else regex,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
    )
    return member if wanted == member else wanted


def is_leaving(request: ConsumerGroupHeartbeat) -> bool:
    return request.member_epoch in (LEAVE_GROUP_MEMBER_EPOCH, LEAVE_GROUP_STATIC_MEMBER_EPOCH)


def unknown_member(group: ConsumerGroup, member_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group.group_id}."
    )


def _fenced(how: str, epoch: int, member: Member) -> KafkaError:
    return KafkaError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {how} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def _not_blank(value: str | None, name: str) -> None:
    if value is not None and not value.strip():
        _invalid(f"{name} can't be empty.")


def _invalid(message: str) -> None:
    raise KafkaError(ErrorCode.invalid_request, message)
