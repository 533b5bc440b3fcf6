"""The settings of a group coordinator, with Kafka's names, defaults and ranges: first the keys of a broker,
then their values, then what a single group may have of its own (KIP-848, KIP-932, KIP-1071).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import replace

from nilometer.config import (
    ConfigDefinition,
    ConfigError,
    ConfigKey,
    ConfigKind,
    ConfigRule,
    ConfigValue,
    ConfigValues,
    Settings,
    key_table,
    parse_duration_ms,
)

INT32_MAX = 2**31 - 1
READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"

KINDS = ("consumer", "share", "streams")
"""The kinds of groups whose members send heartbeats to a coordinator that assigns."""

ASSIGNORS: Mapping[str, Mapping[str, str]] = {
    "consumer": {
        "uniform": "uniform",
        "range": "range",
        "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
        "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
    },
    "share": {
        "simple": "simple",
        "org.apache.kafka.coordinator.group.assignor.SimpleAssignor": "simple",
    },
    "streams": {
        "sticky": "sticky",
        "org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor": "sticky",
    },
}
"""By kind, the accepted names of its assignors, each with its short name."""


def _why_repeated(value: ConfigValue) -> str | None:
    """Return what is wrong with a list that names something twice; None if it does not."""
    assert isinstance(value, tuple)
    return "must not contain duplicates" if len(set(value)) < len(value) else None


def _keys_of_members(kind: str) -> tuple[ConfigKey, ...]:
    """Return the keys that every kind has."""
    return key_table(
        f"""
group.{kind}.session.timeout.ms: int 1.. = 45_000
    A member of a {kind} group without a heartbeat for this long is removed.
group.{kind}.min.session.timeout.ms: int 1.. = 45_000
    The lowest session timeout allowed for a {kind} group.
group.{kind}.max.session.timeout.ms: int 1.. = 60_000
    The highest session timeout allowed for a {kind} group.
group.{kind}.heartbeat.interval.ms: int 1.. = 5000
    The heartbeat interval of members of a {kind} group.
group.{kind}.min.heartbeat.interval.ms: int 1.. = 5000
    The lowest heartbeat interval allowed for a {kind} group.
group.{kind}.max.heartbeat.interval.ms: int 1.. = 15_000
    The highest heartbeat interval allowed for a {kind} group.
group.{kind}.assignment.interval.ms: int 0.. = 1000
    The minimum time between two target assignments of one {kind} group.
group.{kind}.min.assignment.interval.ms: int 0.. = 0
    The lowest assignment interval allowed for a {kind} group.
group.{kind}.max.assignment.interval.ms: int 0.. = 15_000
    The highest assignment interval allowed for a {kind} group.
"""
    )


_CLASSIC_GROUPS = key_table(
    f"""
group.min.session.timeout.ms: int = 6000
    The shortest session.timeout.ms that a member of a classic group may request.
group.max.session.timeout.ms: int = 1_800_000
    The longest session.timeout.ms that a member of a classic group may request.
group.initial.rebalance.delay.ms: int = 3000
    How long an empty classic group waits for more members before its first rebalance.
group.max.size: int 1.. = {INT32_MAX}
    The maximum number of members of one classic group.
group.coordinator.rebalance.protocols: list (classic|{"|".join(KINDS)}) = classic,consumer,streams
    The enabled rebalance protocols. Share groups are turned on by the feature share.version, and streams
    groups need streams.version, too.
"""
)

_CONSUMER_GROUPS = key_table(
    f"""
group.consumer.max.size: int 1.. = {INT32_MAX}
    The maximum number of members of one consumer group.
group.consumer.assignors: list = uniform,range
    The server-side assignors; the first is used if members name none.
group.consumer.migration.policy: string (bidirectional|upgrade|downgrade|disabled) = bidirectional
    Whether groups with members may change from the classic to the consumer protocol (upgrade), back
    (downgrade), both (bidirectional), or neither (disabled).
""",
    choices={"group.consumer.assignors": tuple(ASSIGNORS["consumer"])},
)

_SHARE_GROUPS = key_table(
    """
group.share.max.size: int 1..1000 = 200
    The maximum number of members of one share group.
group.share.assignors: list = simple
    The server-side assignor of share groups.
group.share.record.lock.duration.ms: int 1000..3_600_000 = 30_000
    A record that a member of a share group has not acknowledged after this long is delivered again.
group.share.min.record.lock.duration.ms: int 1000..30_000 = 15_000
    The shortest lock of a record allowed for a share group.
