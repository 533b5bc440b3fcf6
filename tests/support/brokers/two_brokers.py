"""Sends the same requests to Apache Kafka and to Nilometer, and makes the responses comparable.

A response becomes plain data: values that differ between any two brokers (addresses, ids, times, error texts)
are left out or replaced by names, lists are sorted by the identity of their items, record sets are decoded.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import batches
from nilometer.wire.records import BatchBuilder, decode_records

from ..eventually import eventually
from ..wire.new_topics import new_topic
from ..wire.wire_peer import ConnectionEnded, WirePeer, make

Plain = Any
CLOSED = "the connection was closed"
KEEP_OLD_RECORDS = {"log.retention.hours": "1000000"}
"""The records written here are of 1970. Otherwise a round of retention may delete one before it is read."""
_LEFT_OUT = frozenset(
    {
        "throttle_time",
        "error_message",
        "host",
        "port",
        "cluster_id",
        "controller_id",
        "rack",
        "log_append_time",
    }
)
_NOT_YET = (ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition)
_IDENTIFYING = (
    "name",
    "topic",
    "resource_name",
    "topic_id",
    "partition_index",
    "partition",
    "index",
    "node_id",
    "broker_id",
    "api_key",
    "key",
    "group_id",
    "member_id",
    "transactional_id",
)


class Side:
    """One of the two brokers; its node id is 1."""

    def __init__(self, name: str, bootstrap: str, source: str | None = None) -> None:
        """``source``: the address from which to connect; None: the one that the system chooses."""
        self.name = name
        self.source = source
        self.bootstrap = bootstrap
        self.topic_ids: dict[str, UUID] = {}
        self.aliases: dict[str, str] = {}
        """Generated ids to the names that replace them."""
        self._peer: WirePeer | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def peer(self) -> WirePeer:
        if self._peer is None:
            self._peer = WirePeer(self.bootstrap, source=self.source)
        return self._peer

    def hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def message(self, key: int, version: int, /, **fields: object) -> Any:
        """Send a request and return the response. Raises ConnectionEnded."""
        try:
            return self.peer.ask(key, version, **fields)
        except (ConnectionEnded, OSError, KafkaError):
            self.hang_up()  # the next response on this connection could be to this request
            raise

    def ask(self, key: int, version: int, /, **fields: object) -> Plain:
        try:
            return self.plain(self.message(key, version, **fields))
        except ConnectionEnded:
            return CLOSED

    def create(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic and wait until it is led; underscores in ``configs`` keys stand for dots.

        Returns its name.
        """
        topic = new_topic(
            name,
            partitions,
            configs=tuple(
                make(ApiKey.CREATE_TOPICS, 7, "CreatableTopicConfig", name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ),
        )
        created = self.message(ApiKey.CREATE_TOPICS, 7, topics=(topic,), timeout_ms=10_000).topics[0]
        assert created.error_code == ErrorCode.none, created
        self.wait_leaders(name, partitions)
        return name

    def wait_leaders(self, name: str, partitions: int) -> None:
        """Wait until each of the topic's partitions is led.

        Metadata is not enough: Apache Kafka names a leader before the broker has become it.
        """
        eventually(
            lambda: self.leaders(name) == [1] * partitions and self._leads(name, partitions),
            f"{self.name} leads {name}",
        )

    def _leads(self, name: str, partitions: int) -> bool:
        key = ApiKey.LIST_OFFSETS
        asked = tuple(
            make(key, 7, "ListOffsetsPartition", partition_index=index, timestamp=-1, current_leader_epoch=-1)
            for index in range(partitions)
        )
        topic = make(key, 7, "ListOffsetsTopic", name=name, partitions=asked)
        answer = self.message(key, 7, replica_id=-1, topics=(topic,), timeout_ms=10_000).topics[0]
        return all(partition.error_code is ErrorCode.none for partition in answer.partitions)

    def leaders(self, name: str) -> list[int]:
        asked = make(ApiKey.METADATA, 12, "MetadataRequestTopic", name=name)
        found = self.message(ApiKey.METADATA, 12, topics=(asked,), allow_auto_topic_creation=False).topics[0]
        if found.topic_id:
            self.topic_ids[name] = found.topic_id
        return [partition.leader_id for partition in found.partitions]

    def append(self, topic: str, *values: bytes, partition: int = 0, timestamp: int = 1_000) -> None:
        """Append one batch and wait for its acknowledgement; retry while a new topic has no ready leader."""
        fields = produce_fields(9, topic, {partition: batch(*values, timestamp=timestamp)})

        def appended() -> bool:
            outcome = self.message(ApiKey.PRODUCE, 9, **fields).responses[0].partition_responses[0]
            assert outcome.error_code in (ErrorCode.none, *_NOT_YET), outcome
            return outcome.error_code == ErrorCode.none

        eventually(appended, f"{self.name} takes records for {topic}-{partition}")

    def plain(self, value: Any) -> Plain:
        match value:
            case ErrorCode():
                return value.name
            case UUID():
                return next(
                    (f"the id of {n}" for n, i in self.topic_ids.items() if i == value), "an unknown id"
                )
            case timedelta():
                return value // timedelta(milliseconds=1)
            case str():
                return self.aliases.get(value, value)
            case datetime() | bool() | int() | float() | None | enum.Enum():
                return value
            case tuple() | list():
                return sorted((self.plain(item) for item in value), key=_identity)
            case bytes() | bytearray() | memoryview():
                return records_of(bytes(value))
        return {
            field.name: self.plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.name not in _LEFT_OUT
        }


def _identity(item: Plain) -> str:
    if isinstance(item, dict):
        return repr([item[name] for name in _IDENTIFYING if name in item])
    return repr(item)


def records_of(data: bytes) -> Plain:
    """Return (offset, key, value) of all records in complete batches, or the name of a decoding error."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    for position, header in batches(data):
        try:
            records = decode_records(data, position, header, limit=1 << 24)
        except KafkaError as error:
            return error.code.name
        found += [(record.offset, record.key, record.value) for record in records]
    return found


@functools.cache
def batch(*values: bytes, timestamp: int = 1_000, step: int = 1) -> bytes:
    builder = BatchBuilder()
    for number, value in enumerate(values):
        builder.append(timestamp + step * number, None, value)
    return builder.build()


def produce_fields(
    version: int,
    topic: str | UUID,
    records: dict[int, bytes | None],
    acks: int = -1,
    transactional_id: str | None = None,
) -> dict[str, object]:
    key = ApiKey.PRODUCE
    partitions = tuple(
        make(key, version, "PartitionProduceData", index=index, records=data)
        for index, data in records.items()
    )
    name = {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
    data = make(key, version, "TopicProduceData", partition_data=partitions, **name)
    return {
        "acks": acks,
        "timeout_ms": 10_000,
        "topic_data": (data,),
        "transactional_id": transactional_id,
    }


def differences(expected: Plain, found: Plain, path: str = "") -> list[str]:
    """Return one line for each difference between two responses as plain data."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lines: list[str] = []
        for name in dict.fromkeys([*expected, *found]):
            lines += differences(expected.get(name, "nothing"), found.get(name, "nothing"), f"{path}/{name}")
        return lines
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [
            line
            for number, (one, other) in enumerate(zip(expected, found, strict=True))
            for line in differences(one, other, f"{path}/{number}")
        ]
    return [] if expected == found else [f"{path}: {expected!r} is what Kafka says, here it is {found!r}"]
