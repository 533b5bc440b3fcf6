"""The settings that a single consumer group may have of its own (KIP-848): keys, bounds and effect.

A group without them has the broker's. Values are checked when they are set, against the bounds of the
controller; a coordinator with other bounds (``group.consumer.min.*`` and ``max.*``) uses the nearest value
that its bounds allow, as Kafka's does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from nilometer.config import ConfigDefinition, ConfigKey, ConfigKind
from nilometer.config.definition import ConfigRule, ConfigValue, ConfigValues
from nilometer.groups.config import GroupConfig

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
