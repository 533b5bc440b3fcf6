"""The settings of a consumer, as one validated value."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.client.consumer.fetch_exchange import FetchLimits
from nilometer.client.offsets.offset_queries import READ_COMMITTED, READ_UNCOMMITTED
from nilometer.client.offsets.offset_reset import OffsetReset, parse_offset_reset
from nilometer.client.settings.client_settings import ClientSettings


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
