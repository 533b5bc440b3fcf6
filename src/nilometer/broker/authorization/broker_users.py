"""Who is a broker by the authentication of the listener between brokers: a user of ``super.users``, or one
that ACLs allow CLUSTER_ACTION on the cluster, as in Kafka.

Invariants:

- A connection of another listener, or one that did not authenticate or did so by a delegation token, is no
  broker's, whatever ACLs say.
- When ACLs change, the connections of brokers whose user has lost the right end.
"""

from __future__ import annotations

from nilometer.broker.authorization.authorizer import Authorizer
from nilometer.broker.connection import Connection
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.request_context import RequestContext
from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.image import ClusterImage
from nilometer.security.principal import ANONYMOUS


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
