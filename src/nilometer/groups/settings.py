"""The settings of a group coordinator, with Kafka's names and defaults, and those that a single group may
have of its own (KIP-848).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

import msgspec
from msgspec.structs import replace

from nilometer.config import ConfigDefinition, ConfigKey, ConfigKind, ConfigRule, ConfigValue, ConfigValues

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


SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"


class _Setting(msgspec.Struct, frozen=True):
    field: str
    """What it replaces in the coordinator's `GroupConfig`."""
    bounds: Callable[[GroupConfig], tuple[int, int]]
    """The lowest and the highest value that a broker allows."""
    doc: str


_SETTINGS = {
    SESSION_TIMEOUT: _Setting(
        "group_consumer_session_timeout_ms",
        lambda config: (
            config.group_consumer_min_session_timeout_ms,
            config.group_consumer_max_session_timeout_ms,
        ),
        "A member of the group without a heartbeat for this long is removed.",
    ),
    HEARTBEAT_INTERVAL: _Setting(
        "group_consumer_heartbeat_interval_ms",
        lambda config: (
            config.group_consumer_min_heartbeat_interval_ms,
            config.group_consumer_max_heartbeat_interval_ms,
        ),
        "The heartbeat interval of the group's members.",
    ),
    ASSIGNMENT_INTERVAL: _Setting(
        "group_consumer_assignment_interval_ms",
        lambda config: (
            config.group_consumer_min_assignment_interval_ms,
            config.group_consumer_max_assignment_interval_ms,
        ),
        "The minimum time between two target assignments of the group.",
    ),
}


def definition_of(config: GroupConfig) -> ConfigDefinition:
    """Return the keys, with the bounds and defaults of a broker's ``config``."""
    keys = [_key(name, setting, config) for name, setting in _SETTINGS.items()]
    rule = ConfigRule((SESSION_TIMEOUT, HEARTBEAT_INTERVAL), _why_heartbeats_are_too_rare)
    return ConfigDefinition.of("group", keys, [rule])


def _key(name: str, setting: _Setting, config: GroupConfig) -> ConfigKey:
    low, high = setting.bounds(config)

    def check(value: ConfigValue) -> str | None:
        assert isinstance(value, int)
        if value < low:
            return f"must be greater than or equal to group.{_bound(name, 'min')} ({low})"
        if value > high:
            return f"must be less than or equal to group.{_bound(name, 'max')} ({high})"
        return None

    return ConfigKey(
        name=name,
        kind=ConfigKind.INT,
        default=getattr(config, setting.field),
        doc=setting.doc,
        validate=check,
        dynamic=True,
    )


def _bound(name: str, which: str) -> str:
    return name.replace("consumer.", f"consumer.{which}.", 1)


def _why_heartbeats_are_too_rare(values: ConfigValues) -> str | None:
    session_ms, heartbeat_ms = values[SESSION_TIMEOUT], values[HEARTBEAT_INTERVAL]
    assert isinstance(session_ms, int)
    assert isinstance(heartbeat_ms, int)
    if heartbeat_ms < session_ms:
        return None
    return f"{SESSION_TIMEOUT} ({session_ms}) must be greater than {HEARTBEAT_INTERVAL} ({heartbeat_ms})"


def config_of_group(config: GroupConfig, texts: Mapping[str, str]) -> GroupConfig:
    """Return ``config`` with the settings ``texts`` of one group in place of the broker's.

    Values outside the broker's bounds are brought inside. If the session timeout is then not above the
    heartbeat interval, the group has the broker's values of both.
    """
    changed = {
        _SETTINGS[name].field: _clamped(_SETTINGS[name], config, int(text))
        for name, text in texts.items()
        if name in _SETTINGS and _is_number(text)
    }
    try:
        return replace(config, **changed)
    except ValueError:
        for name in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL):
            changed.pop(_SETTINGS[name].field, None)
        return replace(config, **changed)


def _is_number(text: str) -> bool:
    return text.strip().removeprefix("+").isdecimal()


def _clamped(setting: _Setting, config: GroupConfig, value: int) -> int:
    low, high = setting.bounds(config)
    return min(max(value, low), high)
