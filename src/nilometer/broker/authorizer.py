"""Kafka's StandardAuthorizer: super users have every right, all others those that ACLs give them.

Handlers test the rights of one request's principal. A broker is known by the authentication of the listener
between brokers: a user of ``super.users``, or one that proved the cluster's secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from nilometer.broker.audit_log import AuditLog
from nilometer.broker.connection import Connection
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.request_context import RequestContext
from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.acl import CLUSTER_NAME, SUPPORTED_OPERATIONS, Operation, ResourceType, operation_bits
from nilometer.cluster.acl_table import AclIndex, Verdict, host_key
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.image import ClusterImage
from nilometer.security.principal import ANONYMOUS


class Access:
    """Every right."""

    __slots__ = ()

    is_full: ClassVar[bool] = True

    @property
    def who(self) -> tuple[str, str] | None:
        """Whose rights they are: principal and host. None: every right, and it does not matter whose."""
        return None

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
        """Return, as a bit set, what the principal may do with the cluster; 0 if it may not describe it."""
        if not self.on_cluster(Operation.DESCRIBE):
            return 0
        return self.operations(ResourceType.CLUSTER, CLUSTER_NAME)


FULL_ACCESS = Access()


class AclAccess(Access):
    """The rights that the ACLs give to the principal of a request."""

    __slots__ = ("_acls", "_api", "_audit", "_context", "_host", "_if_no_acl", "_principal")

    is_full: ClassVar[bool] = False

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
    def who(self) -> tuple[str, str]:
        return self._principal, self._host

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


class Authorizer:
    def __init__(self, config: BrokerConfig, metadata: MetadataLog, audit: AuditLog) -> None:
        self._super_users = config.super_users
        self._if_no_acl = config.boolean("allow.everyone.if.no.acl.found")
        self._metadata = metadata
        self.audit = audit
        self.version = 0
        """Changes with every change of an ACL."""
        metadata.subscribe(self._on_delta, self._on_reload)

    def access(self, context: RequestContext, api: str) -> Access:
        """Return the rights of the request's principal. ``api``: the API's name, for the audit log."""
        if context.is_broker or str(context.principal) in self._super_users:
            return FULL_ACCESS
        acls = self._metadata.image.acls.index
        return AclAccess(acls, context, api, self.audit, if_no_acl=self._if_no_acl)

    def allows_broker(self, context: RequestContext) -> bool:
        """Return whether an ACL allows the principal to act as a broker.

        As that includes every right, it is not enough that the cluster has no ACL
        (``allow.everyone.if.no.acl.found``).
        """
        verdict = self._metadata.image.acls.index.verdict(
            str(context.principal),
            host_key(context.client_address),
            Operation.CLUSTER_ACTION,
            ResourceType.CLUSTER,
            CLUSTER_NAME,
        )
        return verdict is Verdict.ALLOWED

    def _on_delta(self, delta: ImageDelta, _image: ClusterImage) -> None:
        if delta.acls:
            self.version += 1

    def _on_reload(self, _image: ClusterImage) -> None:
        self.version += 1


class BrokerUsers:
    def __init__(self, config: BrokerConfig, authorizer: Authorizer | None, metadata: MetadataLog) -> None:
        self._listener = config.inter_broker_listener.name
        self._super_users = config.super_users
        self._authorizer = authorizer
        self._accepted: dict[Connection, RequestContext] = {}
        """By the open connections of brokers: who authenticated on them."""
        metadata.subscribe(self._on_delta, self._on_reload)

    def why_not(self, context: RequestContext) -> str | None:
        """Return why the client may not act as a broker; None if it may."""
        if context.listener != self._listener:
            return f"brokers are accepted by the listener {self._listener} only, not by {context.listener}"
        user = context.principal
        if user == ANONYMOUS:
            return f"a connection to the listener {self._listener} has not authenticated"
        if context.by_token:
            return f"{user} logged in by a delegation token, which gives no broker's rights"
        if str(user) in self._super_users:
            return None
        if self._authorizer is not None and self._authorizer.allows_broker(context):
            return None
        return f"{user} is not in super.users, and no ACL allows it CLUSTER_ACTION on the cluster"

    def accept(self, connection: Connection) -> None:
        """Note that ``connection``, with its present context, becomes a broker's."""
        self._accepted = {each: who for each, who in self._accepted.items() if not each.closed}
        self._accepted[connection] = connection.context

    def _on_delta(self, delta: ImageDelta, image: ClusterImage) -> None:
        if delta.acls:
            self._on_reload(image)

    def _on_reload(self, _image: ClusterImage) -> None:
        for connection, context in tuple(self._accepted.items()):
            why = self.why_not(context)
            if why is not None:
                connection.abort(f"it is no broker's any more: {why}")
            if connection.closed:
                del self._accepted[connection]
