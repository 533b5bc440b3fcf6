"""DescribeRebalances (Nilometer's own): the last rebalance of each group coordinated by this broker, and its
cause."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import DescribedGroup, DescribeGroups, DescribeGroupsReply
from nilometer.groups.requests import Reply as GroupReply
from nilometer.wire import own_apis as wire
from nilometer.wire.errors import ErrorCode


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    if not access_of(services, request).on_cluster(Operation.DESCRIBE):
        denied = int(ErrorCode.cluster_authorization_failed)
        groups = request.body.groups
        refused = (wire.RebalanceState(group_id=group, error_code=denied) for group in groups)
        return request.respond(groups=tuple(refused))
    return services.groups.ask(
        [(group, DescribeGroups((group,))) for group in request.body.groups],
        lambda replies: _respond(request, replies),
    )


def _respond(request: Request, replies: Sequence[GroupReply]) -> Reply:
    described = [
        group for reply in replies if isinstance(reply, DescribeGroupsReply) for group in reply.groups
    ]
    return request.respond(groups=tuple(map(_group, described)))


def _group(group: DescribedGroup) -> wire.RebalanceState:
    last = group.last_rebalance
    if last is None:
        return wire.RebalanceState(group_id=group.group_id, error_code=int(group.error_code))
    return wire.RebalanceState(
        group_id=group.group_id,
        reason=last.reason,
        member_id=last.member_id,
        group_instance_id=last.group_instance_id,
        client_id=last.client_id,
        client_host=last.client_host,
        wall_ms=last.wall_ms,
        generation=last.generation,
        times_in_a_row=last.times_in_a_row,
    )


API = ApiSpec(
    key=wire.DESCRIBE_REBALANCES,
    versions=(0, 0),
    handle=handle,
    rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
)
