"""How one member gets from its current to its target assignment: it revokes partitions first.

A member revokes all partitions that are not in its target, and confirms it by no longer claiming them in its
heartbeat. Only then does it enter the target's epoch, and gets the partitions that no other member owns any
more. So no partition ever has two owners, although members learn of a new target one by one, each with its
own heartbeat.

    STABLE ──────── must revoke partitions ────────▶ UNREVOKED_PARTITIONS
       ▲ ▲                                              │ no longer claims them
       │ └── nothing to revoke, all free ───────────────┤
       │                                                ▼ another member still owns some
       └──────── the other has released them ─── UNRELEASED_PARTITIONS
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import msgspec
from msgspec.structs import replace

from nilometer.groups.consumer.assignment import Assignment
from nilometer.groups.consumer.member import NOTHING_OWNED, Member, MemberState, Owned, claims_any
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
    for topic_id in sorted(target.assignment):
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
