"""Changes of the cluster that a user makes in the console. Each says what it would do, before it does it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from nilometer.client.admin.admin import BROKER_DEFAULT, AlterOperation, ConfigChange, NewTopic, ResourceType
from nilometer.client.admin.group_admin import (
    GroupAdmin,
    PlannedReset,
    ResetTo,
    partitions_of,
    plan_reset,
)
from nilometer.console.reading.connection import ClusterConnection
from nilometer.wire.errors import ErrorCode, KafkaError


class Plan(msgspec.Struct, frozen=True):
    """What a change will do."""

    summary: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


class Change(Protocol):
    async def plan(self, connection: ClusterConnection) -> Plan:
        """Change nothing. Raises KafkaError."""
        ...

    async def apply(self, connection: ClusterConnection) -> None:
        """Raises KafkaError."""
        ...


class CreateTopic(msgspec.Struct, frozen=True):
    topic: NewTopic

    async def plan(self, connection: ClusterConnection) -> Plan:
        await self._send(connection, validate_only=True)
        settings = tuple(sorted(self.topic.configs.items()))
        counts = (("partitions", self.topic.partitions), ("replicas", self.topic.replication_factor))
        sizes = ", ".join(
            f"{name}: {'the default' if count == BROKER_DEFAULT else f'{count:,}'}" for name, count in counts
        )
        return Plan(f"The topic {self.topic.name} is created ({sizes}).", ("Setting", "Value"), settings)

    async def apply(self, connection: ClusterConnection) -> None:
        await self._send(connection, validate_only=False)

    async def _send(self, connection: ClusterConnection, *, validate_only: bool) -> None:
        admin = await connection.admin()
        outcomes = await admin.create_topics([self.topic], validate_only=validate_only)
        _raise(outcomes.get(self.topic.name))


class DeleteTopic(msgspec.Struct, frozen=True):
    name: str

    async def plan(self, connection: ClusterConnection) -> Plan:
        async with connection.survey() as survey:
            found = await survey.look([self.name])
        if self.name in found.missing_topics:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {self.name} does not exist")
        ends: dict[int, tuple[int, int] | None] = {}
        for row in found.rows:
            known = ends.setdefault(row.partition, None)
            if row.state is not None:
                state = row.state.log_end_offset, row.state.log_start_offset
                ends[row.partition] = state if known is None else max(known, state)
        rows = tuple(
            (str(part), "not known", "not known")
            if one is None
            else (str(part), f"{one[1]:,}", f"{one[0]:,}")
            for part, one in sorted(ends.items())
        )
        records = sum(one[0] - one[1] for one in ends.values() if one is not None)
        unknown = sum(one is None for one in ends.values())
        more = f", and those of {unknown:,} partitions that no broker describes" if unknown else ""
        return Plan(
            f"The topic {self.name} is deleted, with its settings and all of its records, up to {records:,}"
            f"{more}. They cannot be restored.",
            ("Partition", "First offset", "End offset"),
            rows,
        )

    async def apply(self, connection: ClusterConnection) -> None:
        admin = await connection.admin()
        _raise((await admin.delete_topics([self.name])).get(self.name))


class ChangeSetting(msgspec.Struct, frozen=True):
    topic: str
    key: str
    value: str | None
    """None: the key's default."""

    async def plan(self, connection: ClusterConnection) -> Plan:
        admin = await connection.admin()
        entries = await admin.describe_configs(ResourceType.TOPIC, self.topic)
        entry = entries.get(self.key)
        if entry is None:
            raise KafkaError(ErrorCode.invalid_config, f"topics have no setting {self.key}")
        after = "its default" if self.value is None else self.value
        row = (self.key, "" if entry.value is None else entry.value, after)
        return Plan(f"A setting of the topic {self.topic} changes.", ("Setting", "Now", "Then"), (row,))

    async def apply(self, connection: ClusterConnection) -> None:
        admin = await connection.admin()
        operation = AlterOperation.DELETE if self.value is None else AlterOperation.SET
        change = ConfigChange(self.key, self.value, operation)
        await admin.incremental_alter_configs(ResourceType.TOPIC, self.topic, [change])


class ResetOffsets(msgspec.Struct, frozen=True):
    group_id: str
    topic: str
    to: ResetTo

    async def plan(self, connection: ClusterConnection) -> Plan:
        found = await self._planned(connection)
        return Plan(
            f"Group {self.group_id} goes on from these offsets. It must have no members.",
            ("Partition", "Now", "Then", ""),
            tuple(
                (
                    str(one.partition),
                    "–" if one.before is None else f"{one.before:,}",
                    f"{one.after:,}",
                    one.note,
                )
                for one in found
            ),
        )

    async def apply(self, connection: ClusterConnection) -> None:
        offsets = {one.partition: one.after for one in await self._planned(connection)}
        admin = await connection.admin()
        await GroupAdmin(admin.client, admin.timeout_ms).set_positions(self.group_id, offsets)

    async def _planned(self, connection: ClusterConnection) -> list[PlannedReset]:
        admin = await connection.admin()
        partitions = await partitions_of(admin.client, self.topic, (), admin.timeout_ms)
        committed = await GroupAdmin(admin.client, admin.timeout_ms).positions(self.group_id)
        return await plan_reset(admin.client, partitions, committed, self.to, admin.timeout_ms)


def _raise(error: KafkaError | None) -> None:
    if error is not None:
        raise error
