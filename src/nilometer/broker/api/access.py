"""The rights of the principal that sent a request, and what the audit log says about its changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from nilometer.broker.api.spec import Request
from nilometer.broker.authorization.audit_log import AuditLog
from nilometer.broker.authorization.authorizer import FULL_ACCESS, Access
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation
from nilometer.cluster.entries import Unit
from nilometer.wire.errors import ErrorCode, KafkaError

CLUSTER_DENIED = "Cluster authorization failed."
TOPIC_DENIED = "Topic authorization failed."


def access_of(services: Services, request: Request) -> Access:
    """Return the rights of the request's principal, or of the client's if a broker forwarded the request."""
    authorizer = services.authorizer
    if authorizer is None:
        return FULL_ACCESS
    return authorizer.access(request.context, request.api.key.name)


def check_cluster(services: Services, request: Request, operation: Operation) -> None:
    """Raise KafkaError (CLUSTER_AUTHORIZATION_FAILED) unless ``operation`` on the cluster is allowed."""
    if not access_of(services, request).on_cluster(operation):
        raise KafkaError(ErrorCode.cluster_authorization_failed, CLUSTER_DENIED)


HIDDEN = "(hidden)"
_SECRET = {"value", "credential"}
"""The fields of records that are or may be secrets: values of settings, and credentials."""


def audit_change(audit: AuditLog, request: Request, units: Sequence[Unit]) -> None:
    """Note the records that a client's request has caused; those that brokers cause are not noted."""
    if not request.context.is_broker:
        audit.changed(request.context, request.api.key.name, _described(units))


def audit_own_change(services: Services, request: Request, **change: object) -> None:
    """Note a change that this broker makes itself for a client, without the controller."""
    if services.authorizer is not None and not request.context.is_broker:
        services.authorizer.audit.changed(request.context, request.api.key.name, (change,))


def _described(units: Sequence[Unit]) -> Iterator[dict[str, object]]:
    for unit in units:
        for record in unit:
            described: dict[str, object] = msgspec.to_builtins(record)
            for name in _SECRET & described.keys():
                described[name] = HIDDEN
            yield described
