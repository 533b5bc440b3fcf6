"""Kafka's StandardAuthorizer: super users have every right, all others those that ACLs give them.

The ACLs are part of the metadata, which is folded before the first connection is accepted.
"""

from __future__ import annotations

from nilometer.broker.authorization.access import FULL_ACCESS, Access, AclAccess
from nilometer.broker.authorization.audit_log import AuditLog
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.request_context import RequestContext
from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.acl import CLUSTER_NAME, Operation, ResourceType
from nilometer.cluster.acl_table import Verdict, host_key
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.image import ClusterImage


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
