"""The list of topics, the page of one topic, and the settings of a topic or a broker, with their sources and
defaults. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from nilometer.client.admin.admin import ConfigEntry, ConfigSource
from nilometer.client.admin.replica_survey import ReplicaRow, Survey
from nilometer.client.network.cluster_metadata import PartitionMetadata, TopicMetadata
from nilometer.console.views.groups import GroupRow
from nilometer.console.views.hold import Hold, why_held
from nilometer.console.views.lists import Asked, Columns, Page, page_of
from nilometer.console.views.rates import Rate
from nilometer.identifiers import NO_LEADER
from nilometer.wire.own_apis import LEADER, TierState

# The settings of a topic or a broker, with their sources and defaults. Pure.

_SOURCES = {
    ConfigSource.UNKNOWN: "unknown",
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "broker, dynamic",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers, dynamic",
    ConfigSource.STATIC_BROKER_CONFIG: "broker's file",
    ConfigSource.DEFAULT_CONFIG: "default",
    ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG: "logger",
    ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG: "client metrics",
    ConfigSource.DYNAMIC_GROUP_CONFIG: "group",
}


class ConfigRow(msgspec.Struct, frozen=True):
    name: str
    value: str | None
    """None: sensitive, or not set."""
    source: str
    is_default: bool
    default: str | None
    """The value without it; None if that is not known or the value is the default."""
    read_only: bool
    sensitive: bool
    documentation: str | None


def config_rows(entries: Mapping[str, ConfigEntry]) -> tuple[ConfigRow, ...]:
    """Return the settings: first those that differ from their defaults, each part by name."""
    rows = [_row_of_config(entry) for entry in entries.values()]
    return tuple(sorted(rows, key=lambda row: (row.is_default, row.name)))


def _row_of_config(entry: ConfigEntry) -> ConfigRow:
    is_default = entry.source is ConfigSource.DEFAULT_CONFIG
    defaults = [one.value for one in entry.synonyms if one.source is ConfigSource.DEFAULT_CONFIG]
    return ConfigRow(
        entry.name,
        None if entry.sensitive else entry.value,
        _SOURCES[entry.source],
        is_default,
        defaults[-1] if defaults and not is_default and not entry.sensitive else None,
        entry.read_only,
        entry.sensitive,
        entry.documentation,
    )


# The list of topics and the page of one topic. Pure.


class TopicRow(msgspec.Struct, frozen=True):
    name: str
    partitions: int
    replication_factor: int
    is_internal: bool
    without_leader: int
    under_replicated: int
    records: int | None = None
    """Offsets from the log start to the log end, of the leaders that describe their replicas."""
    size_bytes: int | None = None
    """Of these leaders' logs."""
    records_per_s: float | None = None
    cleanup_policy: str | None = None


COLUMNS: Columns[TopicRow] = {
    "partitions": lambda row: row.partitions,
    "replicas": lambda row: row.replication_factor,
    "records": lambda row: row.records,
    "size": lambda row: row.size_bytes,
    "rate": lambda row: row.records_per_s,
    "state": lambda row: (row.without_leader, row.under_replicated),
}
MEASURED = frozenset({"records", "size", "rate"})
"""What a survey of the replicas tells; the rest is in the metadata."""


class TopicsView(msgspec.Struct, frozen=True):
    page: Page[TopicRow]
    internal: bool
    """Whether internal topics are listed."""


class Measures(msgspec.Struct, frozen=True):
    """What is known of topics beside their metadata, by topic."""

    records: Mapping[str, int]
    sizes: Mapping[str, int]
    rates: Mapping[str, Rate]


NOTHING_MEASURED = Measures({}, {}, {})


class PartitionRow(msgspec.Struct, frozen=True, kw_only=True):
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
    tier: TierState | None
    """What remote storage has, if the topic is tiered."""
    hold: Hold


class TopicView(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[PartitionRow, ...]
    size_bytes: int | None
    """Of all leaders' logs that are known."""
    is_tiered: bool
    groups: tuple[GroupRow, ...] | None
    """Those that have read it, or read it now; None if the cluster has too many groups to look at each."""


def topics_page(
    topics: Iterable[TopicMetadata], asked: Asked, measures: Measures = NOTHING_MEASURED
) -> Page[TopicRow]:
    rows = [_row(topic) for topic in topics]
    if asked.column in MEASURED:
        rows = [measured_row(row, measures) for row in rows]
    return page_of(rows, lambda row: row.name, asked, COLUMNS)


def topics_view(
    page: Page[TopicRow], measures: Measures, policies: Mapping[str, str | None], *, internal: bool
) -> TopicsView:
    rows = (replace(measured_row(row, measures), cleanup_policy=policies.get(row.name)) for row in page.items)
    return TopicsView(page.showing(tuple(rows)), internal)


def _row(topic: TopicMetadata) -> TopicRow:
    return TopicRow(
        topic.name,
        len(topic.partitions),
        max((len(part.replicas) for part in topic.partitions), default=0),
        topic.is_internal,
        sum(part.leader_id == NO_LEADER for part in topic.partitions),
        sum(len(part.in_sync_replicas) < len(part.replicas) for part in topic.partitions),
    )


def measured_row(row: TopicRow, measures: Measures) -> TopicRow:
    rate = measures.rates.get(row.name)
    return replace(
        row,
        records=measures.records.get(row.name),
        size_bytes=measures.sizes.get(row.name),
        records_per_s=None if rate is None else rate.records_per_s,
    )


def measures_of(survey: Survey, rates: Mapping[str, Rate]) -> Measures:
    records: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for row in survey.rows:
        state = row.state
        if state is None or state.role != LEADER:
            continue
        count = max(0, state.log_end_offset - state.log_start_offset)
        records[row.topic] = records.get(row.topic, 0) + count
        sizes[row.topic] = sizes.get(row.topic, 0) + max(0, state.size_bytes)
    return Measures(records, sizes, rates)


def topic_view(survey: Survey, name: str, groups: Iterable[GroupRow] | None) -> TopicView:
    topic = survey.metadata.topics.get(name)
    rows: dict[int, list[ReplicaRow]] = {}
    for row in survey.rows:
        if row.topic == name:
            rows.setdefault(row.partition, []).append(row)
    partitions = () if topic is None else topic.partitions
    found = tuple(_partition(part, rows.get(part.partition, [])) for part in partitions)
    sizes = [one.size_bytes for one in found if one.size_bytes is not None]
    readers = None if groups is None else tuple(group for group in groups if name in group.topics)
    is_tiered = any(one.tier is not None for one in found)
    return TopicView(name, found, sum(sizes) if sizes else None, is_tiered, readers)


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
        tier=None if led is None else led.tier,
        hold=why_held(rows, leader_id),
    )
