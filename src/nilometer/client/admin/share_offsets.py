"""Where share groups read from, as requests and responses of the group's coordinator (KIP-932). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class ShareOffset:
    partition: TopicPartition
    start_offset: int | None
    """Below it each record is acknowledged or archived; None: no member has read the partition yet."""
    lag: int | None
    """How many records are neither acknowledged nor archived (KIP-1226). None: it is not known."""


def describe_request(api: Api, group_ids: Iterable[str]) -> Message:
    """Ask for all partitions of each group."""
    kind = "DescribeShareGroupOffsetsRequestGroup"
    return api.request(
        groups=tuple(api.make_request(kind, group_id=group_id, topics=None) for group_id in group_ids)
    )


def read_described(response: Message) -> dict[str, dict[TopicPartition, ShareOffset] | KafkaError]:
    """Return the offsets of each group, by partition and sorted, or its error."""
    return {group.group_id: _described(group) for group in response.groups}


def _described(group: Message) -> dict[TopicPartition, ShareOffset] | KafkaError:
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


def alter_request(api: Api, group_id: str, offsets: Mapping[TopicPartition, int]) -> Message:
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


def check_altered(response: Message) -> None:
    """Raise KafkaError for the first partition that was not altered."""
    for topic in response.responses:
        for part in topic.partitions:
            if part.error_code != ErrorCode.none:
                place = TopicPartition(topic.topic_name, part.partition_index)
                raise KafkaError(part.error_code, f"{place}: {part.error_message or 'altering its offset'}")


def delete_request(api: Api, group_id: str, topics: Sequence[str]) -> Message:
    kind = "DeleteShareGroupOffsetsRequestTopic"
    return api.request(
        group_id=group_id, topics=tuple(api.make_request(kind, topic_name=topic) for topic in topics)
    )


def read_deleted(response: Message) -> dict[str, KafkaError | None]:
    """Return the outcome by topic."""
    outcomes: dict[str, KafkaError | None] = {}
    for topic in response.responses:
        what = f"{topic.topic_name}: {topic.error_message or 'deleting its offsets'}"
        code: ErrorCode = topic.error_code
        outcomes[topic.topic_name] = None if code == ErrorCode.none else KafkaError(code, what)
    return outcomes
