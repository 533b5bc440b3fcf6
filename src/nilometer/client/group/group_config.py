"""The settings of a group member, as one validated value."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.client.group.assignors.assignor import Assignor, common_protocol
from nilometer.client.group.assignors.built_in import assignor_by_name
from nilometer.client.settings.client_settings import ClientSettings
from nilometer.config import ConfigError

CLASSIC_ONLY = ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")
"""Keys that must not be given with the consumer protocol: there the coordinator decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    group_id: str
    instance_id: str | None
    uses_consumer_protocol: bool
    remote_assignor: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    assignors: tuple[Assignor, ...]
    """In the order of preference."""
    auto_commit: bool
    auto_commit_interval_ms: int
    exclude_internal_topics: bool
    rack: str | None
    request_timeout_ms: int
    api_timeout_ms: int

    @classmethod
    def of(cls, settings: ClientSettings) -> GroupConfig | None:
        """Return the group settings, or None without a ``group.id``.

        Raises ConfigError if keys contradict each other.
        """
        if not (group_id := _text(settings, "group.id")):
            if settings.is_given("enable.auto.commit") and settings.boolean("enable.auto.commit"):
                raise ConfigError("enable.auto.commit", "enable.auto.commit needs a group.id")
            return None
        consumer = settings.string("group.protocol") == "consumer"
        names = settings.strings("partition.assignment.strategy")
        if consumer:
            for key in CLASSIC_ONLY:
                if settings.is_given(key):
                    raise ConfigError(key, f"{key} has no effect with group.protocol=consumer")
        elif settings.is_given("group.remote.assignor"):
            raise ConfigError(
                "group.remote.assignor", "group.remote.assignor has no effect with group.protocol=classic"
            )
        session_timeout_ms = settings.integer("session.timeout.ms")
        if settings.integer("heartbeat.interval.ms") >= session_timeout_ms:
            raise ConfigError(
                "heartbeat.interval.ms", "heartbeat.interval.ms must be below session.timeout.ms"
            )
        assignors = tuple(assignor_by_name(name) for name in names)
        common_protocol(assignors)
        return cls(
            group_id=group_id,
            instance_id=_text(settings, "group.instance.id"),
            uses_consumer_protocol=consumer,
            remote_assignor=_text(settings, "group.remote.assignor"),
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=settings.integer("heartbeat.interval.ms"),
            max_poll_interval_ms=settings.integer("max.poll.interval.ms"),
            assignors=assignors,
            auto_commit=settings.boolean("enable.auto.commit"),
            auto_commit_interval_ms=settings.integer("auto.commit.interval.ms"),
            exclude_internal_topics=settings.boolean("exclude.internal.topics"),
            rack=settings.string("client.rack") or None,
            request_timeout_ms=settings.integer("request.timeout.ms"),
            api_timeout_ms=settings.integer("default.api.timeout.ms"),
        )


def _text(settings: ClientSettings, key: str) -> str | None:
    value = settings.value(key)
    assert value is None or isinstance(value, str), key
    return value
