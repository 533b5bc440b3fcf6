"""What one reading of a cluster finds, topics, offsets and groups, and how an admin client reads it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from nilometer.client.admin.admin import Admin
from nilometer.client.admin.group_admin import GroupAdmin
from nilometer.client.network.cluster_metadata import BrokerNode, TopicMetadata, TopicPartition
from nilometer.client.offsets.positions import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from nilometer.wire.errors import KafkaError


@dataclass(frozen=True, slots=True)
class GroupState:
    members: int
    committed: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Offsets and groups that could not be read are missing; ``failed`` says which part failed, and why."""

    brokers: tuple[BrokerNode, ...]
    topics: Mapping[str, TopicMetadata]
    log_start_offsets: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    groups: Mapping[str, GroupState] = field(default_factory=dict[str, GroupState])
    failed: Mapping[str, str] = field(default_factory=dict[str, str])

    def lag(self, group: GroupState, partition: TopicPartition) -> int | None:
        """Return how many offsets a group is behind the high watermark; None if that is not known."""
        end, committed = self.high_watermarks.get(partition), group.committed.get(partition)
        return None if end is None or committed is None else max(0, end - committed)


logger = logging.getLogger("nilometer.exporter")

GROUPS_AT_ONCE = 32
PARTS = ("offsets", "groups")
"""What a reading may lack."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which topics and groups are read: those whose whole name matches."""

    topics: re.Pattern[str] = re.compile(r".*")
    groups: re.Pattern[str] = re.compile(r".*")


class ClusterReading:
    """One reading; :meth:`read` returns its result."""

    def __init__(self, admin: Admin, selection: Selection) -> None:
        self._admin = admin
        self._groups = GroupAdmin(admin.client, admin.timeout_ms)
        self._selection = selection
        self._failed: dict[str, str] = {}

    async def read(self) -> ClusterState:
        """Read the cluster. Raises KafkaError if not even its topics can be read."""
        cluster = await self._admin.describe_cluster()
        topics = {
            name: topic
            for name, topic in (await self._admin.list_topics()).items()
            if self._selection.topics.fullmatch(name)
        }
        partitions = list(_with_leader(topics))
        starts = await self._part("offsets", lambda: self._offsets(partitions, EARLIEST_TIMESTAMP), {})
        ends = await self._part("offsets", lambda: self._offsets(partitions, LATEST_TIMESTAMP), {})
        groups = await self._part("groups", self._read_groups, {})
        return ClusterState(cluster.brokers, topics, starts, ends, groups, self._failed)

    async def _part(self, name: str, read: Callable[[], Awaitable[T]], missing: T) -> T:
        try:
            return await read()
        except KafkaError as error:
            self._fail(name, error)
            return missing

    def _fail(self, part: str, error: KafkaError) -> None:
        logger.warning("The %s of the cluster cannot be read completely: %s", part, error)
        self._failed.setdefault(part, str(error))

    async def _offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int
    ) -> Mapping[TopicPartition, int]:
        wanted = dict.fromkeys(partitions, timestamp)
        if not wanted:
            return {}
        found = await self._admin.list_offsets(wanted)
        return {partition: listed.offset for partition, listed in found.items()}

    async def _read_groups(self) -> Mapping[str, GroupState]:
        listed = [
            group.group_id
            for group in await self._groups.list_groups()
            if self._selection.groups.fullmatch(group.group_id)
        ]
        found: dict[str, GroupState] = {}
        for first in range(0, len(listed), GROUPS_AT_ONCE):
            names = listed[first : first + GROUPS_AT_ONCE]
            states = await asyncio.gather(*map(self._group, names))
            found |= {name: one for name, one in zip(names, states, strict=True) if one is not None}
        return found

    async def _group(self, name: str) -> GroupState | None:
        try:
            described = (await self._groups.describe([name]))[name]
            if isinstance(described, KafkaError):
                raise described
            committed = await self._groups.committed(name)
        except KafkaError as error:
            self._fail("groups", error)
            return None
        wanted = self._selection.topics
        return GroupState(
            len(described.members),
            {
                partition: offset.offset
                for partition, offset in committed.items()
                if wanted.fullmatch(partition.topic)
            },
        )


def _with_leader(topics: Mapping[str, TopicMetadata]) -> Iterable[TopicPartition]:
    for name, topic in topics.items():
        for index in topic.available:
            yield TopicPartition(name, index)