group.share.max.record.lock.duration.ms: int 30_000..3_600_000 = 60_000
    The longest lock of a record allowed for a share group.
group.share.delivery.count.limit: int 2..10 = 5
    How often a record is delivered to a share group at most.
group.share.min.delivery.count.limit: int 2..5 = 2
    The lowest limit of deliveries allowed for a share group.
group.share.max.delivery.count.limit: int 5..25 = 10
    The highest limit of deliveries allowed for a share group.
group.share.partition.max.record.locks: int 100..10_000 = 2000
    How many records of one partition the members of a share group may hold at the same time.
group.share.min.partition.max.record.locks: int 100..2000 = 100
    The lowest limit of record locks allowed for a share group.
group.share.max.partition.max.record.locks: int 2000..10_000 = 4000
    The highest limit of record locks allowed for a share group.
""",
    choices={"group.share.assignors": tuple(ASSIGNORS["share"])},
)

_STREAMS_GROUPS = key_table(
    f"""
group.streams.max.size: int 1.. = {INT32_MAX}
    The maximum number of members of one streams group.
group.streams.assignors: list = sticky
    The task assignors of streams groups; the first is used if a group names none.
group.streams.num.standby.replicas: int 0.. = 0
    How many standby tasks each task with state has.
group.streams.max.standby.replicas: int 0.. = 2
    The highest number of standby tasks allowed for a streams group.
group.streams.initial.rebalance.delay.ms: int 0.. = 3000
    How long an empty streams group waits for more members before its first assignment.
group.streams.rack.aware.assignment.tags: list =
    Tags (client.tag.NAME of Kafka Streams) that each member of a streams group is to have.
group.streams.task.offset.interval.ms: int 1.. = 60_000
    How often members of a streams group tell how far they have the state of their tasks.
group.streams.min.task.offset.interval.ms: int 1.. = 15_000
    The shortest such interval allowed for a streams group.
group.streams.acceptable.recovery.lag: long 0.. = 10_000
    Up to how many records behind a member may count as having the state of a task.
