"""The rights of one request's principal, for handlers to test.

Without an authorizer, and for brokers of this cluster, every right is granted (:data:`FULL_ACCESS`).
"""

from __future__ import annotations

from collections.abc import Iterable

from nilometer.broker.authorization.audit_log import AuditLog
from nilometer.broker.request_context import RequestContext
from nilometer.cluster.acl import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    Operation,
    ResourceType,
    operation_bits,
)
from nilometer.cluster.acl_table import AclIndex, Verdict, host_key


class Access:
    """Every right."""

    __slots__ = ()

    @property
    def is_full(self) -> bool:
        return True

    def allows(self, operation: Operation, kind: ResourceType, name: str, *, report: bool = True) -> bool:
        """Return whether the principal may perform ``operation`` on the resource.

        ``report``: whether the principal has requested the operation, so that a denial is reported; false for
        questions that only select what a response contains.
        """
        return True

    def allows_some(self, operation: Operation, kind: ResourceType) -> bool:
        """Return whether the principal may perform ``operation`` on some resource of the type."""
        return True

    def on_cluster(self, operation: Operation, *, report: bool = True) -> bool:
        return self.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME, report=report)

    def allowed(
        self, operation: Operation, kind: ResourceType, names: Iterable[str], *, report: bool = True
    ) -> set[str]:
        """Return those of ``names`` on which the principal may perform ``operation``."""
        unique = dict.fromkeys(names)
        return {name for name in unique if self.allows(operation, kind, name, report=report)}

    def operations(self, kind: ResourceType, name: str) -> int:
        """Return the bit set of the operations that the principal may perform on the resource."""
        supported = SUPPORTED_OPERATIONS[kind]
        allowed = tuple(each for each in supported if self.allows(each, kind, name, report=False))
        return operation_bits(allowed)

    def cluster_operations(self) -> int:
        """Return the bit set of the operations on the cluster; 0 for a principal that may not describe it."""
        if not self.on_cluster(Operation.DESCRIBE):
            return 0
        return self.operations(ResourceType.CLUSTER, CLUSTER_NAME)


FULL_ACCESS = Access()


class AclAccess(Access):
    """The rights that the ACLs give to the principal of a request."""

    __slots__ = ("_acls", "_api", "_audit", "_context", "_host", "_if_no_acl", "_principal")

    def __init__(
        self, acls: AclIndex, context: RequestContext, api: str, audit: AuditLog, *, if_no_acl: bool
    ) -> None:
        """``if_no_acl``: whether everyone has every right on a resource that has no ACL."""
        self._acls = acls
        self._context = context
        self._principal = str(context.principal)
        self._host = host_key(context.client_address)
        self._api = api
        self._audit = audit
        self._if_no_acl = if_no_acl

    @property
    def is_full(self) -> bool:
        return False

    def allows(self, operation: Operation, kind: ResourceType, name: str, *, report: bool = True) -> bool:
        verdict = self._acls.verdict(self._principal, self._host, operation, kind, name)
        if self._allows(verdict):
            return True
        if report:
            self._audit.denied(self._context, self._api, operation, kind, name)
        return False

    def _allows(self, verdict: Verdict) -> bool:
        return verdict is Verdict.ALLOWED or (verdict is Verdict.NO_ACL and self._if_no_acl)

    def allows_some(self, operation: Operation, kind: ResourceType) -> bool:
        if self._acls.allows_some(self._principal, self._host, operation, kind, if_no_acl=self._if_no_acl):
            return True
        self._audit.denied(self._context, self._api, operation, kind, "*")
        return False
