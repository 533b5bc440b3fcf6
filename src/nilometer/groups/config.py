"""The settings of a group coordinator, with Kafka's names and defaults.

Times are in milliseconds. A ``GroupConfig`` whose settings contradict each other raises ValueError.
"""

from __future__ import annotations

from enum import Enum

import msgspec

INT32_MAX = 2**31 - 1


class ConsumerGroupMigrationPolicy(Enum):
    """Whether a group with members may change from the classic to the consumer protocol (upgrade), or
    back."""

    DISABLED = "disabled"
    DOWNGRADE = "downgrade"
    UPGRADE = "upgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        return self in (ConsumerGroupMigrationPolicy.UPGRADE, ConsumerGroupMigrationPolicy.BIDIRECTIONAL)

    @property
    def allows_downgrade(self) -> bool:
        return self in (ConsumerGroupMigrationPolicy.DOWNGRADE, ConsumerGroupMigrationPolicy.BIDIRECTIONAL)


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = INT32_MAX
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * 60_000
    """``offsets.retention.minutes``."""
    offsets_retention_check_interval_ms: int = 600_000
    group_new_member_join_timeout_ms: int = 5 * 60_000
    """How long a new member, which sends no heartbeats yet, may wait in a rebalance. Kafka's constant."""

    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_max_size: int = INT32_MAX
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The server-side assignors by short name; the first is used if no member names one."""
    group_consumer_migration_policy: ConsumerGroupMigrationPolicy = ConsumerGroupMigrationPolicy.BIDIRECTIONAL
    group_consumer_assignment_interval_ms: int = 1_000
    """The least time between two target assignments of a group; 0: no delay."""
    group_consumer_min_assignment_interval_ms: int = 0
    group_consumer_max_assignment_interval_ms: int = 15_000

    def __post_init__(self) -> None:
        _ordered(
            "group.min.session.timeout.ms",
            self.group_min_session_timeout_ms,
            "group.max.session.timeout.ms",
            self.group_max_session_timeout_ms,
        )
        for kind in ("session.timeout", "heartbeat.interval", "assignment.interval"):
            field = kind.replace(".", "_")
            low: int = getattr(self, f"group_consumer_min_{field}_ms")
            value: int = getattr(self, f"group_consumer_{field}_ms")
            high: int = getattr(self, f"group_consumer_max_{field}_ms")
            _ordered(f"group.consumer.min.{kind}.ms", low, f"group.consumer.{kind}.ms", value)
            _ordered(f"group.consumer.{kind}.ms", value, f"group.consumer.max.{kind}.ms", high)
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            raise ValueError(
                "group.consumer.heartbeat.interval.ms must be below group.consumer.session.timeout.ms"
            )
        if not self.group_consumer_assignors:
            raise ValueError("group.consumer.assignors must name at least one assignor")


def _ordered(lower: str, low: int, upper: str, high: int) -> None:
    if low > high:
        raise ValueError(f"{lower} ({low}) must not be above {upper} ({high})")
