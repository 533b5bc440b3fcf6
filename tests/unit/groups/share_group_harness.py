"""A group world with topics, share groups, and a share coordinator that answers when it is told to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

from consumer_group_harness import ConsumerWorld

from nilometer.coordinators import Token
from nilometer.groups.requests import (
    DeleteGroups,
    DeleteGroupsResult,
    DescribedShareGroup,
    ShareGroupDescribe,
    ShareGroupDescribeResult,
    ShareGroupHeartbeat,
    ShareGroupHeartbeatResult,
)
from nilometer.groups.settings import GroupConfig
from nilometer.groups.share_group import ShareGroup
from nilometer.groups.turn import DeleteShareState, Effects, InitializeShareState, ShareStateResult
from nilometer.wire.errors import ErrorCode

SHARE_SESSION_MS = 45_000
"""The default of `group.share.session.timeout.ms`."""
ShareAction = InitializeShareState | DeleteShareState


@dataclass
class ShareWorld(ConsumerWorld):
    config: GroupConfig = field(default_factory=lambda: GroupConfig(group_share_assignment_interval_ms=0))
    asked: list[ShareAction] = field(default_factory=list[ShareAction])
    """What the share coordinator was asked, and has not answered."""
    answers_at_once: bool = True

    def _take(self, effects: Effects) -> Effects:
        actions = (InitializeShareState, DeleteShareState)
        asked = [action for action in effects.actions if isinstance(action, actions)]
        super()._take(effects)
        self.asked += asked
        if self.answers_at_once:
            written = self.written
            self.answer_all()
            self.written = written
        return effects

    def answer_all(self) -> None:
        while self.asked:
            self.answer_state()

    def answer_state(self, errors: Mapping[UUID, Mapping[int, ErrorCode]] | None = None) -> None:
        """The share coordinator answers the first action: with success, or with these errors."""
        self._answer(ShareStateResult(self.asked.pop(0), errors or {}))

    def fail_state(self, error: ErrorCode = ErrorCode.coordinator_not_available) -> None:
        self._answer(ShareStateResult.failed(self.asked.pop(0), error))

    def _answer(self, result: ShareStateResult) -> None:
        self._take(self.shard.on_share_state(result, self.now_ms, self.wall_ms))

    # -- what the group is -----------------------------------------------------------------------------

    def share_group(self, group_id: str = "g") -> ShareGroup:
        return cast(ShareGroup, next(group for group in self.shard.groups() if group.group_id == group_id))

    def has_group(self, group_id: str = "g") -> bool:
        return any(group.group_id == group_id for group in self.shard.groups())

    def named(self, assignment: Mapping[UUID, Iterable[int]]) -> dict[str, list[int]]:
        return {self.topics.name_of(topic_id): sorted(found) for topic_id, found in assignment.items()}

    def initialized(self) -> dict[str, list[int]]:
        return self.named(self.share_group().partitions.initialized)

    def initializing(self) -> dict[str, list[int]]:
        return self.named(self.share_group().partitions.initializing)

    def describe_share(self, group_id: str = "g") -> DescribedShareGroup:
        return self.ask(ShareGroupDescribe((group_id,)), ShareGroupDescribeResult).groups[0]

    # -- what members say --------------------------------------------------------------------------------

    def share_beat(
        self,
        member_id: str,
        epoch: int,
        *topics: str,
        rack: str | None = None,
        group: str = "g",
        client: str = "c",
    ) -> ShareGroupHeartbeatResult:
        return self.ask(
            ShareGroupHeartbeat(group, member_id, epoch, rack, topics or None, client, f"/{client}.host"),
            ShareGroupHeartbeatResult,
        )

    def share_member(self, member_id: str, *topics: str, group: str = "g") -> ShareMemberClient:
        member = ShareMemberClient(self, member_id, topics or ("t",), group)
        member.step()
        return member

    def share_settle(self, *members: ShareMemberClient) -> None:
        """All members send heartbeats until nothing changes any more."""
        for _ in range(len(members) + 8):
            before = [(member.epoch, member.assigned) for member in members]
            self.pass_time(max(self.config.group_share_assignment_interval_ms, 1_000))
            for member in members:
                member.step()
            if before == [(member.epoch, member.assigned) for member in members]:
                return
        raise AssertionError("the group does not come to rest")

    def delete_groups(self, *group_ids: str) -> Token:
        return self.send(DeleteGroups(group_ids))

    def deleted(self, token: Token) -> list[ErrorCode]:
        return [result.error_code for result in self.answer(token, DeleteGroupsResult).results]


@dataclass
class ShareMemberClient:
    """A member that does what it is told."""

    world: ShareWorld = field(repr=False)
    member_id: str
    topics: tuple[str, ...]
    group: str = "g"
    epoch: int = 0
    assigned: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    last: ShareGroupHeartbeatResult = field(default_factory=ShareGroupHeartbeatResult)

    def step(self, *, loses_reply: bool = False) -> ErrorCode:
        topics = self.topics if self.epoch == 0 else ()
        reply = self.world.share_beat(self.member_id, self.epoch, *topics, group=self.group)
        if loses_reply:
            return reply.error_code
        self.last = reply
        if reply.error_code is ErrorCode.none:
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.assigned = self.world.names(reply.assignment)
        elif reply.error_code is not ErrorCode.group_max_size_reached:
            self.epoch, self.assigned = 0, {}
        return reply.error_code

    def subscribe(self, *topics: str) -> None:
        self.topics = topics
        reply = self.world.share_beat(self.member_id, self.epoch, *topics, group=self.group)
        assert reply.error_code is ErrorCode.none
        self.epoch = reply.member_epoch
        self.assigned = self.world.names(reply.assignment or ())

    def leave(self) -> ErrorCode:
        reply = self.world.share_beat(self.member_id, -1, group=self.group)
        self.epoch, self.assigned = 0, {}
        return reply.error_code
