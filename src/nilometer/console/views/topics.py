"""The list of topics and the page of one topic. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nilometer.client.network.cluster_metadata import PartitionMetadata, TopicMetadata
from nilometer.client.replicas.replica_survey import ReplicaRow, Survey
from nilometer.console.views.hold import Hold, why_held
from nilometer.console.views.paging import Page, page_of
from nilometer.identifiers import NO_LEADER
from nilometer.wire.own_apis import LEADER


@dataclass(frozen=True, slots=True)
class TopicRow:
    name: str
    partitions: int
    replication_factor: int
    is_internal: bool
    without_leader: int
    under_replicated: int


@dataclass(frozen=True, slots=True)
class TopicsView:
    page: Page[TopicRow]
    internal: bool
    """Whether internal topics are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    partition: int
    leader_id: int | None
    leader_epoch: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    log_start_offset: int | None
    high_watermark: int | None
    last_stable_offset: int | None
    log_end_offset: int | None
    size_bytes: int | None
    """Of the leader's log."""
    hold: Hold


@dataclass(frozen=True, slots=True)
class TopicView:
    name: str
    partitions: tuple[PartitionRow, ...]
    size_bytes: int | None
    """Of all leaders' logs that are known."""


def topics_view(
    topics: Mapping[str, TopicMetadata], query: str, number: int, *, internal: bool
) -> TopicsView:
    listed = [topic for topic in topics.values() if internal or not topic.is_internal]
    page = page_of(listed, lambda topic: topic.name, query, number)
    return TopicsView(page.showing(tuple(_row(topic) for topic in page.items)), internal)


def _row(topic: TopicMetadata) -> TopicRow:
    return TopicRow(
        topic.name,
        len(topic.partitions),
        max((len(part.replicas) for part in topic.partitions), default=0),
        topic.is_internal,
        sum(part.leader_id == NO_LEADER for part in topic.partitions),
        sum(len(part.in_sync_replicas) < len(part.replicas) for part in topic.partitions),
    )


def topic_view(survey: Survey, name: str) -> TopicView:
    topic = survey.metadata.topics.get(name)
    rows: dict[int, list[ReplicaRow]] = {}
    for row in survey.rows:
        if row.topic == name:
            rows.setdefault(row.partition, []).append(row)
    partitions = () if topic is None else topic.partitions
    found = tuple(_partition(part, rows.get(part.partition, [])) for part in partitions)
    sizes = [one.size_bytes for one in found if one.size_bytes is not None]
    return TopicView(name, found, sum(sizes) if sizes else None)


def _partition(part: PartitionMetadata, rows: list[ReplicaRow]) -> PartitionRow:
    states = [row.state for row in rows if row.state is not None]
    newest = max(states, key=lambda state: state.partition_epoch, default=None)
    leader_id = part.leader_id if newest is None else newest.leader_id
    led = next((one for one in states if one.role == LEADER and one.broker_id == leader_id), None)
    return PartitionRow(
        partition=part.partition,
        leader_id=None if leader_id == NO_LEADER else leader_id,
        leader_epoch=part.leader_epoch if newest is None else newest.leader_epoch,
        replicas=part.replicas if newest is None else newest.replicas,
        isr=part.in_sync_replicas if newest is None else newest.isr,
        log_start_offset=None if led is None else led.log_start_offset,
        high_watermark=None if led is None else led.high_watermark,
        last_stable_offset=None if led is None else led.last_stable_offset,
        log_end_offset=None if led is None else led.log_end_offset,
        size_bytes=None if led is None else led.size_bytes,
        hold=why_held(rows, leader_id),
    )
