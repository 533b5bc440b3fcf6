"""Checks who may commit and fetch offsets: a member, with its current epoch.

A commit with an older epoch may have been sent just before the member received the new one. It is accepted if
the member has owned every partition in it since that epoch or longer (KIP-1251): then no other member can
have read these partitions meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from nilometer.groups.consumer.member import Member
from nilometer.groups.requests import OffsetCommit, OffsetFetch
from nilometer.wire.errors import ErrorCode


def check_commit(member: Member | None, request: OffsetCommit) -> ErrorCode:
    if member is None:
        return ErrorCode.unknown_member_id
    if not member.uses_classic_protocol and not request.knows_member_epochs:
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
