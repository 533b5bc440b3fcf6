"""The configuration keys of a consumer, including those of its group; any other key is rejected."""

from __future__ import annotations

from nilometer.client.group.group_keys import GROUP_KEYS
from nilometer.client.offsets.offset_reset import parse_offset_reset
from nilometer.client.settings.common_keys import API_TIMEOUT, COMMON_KEYS
from nilometer.client.settings.key_kinds import boolean_key, choice_key, int_key
from nilometer.config import ConfigDefinition, ConfigKey, ConfigKind
from nilometer.config.definition import ConfigValue


def _offset_reset(value: ConfigValue) -> str | None:
    try:
        parse_offset_reset(str(value))
    except ValueError as error:
        return str(error)
    return None


CONSUMER_KEYS: tuple[ConfigKey, ...] = (
    *COMMON_KEYS,
    API_TIMEOUT,
    int_key(
        "fetch.min.bytes",
        1,
        "The broker responds to a fetch once it has this many bytes, or after fetch.max.wait.ms.",
    ),
    int_key(
        "fetch.max.bytes",
        52_428_800,
        "The largest response to one fetch, in bytes (one batch may exceed it).",
    ),
    int_key("fetch.max.wait.ms", 500, "How long the broker may wait for fetch.min.bytes."),
    int_key(
        "max.partition.fetch.bytes",
        1_048_576,
        "The maximum number of bytes of one partition in a fetch response.",
    ),
    int_key("max.poll.records", 500, "The maximum number of records that one poll returns.", 1),
    ConfigKey(
        name="auto.offset.reset",
        kind=ConfigKind.STRING,
        default="latest",
        doc="Where to read from when there is no position, or it is not in the log any more: earliest, "
        "latest, none (that is an error), or by_duration:PT1H (the records of the last hour).",
        validate=_offset_reset,
    ),
    choice_key(
        "isolation.level",
        "read_uncommitted",
        ("read_uncommitted", "read_committed"),
        "Whether records of open and aborted transactions are returned.",
    ),
    boolean_key("check.crcs", True, "Verify the checksum of every batch that is read."),
    ConfigKey(
        name="client.rack",
        kind=ConfigKind.STRING,
        default="",
        doc="The rack of this client. It then fetches from the closest replica (KIP-392).",
    ),
    boolean_key(
        "allow.auto.create.topics",
        True,
        "Let the broker create a topic that this consumer reads and that does not exist.",
    ),
    *GROUP_KEYS,
)

CONSUMER_CONFIG_DEFINITION = ConfigDefinition.of("consumer", CONSUMER_KEYS)
