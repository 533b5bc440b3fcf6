"""The settings of a group member: the consumer's configuration keys for group membership, with Kafka's names,
defaults and limits, and their values, checked.
"""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.client.group.assignors import ASSIGNOR_NAMES, Assignor, assignor_by_name, common_protocol
from nilometer.client.settings import ClientSettings
from nilometer.config import ConfigError, ConfigValue, key_table


def _assignors(value: ConfigValue) -> str | None:
    assert isinstance(value, tuple)
    unknown = [name for name in value if name not in ASSIGNOR_NAMES]
    if unknown or not value:
        return f"must name some of {', '.join(ASSIGNOR_NAMES)}"
    return "names one of them twice" if len(set(value)) < len(value) else None


GROUP_KEYS = key_table(
    """
group.id: string
    The id of the consumer group.
group.instance.id: string
    Makes the consumer a static member: it keeps its partitions over restarts that are quicker than
    session.timeout.ms (KIP-345).
group.protocol: string (classic|consumer) = classic
    classic: members assign the partitions; consumer: the coordinator does (KIP-848).
group.remote.assignor: string
    The coordinator's assignor, for group.protocol=consumer; by default the coordinator chooses.
session.timeout.ms: int 1.. = 45_000
    The coordinator removes a member that sends no heartbeat for this time.
heartbeat.interval.ms: int 1.. = 3000
    The time between two heartbeats of a member.
max.poll.interval.ms: int 1.. = 300_000
    A consumer that does not poll for this time leaves its group, so that others get its partitions.
partition.assignment.strategy: list = range,cooperative-sticky
    The assignors that this consumer supports. A classic group uses one that all members support.
enable.auto.commit: boolean = true
    Commit the positions of polled records in the background, and before a rebalance.
auto.commit.interval.ms: int 0.. = 5000
    The time between two automatic commits.
exclude.internal.topics: boolean = true
    Exclude internal topics from subscriptions by pattern.
""",
    checks={"partition.assignment.strategy": _assignors},
)


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
        if not settings.optional_string("group.id"):
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
        if settings.integer("heartbeat.interval.ms") >= settings.integer("session.timeout.ms"):
            raise ConfigError(
                "heartbeat.interval.ms", "heartbeat.interval.ms must be below session.timeout.ms"
            )
        assignors = tuple(assignor_by_name(name) for name in names)
        common_protocol(assignors)
        return cls(
            instance_id=settings.optional_string("group.instance.id"),
            uses_consumer_protocol=consumer,
            remote_assignor=settings.optional_string("group.remote.assignor"),
            assignors=assignors,
            auto_commit=settings.boolean("enable.auto.commit"),
            rack=settings.string("client.rack") or None,
            api_timeout_ms=settings.integer("default.api.timeout.ms"),
            **settings.fields_of(cls),
        )
