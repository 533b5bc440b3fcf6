"""Heartbeat: renews the session of a classic group's member; REBALANCE_IN_PROGRESS makes it join again."""

from __future__ import annotations

import asyncio

from nilometer.broker.api.group_access import ask_group
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import Heartbeat, HeartbeatReply
from nilometer.wire.api_keys import ApiKey


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    body = request.body
    asked = Heartbeat(
        group_id=body.group_id,
        generation_id=body.generation_id,
        member_id=body.member_id,
        group_instance_id=request.field("group_instance_id"),
    )
    return ask_group(
        services,
        request,
        Operation.READ,
        asked.group_id,
        asked,
        HeartbeatReply,
        lambda reply: request.respond(throttle_time_ms=0, error_code=reply.error_code),
    )


API = ApiSpec(
    key=ApiKey.HEARTBEAT,
    versions=(0, 4),
    handle=handle,
    rights=(Right(Operation.READ, ResourceType.GROUP),),
)
