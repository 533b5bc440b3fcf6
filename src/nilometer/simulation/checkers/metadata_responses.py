"""Comparing the brokers' responses to Metadata requests, at rest, with their images.

Clients that follow the hints of Produce and Fetch responses (KIP-951) reach a partition's leader even if
Metadata names an earlier one, so that no other checker would find it.
"""

from __future__ import annotations

from functools import partial

from nilometer.client.admin.admin import Admin
from nilometer.cluster.image import ClusterImage
from nilometer.runtime import Runtime
from nilometer.simulation.cluster import Cluster
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Api, Message


class MetadataResponses:
    """``violations``: the differences found by :meth:`ask`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.violations: list[str] = []

    async def ask(self, runtime: Runtime) -> None:
        """Ask every broker for all topics, and for each topic alone. Raises KafkaError, ConnectionLost."""
        async with Admin(runtime, {"bootstrap.servers": self._cluster.bootstrap_servers}) as admin:
            for node in self._cluster.nodes.values():
                image = node.image
                if image is None:
                    continue
                for name in (None, *(topic.name for topic in image.topics())):
                    response = await _ask_at_rest(admin, node.id, image, name)
                    self.violations += differences(response, image, name, node.name)


async def _ask_at_rest(admin: Admin, broker_id: int, image: ClusterImage, name: str | None) -> Message:
    """Ask until the broker has folded no entry meanwhile, so that the response can be compared."""
    while True:
        number = image.number
        response = await admin.client.send_to(broker_id, ApiKey.METADATA, partial(_make, name))
        if image.number == number:
            return response


def _make(name: str | None, api: Api) -> Message:
    topics = None if name is None else (api.make_request("MetadataRequestTopic", name=name),)
    return api.request(topics=topics, allow_auto_topic_creation=False)


def differences(response: Message, image: ClusterImage, name: str | None, who: str) -> list[str]:
    """Return how the response for a topic (None: for all) differs from the image.

    Not compared are leaders: one that seems dead is left out for a short time.
    """
    asked = "all topics" if name is None else name
    wrong: list[str] = []
    expected = {topic.name for topic in image.topics()} if name is None else {name}
    named = {topic.name for topic in response.topics if topic.error_code is ErrorCode.none}
    if named != expected:
        wrong.append(f"metadata: {who}, asked for {asked}, describes {sorted(named)}")
    for described in response.topics:
        topic = image.topic(described.name)
        if topic is None:
            continue  # found above
        states = [(state.leader_epoch, state.isr, state.replicas) for state in topic.partitions]
        found = [
            (part.leader_epoch, tuple(part.isr_nodes), tuple(part.replica_nodes))
            for part in sorted(described.partitions, key=lambda part: part.partition_index)
        ]
        if found != states or described.topic_id != topic.uuid:
            wrong.append(
                f"metadata: {who}, asked for {asked}, says {described.name} has {found}, not {states}"
            )
    return wrong
