"""Topics, queues, configurations, groups and offsets of a cluster. Each method raises KafkaError;
``create_queue`` also InvalidSetting.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from nilometer.client.admin.admin import (
    BROKER_DEFAULT,
    Admin,
    AlterOperation,
    ClusterDescription,
    ConfigChange,
    NewTopic,
    ResourceType,
)
from nilometer.client.admin.group_admin import GroupAdmin
from nilometer.client.admin.group_descriptions import GroupDescription, GroupListing
from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicMetadata, TopicPartition
from nilometer.client.offset_queries import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from nilometer.kafka.queue_settings import DEFAULT_MAX_DELIVERIES, Duration, create
from nilometer.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")


class OffsetRange(NamedTuple):
    """The offsets of one partition's records: from ``start`` up to, but not including, ``end``."""

    start: int
    end: int


class KafkaAdmin:
    """``kafka.admin``. Methods retry what can be retried until ``default.api.timeout.ms``."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._groups = GroupAdmin(admin.client, admin.timeout_ms)

    async def cluster(self) -> ClusterDescription:
        """Return the cluster's id, controller and brokers."""
        return await self._admin.describe_cluster()

    # --- topics

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic. Counts that are not given are the brokers' defaults."""
        await self._admin.create_topic(
            NewTopic(
                name,
                BROKER_DEFAULT if partitions is None else partitions,
                BROKER_DEFAULT if replication_factor is None else replication_factor,
                configs or {},
            )
        )

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        _raise(await self._admin.delete_topics([name]))

    async def add_partitions(self, topic: str, count: int) -> None:
        """Raise the number of partitions of a topic to ``count``."""
        _raise(await self._admin.create_partitions({topic: count}))

    async def topics(self) -> dict[str, TopicMetadata]:
        """Return all topics by name, also internal ones, with their partitions, leaders and replicas."""
        return await self._admin.list_topics()

    async def topic(self, name: str) -> TopicMetadata:
        """Return one topic."""
        return _one(await self._admin.describe_topics([name]))

    async def offsets(self, topic: str) -> dict[int, OffsetRange]:
        """Return, by partition, the offsets of a topic's records."""
        places = [TopicPartition(topic, part.partition) for part in (await self.topic(topic)).partitions]
        starts = await self._admin.list_offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP))
        ends = await self._admin.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP))
        return {place.partition: OffsetRange(starts[place].offset, ends[place].offset) for place in places}

    # --- queues

    async def create_queue(
        self,
        name: str,
        *,
        max_deliveries: int = DEFAULT_MAX_DELIVERIES,
        lock: Duration = "30s",
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
        retry_after: Sequence[Duration] = (),
    ) -> None:
        """Create a queue: its topic, the dead-letter topic ``dlq.NAME``, and the settings of its workers.

        A job is delivered at most ``max_deliveries`` times; a worker that does not end it, nor renew it,
        within ``lock`` has lost it. Both have bounds at the brokers (``group.share.…``). ``configs`` are the
        topic's. ``retry_after``, such as ``["10m", "2h"]``: a job that fails ``max_deliveries`` times waits
        so long in a retry topic and is delivered again as often, until it has waited each pause; then it is
        buried. A queue that exists with these settings is left as it is; one with others is an error that
        names both. Raises InvalidSetting.
        """
        await create(
            self._admin,
            name,
            max_deliveries=max_deliveries,
            lock=lock,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs or {},
            retry_after=retry_after,
        )

    async def share_group_lags(self, group: str, topic: str) -> dict[int, int]:
        """Return, by partition, how many records of a topic a share group has neither accepted nor archived;
        without the partitions that no member has read yet."""
        found = (await self._groups.share_offsets_of((group,)))[group]
        if isinstance(found, KafkaError):
            if found.code is ErrorCode.group_id_not_found:
                return {}
            raise found
        return {
            each.partition: offset.lag
            for each, offset in found.items()
            if each.topic == topic and offset.lag is not None
        }

    # --- configurations

    async def topic_configs(self, topic: str) -> dict[str, str | None]:
        """Return a topic's effective configuration."""
        return await self._configs(ResourceType.TOPIC, topic)

    async def set_topic_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Change some configurations of a topic; None restores the brokers' default."""
        await self._change(ResourceType.TOPIC, topic, changes)

    async def broker_configs(self, broker: int) -> dict[str, str | None]:
        """Return a broker's effective configuration. Sensitive values are None."""
        return await self._configs(ResourceType.BROKER, str(broker))

    async def set_broker_configs(self, broker: int, changes: Mapping[str, str | None]) -> None:
        """Change some dynamic configurations of a broker; None restores the default."""
        await self._change(ResourceType.BROKER, str(broker), changes)

    # --- groups

    async def groups(self) -> list[GroupListing]:
        """Return all consumer groups with their states."""
        return await self._groups.list_groups()

    async def group(self, group: str) -> GroupDescription:
        """Return a group's state and members."""
        return _one(await self._groups.describe([group]))

    async def delete_group(self, group: str) -> None:
        """Delete a group without members, and its committed offsets."""
        _raise(await self._groups.delete([group]))

    async def group_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group, all or those of ``partitions``."""
        found = await self._groups.committed(group, partitions)
        return {place: one.offset for place, one in found.items()}

    async def set_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members: where its next members begin to read."""
        await self._groups.alter_offsets(
            group, {place: OffsetAndMetadata(offset) for place, offset in offsets.items()}
        )

    async def delete_group_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        """Delete committed offsets of topics that no member subscribes to."""
        _raise(await self._groups.delete_offsets(group, partitions))

    # --- helpers

    async def _configs(self, kind: ResourceType, name: str) -> dict[str, str | None]:
        found = await self._admin.describe_configs(kind, name)
        return {key: entry.value for key, entry in found.items()}

    async def _change(self, kind: ResourceType, name: str, changes: Mapping[str, str | None]) -> None:
        await self._admin.incremental_alter_configs(
            kind,
            name,
            [
                ConfigChange(key, value, AlterOperation.DELETE if value is None else AlterOperation.SET)
                for key, value in changes.items()
            ],
        )


def _raise(outcomes: Mapping[T, KafkaError | None]) -> None:
    for error in outcomes.values():
        if error is not None:
            raise error


def _one(outcomes: Mapping[str, T | KafkaError]) -> T:
    (outcome,) = outcomes.values()
    if isinstance(outcome, KafkaError):
        raise outcome
    return outcome
