"""Requests about groups: those on groups that the client has no right to never reach a coordinator. And who a
member's client is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from nilometer.broker.api.access import Rights
from nilometer.broker.api.spec import Request
from nilometer.broker.coordinators.groups import GroupCoordinator
from nilometer.broker.replies import Reply
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import (
    ConsumerGroupHeartbeat,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    OffsetDelete,
    ShareGroupHeartbeat,
    StreamsGroupHeartbeat,
    SyncGroup,
    refusal,
)
from nilometer.groups.requests import Reply as GroupReply
from nilometer.wire.errors import ErrorCode

OfOneGroup: TypeAlias = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | OffsetDelete
    | ConsumerGroupHeartbeat
    | ShareGroupHeartbeat
    | StreamsGroupHeartbeat
)
R = TypeVar("R", bound=GroupReply)
DENIED = ErrorCode.group_authorization_failed


class GroupRequests:
    def __init__(self, rights: Rights, groups: GroupCoordinator, turns: Turns) -> None:
        self._rights = rights
        self._groups = groups
        self._turns = turns

    def ask_group(
        self,
        request: Request,
        operation: Operation,
        asked: OfOneGroup,
        kind: type[R],
        respond: Callable[[R], Reply],
    ) -> Reply | asyncio.Future[Reply]:
        """Submit one request, whose reply must be of type ``kind``, otherwise as :meth:`ask_groups`."""

        def respond_to(replies: Sequence[GroupReply]) -> Reply:
            (reply,) = replies
            assert isinstance(reply, kind), f"{type(asked).__name__} is answered with {kind.__name__}"
            return respond(reply)

        return self.ask_groups(request, operation, ((asked.group_id, asked),), respond_to)

    def ask_groups(
        self,
        request: Request,
        operation: Operation,
        asked: Sequence[tuple[str, GroupRequest]],
        respond: Callable[[Sequence[GroupReply]], Reply],
    ) -> Reply | asyncio.Future[Reply]:
        """Submit each request of ``asked``, a list of (group id, request), on whose group ``operation`` is
        allowed.

        ``respond`` makes the response from all replies, in the order of ``asked``: a group on which it is not
        allowed has the reply GROUP_AUTHORIZATION_FAILED.
        """
        access = self._rights.access(request)
        may = [access.is_full or access.allows(operation, ResourceType.GROUP, group) for group, _ in asked]
        if all(may):
            return self._groups.ask(asked, respond)

        def respond_to_all(replies: Sequence[GroupReply]) -> Reply:
            of_allowed = iter(replies)
            return respond(
                [
                    next(of_allowed) if allowed else _refusal(one)
                    for allowed, (_, one) in zip(may, asked, strict=True)
                ]
            )

        allowed = [one for may_this, one in zip(may, asked, strict=True) if may_this]
        return self._groups.ask(allowed, respond_to_all) if allowed else respond_to_all(())

    async def ask_groups_in_turns(
        self, request: Request, operation: Operation, asked: Sequence[tuple[str, GroupRequest]]
    ) -> list[GroupReply]:
        """Return the replies as :meth:`ask_groups` passes them on, where each group may take long."""
        access = self._rights.access(request)
        may = [access.is_full or access.allows(operation, ResourceType.GROUP, group) for group, _ in asked]
        allowed = [one for may_this, one in zip(may, asked, strict=True) if may_this]
        of_allowed = iter(await self._groups.ask_in_turns(allowed, LongWork(self._turns)))
        return [
            next(of_allowed) if may_this else _refusal(one)
            for may_this, (_, one) in zip(may, asked, strict=True)
        ]


def _refusal(asked: GroupRequest) -> GroupReply:
    if isinstance(asked, JoinGroup):
        return JoinGroupReply(DENIED)  # without the member id, as Kafka
    return refusal(asked, DENIED)


def client_id(request: Request) -> str:
    return request.header.client_id or ""


def client_host(request: Request) -> str:
    """Return the client's IP address after a slash, as Kafka (Java) prints an address without a host name."""
    return f"/{request.connection.peer[0]}"
