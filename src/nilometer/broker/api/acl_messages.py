"""ACLs and their filters in requests."""

from __future__ import annotations

import enum
from typing import TypeVar

from nilometer.cluster.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Message

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
