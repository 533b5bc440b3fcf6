"""The settings of a consumer: its configuration keys, including those of its group, and their values,
checked.
"""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.client.consumer.fetch_exchange import FetchLimits
from nilometer.client.group.group_settings import GROUP_KEYS
from nilometer.client.offsets.offset_queries import READ_COMMITTED, READ_UNCOMMITTED
from nilometer.client.offsets.positions import OffsetReset, parse_offset_reset
from nilometer.client.settings.client_settings import ClientSettings, boolean_key, choice_key, int_key
from nilometer.client.settings.common_keys import API_TIMEOUT, COMMON_KEYS
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    limits: FetchLimits
    max_partition_fetch_bytes: int
    max_poll_records: int
    offset_reset: OffsetReset | None
    """None (``auto.offset.reset`` is none): a position that is not in the log is an error."""
    check_crcs: bool
    request_timeout_ms: int
    api_timeout_ms: int

    @property
    def read_committed(self) -> bool:
        return self.limits.isolation_level == READ_COMMITTED

    @classmethod
    def of(cls, settings: ClientSettings) -> ConsumerConfig:
        committed = settings.string("isolation.level") == "read_committed"
        return cls(
            limits=FetchLimits(
                min_bytes=settings.integer("fetch.min.bytes"),
                max_bytes=settings.integer("fetch.max.bytes"),
                max_wait_ms=settings.integer("fetch.max.wait.ms"),
                isolation_level=READ_COMMITTED if committed else READ_UNCOMMITTED,
                rack=settings.string("client.rack"),
            ),
            max_partition_fetch_bytes=settings.integer("max.partition.fetch.bytes"),
            max_poll_records=settings.integer("max.poll.records"),
            offset_reset=parse_offset_reset(settings.string("auto.offset.reset")),
            check_crcs=settings.boolean("check.crcs"),
            request_timeout_ms=settings.integer("request.timeout.ms"),
            api_timeout_ms=settings.integer("default.api.timeout.ms"),
        )
