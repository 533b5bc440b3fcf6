"""A simple coordinator of a classic group, for tests of clients; it records the members' requests.

It implements what clients can observe: member ids are assigned first, joins wait for all members (or for the
rebalance time-out), old generations are fenced, sessions expire, offsets are kept. Shares no code with the
brokers' coordinator. ``fault`` may return an error instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Api, milliseconds
from support.scripted.log_cluster import LogCluster

Fault = Callable[[int, Any], Any]
"""(API key, request) -> None, or the ErrorCode to respond with."""


@dataclass
class _Member:
    member_id: str
    instance_id: str | None
    session_ms: int
    rebalance_ms: int
    protocols: dict[str, bytes] = field(default_factory=dict)
    joining: asyncio.Future[Any] | None = None
    syncing: asyncio.Future[Any] | None = None
    assignment: bytes = b""
    timer: asyncio.TimerHandle | None = None


class ScriptedGroup:
    """One group, coordinated by the broker ``coordinator`` of a LogCluster."""

    def __init__(self, cluster: LogCluster, coordinator: int = 1) -> None:
        self.cluster = cluster
        self.coordinator = coordinator
        self.generation = 0
        self.state = "Empty"
        self.leader = ""
        self.members: dict[str, _Member] = {}
        self.offsets: dict[tuple[str, int], tuple[int, int]] = {}
        self.left: list[tuple[str, str]] = []
        """(member id, reason) of each leave request."""
        self.expired: list[str] = []
        self.joins: list[tuple[str, str]] = []
        """(member id, reason) of each JoinGroup request, in order."""
        self.fault: Fault = lambda _key, _request: None
        self._next = 0
        self._window: asyncio.TimerHandle | None = None
        for broker in cluster.brokers:
            for key, handler in (
                (ApiKey.FIND_COORDINATOR, self._find),
                (ApiKey.JOIN_GROUP, self._join),
                (ApiKey.SYNC_GROUP, self._sync),
                (ApiKey.HEARTBEAT, self._heartbeat),
                (ApiKey.LEAVE_GROUP, self._leave),
                (ApiKey.OFFSET_COMMIT, self._commit),
                (ApiKey.OFFSET_FETCH, self._fetch),
            ):
                broker.handlers[key] = self._guarded(key, handler, broker.node_id)
        cluster.publish()

    def _guarded(self, key: int, handler: Callable[..., Any], node_id: int) -> Callable[[Any, Api], Any]:
        def handle(request: Any, codec: Api) -> Any:
            code = self.fault(key, request)
            if key != ApiKey.FIND_COORDINATOR and node_id != self.coordinator:
                code = ErrorCode.not_coordinator
            return handler(request, codec, code)

        return handle

    def _find(self, request: Any, codec: Api, code: ErrorCode | None) -> Any:
        node = next(broker for broker in self.cluster.brokers if broker.node_id == self.coordinator)
        fields = {"node_id": node.node_id, "host": node.host, "port": node.port}
        one = codec.make("Coordinator", key="g", error_code=code or ErrorCode.none, **fields)
        return codec.response(coordinators=(one,))

    # --- the rounds

    async def _join(self, request: Any, codec: Api, code: ErrorCode | None) -> Any:
        code = code or self._join_error(request)
        member_id = request.member_id
        if code == ErrorCode.member_id_required:
            self._next += 1
            member_id = f"member-{self._next}"
            self._add(member_id, request)
        if code is not None:
            return codec.response(error_code=code, generation_id=-1, member_id=member_id, protocol_name=None)
        if not member_id:  # a static member: it replaces its predecessor
            self._next += 1
            member_id = f"{request.group_instance_id}-{self._next}"
            for other in list(self.members.values()):
                if other.instance_id == request.group_instance_id:
                    self._remove(other.member_id)
        self.joins.append((member_id, request.reason or ""))
        member = self.members.get(member_id) or self._add(member_id, request)
        member.protocols = {one.name: one.metadata for one in request.protocols}
        waiting = member.joining = asyncio.get_running_loop().create_future()
        self._begin_rebalance()
        code = await waiting
        if code is not ErrorCode.none:
            return codec.response(error_code=code, generation_id=-1, member_id=member_id, protocol_name=None)
        name = self._protocol()
        leads = self.leader == member_id
        return codec.response(
            error_code=ErrorCode.none,
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=name,
            leader=self.leader,
            member_id=member_id,
            members=tuple(
                codec.make(
                    "JoinGroupResponseMember",
                    member_id=one.member_id,
                    group_instance_id=one.instance_id,
                    metadata=one.protocols[name],
                )
                for one in self.members.values()
            )
            if leads
            else (),
        )

    def _join_error(self, request: Any) -> ErrorCode | None:
        if not request.member_id:
            return None if request.group_instance_id is not None else ErrorCode.member_id_required
        known = self.members.get(request.member_id)
        if known is not None:
            return None
        held = [one for one in self.members.values() if one.instance_id == request.group_instance_id]
        if request.group_instance_id is not None and held:
            return ErrorCode.fenced_instance_id
        return ErrorCode.unknown_member_id

    def _add(self, member_id: str, request: Any) -> _Member:
        member = _Member(
            member_id,
            request.group_instance_id,
            milliseconds(request.session_timeout),
            milliseconds(request.rebalance_timeout),
        )
        self.members[member_id] = member
        self._touch(member)
        return member

    def _protocol(self) -> str:
        first = next(iter(self.members.values()))
        return next(
            name for name in first.protocols if all(name in one.protocols for one in self.members.values())
        )

    def _begin_rebalance(self) -> None:
        if self.state != "PreparingRebalance":
            self.state = "PreparingRebalance"
            longest = max((one.rebalance_ms for one in self.members.values()), default=0)
            self._window = asyncio.get_running_loop().call_later(longest / 1000, self._complete, True)
        self._complete(False)

    def _complete(self, late: bool) -> None:
        """End the join phase if all members have joined, or (``late``) the rebalance time-out has passed."""
        if self.state != "PreparingRebalance":
            return
        missing = [one for one in self.members.values() if one.joining is None]
        if missing and not late:
            return
        for one in missing:
            self._remove(one.member_id)
        if self._window is not None:
            self._window.cancel()
        if not self.members:
            self.state = "Empty"
            return
        self.generation += 1
        self.state = "CompletingRebalance"
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        for one in self.members.values():
            self._touch(one)
            if one.joining is not None and not one.joining.done():
                one.joining.set_result(ErrorCode.none)
            one.joining = None

    async def _sync(self, request: Any, codec: Api, code: ErrorCode | None) -> Any:
        code = code or self._error(request, request.generation_id)
        if code is None and self.state == "PreparingRebalance":
            code = ErrorCode.rebalance_in_progress
        if code is None and self.state == "CompletingRebalance":
            member = self.members[request.member_id]
            self._touch(member)
            waiting = member.syncing = asyncio.get_running_loop().create_future()
            if request.member_id == self.leader:
                shares = {one.member_id: one.assignment for one in request.assignments}
                self.state = "Stable"
                for one in self.members.values():
                    one.assignment = shares.get(one.member_id, b"")
                    if one.syncing is not None and not one.syncing.done():
                        one.syncing.set_result(ErrorCode.none)
            code = await waiting
        if code is not None and code is not ErrorCode.none:
            return codec.response(error_code=code, assignment=b"")
        return codec.response(
            error_code=ErrorCode.none, assignment=self.members[request.member_id].assignment
        )

    def _heartbeat(self, request: Any, codec: Api, code: ErrorCode | None) -> Any:
        code = code or self._error(request, request.generation_id)
        if code is None:
            self._touch(self.members[request.member_id])
            if self.state == "PreparingRebalance":
                code = ErrorCode.rebalance_in_progress
        return codec.response(error_code=code or ErrorCode.none)

    def _leave(self, request: Any, codec: Api, code: ErrorCode | None) -> Any:
        for one in request.members:
            self.left.append((one.member_id, one.reason or ""))
            if one.member_id in self.members:
                self.remove(one.member_id)
        return codec.response(error_code=code or ErrorCode.none, members=())

    def _error(self, request: Any, generation: int) -> ErrorCode | None:
        member = self.members.get(request.member_id)
        if member is None:
            held = [one.instance_id for one in self.members.values()]
            taken = request.group_instance_id is not None and request.group_instance_id in held
            return ErrorCode.fenced_instance_id if taken else ErrorCode.unknown_member_id
        return None if generation == self.generation else ErrorCode.illegal_generation

    # --- members come and go

    def _touch(self, member: _Member) -> None:
        if member.timer is not None:
            member.timer.cancel()
        loop = asyncio.get_running_loop()
        member.timer = loop.call_later(member.session_ms / 1000, self._expire, member)

    def _expire(self, member: _Member) -> None:
        if member.joining is not None:
            self._touch(member)
        elif self.members.get(member.member_id) is member:
            self.expired.append(member.member_id)
            self.remove(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member, and start a rebalance of the others."""
        self._remove(member_id)
        if self.members:
            self._begin_rebalance()
        else:
            self.state = "Empty"

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        if member.timer is not None:
            member.timer.cancel()
        for waiting in (member.joining, member.syncing):
            if waiting is not None and not waiting.done():
                waiting.set_result(ErrorCode.unknown_member_id)

    # --- offsets

    def _commit(self, request: Any, codec: Api, code: ErrorCode | None) -> Any:
        if code is None and request.member_id:
            code = self._error(request, request.generation_id_or_member_epoch)
            if code is None and self.state == "CompletingRebalance":
                code = ErrorCode.rebalance_in_progress
        topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                if code is None:
                    key = (self.cluster.topic_of(topic), part.partition_index)
                    self.offsets[key] = (part.committed_offset, part.committed_leader_epoch)
                parts.append(
                    codec.make(
                        "OffsetCommitResponsePartition",
                        partition_index=part.partition_index,
                        error_code=code or ErrorCode.none,
                    )
                )
            topics.append(
                codec.make("OffsetCommitResponseTopic", topic_id=topic.topic_id, partitions=tuple(parts))
            )
        return codec.response(topics=tuple(topics))

    def _fetch(self, request: Any, codec: Api, code: ErrorCode | None) -> Any:
        topics = []
        for topic in request.groups[0].topics:
            parts = []
            for number in topic.partition_indexes:
                offset, epoch = self.offsets.get((self.cluster.topic_of(topic), number), (-1, -1))
                parts.append(
                    codec.make(
                        "OffsetFetchResponsePartitions",
                        partition_index=number,
                        committed_offset=offset,
                        committed_leader_epoch=epoch,
                        metadata="",
                        error_code=ErrorCode.none,
                    )
                )
            topics.append(
                codec.make("OffsetFetchResponseTopics", topic_id=topic.topic_id, partitions=tuple(parts))
            )
        group = codec.make(
            "OffsetFetchResponseGroup",
            group_id="g",
            topics=tuple(topics),
            error_code=code or ErrorCode.none,
        )
        return codec.response(groups=(group,))
