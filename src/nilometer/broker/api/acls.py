"""DescribeAcls, CreateAcls and DeleteAcls: every ACL that a filter selects, and changes of them."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from nilometer.broker.api.access import CLUSTER_DENIED, access_of
from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right, spawn
from nilometer.broker.replies import Reply
from nilometer.broker.services import Services
from nilometer.broker.turns import LongWork
from nilometer.cluster.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from nilometer.cluster.controller.acls import DeletedAcls, decide_create_acls, decide_delete_acls
from nilometer.cluster.controller.decision import Decision, Outcome, Steps
from nilometer.cluster.image import ClusterImage
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division

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


def describe(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    error, why = ErrorCode.none, None
    if services.authorizer is None:
        error, why = ErrorCode.security_disabled, _WHY
    elif not access_of(services, request).on_cluster(Operation.DESCRIBE):
        error, why = ErrorCode.cluster_authorization_failed, CLUSTER_DENIED
    else:
        try:
            wanted = filter_of(request.body)
            return spawn(services, _describe(services, request, wanted), "DescribeAcls")
        except KafkaError as refused:
            error, why = refused.code, refused.message
    return request.respond(error_code=error, error_message=why, resources=())


async def _describe(services: Services, request: Request, wanted: AclFilter) -> Reply:
    work = LongWork(services.turns)
    by_pattern: dict[tuple[ResourceType, str, PatternType], list[Acl]] = {}
    for acl in (await work.go_through(services.image.acls.select(wanted))).values():
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


def create(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    if services.authorizer is None:
        return _refuse_creations(services, request, ErrorCode.security_disabled, _WHY)

    def decide(image: ClusterImage) -> Decision[Outcomes]:
        acls = [acl_of(creation) for creation in request.body.creations]
        return decide_create_acls(image, acls, chance=services.runtime.entropy)

    return on_controller(
        services, request, decide, _respond_created, _refuse_creations, needs=Operation.ALTER
    )


def _respond_created(services: Services, request: Request, outcomes: Outcomes) -> Reply:
    results = tuple(
        request.make("AclCreationResult", error_code=outcome.error, error_message=outcome.message)
        for outcome in outcomes
    )
    return request.respond(results=results)


def _refuse_creations(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    return _respond_created(services, request, [Outcome(error, message)] * len(request.body.creations))


def delete(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    if services.authorizer is None:
        return _refuse_filters(services, request, ErrorCode.security_disabled, _WHY)

    def decide(image: ClusterImage) -> Steps[Deleted]:
        return decide_delete_acls.steps(image, [filter_of(each) for each in request.body.filters])

    return on_controller(services, request, decide, _respond_deleted, _refuse_filters, needs=Operation.ALTER)


def _respond_deleted(services: Services, request: Request, results: Deleted) -> Reply:
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


def _refuse_filters(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    return _respond_deleted(services, request, [(Outcome(error, message), ())] * len(request.body.filters))


_DESCRIBE, _ALTER = (
    (Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
    (Right(Operation.ALTER, ResourceType.CLUSTER),),
)
DESCRIBE = ApiSpec(key=ApiKey.DESCRIBE_ACLS, versions=(1, 3), handle=describe, rights=_DESCRIBE)
CREATE = ApiSpec(
    key=ApiKey.CREATE_ACLS,
    versions=(1, 3),
    handle=create,
    rights=_ALTER,
    forwardable=True,
    divisions=(Division(("creations",), ("results",)),),
)
DELETE = ApiSpec(
    key=ApiKey.DELETE_ACLS,
    versions=(1, 3),
    handle=delete,
    rights=_ALTER,
    forwardable=True,
    divisions=(Division(("filters",), ("filter_results",), elements_max=8),),
)
