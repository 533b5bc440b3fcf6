"""Produce, Fetch and ListOffsets requests, in every version, and what matters of the answers."""

from __future__ import annotations

from uuid import UUID

from nilometer.wire.api_keys import ApiKey
from support.brokers.comparison import NOWHERE
from support.brokers.two_brokers import CLOSED, Plain, Side, produce_fields
from support.wire.wire_peer import make

FIRST_BY_ID = 13
NO_SESSION = {"session_id": 0, "session_epoch": -1}


def produce(
    side: Side,
    version: int,
    topic: str | UUID,
    records: bytes | None,
    *,
    acks: int = -1,
    partition: int = 0,
    transactional_id: str | None = None,
) -> Plain:
    if version >= FIRST_BY_ID and isinstance(topic, str):
        topic = side.topic_ids.get(topic, NOWHERE)
    fields = produce_fields(version, topic, {partition: records}, acks, transactional_id)
    answer = side.ask(ApiKey.PRODUCE, version, **fields)
    if answer != CLOSED:
        for response in answer["responses"]:
            response["partition_responses"] = [_told(one) for one in response["partition_responses"]]
    return answer


def _told(outcome: Plain) -> Plain:
    """What is said besides an error is left to each broker: a log start here, a -1 there."""
    if outcome["error_code"] == "none":
        return {name: value for name, value in outcome.items() if name != "record_errors"}
    return {
        name: value for name, value in outcome.items() if name in ("error_code", "index", "partition_index")
    }


def list_offsets(
    side: Side, version: int, name: str, partition: int, timestamp: int, epoch: int = -1, **fields: object
) -> Plain:
    key = ApiKey.LIST_OFFSETS
    asked = make(
        key,
        version,
        "ListOffsetsPartition",
        partition_index=partition,
        timestamp=timestamp,
        current_leader_epoch=epoch,
    )
    topic = make(key, version, "ListOffsetsTopic", name=name, partitions=(asked,))
    return side.ask(key, version, **{"replica_id": -1, "topics": (topic,), "timeout_ms": 10_000} | fields)


def fetch_fields(
    side: Side,
    version: int,
    name: str,
    wanted: list[tuple[int, int]],
    *,
    partition_max_bytes: int = 1 << 20,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    **fields: object,
) -> dict[str, object]:
    """``wanted``: (partition, offset)."""
    key = ApiKey.FETCH
    partitions = tuple(
        make(
            key,
            version,
            "FetchPartition",
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=current_leader_epoch,
            last_fetched_epoch=last_fetched_epoch,
            log_start_offset=-1,
        )
        for partition, offset in wanted
    )
    topics: tuple[object, ...] = ()
    if wanted:
        topics = (make(key, version, "FetchTopic", partitions=partitions, **_topic(side, version, name)),)
    base: dict[str, object] = {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 24,
        "topics": topics,
        **NO_SESSION,
    }
    return base | fields


def _topic(side: Side, version: int, name: str) -> dict[str, object]:
    if version < FIRST_BY_ID:
        return {"topic": name}
    return {"topic_id": side.topic_ids.get(name, NOWHERE)}


def fetch(side: Side, version: int, name: str, wanted: list[tuple[int, int]], **fields: object) -> Plain:
    answer = side.ask(ApiKey.FETCH, version, **fetch_fields(side, version, name, wanted, **fields))  # type: ignore[arg-type]
    if answer != CLOSED:
        if "session_id" in answer:
            answer["session_id"] = answer["session_id"] != 0
        for response in answer["responses"]:
            response["partitions"] = [_told(one) for one in response["partitions"]]
            for partition in response["partitions"]:
                partition["records"] = partition.get("records") or []  # null or empty: no records
    return answer
