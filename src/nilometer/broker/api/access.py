"""The rights of the principal that sent a request, what the audit log says about its changes, and who may use
the APIs between brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec

from nilometer.broker.api.spec import Request
from nilometer.broker.authorization.audit_log import AuditLog
from nilometer.broker.authorization.authorizer import FULL_ACCESS, Access
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation
from nilometer.cluster.entries import Unit
from nilometer.wire.errors import ErrorCode, KafkaError

# The rights of the principal that sent a request, and what the audit log says about its changes.

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


# Access to the APIs between brokers: only for a connection that proved to be from the broker that the
# request names.

logger = logging.getLogger("nilometer.broker.connections")

OLD_FORWARDED_PREFIX = "forwarded-by-broker-"
"""Begins the client id of requests that older brokers, which cannot prove themselves, forward."""


def why_not_broker(services: Services, request: Request, broker_id: int) -> str | None:
    """Return why the request's sender may not act as broker ``broker_id``; None if it may.

    The first refusal on a connection is logged.
    """
    context = request.context
    if context.broker_id == broker_id and context.is_broker:
        return None
    if context.is_broker:
        return f"broker {context.broker_id} cannot act as broker {broker_id}"
    # Without a proof a broker needs the right of Kafka's brokers: any client could claim to be one.
    if (
        services.config.accepts_unproved_brokers
        and not context.is_forwarded
        and access_of(services, request).on_cluster(Operation.CLUSTER_ACTION)
    ):
        return None
    connection = request.connection
    if not connection.refused_as_broker:
        connection.refused_as_broker = True
        logger.warning(
            "Rejected %s as broker %d from %s:%d, which has not proved to be a broker of this cluster",
            request.api.key.name,
            broker_id,
            context.client_address,
            context.client_port,
        )
    return "Only a broker of this cluster may send this request."


def comes_from_broker(services: Services, request: Request) -> bool:
    """Whether a broker sent or forwarded the request: it has located the controller, so the request is not
    forwarded again."""
    context = request.context
    if context.is_broker or context.is_forwarded:
        return True
    return services.config.accepts_unproved_brokers and (request.header.client_id or "").startswith(
        OLD_FORWARDED_PREFIX
    )