""",
    choices={"group.streams.assignors": tuple(ASSIGNORS["streams"])},
    checks={"group.streams.rack.aware.assignment.tags": _why_repeated},
)

GROUP_KEYS = (
    *_CLASSIC_GROUPS,
    *_keys_of_members("consumer"),
    *_CONSUMER_GROUPS,
    *_keys_of_members("share"),
    *_SHARE_GROUPS,
    *_keys_of_members("streams"),
    *_STREAMS_GROUPS,
)
"""The keys of a broker about its groups, but those of offsets."""


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


class ShareOffsetReset(msgspec.Struct, frozen=True):
    """``share.auto.offset.reset``: where a share group begins to read a partition (KIP-932)."""

    strategy: str
    """``earliest``, ``latest`` or ``by_duration``."""
    ago_ms: int = 0
    """With ``by_duration``: how long before now."""

    @classmethod
    def parse(cls, text: str) -> ShareOffsetReset:
        """Parse the setting. Raises ValueError."""
        strategy, colon, duration = text.partition(":")
        if strategy in ("earliest", "latest") and not colon:
            return cls(strategy)
        if strategy != "by_duration":
            raise ValueError("must be earliest, latest or by_duration:PnDTnHnMn.nS")
        return cls(strategy, parse_duration_ms(duration))


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

    group_share_max_size: int = 200
    group_share_assignors: tuple[str, ...] = ("simple",)
    """The assignor by short name: exactly one."""
    group_share_session_timeout_ms: int = 45_000
    group_share_min_session_timeout_ms: int = 45_000
    group_share_max_session_timeout_ms: int = 60_000
    group_share_heartbeat_interval_ms: int = 5_000
    group_share_min_heartbeat_interval_ms: int = 5_000
    group_share_max_heartbeat_interval_ms: int = 15_000
    group_share_assignment_interval_ms: int = 1_000
    """The least time between two target assignments of a group; 0: no delay."""
    group_share_min_assignment_interval_ms: int = 0
    group_share_max_assignment_interval_ms: int = 15_000
    group_share_record_lock_duration_ms: int = 30_000
    group_share_min_record_lock_duration_ms: int = 15_000
    group_share_max_record_lock_duration_ms: int = 60_000
    group_share_delivery_count_limit: int = 5
    group_share_min_delivery_count_limit: int = 2
    group_share_max_delivery_count_limit: int = 10
    group_share_partition_max_record_locks: int = 2_000
    group_share_min_partition_max_record_locks: int = 100
    group_share_max_partition_max_record_locks: int = 4_000

    group_streams_max_size: int = INT32_MAX
    group_streams_assignors: tuple[str, ...] = ("sticky",)
    """The task assignors by short name; the first is used if the group names none."""
    group_streams_session_timeout_ms: int = 45_000
    group_streams_min_session_timeout_ms: int = 45_000
    group_streams_max_session_timeout_ms: int = 60_000
    group_streams_heartbeat_interval_ms: int = 5_000
    group_streams_min_heartbeat_interval_ms: int = 5_000
    group_streams_max_heartbeat_interval_ms: int = 15_000
    group_streams_assignment_interval_ms: int = 1_000
    """The least time between two target assignments of a group; 0: no delay."""
    group_streams_min_assignment_interval_ms: int = 0
    group_streams_max_assignment_interval_ms: int = 15_000
    group_streams_num_standby_replicas: int = 0
    group_streams_max_standby_replicas: int = 2
    group_streams_initial_rebalance_delay_ms: int = 3_000
    group_streams_rack_aware_assignment_tags: tuple[str, ...] = ()
    """The tags that each member is to have."""
    group_streams_task_offset_interval_ms: int = 60_000
    group_streams_min_task_offset_interval_ms: int = 15_000
    group_streams_acceptable_recovery_lag: int = 10_000

    share_auto_offset_reset: ShareOffsetReset = ShareOffsetReset("latest")
    """This and the following are settings of groups alone: brokers have none for their defaults."""
    share_isolation_level: str = READ_UNCOMMITTED
    share_renew_acknowledge_enable: bool = True
    errors_deadletterqueue_topic_name: str = ""
    errors_deadletterqueue_copy_record_enable: bool = False

    def __post_init__(self) -> None:
        _ordered(
            "group.min.session.timeout.ms",
            self.group_min_session_timeout_ms,
            "group.max.session.timeout.ms",
            self.group_max_session_timeout_ms,
        )
        for setting in _SETTINGS.values():
            low, high = setting.bounds(self)
            value: int = getattr(self, setting.field)
            key = f"group.{setting.name}"
            if setting.lowest is not None:
                _ordered(f"group.{setting.lowest}", low, key, value)
            if setting.highest is not None:
                _ordered(key, value, f"group.{setting.highest}", high)
        for kind in KINDS:
            if not _is_session_longer(kind, self):
                raise ValueError(
                    f"group.{kind}.heartbeat.interval.ms must be below group.{kind}.session.timeout.ms"
                )
            if not getattr(self, f"group_{kind}_assignors"):
                raise ValueError(f"group.{kind}.assignors must name at least one assignor")
        if len(self.group_share_assignors) != 1:
            raise ValueError("group.share.assignors must name exactly one assignor")


def _ordered(lower: str, low: int, upper: str, high: int) -> None:
    if low > high:
        raise ValueError(f"{lower} ({low}) must not be above {upper} ({high})")


MINUTE_MS = 60_000
SESSIONS_MAX_KEY = "group.share.max.share.sessions"


def group_config(config: Settings) -> GroupConfig:
    """Return the values of a broker's keys. Raises ConfigError if they contradict each other."""
    members, sessions = config.integer("group.share.max.size"), config.integer(SESSIONS_MAX_KEY)
    if members > sessions:
        raise ConfigError(
            "group.share.max.size",
            f"group.share.max.size ({members}) must not be above {SESSIONS_MAX_KEY} ({sessions})",
        )
    named = config.fields_of(GroupConfig)
    for kind in KINDS:
        given = config.strings(f"group.{kind}.assignors")
        named[f"group_{kind}_assignors"] = tuple(ASSIGNORS[kind][name] for name in given)
    named["group_consumer_migration_policy"] = ConsumerGroupMigrationPolicy(
        config.string("group.consumer.migration.policy")
    )
    try:
        return GroupConfig(
            offsets_retention_ms=config.integer("offsets.retention.minutes") * MINUTE_MS, **named
        )
    except ValueError as error:
        raise ConfigError(str(error).split(" ", 1)[0], str(error)) from None


