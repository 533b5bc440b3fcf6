"""The settings of a group member: the consumer's configuration keys for group membership, with Kafka's names,
defaults and limits, and their values, checked.
"""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.client.group.assignors import ASSIGNOR_NAMES, Assignor, assignor_by_name, common_protocol
from nilometer.client.settings.client_settings import ClientSettings, boolean_key, choice_key, int_key
from nilometer.config import ConfigError, ConfigKey, ConfigKind
from nilometer.config.definition import ConfigValue


def _assignors(value: ConfigValue) -> str | None:
    assert isinstance(value, tuple)
    unknown = [name for name in value if name not in ASSIGNOR_NAMES]
    if unknown or not value:
        return f"must name some of {', '.join(ASSIGNOR_NAMES)}"
    return "names one of them twice" if len(set(value)) < len(value) else None


GROUP_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(name="group.id", kind=ConfigKind.STRING, default=None, doc="The id of the consumer group."),
    ConfigKey(
        name="group.instance.id",
        kind=ConfigKind.STRING,
        default=None,
        doc="Makes the consumer a static member: it keeps its partitions over restarts that are quicker than "
        "session.timeout.ms (KIP-345).",
    ),
    choice_key(
        "group.protocol",
        "classic",
        ("classic", "consumer"),
        "classic: members assign the partitions; consumer: the coordinator does (KIP-848).",
    ),
    ConfigKey(
        name="group.remote.assignor",
        kind=ConfigKind.STRING,
        default=None,
        doc="The coordinator's assignor, for group.protocol=consumer; by default the coordinator chooses.",
    ),
    int_key(
        "session.timeout.ms",
        45_000,
        "The coordinator removes a member that sends no heartbeat for this time.",
        1,
    ),
    int_key("heartbeat.interval.ms", 3_000, "The time between two heartbeats of a member.", 1),
    int_key(
        "max.poll.interval.ms",
        300_000,
        "A consumer that does not poll for this time leaves its group, so that others get its partitions.",
        1,
    ),
    ConfigKey(
        name="partition.assignment.strategy",
        kind=ConfigKind.LIST,
        default=("range", "cooperative-sticky"),
        doc="The assignors that this consumer supports. A classic group uses one that all members support.",
        validate=_assignors,
    ),
    boolean_key(
        "enable.auto.commit",
        True,
        "Commit the positions of polled records in the background, and before a rebalance.",
    ),
    int_key("auto.commit.interval.ms", 5_000, "The time between two automatic commits."),
    boolean_key("exclude.internal.topics", True, "Exclude internal topics from subscriptions by pattern."),
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
