"""The settings of a group coordinator, with Kafka's names and defaults, and those that a single group may
have of its own (KIP-848, KIP-932, KIP-1071).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
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
    parse_duration_ms,
)

INT32_MAX = 2**31 - 1
READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"


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
        if not self.group_consumer_assignors:
            raise ValueError("group.consumer.assignors must name at least one assignor")
        if len(self.group_share_assignors) != 1:
            raise ValueError("group.share.assignors must name exactly one assignor")
        if not self.group_streams_assignors:
            raise ValueError("group.streams.assignors must name at least one assignor")


def _ordered(lower: str, low: int, upper: str, high: int) -> None:
    if low > high:
        raise ValueError(f"{lower} ({low}) must not be above {upper} ({high})")


class _Setting(msgspec.Struct, frozen=True):
    """A setting of a group within bounds that its broker has."""

    name: str
    doc: str
    lowest: str | None
    highest: str | None
    """The broker's settings with the bounds, without ``group.``; None: 0 and the highest number."""
    kind: ConfigKind = ConfigKind.INT

    @classmethod
    def between(cls, name: str, doc: str) -> _Setting:
        """Return the setting whose bounds are called after it: ``share.min.session.timeout.ms``."""
        kind, rest = name.split(".", 1)
        return cls(name, doc, f"{kind}.min.{rest}", f"{kind}.max.{rest}")

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


SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
SHARE_AUTO_OFFSET_RESET = "share.auto.offset.reset"
SHARE_ISOLATION_LEVEL = "share.isolation.level"
SHARE_RENEW_ACKNOWLEDGE_ENABLE = "share.renew.acknowledge.enable"
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
COPIES_DEAD_LETTERS = "errors.deadletterqueue.copy.record.enable"

KINDS = ("consumer", "share", "streams")
"""The kinds of groups whose members send heartbeats to a coordinator that assigns."""
_BETWEEN = (
    _Setting.between(name, doc)
    for name, doc in (
        (SESSION_TIMEOUT, "A member of the group without a heartbeat for this long is removed."),
        (HEARTBEAT_INTERVAL, "The heartbeat interval of the group's members."),
        (
            "consumer.assignment.interval.ms",
            "The minimum time between two target assignments of the group.",
        ),
        (
            "share.session.timeout.ms",
            "A member of the share group without a heartbeat for this long is removed.",
        ),
        ("share.heartbeat.interval.ms", "The heartbeat interval of the share group's members."),
        (
            "share.assignment.interval.ms",
            "The minimum time between two target assignments of the share group.",
        ),
        (
            "share.record.lock.duration.ms",
            "A record that a member has not acknowledged after this long is delivered again.",
        ),
        (
            "share.delivery.count.limit",
            "How often a record is delivered at most before it is archived.",
        ),
        (
            "share.partition.max.record.locks",
            "How many records of one partition the members may hold at the same time.",
        ),
        (
            "streams.session.timeout.ms",
            "A member of the streams group without a heartbeat for this long is removed.",
        ),
        ("streams.heartbeat.interval.ms", "The heartbeat interval of the streams group's members."),
        (
            "streams.assignment.interval.ms",
            "The minimum time between two target assignments of the streams group.",
        ),
    )
)
_SETTINGS = {
    setting.name: setting
    for setting in (
        *_BETWEEN,
        _Setting(
            "streams.num.standby.replicas",
            "How many standby tasks each task with state has.",
            None,
            "streams.max.standby.replicas",
        ),
        _Setting(
            "streams.initial.rebalance.delay.ms",
            "How long an empty streams group waits for more members before its first assignment.",
            None,
            None,
        ),
        _Setting(
            "streams.task.offset.interval.ms",
            "How often members tell how far they have the state of their tasks.",
            "streams.min.task.offset.interval.ms",
            None,
        ),
        _Setting(
            "streams.acceptable.recovery.lag",
            "Up to how many records behind a member may count as having the state of a task.",
            None,
            None,
            ConfigKind.LONG,
        ),
    )
}