SHARE_AUTO_OFFSET_RESET = "share.auto.offset.reset"
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
_TAGS = "streams.rack.aware.assignment.tags"
_OF_ALL_KINDS = ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
_OF_KIND = {
    "share": ("record.lock.duration.ms", "delivery.count.limit", "partition.max.record.locks"),
    "streams": (
        "num.standby.replicas",
        "initial.rebalance.delay.ms",
        "task.offset.interval.ms",
        "acceptable.recovery.lag",
    ),
}
"""The numbers that a group may have of its own, beside those of all kinds."""
_BY_NAME = {key.name: key for key in GROUP_KEYS}


class _Setting(msgspec.Struct, frozen=True):
    """A number that a broker has for all groups of a kind, and a group may have of its own, within bounds."""

    name: str
    lowest: str | None
    highest: str | None
    """The broker's settings with the bounds, without ``group.``; None: 0 and the highest number."""

    @classmethod
    def of(cls, name: str) -> _Setting:
        kind, rest = name.split(".", 1)
        low, high = (f"{kind}.{end}.{rest.removeprefix('num.')}" for end in ("min", "max"))
        return cls(
            name, low if f"group.{low}" in _BY_NAME else None, high if f"group.{high}" in _BY_NAME else None
        )

    @property
    def field(self) -> str:
        """What it replaces in the coordinator's `GroupConfig`."""
        return _field(self.name)

    def bounds(self, config: GroupConfig) -> tuple[int, int]:
        """Return the lowest and the highest value that a broker allows."""
        low = 0 if self.lowest is None else getattr(config, _field(self.lowest))
        high = INT32_MAX if self.highest is None else getattr(config, _field(self.highest))
        return low, high


def _field(name: str) -> str:
    return "group_" + name.replace(".", "_")


_SETTINGS = {
    name: _Setting.of(name)
    for kind in KINDS
    for name in (f"{kind}.{each}" for each in (*_OF_ALL_KINDS, *_OF_KIND.get(kind, ())))
}

_ASSIGNOR = "streams.assignor.name"


def names_of_settings() -> frozenset[str]:
    """Return the names of all settings that a group can have."""
    return frozenset((*_SETTINGS, *_OWN_KEYS, _ASSIGNOR))


def definition_of(config: GroupConfig) -> ConfigDefinition:
    """Return the keys of a group, with the bounds and defaults of a broker's ``config``."""
    keys = [_key(setting, config) for setting in _SETTINGS.values()]
    assignors = config.group_streams_assignors
    assignor = ConfigKey(
        name=_ASSIGNOR,
        kind=ConfigKind.STRING,
        default=assignors[0],
        choices=assignors,
        doc="The task assignor of the streams group.",
        dynamic=True,
    )
    tags = replace(_OWN_KEYS[_TAGS], default=config.group_streams_rack_aware_assignment_tags)
    return ConfigDefinition.of(
        "group",
        [*keys, *(_OWN_KEYS | {_TAGS: tags}).values(), assignor],
        [_session_rule(kind) for kind in KINDS],
    )


def _key(setting: _Setting, config: GroupConfig) -> ConfigKey:
    low, high = setting.bounds(config)
    lowest = f"group.{setting.lowest} ({low})" if setting.lowest is not None else str(low)
    highest = f"group.{setting.highest} ({high})" if setting.highest is not None else str(high)

    def check(value: ConfigValue) -> str | None:
        assert isinstance(value, int)
        if value < low:
            return f"must be greater than or equal to {lowest}"
        if value > high:
            return f"must be less than or equal to {highest}"
        return None

    return replace(
        _BY_NAME[f"group.{setting.name}"],
        name=setting.name,
        default=getattr(config, setting.field),
        minimum=None,
        maximum=None,
        validate=check,
        dynamic=True,
    )


def _why_no_offset_reset(value: ConfigValue) -> str | None:
    try:
        ShareOffsetReset.parse(str(value))
    except ValueError as error:
        return str(error)
    return None


def _why_no_topic_of_dead_letters(value: ConfigValue) -> str | None:
    return "must not begin with __, as internal topics do" if str(value).startswith("__") else None


