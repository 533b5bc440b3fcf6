"""Who leads instead: told to clients that asked the wrong broker (KIP-951), so that they need not look it
up.
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
        """Of a partition, by its topic's name or id; -1 and -1 where nobody is known to lead."""
        image = self._services.image
        found = image.topic(topic) if isinstance(topic, str) else image.topic_by_uuid(topic)
        state = found.partition(index) if found is not None else None
        if state is None:
            return LeaderIdAndEpoch(-1, -1)
        if state.has_leader:
            self._leaders.add(state.leader)
        return LeaderIdAndEpoch(state.leader, state.leader_epoch)

    def endpoints(self) -> tuple[NodeEndpoint, ...]:
        """Of all leaders that were named, by broker id."""
        if not self._leaders:
            return ()
        return tuple(
            NodeEndpoint(broker.id, endpoint.host, endpoint.port, broker.rack)
            for broker in self._services.image.live_brokers()
            if broker.id in self._leaders and (endpoint := broker.endpoint("PLAINTEXT")) is not None
        )
