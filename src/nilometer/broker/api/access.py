"""The rights of the principal that sent a request."""

from __future__ import annotations

from nilometer.broker.api.spec import Request
from nilometer.broker.authorization.access import FULL_ACCESS, Access
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation
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
