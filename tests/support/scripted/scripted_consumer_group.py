"""A simple coordinator of one KIP-848 group, for tests of clients; it records the members' heartbeats.

Partitions are assigned in the order in which members joined. A member enters a new epoch once it has reported
that it gave up its revoked partitions, and gets only partitions that no other member owns. Shares no code
with the brokers' coordinator. Offsets, and ``fault``, are as in :class:`ScriptedGroup`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Api
from support.scripted.log_cluster import LogCluster
from support.scripted.scripted_groups import ScriptedGroup

SESSION_S = 45.0
HEARTBEAT_MS = 5_000
Held = frozenset[tuple[UUID, int]]


@dataclass
class _Member:
    member_id: str
    instance_id: str | None = None
    epoch: int = 0
    topics: tuple[str, ...] = ()
    assigned: Held = frozenset()
    pending: Held = frozenset()
    """The partitions that the member must give up."""
    told: Held | None = None
    timer: asyncio.TimerHandle | None = None
    is_away: bool = False


@dataclass
class Heard:
    """One received heartbeat."""

    member_id: str
    epoch: int
    topics: tuple[str, ...] | None
    owned: list[int] | None
    """The reported partition indexes; None: not in the request."""


class ScriptedConsumerGroup(ScriptedGroup):
    def __init__(self, cluster: LogCluster, coordinator: int = 1) -> None:
        super().__init__(cluster, coordinator)
        self.epoch = 1
        self.consumers: dict[str, _Member] = {}
        self.heard: list[Heard] = []
        for broker in cluster.brokers:
            broker.handlers[ApiKey.CONSUMER_GROUP_HEARTBEAT] = self._guarded(
                ApiKey.CONSUMER_GROUP_HEARTBEAT, self._beat, broker.node_id
            )
        cluster.publish()

    def _beat(self, request: Any, codec: Api, code: ErrorCode | None) -> Any:
        claimed = _claimed(request)
        named = request.subscribed_topic_names
        self.heard.append(
            Heard(
                request.member_id,
                request.member_epoch,
                None if named is None else tuple(named),
                None if claimed is None else sorted(number for _, number in claimed),
            )
        )
        code = code or self._refusal(request)
        if code is not None:
            return codec.response(error_code=code, heartbeat_interval=timedelta(0))
        if request.member_epoch < 0:
            self._go(request.member_id, request.member_epoch)
            return self._answer(codec, request.member_id, request.member_epoch)
        member = self._enter(request) if request.member_epoch == 0 else self.consumers[request.member_id]
        if named is not None and tuple(named) != member.topics:
            member.topics = tuple(named)
            self.epoch += 1
        self._listen(member)
        self._reconcile(member, claimed)
        changed = request.member_epoch == 0 or member.told != member.assigned
        member.told = member.assigned
        return self._answer(codec, member.member_id, member.epoch, member.assigned if changed else None)

    def _refusal(self, request: Any) -> ErrorCode | None:
        if request.member_epoch == 0:
            holder = self._holder(request.instance_id)
            taken = holder is not None and not holder.is_away and holder.member_id != request.member_id
            return ErrorCode.unreleased_instance_id if taken else None
        member = self.consumers.get(request.member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if request.member_epoch > 0 and request.member_epoch != member.epoch:
            return ErrorCode.fenced_member_epoch
        return None

    def _holder(self, instance_id: str | None) -> _Member | None:
        if instance_id is None:
            return None
        return next((one for one in self.consumers.values() if one.instance_id == instance_id), None)

    def _enter(self, request: Any) -> _Member:
        holder = self._holder(request.instance_id)
        if holder is not None:
            holder.member_id, holder.is_away = request.member_id, False
            self.consumers = {one.member_id: one for one in self.consumers.values()}  # keeps the order
            return holder
        member = self.consumers.setdefault(request.member_id, _Member(request.member_id, request.instance_id))
        member.assigned = member.pending = frozenset()
        return member

    def _reconcile(self, member: _Member, claimed: Held | None) -> None:
        if member.pending and (claimed is None or claimed & member.pending):
            return
        target = self._targets()[member.member_id]
        surplus = member.assigned - target
        member.assigned &= target
        member.pending = surplus if claimed is None or claimed & surplus else frozenset()
        if not member.pending:
            member.epoch = self.epoch
            others = [one.assigned | one.pending for one in self.consumers.values() if one is not member]
            member.assigned |= target.difference(*others)

    def _targets(self) -> dict[str, Held]:
        """Return the target assignment of every member, in the order in which they joined."""
        dealt: dict[str, set[tuple[UUID, int]]] = {member_id: set() for member_id in self.consumers}
        for topic, number in sorted(self.cluster.logs):
            readers = [one.member_id for one in self.consumers.values() if topic in one.topics]
            if readers:
                count = sum(1 for name, _ in self.cluster.logs if name == topic)
                reader = readers[number * len(readers) // count]
                dealt[reader].add((self.cluster.topic_ids[topic], number))
        return {member_id: frozenset(share) for member_id, share in dealt.items()}

    def _answer(self, codec: Api, member_id: str, epoch: int, assigned: Held | None = None) -> Any:
        assignment = None
        if assigned is not None:
            topics: dict[UUID, list[int]] = {}
            for topic_id, number in sorted(assigned):
                topics.setdefault(topic_id, []).append(number)
            assignment = codec.make(
                "Assignment",
                topic_partitions=tuple(
                    codec.make("TopicPartitions", topic_id=topic_id, partitions=tuple(numbers))
                    for topic_id, numbers in topics.items()
                ),
            )
        return codec.response(
            error_code=ErrorCode.none,
            member_id=member_id,
            member_epoch=epoch,
            heartbeat_interval=timedelta(milliseconds=HEARTBEAT_MS),
            assignment=assignment,
        )

    # --- members come and go

    def _go(self, member_id: str, epoch: int) -> None:
        self.left.append((member_id, str(epoch)))
        if epoch == -2:
            self.consumers[member_id].is_away = True
        else:
            self.remove(member_id)

    def remove(self, member_id: str) -> None:
        member = self.consumers.pop(member_id)
        self.epoch += 1
        if member.timer is not None:
            member.timer.cancel()

    def _listen(self, member: _Member) -> None:
        if member.timer is not None:
            member.timer.cancel()
        member.timer = asyncio.get_running_loop().call_later(SESSION_S, self._silent, member)

    def _silent(self, member: _Member) -> None:
        if self.consumers.get(member.member_id) is member:
            self.expired.append(member.member_id)
            self.remove(member.member_id)

    def _error(self, request: Any, generation: int) -> ErrorCode | None:
        """Return the error of a commit by this member and epoch, or None."""
        member = self.consumers.get(request.member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        return None if generation == member.epoch else ErrorCode.stale_member_epoch


def _claimed(request: Any) -> Held | None:
    if request.topic_partitions is None:
        return None
    return frozenset(
        (each.topic_id, number) for each in request.topic_partitions for number in each.partitions
    )
