"""Profiles of rights: the ACLs of one client. Clients differ by the address from which they connect.

So all profiles exist at the same time, and no ACL is changed while probes are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nilometer.cluster.acl import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

PRINCIPAL = "User:ANONYMOUS"
ADMIN_HOST = "127.0.0.2"
SENTINEL = "sentinel"
"""A group that every client may describe once its ACLs have taken effect."""
KINDS = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
_LITERAL, _PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
_ALLOW, _DENY = Permission.ALLOW, Permission.DENY


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    prefix: str
    """Begins the names of all resources that the probes of this profile use."""
    host: str
    acls: tuple[Acl, ...]


def everything(host: str) -> list[Acl]:
    """Return the ACLs that allow every operation on every resource."""
    return [
        _acl(kind, CLUSTER_NAME if kind is ResourceType.CLUSTER else WILDCARD, host, Operation.ALL)
        for kind in (*KINDS, ResourceType.DELEGATION_TOKEN, ResourceType.USER)
    ]


def _acl(
    kind: ResourceType,
    name: str,
    host: str,
    operation: Operation,
    permission: Permission = _ALLOW,
    pattern: PatternType = _LITERAL,
) -> Acl:
    return Acl(kind, name, pattern, PRINCIPAL, host, operation, permission)


def profiles() -> list[Profile]:
    made = [Profile(name, *_place(number), ()) for number, (name, _) in enumerate(_kinds_of_rights())]
    return [
        Profile(profile.name, profile.prefix, profile.host, (*_with(profile, rights), _sentinel(profile)))
        for profile, (_, rights) in zip(made, _kinds_of_rights(), strict=True)
    ]


def _place(number: int) -> tuple[str, str]:
    return f"p{number:02}-", f"127.0.0.{10 + number}"


def _sentinel(profile: Profile) -> Acl:
    return _acl(ResourceType.GROUP, SENTINEL, profile.host, Operation.DESCRIBE)


Rights = Sequence[tuple[ResourceType, str, Operation, Permission, PatternType]]
"""Names are relative to the profile's prefix; empty: the prefix itself."""


def _kinds_of_rights() -> Iterator[tuple[str, Rights]]:
    yield "none", ()
    for kind in KINDS:
        for operation in SUPPORTED_OPERATIONS[kind]:
            if operation is Operation.TWO_PHASE_COMMIT:
                continue
            yield f"{operation.name} on each {kind.name}", [(kind, "", operation, _ALLOW, _PREFIXED)]
    prefixed = [(kind, "", Operation.ALL, _ALLOW, _PREFIXED) for kind in KINDS]
    yield "everything", prefixed
    known = "known"
    yield (
        "literal patterns",
        [
            (ResourceType.TOPIC, known, Operation.ALL, _ALLOW, _LITERAL),
            (ResourceType.GROUP, known, Operation.ALL, _ALLOW, _LITERAL),
            (ResourceType.TRANSACTIONAL_ID, known, Operation.ALL, _ALLOW, _LITERAL),
        ],
    )
    for operation in (Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.ALL):
        denied = (ResourceType.TOPIC, known, operation, _DENY, _LITERAL)
        yield f"everything but {operation.name} on one TOPIC", [*prefixed, denied]
    yield (
        "everything but groups, by a prefix",
        [*prefixed, (ResourceType.GROUP, "", Operation.ALL, _DENY, _PREFIXED)],
    )
    yield (
        "everything but DESCRIBE on the cluster",
        [*prefixed, (ResourceType.CLUSTER, "", Operation.DESCRIBE, _DENY, _LITERAL)],
    )


def _with(profile: Profile, rights: Rights) -> Iterator[Acl]:
    for kind, name, operation, permission, pattern in rights:
        if kind is ResourceType.CLUSTER:
            yield _acl(kind, CLUSTER_NAME, profile.host, operation, permission)
        else:
            yield _acl(kind, profile.prefix + name, profile.host, operation, permission, pattern)
