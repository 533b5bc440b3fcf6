"""The keys that a consumer has for being a member of a group, with Kafka's names, defaults and limits."""

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
    ConfigKey(
        name="group.id", kind=ConfigKind.STRING, default=None, doc="The consumer group to be a member of."
    ),
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
        "classic: members deal the partitions out; consumer: the coordinator does (KIP-848).",
    ),
    ConfigKey(
        name="group.remote.assignor",
        kind=ConfigKind.STRING,
        default=None,
        doc="The coordinator's assignor, for group.protocol=consumer; by default its own choice.",
    ),
    int_key(
        "session.timeout.ms",
        45_000,
        "A member that is not heard of for so long is taken for dead by the coordinator.",
        1,
    ),
    int_key("heartbeat.interval.ms", 3_000, "The time between two heartbeats of a member.", 1),
    int_key(
        "max.poll.interval.ms",
        300_000,
        "A consumer that does not poll for so long leaves its group, for others to have its partitions.",
        1,
    ),
    ConfigKey(
        name="partition.assignment.strategy",
        kind=ConfigKind.LIST,
        default=("range", "cooperative-sticky"),
        doc="How the members of a classic group deal the partitions out: the first that all of them name.",
        validate=_assignors,
    ),
    boolean_key(
        "enable.auto.commit", True, "Commit what polls returned, now and then and before a rebalance."
    ),
    int_key("auto.commit.interval.ms", 5_000, "How often that is."),
    boolean_key("exclude.internal.topics", True, "Leave internal topics out of subscriptions by pattern."),
)
