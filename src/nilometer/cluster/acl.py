"""Access control lists, as Kafka's StandardAuthorizer defines them: what an ACL says, and which ACLs a filter
selects.

An :class:`Acl` allows or denies one operation on the resources that a pattern selects, to one principal from
one host. The numbers of the enums are Kafka's, in requests and in the bit sets of authorized operations.
:mod:`nilometer.cluster.acl_table` keeps them and decides with them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

WILDCARD = "*"
"""As the name of a literal pattern: every resource of the type. As the host: every host."""
WILDCARD_PRINCIPAL = "User:*"
"""Every principal, of any type."""
CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


class ResourceType(enum.IntEnum):
    UNKNOWN = 0
    ANY = 1
    """Only in filters."""
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    UNKNOWN = 0
    ANY = 1
    """Only in filters: a pattern of any type, with this name."""
    MATCH = 2
    """Only in filters: every pattern that selects the resource of this name."""
    LITERAL = 3
    PREFIXED = 4


class Operation(enum.IntEnum):
    UNKNOWN = 0
    ANY = 1
    """Only in filters."""
    ALL = 2
    """Only in ACLs and filters: every operation."""
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(enum.IntEnum):
    UNKNOWN = 0
    ANY = 1
    """Only in filters."""
    DENY = 2
    ALLOW = 3


_O = Operation
SUPPORTED_OPERATIONS: Mapping[ResourceType, tuple[Operation, ...]] = MappingProxyType(
    {
        ResourceType.TOPIC: (
            _O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS,
            _O.ALTER_CONFIGS,
        ),
        ResourceType.GROUP: (_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
        ResourceType.CLUSTER: (
            _O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS,
            _O.IDEMPOTENT_WRITE,
        ),
        ResourceType.TRANSACTIONAL_ID: (_O.WRITE, _O.DESCRIBE, _O.TWO_PHASE_COMMIT),
        ResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
        ResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
    }
)  # fmt: skip
"""The operations that exist on each type of resource, as authorized-operations fields list them."""


def operation_bits(operations: tuple[Operation, ...]) -> int:
    """Return Kafka's bit set of ``operations``: bit n for the operation with number n."""
    return sum(1 << operation for operation in operations)


class Acl(NamedTuple):
    """One access control entry with the pattern that selects its resources."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    """``type:name``, or `WILDCARD_PRINCIPAL`."""
    host: str
    """An IP address, or `WILDCARD`."""
    operation: Operation
    permission: Permission

    def selects(self, name: str) -> bool:
        """Return whether the pattern selects the resource ``name`` of its type."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in (name, WILDCARD)


class AclFilter(NamedTuple):
    """Selects ACLs; None and ANY select every value (KIP-290 for the pattern type)."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type is PatternType.MATCH:
            return acl.selects(self.resource_name)
        return self.resource_name == acl.resource_name
