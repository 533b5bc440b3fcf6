"""CreateAcls and DeleteAcls: each ACL is created or deleted independently of the others of its request.

The checks are those of Kafka's controller. To create an ACL that exists already succeeds and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.cluster.acl import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from nilometer.cluster.acl_table import AclId, record_of
from nilometer.cluster.controller.decision import OK, Decision, Outcome, Steps, Stepwise
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import AclDeleted
from nilometer.identifiers import uuid_to_text
from nilometer.runtime import Entropy
from nilometer.wire.errors import ErrorCode

CREATIONS_MAX = 10_000
"""A request that creates or deletes more ACLs than this is rejected, as in Kafka."""

DeletedAcls = tuple[Outcome, tuple[Acl, ...]]
"""The result of one filter of DeleteAcls, and the ACLs that it deleted."""


def decide_create_acls(
    image: ClusterImage, acls: Sequence[Acl], *, chance: Entropy
) -> Decision[tuple[Outcome, ...]]:
    """Create the valid ones of ``acls``; the reply has an outcome for each, in their order."""
    outcomes: list[Outcome] = []
    created: dict[Acl, AclId] = {}
    for acl in acls:
        why = _why_invalid(acl)
        if why is None and len(created) >= CREATIONS_MAX:
            why = f"A request creates at most {CREATIONS_MAX} ACLs."
        outcomes.append(OK if why is None else Outcome(ErrorCode.invalid_request, why))
        if why is None and acl not in image.acls and acl not in created:
            created[acl] = _new_id(image, chance)
    return Decision(tuple((record_of(acl_id, acl),) for acl, acl_id in created.items()), tuple(outcomes))


def _new_id(image: ClusterImage, chance: Entropy) -> AclId:
    while image.acls.has_id(acl_id := uuid_to_text(chance.uuid())):
        pass
    return AclId(acl_id)


def _why_invalid(acl: Acl) -> str | None:
    if acl.resource_type is ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.resource_name:
        return "Invalid empty resource name"
    if acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        return f"Invalid resourceType {acl.resource_type.name}"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {acl.pattern_type.name}"
    if acl.operation in (Operation.UNKNOWN, Operation.ANY):
        return f"Invalid operation {acl.operation.name}"
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        return f"Invalid permissionType {acl.permission.name}"
    if ":" not in acl.principal:
        return (
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal "
            "type from the principal name)"
        )
    return None


@Stepwise
def decide_delete_acls(image: ClusterImage, filters: Sequence[AclFilter]) -> Steps[tuple[DeletedAcls, ...]]:
    """Delete the ACLs that ``filters`` select; the reply has a result for each filter, in their order.

    An ACL that several filters select is in the result of each of them.
    """
    results: list[DeletedAcls] = []
    deleted: dict[AclId, None] = {}
    for each in filters:
        found = yield from image.acls.select(each)
        why = _why_invalid_filter(each)
        if why is None and len(deleted.keys() | found.keys()) > CREATIONS_MAX:
            why = f"Cannot remove more than {CREATIONS_MAX} acls in a single delete operation."
        if why is not None:
            results.append((Outcome(ErrorCode.invalid_request, why), ()))
            continue
        deleted.update(dict.fromkeys(found))
        results.append((OK, tuple(found.values())))
    return Decision(tuple((AclDeleted(id=acl_id),) for acl_id in sorted(deleted)), tuple(results))


def _why_invalid_filter(wanted: AclFilter) -> str | None:
    if wanted.resource_type is ResourceType.UNKNOWN or wanted.pattern_type is PatternType.UNKNOWN:
        return "Unknown patternFilter."
    if wanted.operation is Operation.UNKNOWN or wanted.permission is Permission.UNKNOWN:
        return "Unknown entryFilter."
    return None
