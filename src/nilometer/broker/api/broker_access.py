"""Access to the APIs between brokers: only for a connection that proved to be from the broker that the
request names."""

from __future__ import annotations

import logging

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import Request
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation

logger = logging.getLogger("nilometer.broker.api")

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
