"""Reads what the pages show, with the ordinary clients: brokers, topics, replicas, groups, settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from nilometer.client.admin.admin import ResourceType
from nilometer.client.admin.group_admin import GroupAdmin, GroupListing, lag_sums, lags
from nilometer.client.health.cluster_health import cluster_health
from nilometer.client.health.health_check import HealthCheck
from nilometer.client.network.cluster_metadata import TopicMetadata
from nilometer.client.replicas.replica_survey import Survey
from nilometer.console.reading.connection import REQUEST_TIMEOUT_MS, ClusterConnection
from nilometer.console.views.configs import ConfigRow, config_rows
from nilometer.console.views.groups import GroupsView, GroupView, group_view, groups_page, groups_view
from nilometer.console.views.overview import (
    EndOffsets,
    LogDirRow,
    OverviewView,
    append_rate,
    end_offsets,
    log_dir_rows,
    overview_view,
)
from nilometer.console.views.partition import Eligible, PartitionView, partition_view
from nilometer.console.views.topics import TopicsView, TopicView, topic_view, topics_view
from nilometer.runtime import Clock
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError, UnsupportedVersion

logger = logging.getLogger("nilometer.console")

# One reading for several subjects: it is shared while it is under way, and as long as it is fresh.

T = TypeVar("T")


class Shared(Generic[T]):
    """``fresh_ms``: for how long after its end a reading is used again."""

    def __init__(self, clock: Clock, read: Callable[[], Awaitable[T]], fresh_ms: int) -> None:
        self._clock = clock
        self._read = read
        self._fresh_ms = fresh_ms
        self._task: asyncio.Task[T] | None = None
        self._ended_ms = 0

    async def get(self) -> T:
        """Return a reading, and raise what it raised."""
        if self._task is None or self._is_stale(self._task):
            self._task = asyncio.ensure_future(self._once())
        return await asyncio.shield(self._task)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _is_stale(self, task: asyncio.Task[T]) -> bool:
        if not task.done():
            return False
        failed = task.cancelled() or task.exception() is not None
        return failed or self._clock.monotonic_ms() - self._ended_ms >= self._fresh_ms

    async def _once(self) -> T:
        try:
            return await self._read()
        finally:
            self._ended_ms = self._clock.monotonic_ms()


HEALTH_FRESH_MS = 800
LISTS_FRESH_MS = 2_000
"""For how long the lists of topics and groups are used again: with thousands of them a reading costs much."""


@dataclass(frozen=True, slots=True)
class BrokerView:
    id: int
    log_dirs: tuple[LogDirRow, ...]
    configs: tuple[ConfigRow, ...]


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    topic: str
    configs: tuple[ConfigRow, ...]


class ClusterReader:
    """Each method returns a view, and raises KafkaError."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection
        clock = connection.runtime.clock
        self._clock = clock
        self._check = HealthCheck(
            connection.runtime, connection.bootstrap, REQUEST_TIMEOUT_MS, connection=connection.common
        )
        self._before: EndOffsets | None = None
        self._overview = Shared(clock, self._read_overview, HEALTH_FRESH_MS)
        self._topics = Shared(clock, self._read_topics, LISTS_FRESH_MS)
        self._groups = Shared(clock, self._read_groups, LISTS_FRESH_MS)

    async def close(self) -> None:
        for shared in (self._overview, self._topics, self._groups):
            await shared.close()
        self._check.close()
        await self._connection.close()

    # --- brokers

    async def overview(self) -> OverviewView:
        return await self._overview.get()

    async def broker(self, broker_id: int) -> BrokerView:
        admin = await self._connection.admin()
        if broker_id not in (await admin.client.refresh()).brokers:
            raise KafkaError(ErrorCode.broker_not_available, f"broker {broker_id} is not registered")
        configs = await admin.describe_configs(ResourceType.BROKER, str(broker_id), in_full=True)
        return BrokerView(
            broker_id, log_dir_rows(await admin.describe_log_dirs([broker_id])), config_rows(configs)
        )

    async def _read_overview(self) -> OverviewView:
        findings = await self._check.check()
        health = cluster_health(findings)
        now = end_offsets(findings.survey, self._clock.monotonic_ms())
        rate, self._before = append_rate(self._before, now), now
        return overview_view(health, findings.survey, rate)

    # --- topics

    async def topics(self, query: str, number: int, *, internal: bool) -> TopicsView:
        return topics_view(await self._topics.get(), query, number, internal=internal)

    async def topic(self, name: str) -> TopicView:
        return topic_view(await self._survey(name, None), name)

    async def partition(self, topic: str, partition: int) -> PartitionView:
        survey = await self._survey(topic, partition, segments=True)
        count = survey.metadata.partition_count(topic)
        if partition >= count:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {topic} has {count} partitions; there is no partition {partition}",
            )
        return partition_view(survey, topic, partition, await self._eligible(topic, partition))

    async def topic_configs(self, topic: str) -> TopicConfigs:
        admin = await self._connection.admin()
        entries = await admin.describe_configs(ResourceType.TOPIC, topic, in_full=True)
        return TopicConfigs(topic, config_rows(entries))

    async def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raises KafkaError if it does not exist."""
        admin = await self._connection.admin()
        found = (await admin.describe_topics([topic]))[topic]
        if isinstance(found, KafkaError):
            raise KafkaError(found.code, found.message or f"topic {topic} does not exist")
        return len(found.partitions)

    async def _survey(self, topic: str, partition: int | None, *, segments: bool = False) -> Survey:
        async with self._connection.survey() as survey:
            numbers = None if partition is None else [partition]
            found = await survey.look([topic], numbers, segments=segments)
        if topic in found.missing_topics:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {topic} does not exist")
        return found

    async def _eligible(self, topic: str, partition: int) -> Eligible:
        """Return the ELR of a partition; nothing from brokers that do not serve DescribeTopicPartitions."""
        admin = await self._connection.admin()
        try:
            response = await admin.client.send_to_any(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                lambda api: api.request(
                    topics=(api.make_request("TopicRequest", name=topic),),
                    response_partition_limit=1,
                    cursor=api.make_request("Cursor", topic_name=topic, partition_index=partition),
                ),
            )
        except UnsupportedVersion:
            return Eligible()
        for found in response.topics:
            for part in found.partitions:
                if part.partition_index == partition:
                    last = tuple(part.last_known_elr or ())
                    return Eligible(tuple(part.eligible_leader_replicas or ()), last[0] if last else None)
        return Eligible()

    async def _read_topics(self) -> Mapping[str, TopicMetadata]:
        return await (await self._connection.admin()).list_topics()

    # --- groups

    async def groups(self, query: str, number: int) -> GroupsView:
        """Return a page of the groups, each with its members, topics and lag."""
        page = groups_page(await self._groups.get(), query, number)
        admin = await self._connection.admin()
        groups = GroupAdmin(admin.client, admin.timeout_ms)
        ids = [group.group_id for group in page.items]
        described, offsets = await asyncio.gather(groups.describe(ids), groups.committed_of(ids))
        known = {group: found for group, found in offsets.items() if not isinstance(found, KafkaError)}
        try:
            lag = await lag_sums(admin.client, known, admin.timeout_ms)
        except KafkaError as error:  # a leader that does not respond; the rest is shown all the same
            logger.info("The lag of groups is not known: %s", error)
            lag = {}
        return groups_view(page, described, known, lag)

    async def group(self, group_id: str) -> GroupView:
        admin = await self._connection.admin()
        groups = GroupAdmin(admin.client, admin.timeout_ms)
        found = (await groups.describe([group_id]))[group_id]
        if isinstance(found, KafkaError):
            raise found
        committed = await groups.committed(group_id)
        assigned = [partition for member in found.members for partition in member.assignment]
        return group_view(found, await lags(admin.client, committed, assigned, admin.timeout_ms))

    async def _read_groups(self) -> list[GroupListing]:
        admin = await self._connection.admin()
        await admin.client.refresh()  # a coordinator may have come or gone
        return await GroupAdmin(admin.client, admin.timeout_ms).list_groups()