def definition_of(config: GroupConfig) -> ConfigDefinition:
    """Return the keys, with the bounds and defaults of a broker's ``config``."""
    keys = [_key(setting, config) for setting in _SETTINGS.values()]
    rules = [_session_rule(kind) for kind in KINDS]
    return ConfigDefinition.of("group", [*keys, *_SHARE_KEYS, *_streams_keys(config)], rules)


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

    return ConfigKey(
        name=setting.name,
        kind=setting.kind,
        default=getattr(config, setting.field),
        doc=setting.doc,
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


_SHARE_KEYS = (
    ConfigKey(
        name=SHARE_AUTO_OFFSET_RESET,
        kind=ConfigKind.STRING,
        default="latest",
        doc="Where the share group begins to read a partition: earliest, latest, or by_duration:PT1H, which "
        "means the records of the last hour.",
        validate=_why_no_offset_reset,
        dynamic=True,
    ),
    ConfigKey(
        name=SHARE_ISOLATION_LEVEL,
        kind=ConfigKind.STRING,
        default=READ_UNCOMMITTED,
        choices=(READ_COMMITTED, READ_UNCOMMITTED),
        doc="Whether the share group gets the records of transactions only once they are committed.",
        dynamic=True,
    ),
    ConfigKey(
        name=SHARE_RENEW_ACKNOWLEDGE_ENABLE,
        kind=ConfigKind.BOOLEAN,
        default=True,
        doc="Whether members of the share group may renew the lock of a record.",
        dynamic=True,
    ),
    ConfigKey(
        name=DEAD_LETTER_TOPIC,
        kind=ConfigKind.STRING,
        default="",
        doc="The topic for the dead letters of the share group: of records that were rejected, or delivered "
        "as often as they may be (KIP-1191). Empty: the group has none; such records are only archived.",
        validate=_why_no_topic_of_dead_letters,
        dynamic=True,
    ),
    ConfigKey(
        name=COPIES_DEAD_LETTERS,
        kind=ConfigKind.BOOLEAN,
        default=False,
        doc="Whether a dead letter has the record's key, value and headers, too, beside the headers that say "
        "where the record is and why it is dead.",
        dynamic=True,
    ),
)


def why_repeated(value: ConfigValue) -> str | None:
    """Return what is wrong with a list that names something twice; None if it does not."""
    assert isinstance(value, tuple)
    return "must not contain duplicates" if len(set(value)) < len(value) else None


STREAMS_ASSIGNOR_NAME = "streams.assignor.name"
STREAMS_RACK_AWARE_ASSIGNMENT_TAGS = "streams.rack.aware.assignment.tags"
_STREAMS_TAGS_KEY = ConfigKey(
    name=STREAMS_RACK_AWARE_ASSIGNMENT_TAGS,
    kind=ConfigKind.LIST,
    default=(),
    doc="Tags (client.tag.NAME of Kafka Streams) that each member of the streams group is to have.",
    validate=why_repeated,
    dynamic=True,
)


def _streams_keys(config: GroupConfig) -> list[ConfigKey]:
    assignors = config.group_streams_assignors
    return [
        msgspec.structs.replace(_STREAMS_TAGS_KEY, default=config.group_streams_rack_aware_assignment_tags),
        ConfigKey(
            name=STREAMS_ASSIGNOR_NAME,
            kind=ConfigKind.STRING,
            default=assignors[0],
            choices=assignors,
            doc="The task assignor of the streams group.",
            dynamic=True,
        ),
    ]


_FIELDS_OF_KEYS: dict[str, tuple[ConfigKey, Callable[[Any], object]]] = {
    SHARE_AUTO_OFFSET_RESET: (_SHARE_KEYS[0], ShareOffsetReset.parse),
    SHARE_ISOLATION_LEVEL: (_SHARE_KEYS[1], str),
    SHARE_RENEW_ACKNOWLEDGE_ENABLE: (_SHARE_KEYS[2], bool),
    DEAD_LETTER_TOPIC: (_SHARE_KEYS[3], str),
    COPIES_DEAD_LETTERS: (_SHARE_KEYS[4], bool),
    STREAMS_RACK_AWARE_ASSIGNMENT_TAGS: (_STREAMS_TAGS_KEY, tuple),
}
"""For each key, how its value is converted for its field in `GroupConfig`."""


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
    for name, (key, convert) in _FIELDS_OF_KEYS.items():
        if name in texts:
            with contextlib.suppress(ConfigError):  # left by another version
                field = _field(name) if hasattr(config, _field(name)) else name.replace(".", "_")
                changed[field] = convert(key.parse(texts[name]))
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
