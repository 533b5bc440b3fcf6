"""DeleteGroups: delete groups without members, with their offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nilometer.broker.api.audited_changes import audit_own_change
from nilometer.broker.api.group_access import ask_groups
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import DeleteGroups, DeleteGroupsReply
from nilometer.groups.requests import Reply as GroupReply
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    groups = dict.fromkeys(request.body.groups_names)  # a group named twice is deleted once
    return ask_groups(
        services,
        request,
        Operation.DELETE,
        [(group, DeleteGroups((group,))) for group in groups],
        lambda replies: _respond(services, request, replies),
    )


def _respond(services: Services, request: Request, replies: Sequence[GroupReply]) -> Reply:
    deleted = [
        result for reply in replies if isinstance(reply, DeleteGroupsReply) for result in reply.results
    ]
    for result in deleted:
        if result.error_code is ErrorCode.none:
            audit_own_change(services, request, group_id=result.group_id)
    results = tuple(
        request.make("DeletableGroupResult", group_id=result.group_id, error_code=result.error_code)
        for result in deleted
    )
    return request.respond(throttle_time_ms=0, results=results)


API = ApiSpec(
    key=ApiKey.DELETE_GROUPS,
    versions=(0, 2),
    handle=handle,
    divisions=(Division(("groups_names",), ("results",), repeated=Repeated.AT_MOST_TWICE),),
    rights=(Right(Operation.DELETE, ResourceType.GROUP),),
)
