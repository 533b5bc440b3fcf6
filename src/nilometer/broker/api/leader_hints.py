"""The current leader, in responses to clients that sent a request to a broker that does not lead (KIP-951):
saves them a Metadata request.
"""

from __future__ import annotations

from uuid import UUID

from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.wire.primitives import LeaderIdAndEpoch, NodeEndpoint


class LeaderHints:
    def __init__(self, metadata: MetadataLog, listener: str) -> None:
        """``listener``: the name of the client's listener."""
        self._metadata = metadata
        self._listener = listener
        self._leaders: set[int] = set()

    def leader(self, topic: str | UUID, index: int) -> LeaderIdAndEpoch:
        """Return the leader of a partition, and note it for :meth:`endpoints`.

        ``topic``: its name or id. -1 and -1 for a partition that does not exist; -1 as leader if it has none.
        """
        image = self._metadata.image
        found = image.topic(topic) if isinstance(topic, str) else image.topic_by_uuid(topic)
        state = found.partition(index) if found is not None else None
        if state is None:
            return LeaderIdAndEpoch(-1, -1)
        if state.has_leader:
            self._leaders.add(state.leader)
        return LeaderIdAndEpoch(state.leader, state.leader_epoch)

    def endpoints(self) -> tuple[NodeEndpoint, ...]:
        """Return the endpoints of the live brokers that :meth:`leader` has returned."""
        if not self._leaders:
            return ()
        return tuple(
            NodeEndpoint(broker.id, endpoint.host, endpoint.port, broker.rack)
            for broker in self._metadata.image.live_brokers()
            if broker.id in self._leaders and (endpoint := broker.endpoint(self._listener)) is not None
        )
