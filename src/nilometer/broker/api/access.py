"""The rights of the principal that sent a request, what the audit log says about its changes, and who may use
the APIs between brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec

from nilometer.broker.api.spec import Request
from nilometer.broker.authorizer import FULL_ACCESS, Access, Authorizer
from nilometer.cluster.acl import Operation
from nilometer.cluster.entries import Unit
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger("nilometer.broker.connections")

CLUSTER_DENIED = "Cluster authorization failed."
TOPIC_DENIED = "Topic authorization failed."
HIDDEN = "(hidden)"
_SECRET = {"value", "credential"}
"""The fields of records that are or may be secrets: values of settings, and credentials."""
OLD_FORWARDED_PREFIX = "forwarded-by-broker-"
"""Begins the client id of requests that older brokers, which cannot prove themselves, forward."""


class Rights:
    def __init__(self, authorizer: Authorizer | None, *, accepts_unproved_brokers: bool) -> None:
        """``authorizer``: None if every client has every right."""
        self.authorizer = authorizer
        self._accepts_unproved_brokers = accepts_unproved_brokers

    def access(self, request: Request) -> Access:
        """Return the rights of the request's principal, or of the client's if a broker forwarded the
        request."""
        authorizer = self.authorizer
        if authorizer is None:
            return FULL_ACCESS
        return authorizer.access(request.context, request.api.key.name)

    def check_cluster(self, request: Request, operation: Operation) -> None:
        """Raise KafkaError (CLUSTER_AUTHORIZATION_FAILED) unless ``operation`` on the cluster is allowed."""
        if not self.access(request).on_cluster(operation):
            raise KafkaError(ErrorCode.cluster_authorization_failed, CLUSTER_DENIED)

    def audit_change(self, request: Request, units: Sequence[Unit]) -> None:
        """Note the records that a client's request has caused; those that brokers cause are not noted."""
        if self.authorizer is not None and units and not request.context.is_broker:
            self.authorizer.audit.changed(request.context, request.api.key.name, _described(units))

    def audit_own_change(self, request: Request, **change: object) -> None:
        """Note a change that this broker makes itself for a client, without the controller."""
        if self.authorizer is not None and not request.context.is_broker:
            self.authorizer.audit.changed(request.context, request.api.key.name, (change,))

    def why_not_broker(self, request: Request, broker_id: int) -> str | None:
        """Return why the request's sender may not act as broker ``broker_id``; None if it may.

        It may if its connection proved to be from that broker; where brokers without a proof are accepted,
        also with the right CLUSTER_ACTION. The first refusal on a connection is logged.
        """
        context = request.context
        if context.broker_id == broker_id and context.is_broker:
            return None
        if context.is_broker:
            return f"broker {context.broker_id} cannot act as broker {broker_id}"
        # Without a proof a broker needs the right of Kafka's brokers: any client could claim to be one.
        if (
            self._accepts_unproved_brokers
            and not context.is_forwarded
            and self.access(request).on_cluster(Operation.CLUSTER_ACTION)
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

    def comes_from_broker(self, request: Request) -> bool:
        """Whether a broker sent or forwarded the request: it has located the controller, so the request is
        not forwarded again."""
        context = request.context
        if context.is_broker or context.is_forwarded:
            return True
        return self._accepts_unproved_brokers and (request.header.client_id or "").startswith(
            OLD_FORWARDED_PREFIX
        )


def _described(units: Sequence[Unit]) -> Iterator[dict[str, object]]:
    for unit in units:
        for record in unit:
            described: dict[str, object] = msgspec.to_builtins(record)
            for name in _SECRET & described.keys():
                described[name] = HIDDEN
            yield described
