"""The current leader, in answers to clients that asked the wrong broker (KIP-951): saves them a Metadata
request.
"""

from __future__ import annotations

from uuid import UUID

from nilometer.broker.services import Services
from nilometer.wire.primitives import LeaderIdAndEpoch, NodeEndpoint


class LeaderHints:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._leaders: set[int] = set()

    def leader(self, topic: str | UUID, index: int) -> LeaderIdAndEpoch:
        """The leader of a partition, by its topic's name or id; -1 and -1 where no leader is known."""
        image = self._services.image
        found = image.topic(topic) if isinstance(topic, str) else image.topic_by_uuid(topic)
        state = found.partition(index) if found is not None else None
        if state is None:
            return LeaderIdAndEpoch(-1, -1)
        if state.has_leader:
            self._leaders.add(state.leader)
        return LeaderIdAndEpoch(state.leader, state.leader_epoch)

    def endpoints(self) -> tuple[NodeEndpoint, ...]:
        """The endpoints of all leaders in this answer, by broker id."""
        if not self._leaders:
            return ()
        return tuple(
            NodeEndpoint(broker.id, endpoint.host, endpoint.port, broker.rack)
            for broker in self._services.image.live_brokers()
            if broker.id in self._leaders and (endpoint := broker.endpoint("PLAINTEXT")) is not None
        )
