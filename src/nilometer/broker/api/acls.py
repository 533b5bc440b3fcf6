"""DescribeAcls, CreateAcls and DeleteAcls: every ACL that a filter selects, and changes of them."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import msgspec

from nilometer.broker.api.access import CLUSTER_DENIED, Rights
from nilometer.broker.api.controller_requests import ControllerRequests
from nilometer.broker.api.listings import Listings
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.responses import Response
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from nilometer.cluster.controller.access import DeletedAcls, decide_create_acls, decide_delete_acls
from nilometer.cluster.controller.decision import Decision, Outcome, Steps
from nilometer.cluster.image import ClusterImage
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division


class Parts(msgspec.Struct, frozen=True):
    runtime: Runtime
    tasks: Tasks
    turns: Turns
    listings: Listings
    metadata: MetadataLog
    rights: Rights
    controller_requests: ControllerRequests


E = TypeVar("E", bound=enum.IntEnum)


def acl_of(creation: Message) -> Acl:
    """Return the ACL to create. Raises KafkaError for an unknown number; the controller checks the rest."""
    return Acl(
        _known(ResourceType, creation.resource_type),
        creation.resource_name,
        _known(PatternType, creation.resource_pattern_type),
        creation.principal,
        creation.host,
        _known(Operation, creation.operation),
        _known(Permission, creation.permission_type),
    )


def filter_of(wanted: Message) -> AclFilter:
    """Return the filter of DescribeAcls, or one of DeleteAcls. Raises KafkaError for an unknown number."""
    return AclFilter(
        _known(ResourceType, wanted.resource_type_filter),
        wanted.resource_name_filter,
        _known(PatternType, wanted.pattern_type_filter),
        wanted.principal_filter,
        wanted.host_filter,
        _known(Operation, wanted.operation),
        _known(Permission, wanted.permission_type),
    )


def _known(kind: type[E], number: int) -> E:
    try:
        found = kind(number)
    except ValueError:
        found = None
    if not found:  # 0 is UNKNOWN
        raise KafkaError(ErrorCode.invalid_request, f"{kind.__name__} {number} is not known.")
    return found


_WHY = "No Authorizer is configured: access is not controlled by ACLs."
Outcomes = Sequence[Outcome]
Deleted = Sequence[DeletedAcls]


def describe(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    error, why = ErrorCode.none, None
    if parts.rights.authorizer is None:
        error, why = ErrorCode.security_disabled, _WHY
    elif not parts.rights.access(request).on_cluster(Operation.DESCRIBE):
        error, why = ErrorCode.cluster_authorization_failed, CLUSTER_DENIED
    else:
        try:
            wanted = filter_of(request.body)
            return parts.listings.answer(request, partial(_describe, parts, wanted))
        except KafkaError as refused:
            error, why = refused.code, refused.message
    return request.respond(error_code=error, error_message=why, resources=())


async def _describe(parts: Parts, wanted: AclFilter, request: Request, work: LongWork) -> Response:
    by_pattern: dict[tuple[ResourceType, str, PatternType], list[Acl]] = {}
    for acl in (await work.go_through(parts.metadata.image.acls.select(wanted))).values():
        by_pattern.setdefault((acl.resource_type, acl.resource_name, acl.pattern_type), []).append(acl)
        await work.step(1)
    resources = LazySequence(partial(_resource, request), list(by_pattern.values()))
    return request.respond(error_code=ErrorCode.none, error_message=None, resources=resources)


def _resource(request: Request, acls: Sequence[Acl]) -> Message:
    """Describe the ACLs of one pattern."""
    return request.make(
        "DescribeAclsResource",
        resource_type=int(acls[0].resource_type),
        resource_name=acls[0].resource_name,
        pattern_type=int(acls[0].pattern_type),
        acls=LazySequence(partial(_described, request), acls),
    )


def _described(request: Request, acl: Acl) -> Message:
    return request.make(
        "AclDescription",
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )


def create(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if parts.rights.authorizer is None:
        return _refuse_creations(request, ErrorCode.security_disabled, _WHY)

    def decide(image: ClusterImage) -> Decision[Outcomes]:
        acls = [acl_of(creation) for creation in request.body.creations]
        return decide_create_acls(image, acls, chance=parts.runtime.entropy)

    return parts.controller_requests.decide(
        request, decide, _respond_created, _refuse_creations, needs=Operation.ALTER
    )


def _respond_created(request: Request, outcomes: Outcomes) -> Response:
    results = tuple(
        request.make("AclCreationResult", error_code=outcome.error, error_message=outcome.message)
        for outcome in outcomes
    )
    return request.respond(results=results)


def _refuse_creations(request: Request, error: ErrorCode, message: str) -> Response:
    return _respond_created(request, [Outcome(error, message)] * len(request.body.creations))


def delete(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if parts.rights.authorizer is None:
        return _refuse_filters(request, ErrorCode.security_disabled, _WHY)

    def decide(image: ClusterImage) -> Steps[Deleted]:
        return decide_delete_acls.steps(image, [filter_of(each) for each in request.body.filters])

    return parts.controller_requests.decide(
        request, decide, _respond_deleted, _refuse_filters, needs=Operation.ALTER
    )


def _respond_deleted(request: Request, results: Deleted) -> Response:
    return request.respond(
        filter_results=tuple(
            request.make(
                "DeleteAclsFilterResult",
                error_code=outcome.error,
                error_message=outcome.message,
                matching_acls=LazySequence(partial(_matching, request), deleted),
            )
            for outcome, deleted in results
        )
    )


def _matching(request: Request, acl: Acl) -> Message:
    return request.make(
        "DeleteAclsMatchingAcl",
        error_message=None,
        resource_type=int(acl.resource_type),
        resource_name=acl.resource_name,
        pattern_type=int(acl.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )


def _refuse_filters(request: Request, error: ErrorCode, message: str) -> Response:
    return _respond_deleted(request, [(Outcome(error, message), ())] * len(request.body.filters))


_DESCRIBE, _ALTER = (
    (Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
    (Right(Operation.ALTER, ResourceType.CLUSTER),),
)


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(key=ApiKey.DESCRIBE_ACLS, versions=(1, 3), handle=partial(describe, parts), rights=_DESCRIBE),
        ApiSpec(
            key=ApiKey.CREATE_ACLS,
            versions=(1, 3),
            handle=partial(create, parts),
            rights=_ALTER,
            forwardable=True,
            divisions=(Division(("creations",), ("results",)),),
        ),
        ApiSpec(
            key=ApiKey.DELETE_ACLS,
            versions=(1, 3),
            handle=partial(delete, parts),
            rights=_ALTER,
            forwardable=True,
            divisions=(Division(("filters",), ("filter_results",), elements_max=8),),
        ),
    )
