"""What responses say of groups: their members, their assignment, their state, their offsets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nilometer.client.group.group_exchange import OffsetAndMetadata, read_offsets_of
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.errors import ErrorCode, KafkaError, MalformedMessage
from nilometer.wire.own_apis import RebalanceState
from nilometer.wire.value_bytes import PROTOCOL_TYPE, decode_assignment, decode_subscription

CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
DEAD, EMPTY = "Dead", "Empty"
STATES = (
    *(EMPTY, "Stable", "PreparingRebalance", "CompletingRebalance"),
    *("Assigning", "Reconciling", DEAD),  # the first two are not of the classic protocol
    "NotReady",  # a streams group whose topics are missing
)


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    group_type: str
    state: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    topics: tuple[str, ...] = ()
    """The subscribed topics; empty if the member's metadata is not in Kafka's consumer format."""
    target: tuple[TopicPartition, ...] | None = None
    """The target assignment of the consumer protocol (KIP-848); None for other groups."""
    epoch: int | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    group_type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator_id: int
    members: tuple[MemberDescription, ...]
    epoch: int | None = None
    assignment_epoch: int | None = None
    last_rebalance: RebalanceState | None = None
    """The group's last rebalance; None from a coordinator that is not a Nilometer broker."""

    def owner(self, partition: TopicPartition) -> MemberDescription | None:
        return next(iter(self.owners(partition)), None)

    def owners(self, partition: TopicPartition) -> list[MemberDescription]:
        """Return the members that have the partition: of a share group, possibly several."""
        return [member for member in self.members if partition in member.assignment]


def of_group(group_id: str, code: ErrorCode, what: str) -> KafkaError:
    return KafkaError(code, f"group {group_id}: {what}")


def committed_offsets(group_id: str, group: Message) -> dict[TopicPartition, OffsetAndMetadata] | KafkaError:
    code, found = read_offsets_of(group, {})
    if code != ErrorCode.none:
        return of_group(group_id, code, "fetching committed offsets")
    for partition, (part_code, _) in found.items():
        if part_code != ErrorCode.none:
            return KafkaError(part_code, f"committed offset of {partition}")
    return {partition: one for partition, (_, one) in sorted(found.items()) if one is not None}


def _consumer_group(group: Message, coordinator_id: int) -> GroupDescription | KafkaError:
    if group.error_code != ErrorCode.none:
        return of_group(group.group_id, group.error_code, group.error_message or "describing it")
    return GroupDescription(
        group_id=group.group_id,
        group_type=CONSUMER,
        state=group.group_state,
        protocol_type=PROTOCOL_TYPE,
        assignor=group.assignor_name,
        coordinator_id=coordinator_id,
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=_partitions(member.assignment),
                topics=tuple(member.subscribed_topic_names),
                target=_partitions(member.target_assignment),
                epoch=member.member_epoch,
                rack=member.rack_id,
            )
            for member in group.members
        ),
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
    )


def _share_group(group: Message, coordinator_id: int) -> GroupDescription | KafkaError:
    if group.error_code != ErrorCode.none:
        return of_group(group.group_id, group.error_code, group.error_message or "describing it")
    return GroupDescription(
        group_id=group.group_id,
        group_type=SHARE,
        state=group.group_state,
        protocol_type=SHARE,
        assignor=group.assignor_name,
        coordinator_id=coordinator_id,
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=None,
                client_id=member.client_id,
                host=member.client_host,
                assignment=_partitions(member.assignment),
                topics=tuple(member.subscribed_topic_names),
                epoch=member.member_epoch,
                rack=member.rack_id,
            )
            for member in group.members
        ),
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
    )


def _streams_group(group: Message, coordinator_id: int) -> GroupDescription | KafkaError:
    if group.error_code != ErrorCode.none:
        return of_group(group.group_id, group.error_code, group.error_message or "describing it")
    subtopologies = () if group.topology is None else group.topology.subtopologies or ()
    sources = {
        each.subtopology_id: sorted(
            {*each.source_topics, *(topic.name for topic in each.repartition_source_topics)}
        )
        for each in subtopologies
    }
    topics = tuple(sorted({name for names in sources.values() for name in names}))
    return GroupDescription(
        group_id=group.group_id,
        group_type=STREAMS,
        state=group.group_state,
        protocol_type=STREAMS,
        assignor=getattr(group, "assignor_name", None) or "",
        coordinator_id=coordinator_id,
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=_read_by(member.assignment, sources),
                topics=topics,
                target=_read_by(member.target_assignment, sources),
                epoch=member.member_epoch,
                rack=member.rack_id,
            )
            for member in group.members
        ),
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
    )


def _read_by(assignment: Message, sources: Mapping[str, Sequence[str]]) -> tuple[TopicPartition, ...]:
    """Return the partitions that active tasks read, as if each source topic had one for each task."""
    return tuple(
        sorted(
            TopicPartition(topic, number)
            for tasks in assignment.active_tasks
            for topic in sources.get(tasks.subtopology_id, ())
            for number in tasks.partitions
        )
    )


READ_BY_API: Mapping[ApiKey, Callable[[Message, int], GroupDescription | KafkaError]] = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: _consumer_group,
    ApiKey.SHARE_GROUP_DESCRIBE: _share_group,
    ApiKey.STREAMS_GROUP_DESCRIBE: _streams_group,
}
"""The types of groups that have an API of their own to describe them."""


def classic_group(group: Message, coordinator_id: int) -> GroupDescription | KafkaError:
    if group.error_code != ErrorCode.none:
        what = getattr(group, "error_message", None) or "describing it"
        return of_group(group.group_id, group.error_code, what)
    if group.group_state == DEAD:
        return KafkaError(ErrorCode.group_id_not_found, f"group {group.group_id} not found")
    return GroupDescription(
        group_id=group.group_id,
        group_type=CLASSIC,
        state=group.group_state,
        protocol_type=group.protocol_type,
        assignor=group.protocol_data,
        coordinator_id=coordinator_id,
        members=tuple(_classic_member(member, group.protocol_type) for member in group.members),
    )


def _partitions(assignment: Message) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, number)
        for topic in assignment.topic_partitions
        for number in sorted(topic.partitions)
    )


def _classic_member(member: Message, protocol_type: str) -> MemberDescription:
    assignment: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    if protocol_type == PROTOCOL_TYPE:
        try:
            found = decode_assignment(member.member_assignment).partitions
            assignment = tuple(sorted(TopicPartition(topic, number) for topic, number in found))
            topics = decode_subscription(member.member_metadata).topics if member.member_metadata else ()
        except MalformedMessage:
            pass  # The client writes its own format under this protocol name: describe the rest.
    return MemberDescription(
        member_id=member.member_id,
        instance_id=getattr(member, "group_instance_id", None),
        client_id=member.client_id,
        host=member.client_host,
        assignment=assignment,
        topics=topics,
    )
