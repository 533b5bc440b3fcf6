"""Values produced to a partition, and all that can be fetched from it."""

from __future__ import annotations

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Side, batch, produce_fields, records_of
from support.wire.wire_peer import make


def side_of(broker: NilometerBroker) -> Side:
    return Side("Nilometer", broker.bootstrap)


def produce(side: Side, topic: str, *values: bytes, acks: int = -1, partition: int = 0) -> ErrorCode:
    fields = produce_fields(9, topic, {partition: batch(*values)}, acks)
    return side.message(ApiKey.PRODUCE, 9, **fields).responses[0].partition_responses[0].error_code


def values(side: Side, topic: str, partition: int = 0, offset: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    while True:
        part = make(
            ApiKey.FETCH,
            11,
            "FetchPartition",
            partition=partition,
            fetch_offset=offset + len(found),
            partition_max_bytes=1 << 24,
        )
        asked = make(ApiKey.FETCH, 11, "FetchTopic", topic=topic, partitions=(part,))
        answer = (
            side.message(ApiKey.FETCH, 11, topics=(asked,), max_bytes=1 << 25, min_bytes=1, session_epoch=-1)
            .responses[0]
            .partitions[0]
        )
        assert answer.error_code == ErrorCode.none, answer.error_code
        records = [value for at, _, value in records_of(answer.records or b"") if at >= offset + len(found)]
        if not records:
            return found
        found += records