_OWN_KEYS = {
    key.name: key
    for key in (
        *key_table(
            f"""
{SHARE_AUTO_OFFSET_RESET}: string dynamic = latest
    Where the share group begins to read a partition: earliest, latest, or by_duration:PT1H, which means the
    records of the last hour.
share.isolation.level: string ({READ_COMMITTED}|{READ_UNCOMMITTED}) dynamic = {READ_UNCOMMITTED}
    Whether the share group gets the records of transactions only once they are committed.
share.renew.acknowledge.enable: boolean dynamic = true
    Whether members of the share group may renew the lock of a record.
{DEAD_LETTER_TOPIC}: string dynamic =
    The topic for the dead letters of the share group: of records that were rejected, or delivered as often as
    they may be (KIP-1191). Empty: the group has none; such records are only archived.
errors.deadletterqueue.copy.record.enable: boolean dynamic = false
    Whether a dead letter has the record's key, value and headers, too, beside the headers that say where the
    record is and why it is dead.
""",
            checks={
                SHARE_AUTO_OFFSET_RESET: _why_no_offset_reset,
                DEAD_LETTER_TOPIC: _why_no_topic_of_dead_letters,
            },
        ),
        replace(_BY_NAME[f"group.{_TAGS}"], name=_TAGS, dynamic=True),
    )
}
"""The other settings of groups; brokers have none for the defaults of most."""


def _session_rule(kind: str) -> ConfigRule:
    session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"

    def why_heartbeats_are_too_rare(values: ConfigValues) -> str | None:
        session_ms, heartbeat_ms = values[session], values[heartbeat]
        assert isinstance(session_ms, int)
        assert isinstance(heartbeat_ms, int)
        if heartbeat_ms < session_ms:
            return None
        return f"{session} ({session_ms}) must be greater than {heartbeat} ({heartbeat_ms})"

    return ConfigRule((session, heartbeat), why_heartbeats_are_too_rare)


def config_of_group(config: GroupConfig, texts: Mapping[str, str]) -> GroupConfig:
    """Return ``config`` with the settings ``texts`` of one group in place of the broker's.

    Values outside the broker's bounds are brought inside. If the session timeout is then not above the
    heartbeat interval, the group has the broker's values of both.
    """
    changed: dict[str, Any] = {
        _SETTINGS[name].field: _clamped(_SETTINGS[name], config, int(text))
        for name, text in texts.items()
        if name in _SETTINGS and _is_number(text)
    }
    for kind in KINDS:
        session, heartbeat = _session_fields(kind)
        session_ms = changed.get(session, getattr(config, session))
        if changed.get(heartbeat, getattr(config, heartbeat)) >= session_ms:
            changed.pop(session, None)
            changed.pop(heartbeat, None)
    for name, key in _OWN_KEYS.items():
        if name in texts:
            with contextlib.suppress(ConfigError):  # left by another version
                value: Any = key.parse(texts[name])
                if name == SHARE_AUTO_OFFSET_RESET:
                    value = ShareOffsetReset.parse(value)
                changed[_field(name) if name == _TAGS else name.replace(".", "_")] = value
    return replace(config, **changed)


def _session_fields(kind: str) -> tuple[str, str]:
    return f"group_{kind}_session_timeout_ms", f"group_{kind}_heartbeat_interval_ms"


def _is_session_longer(kind: str, config: GroupConfig) -> bool:
    session, heartbeat = _session_fields(kind)
    return getattr(config, heartbeat) < getattr(config, session)


def _is_number(text: str) -> bool:
    return text.strip().removeprefix("+").isdecimal()


def _clamped(setting: _Setting, config: GroupConfig, value: int) -> int:
    low, high = setting.bounds(config)
    return min(max(value, low), high)


class ShareGroupConfig(msgspec.Struct, frozen=True):
    """What the leader of a share partition has to know of the group's settings."""

    record_lock_duration_ms: int
    delivery_count_limit: int
    """How often a record is delivered at most."""
    partition_max_record_locks: int
    """How many records of the partition may be acquired at the same time."""
    auto_offset_reset: ShareOffsetReset
    read_committed: bool
    renew_acknowledge_enable: bool
    dead_letter_topic: str = ""
    """Empty: the group has no dead letters."""
    copies_dead_letters: bool = False


def share_group_config(
    config: GroupConfig, texts: Mapping[str, str], *, may_have_dead_letters: bool = False
) -> ShareGroupConfig:
    """Return the settings in force for the partitions of a share group with the settings ``texts``.

    ``may_have_dead_letters``: ``share.version`` is 2.
    """
    mine = config_of_group(config, texts) if texts else config
    return ShareGroupConfig(
        mine.group_share_record_lock_duration_ms,
        mine.group_share_delivery_count_limit,
        mine.group_share_partition_max_record_locks,
        mine.share_auto_offset_reset,
        mine.share_isolation_level == READ_COMMITTED,
        mine.share_renew_acknowledge_enable,
        mine.errors_deadletterqueue_topic_name if may_have_dead_letters else "",
        mine.errors_deadletterqueue_copy_record_enable,
    )
