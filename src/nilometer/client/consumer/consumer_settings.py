"""The settings of a consumer: its configuration keys, including those of its group, and their values,
checked.
"""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.client.consumer.fetch_exchange import FetchLimits
from nilometer.client.group.group_settings import GROUP_KEYS
from nilometer.client.offset_queries import READ_COMMITTED, READ_UNCOMMITTED
from nilometer.client.positions import OffsetReset, parse_offset_reset
from nilometer.client.settings import API_TIMEOUT, COMMON_KEYS, ClientSettings
from nilometer.config import ConfigDefinition, ConfigValue, key_table


def _offset_reset(value: ConfigValue) -> str | None:
    try:
        parse_offset_reset(str(value))
    except ValueError as error:
        return str(error)
    return None


CONSUMER_KEYS = (
    *COMMON_KEYS,
    API_TIMEOUT,
    *key_table(
        """
fetch.min.bytes: int 0.. = 1
    The broker responds to a fetch once it has this many bytes, or after fetch.max.wait.ms.
fetch.max.bytes: int 0.. = 52_428_800
    The largest response to one fetch, in bytes (one batch may exceed it).
fetch.max.wait.ms: int 0.. = 500
    How long the broker may wait for fetch.min.bytes.
max.partition.fetch.bytes: int 0.. = 1_048_576
    The maximum number of bytes of one partition in a fetch response.
max.poll.records: int 1.. = 500
    The maximum number of records that one poll returns.
auto.offset.reset: string = latest
    Where to read from when there is no position, or it is not in the log any more: earliest, latest, none
    (that is an error), or by_duration:PT1H (the records of the last hour).
isolation.level: string (read_uncommitted|read_committed) = read_uncommitted
    Whether records of open and aborted transactions are returned.
check.crcs: boolean = true
    Verify the checksum of every batch that is read.
client.rack: string =
    The rack of this client. It then fetches from the closest replica (KIP-392).
allow.auto.create.topics: boolean = true
    Let the broker create a topic that this consumer reads and that does not exist.
""",
        checks={"auto.offset.reset": _offset_reset},
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
