"""The work of a classic group's leader: read the members' subscriptions and assign the partitions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nilometer.client.group.assignors.assignor import AssignmentTask, Assignor, MemberSubscription
from nilometer.client.group.group_exchange import Joined
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import ClusterMetadata, TopicPartition
from nilometer.wire.consumer_protocol import Assignment, decode_subscription, encode_assignment
from nilometer.wire.errors import ErrorCode, KafkaError, MalformedMessage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    shares: tuple[tuple[str, bytes], ...]
    """(member id, encoded assignment) of every member."""
    partition_counts: Mapping[str, int]
    """The partition count of each subscribed topic at the time; 0 for a topic that did not exist."""

    def is_outdated(self, metadata: ClusterMetadata) -> bool:
        """Whether a subscribed topic has another partition count in ``metadata``."""
        return any(metadata.partition_count(topic) != count for topic, count in self.partition_counts.items())


async def assign_partitions(client: Client, assignors: Sequence[Assignor], joined: Joined) -> GroupAssignment:
    """Assign the partitions of all subscribed topics, with the assignor that the coordinator chose.

    Raises KafkaError if that assignor is not among ``assignors``.
    """
    assignor = next((one for one in assignors if one.name == joined.protocol_name), None)
    if assignor is None:
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol,
            f"the group chose assignor {joined.protocol_name!r}, which this consumer does not offer",
        )
    members = {
        member_id: read_member(member_id, instance_id, data)
        for member_id, instance_id, data in joined.members
    }
    topics = sorted({topic for member in members.values() for topic in member.topics})
    client.watch_topics(topics)
    if any(client.metadata.partition_count(topic) == 0 for topic in topics):
        await client.refresh()
    counts = {topic: client.metadata.partition_count(topic) for topic in topics}
    found = assignor.assign(
        AssignmentTask({topic: count for topic, count in counts.items() if count}, members)
    )
    shares = tuple(
        (member_id, encode_assignment(Assignment(tuple(partitions))))
        for member_id, partitions in found.items()
    )
    return GroupAssignment(shares, counts)


def read_member(member_id: str, instance_id: str | None, data: bytes) -> MemberSubscription:
    """Decode a member's subscription; if it is malformed, return one without topics.

    So that member gets no partitions, and the other members get theirs.
    """
    try:
        said = decode_subscription(data)
    except MalformedMessage as error:
        logger.warning("The subscription of member %s cannot be read: %s", member_id, error.message)
        return MemberSubscription((), instance_id=instance_id)
    return MemberSubscription(
        topics=said.topics,
        user_data=said.user_data,
        owned=tuple(TopicPartition(topic, number) for topic, number in said.owned),
        generation=said.generation,
        rack=said.rack,
        instance_id=instance_id,
    )
