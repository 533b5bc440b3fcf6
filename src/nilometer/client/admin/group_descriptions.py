"""What responses say of groups: their members, their assignment, their state, where share groups read from,
and why a group rebalances, as a sentence for people. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from nilometer.client.group.group_exchange import OffsetAndMetadata, read_offsets_of
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.api_keys import AnyApiKey, ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError, MalformedMessage
from nilometer.wire.own_apis import RebalanceState
from nilometer.wire.value_bytes import PROTOCOL_TYPE, decode_assignment, decode_topics

GROUP_TYPES = CLASSIC, CONSUMER, SHARE, STREAMS = ("classic", "consumer", "share", "streams")
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


def _partitions(assignment: Message) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, number)
        for topic in assignment.topic_partitions
        for number in sorted(topic.partitions)
    )


def _member(
    member: Message,
    topics: tuple[str, ...] | None = None,
    read: Callable[[Message], tuple[TopicPartition, ...]] = _partitions,
) -> MemberDescription:
    """Return a member of a response. ``topics``: what it subscribes to, if its group says so."""
    target = getattr(member, "target_assignment", None)
    return MemberDescription(
        member_id=member.member_id,
        instance_id=getattr(member, "instance_id", None),
        client_id=member.client_id,
        host=member.client_host,
        assignment=read(member.assignment),
        topics=tuple(member.subscribed_topic_names) if topics is None else topics,
        target=None if target is None else read(target),
        epoch=member.member_epoch,
        rack=member.rack_id,
    )


def _group_with_epochs(
    kind: str,
    group: Message,
    coordinator_id: int,
    describe: Callable[[Message], MemberDescription] = _member,
) -> GroupDescription | KafkaError:
    """Return a group of a kind with an API of its own; ``kind`` is the name of its protocol, too."""
    if group.error_code != ErrorCode.none:
        return of_group(group.group_id, group.error_code, group.error_message or "describing it")
    return GroupDescription(
        group_id=group.group_id,
        group_type=kind,
        state=group.group_state,
        protocol_type=kind,
        assignor=getattr(group, "assignor_name", None) or "",
        coordinator_id=coordinator_id,
        members=tuple(describe(member) for member in group.members),
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
    )


def _streams_group(group: Message, coordinator_id: int) -> GroupDescription | KafkaError:
    subtopologies = () if group.topology is None else group.topology.subtopologies or ()
    sources = {
        each.subtopology_id: sorted(
            {*each.source_topics, *(topic.name for topic in each.repartition_source_topics)}
        )
        for each in subtopologies
    }
    topics = tuple(sorted({name for names in sources.values() for name in names}))
    describe = partial(_member, topics=topics, read=partial(_read_by, sources))
    return _group_with_epochs(STREAMS, group, coordinator_id, describe)


def _read_by(sources: Mapping[str, Sequence[str]], assignment: Message) -> tuple[TopicPartition, ...]:
    """Return the partitions that active tasks read, as if each source topic had one for each task."""
    return tuple(
        sorted(
            TopicPartition(topic, number)
            for tasks in assignment.active_tasks
            for topic in sources.get(tasks.subtopology_id, ())
            for number in tasks.partitions
        )
    )


READ_BY_API: Mapping[AnyApiKey, Callable[[Message, int], GroupDescription | KafkaError]] = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: partial(_group_with_epochs, CONSUMER),
    ApiKey.SHARE_GROUP_DESCRIBE: partial(_group_with_epochs, SHARE),
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


DESCRIBED_ELEMENTS_MAX = 100_000
"""Topics and partitions of a member: of one that has more they are left out."""


def _classic_member(member: Message, protocol_type: str) -> MemberDescription:
    assignment: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    if protocol_type == PROTOCOL_TYPE:
        try:
            found = decode_assignment(member.member_assignment, DESCRIBED_ELEMENTS_MAX).partitions
            assignment = tuple(sorted(TopicPartition(topic, number) for topic, number in found))
            if member.member_metadata:
                topics = decode_topics(member.member_metadata, DESCRIBED_ELEMENTS_MAX).names
        except MalformedMessage:
            pass  # The client writes its own format under this protocol name, or much: describe the rest.
    return MemberDescription(
        member_id=member.member_id,
        instance_id=getattr(member, "group_instance_id", None),
        client_id=member.client_id,
        host=member.client_host,
        assignment=assignment,
        topics=topics,
    )


@dataclass(frozen=True, slots=True)
class ShareOffset:
    partition: TopicPartition
    start_offset: int | None
    """Below it each record is acknowledged or archived; None: no member has read the partition yet."""
    lag: int | None
    """How many records are neither acknowledged nor archived (KIP-1226). None: it is not known."""


def describe_share_offsets_request(api: Api, group_ids: Iterable[str]) -> Message:
    """Ask for all partitions of each group."""
    kind = "DescribeShareGroupOffsetsRequestGroup"
    return api.request(
        groups=tuple(api.make_request(kind, group_id=group_id, topics=None) for group_id in group_ids)
    )


def read_share_offsets(response: Message) -> dict[str, dict[TopicPartition, ShareOffset] | KafkaError]:
    """Return the offsets of each group, by partition and sorted, or its error."""
    return {group.group_id: _share_offsets_of(group) for group in response.groups}


def _share_offsets_of(group: Message) -> dict[TopicPartition, ShareOffset] | KafkaError:
    if group.error_code != ErrorCode.none:
        what = group.error_message or "describing its offsets"
        return KafkaError(group.error_code, f"group {group.group_id}: {what}")
    found: dict[TopicPartition, ShareOffset] = {}
    for topic in group.topics:
        for part in topic.partitions:
            place = TopicPartition(topic.topic_name, part.partition_index)
            if part.error_code != ErrorCode.none:
                return KafkaError(part.error_code, f"{place} of group {group.group_id}")
            lag = getattr(part, "lag", -1)
            found[place] = ShareOffset(
                place, part.start_offset if part.start_offset >= 0 else None, lag if lag >= 0 else None
            )
    return dict(sorted(found.items()))


def alter_share_offsets_request(api: Api, group_id: str, offsets: Mapping[TopicPartition, int]) -> Message:
    kind = "AlterShareGroupOffsetsRequest"
    by_topic: dict[str, list[Message]] = {}
    for (topic, number), offset in offsets.items():
        part = api.make_request(f"{kind}Partition", partition_index=number, start_offset=offset)
        by_topic.setdefault(topic, []).append(part)
    return api.request(
        group_id=group_id,
        topics=tuple(
            api.make_request(f"{kind}Topic", topic_name=topic, partitions=tuple(parts))
            for topic, parts in by_topic.items()
        ),
    )


def check_altered_share_offsets(response: Message) -> None:
    """Raise KafkaError for the first partition that was not altered."""
    for topic in response.responses:
        for part in topic.partitions:
            if part.error_code != ErrorCode.none:
                place = TopicPartition(topic.topic_name, part.partition_index)
                raise KafkaError(part.error_code, f"{place}: {part.error_message or 'altering its offset'}")


def delete_share_offsets_request(api: Api, group_id: str, topics: Sequence[str]) -> Message:
    kind = "DeleteShareGroupOffsetsRequestTopic"
    return api.request(
        group_id=group_id, topics=tuple(api.make_request(kind, topic_name=topic) for topic in topics)
    )


def read_deleted_share_offsets(response: Message) -> dict[str, KafkaError | None]:
    """Return the outcome by topic."""
    outcomes: dict[str, KafkaError | None] = {}
    for topic in response.responses:
        what = f"{topic.topic_name}: {topic.error_message or 'deleting its offsets'}"
        code: ErrorCode = topic.error_code
        outcomes[topic.topic_name] = None if code == ErrorCode.none else KafkaError(code, what)
    return outcomes


REBALANCING_STATES = ("PreparingRebalance", "CompletingRebalance")
WITHOUT_MEMBERS = ("Empty", "Dead")
"""All members have left: nothing rebalances, whatever caused the last rebalances."""
WARN_AFTER_REBALANCES = 3
"""The number of rebalances in a row caused by one member from which a warning is printed."""


def rebalance_warning(group: GroupDescription) -> str | None:
    """Return a warning that names the member that causes repeated rebalances, or None (E-43)."""
    last = group.last_rebalance
    if last is None or last.reason is None or group.state in WITHOUT_MEMBERS:
        return None
    if group.state not in REBALANCING_STATES and last.times_in_a_row < WARN_AFTER_REBALANCES:
        return None
    when = datetime.fromtimestamp(last.wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    if last.times_in_a_row < WARN_AFTER_REBALANCES:
        return f"Rebalancing since {when} UTC: {last.reason}{_by(last)}."
    return (
        f"Keeps rebalancing: {_culprit(last)} caused the last {last.times_in_a_row} rebalances, "
        f"the latest at {when} UTC: {last.reason}."
    )


def _by(last: RebalanceState) -> str:
    return f" ({_culprit(last)})" if last.member_id else ""


def _culprit(last: RebalanceState) -> str:
    if not last.member_id:
        return "the group itself"
    static = f", instance {last.group_instance_id}" if last.group_instance_id else ""
    return f"member {last.member_id} (client {last.client_id} on {last.client_host}{static})"
