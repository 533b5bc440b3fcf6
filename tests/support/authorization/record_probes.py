"""Probes of the APIs that write, read and delete records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.records import BatchBuilder

from ..brokers.two_brokers import batch
from ..wire.wire_peer import make
from .probe import Names, Probe, without_aborted

K = ApiKey


def transactional_batch() -> bytes:
    builder = BatchBuilder()
    builder.append(1_000, None, b"x")
    return builder.build(producer_id=77, producer_epoch=0, base_sequence=0, transactional=True)


def record_probes() -> Iterator[Probe]:
    def produced(version: int, topics: Callable[[Names], Any], records: bytes, **more: object) -> Probe:
        def fields(of: Names) -> Mapping[str, object]:
            part = make(K.PRODUCE, version, "PartitionProduceData", index=0, records=records)
            data = tuple(
                make(K.PRODUCE, version, "TopicProduceData", partition_data=(part,), **topic)
                for topic in topics(of)
            )
            given = {"acks": -1, "timeout_ms": 10_000, "transactional_id": None, "topic_data": data}
            return {**given, **{name: value(of) for name, value in more.items() if callable(value)}}

        what = "of a transaction" if more else f"version {version}"
        return Probe(K.PRODUCE, version, what, fields)

    def by_name(of: Names) -> Any:
        return [{"name": name} for name in of.both]

    def by_id(of: Names) -> Any:
        return [{"topic_id": each} for each in of.both_ids]

    yield produced(9, by_name, batch(b"x"))
    yield produced(13, by_id, batch(b"x"))
    yield produced(9, by_name, transactional_batch(), transactional_id=lambda of: of.missing)

    def fetched(version: int) -> Probe:
        def fields(of: Names) -> Mapping[str, object]:
            part = make(
                K.FETCH, version, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=10
            )
            given = by_name(of) if version < 13 else by_id(of)
            names = [{"topic": each["name"]} if "name" in each else each for each in given]
            topics = tuple(make(K.FETCH, version, "FetchTopic", partitions=(part,), **each) for each in names)
            return {
                "max_wait_ms": 0,
                "min_bytes": 0,
                "isolation_level": 0,
                "session_id": 0,
                "session_epoch": -1,
                "topics": topics,
                "forgotten_topics_data": (),
            }

        return Probe(K.FETCH, version, f"version {version}", fields, without_aborted)

    yield fetched(12)
    yield fetched(16)

    def end_offsets(of: Names) -> Mapping[str, object]:
        key = K.LIST_OFFSETS
        part = make(key, 7, "ListOffsetsPartition", partition_index=0, timestamp=-2)
        topics = tuple(make(key, 7, "ListOffsetsTopic", name=name, partitions=(part,)) for name in of.both)
        return {"replica_id": -1, "isolation_level": 0, "topics": topics}

    yield Probe(K.LIST_OFFSETS, 7, "earliest", end_offsets)

    def epochs(of: Names) -> Mapping[str, object]:
        key = K.OFFSET_FOR_LEADER_EPOCH
        part = make(key, 4, "OffsetForLeaderPartition", partition=0, leader_epoch=0)
        topics = tuple(
            make(key, 4, "OffsetForLeaderTopic", topic=name, partitions=(part,)) for name in of.both
        )
        return {"replica_id": -1, "topics": topics}

    yield Probe(K.OFFSET_FOR_LEADER_EPOCH, 4, "of a consumer", epochs)

    def deleted(of: Names) -> Mapping[str, object]:
        part = make(K.DELETE_RECORDS, 2, "DeleteRecordsPartition", partition_index=0, offset=0)
        topics = tuple(
            make(K.DELETE_RECORDS, 2, "DeleteRecordsTopic", name=name, partitions=(part,)) for name in of.both
        )
        return {"topics": topics, "timeout_ms": 10_000}

    yield Probe(K.DELETE_RECORDS, 2, "none", deleted)

    def producers(of: Names) -> Mapping[str, object]:
        key = K.DESCRIBE_PRODUCERS
        topics = tuple(make(key, 0, "TopicRequest", name=name, partition_indexes=(0,)) for name in of.both)
        return {"topics": topics}

    yield Probe(K.DESCRIBE_PRODUCERS, 0, "by name", producers)
