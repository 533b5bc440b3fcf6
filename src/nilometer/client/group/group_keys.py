"""The consumer's configuration keys for group membership, with Kafka's names, defaults and limits."""

from __future__ import annotations

from nilometer.client.group.assignors.built_in import ASSIGNOR_NAMES
from nilometer.client.settings.key_kinds import boolean_key, choice_key, int_key
from nilometer.config import ConfigKey, ConfigKind
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
