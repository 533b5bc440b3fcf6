"""Where the records of partitions end, asked of their leaders: for the lag of share groups (KIP-1226)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from nilometer.broker.control.broker_peers import PeerConnections
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.storage.names import TopicPartition
from nilometer.wire.api import Api
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger("nilometer.broker.sharing")

LATEST = -1
NO_REPLICA = -1
PER_REQUEST_MAX = 60
"""Partitions in a request: brokers handle so many as a whole."""
VERSION_MAX = 10


class EndOffsets:
    def __init__(
        self, broker_id: int, metadata: MetadataLog, replicas: ReplicaManager, connections: PeerConnections
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._replicas = replicas
        self._connections = connections

    async def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition whose leader responds."""
        found: dict[TopicPartition, int] = {}
        elsewhere: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            topic = self._metadata.image.topic(partition.topic)
            state = None if topic is None else topic.partition(partition.partition)
            if state is None or not state.has_leader:
                continue
            if state.leader != self._broker_id:
                elsewhere.setdefault(int(state.leader), []).append(partition)
                continue
            try:
                hosted = self._replicas.partition(partition.topic, partition.partition)
                found[partition] = hosted.latest_offset(read_committed=False)
            except KafkaError as refused:
                logger.info("The end of %s is not known: %s", partition, refused)
        asked = [
            (broker_id, some[first : first + PER_REQUEST_MAX])
            for broker_id, some in elsewhere.items()
            for first in range(0, len(some), PER_REQUEST_MAX)
        ]
        for answers in await asyncio.gather(*(self._ask(*each) for each in asked)):
            found |= answers
        return found

    async def _ask(self, broker_id: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        try:
            connection = await self._connections.to(broker_id)
            response = await connection.request(
                ApiKey.LIST_OFFSETS, lambda api: _request(api, partitions), at_most=VERSION_MAX
            )
        except KafkaError as refused:
            logger.info("Broker %d did not say where partitions end: %s", broker_id, refused)
            return {}
        return {
            TopicPartition(topic.name, part.partition_index): part.offset
            for topic in response.topics
            for part in topic.partitions
            if part.error_code == ErrorCode.none
        }


def _request(api: Api, partitions: Sequence[TopicPartition]) -> Message:
    by_topic: dict[str, list[Message]] = {}
    for one in partitions:
        part = api.make_request("ListOffsetsPartition", partition_index=one.partition, timestamp=LATEST)
        by_topic.setdefault(one.topic, []).append(part)
    topics = (
        api.make_request("ListOffsetsTopic", name=name, partitions=tuple(parts))
        for name, parts in by_topic.items()
    )
    return api.request(replica_id=NO_REPLICA, isolation_level=0, topics=tuple(topics))
