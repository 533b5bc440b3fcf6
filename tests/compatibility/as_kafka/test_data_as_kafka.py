"""Records written, read and looked up as Apache Kafka does it: every version both serve.

See :mod:`test_admin_as_kafka` for how the two are compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

import pytest

from nilometer.broker.api.registry import APIS
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode
from nilometer.wire.record_batch import HEADER_BYTES, pack_batch, read_header
from nilometer.wire.records import BatchBuilder
from support.brokers.two_brokers import CLOSED, Plain, Side, batch, differences, produce_fields
from support.eventually import eventually
from support.wire.wire_peer import make

pytestmark = pytest.mark.java

NOWHERE = UUID(int=0xDEAD << 64 | 0xBEEF)
FIRST_BY_ID = 13
NO_SESSION = {"session_id": 0, "session_epoch": -1}


def each_version(key: ApiKey) -> pytest.MarkDecorator:
    low, high = APIS[key].versions
    return pytest.mark.parametrize("version", range(low, high + 1))


def same(sides: tuple[Side, Side], scenario: Callable[[Side], Plain]) -> None:
    kafka, nilometer = sides
    found = differences(scenario(kafka), scenario(nilometer))
    assert not found, "\n".join(found)


# ── Produce ─────────────────────────────────────────────────────────────────────────────────────────


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


def changed(data: bytes, **fields: int) -> bytes:
    """Another header over the same records, under a CRC that is right."""
    return pack_batch(read_header(data)._replace(**fields), data[HEADER_BYTES:])


def by_producer(producer_id: int, epoch: int, sequence: int, count: int = 1) -> bytes:
    builder = BatchBuilder()
    for number in range(count):
        builder.append(1_000, None, b"%d" % (sequence + number))
    return builder.build(0, producer_id, epoch, sequence)


GOOD = batch(b"one", b"two", b"three")


@each_version(ApiKey.PRODUCE)
def test_produce(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"produce-{version}", 2)
        side.append(name, b"first")
        return {
            "all": produce(side, version, name, GOOD),
            "leader": produce(side, version, name, GOOD, acks=1),
            "acks of nonsense": produce(side, version, name, GOOD, acks=2),
            "other partition": produce(side, version, name, GOOD, partition=1),
            "unknown partition": produce(side, version, name, GOOD, partition=7),
            "negative partition": produce(side, version, name, GOOD, partition=-1),
            "unknown topic": produce(side, version, f"nowhere-{version}", GOOD),
            "no topic": side.ask(ApiKey.PRODUCE, version, acks=-1, timeout_ms=1000, topic_data=()),
        }

    same(sides, scenario)


@each_version(ApiKey.PRODUCE)
def test_produce_without_acknowledgement(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"unacknowledged-{version}")
        side.append(name, b"first")
        topic = side.topic_ids[name] if version >= FIRST_BY_ID else name
        side.peer.tell(ApiKey.PRODUCE, version, **produce_fields(version, topic, {0: GOOD}, acks=0))
        eventually(lambda: end_of(side, name) == 4, "what was sent is there")
        side.peer.tell(ApiKey.PRODUCE, version, **produce_fields(version, topic, {0: GOOD, 9: GOOD}, acks=0))
        ended = side.peer.is_ended()
        side.hang_up()
        return {"closed by a failure": ended, "what had no failure": end_of(side, name)}

    same(sides, scenario)


def end_of(side: Side, name: str) -> int:
    return list_offsets(side, 7, name, 0, -1)["topics"][0]["partitions"][0]["offset"]


BAD_BATCHES: dict[str, bytes] = {
    "empty": b"",
    "a bit flipped": GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
    "cut short": GOOD[:-1],
    "only a header": GOOD[:HEADER_BYTES],
    "part of a header": GOOD[:20],
    "something behind it": GOOD + b"x",
    "two batches": GOOD + batch(b"four"),
    "magic 0": GOOD[:16] + b"\0" + GOOD[17:],
    "magic 1": GOOD[:16] + b"\1" + GOOD[17:],
    "magic 3": GOOD[:16] + b"\3" + GOOD[17:],
    "length 0": GOOD[:8] + bytes(4) + GOOD[12:],
    "length negative": GOOD[:8] + b"\xff\xff\xff\xff" + GOOD[12:],
    "base offset 5": changed(GOOD, base_offset=5),
    "more records than there are": changed(GOOD, records_count=4, last_offset_delta=3),
    "fewer records than there are": changed(GOOD, records_count=2, last_offset_delta=1),
    "count and offsets differ": changed(GOOD, records_count=3, last_offset_delta=7),
    "no records": changed(GOOD, records_count=0, last_offset_delta=-1),
    "negative count": changed(GOOD, records_count=-1),
    "codec 5": changed(GOOD, attributes=5),
    "not compressed as it says": changed(GOOD, attributes=int(Codec.GZIP)),
    "log append time": changed(GOOD, attributes=8),
    "control": changed(GOOD, attributes=0x20),
    "transactional": changed(GOOD, attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0),
    "unknown attributes": changed(GOOD, attributes=0x300),
    "producer without a sequence": changed(GOOD, producer_id=1, producer_epoch=0, base_sequence=-1),
    "producer without an epoch": changed(GOOD, producer_id=1, producer_epoch=-1, base_sequence=0),
    "leader epoch": changed(GOOD, partition_leader_epoch=99),
}

MEANT: dict[str, tuple[str, str]] = {
    # Kafka's answer, and Nilometer's.
    "something behind it": ("none", "invalid_record"),  # Kafka drops what it does not understand
    "log append time": ("none", "invalid_timestamp"),  # Kafka takes the flag back
    "producer without an epoch": ("none", "invalid_record"),  # Kafka takes it for no producer
    "magic 3": ("corrupt_message", "unsupported_for_message_format"),
    "no records": ("invalid_record", "corrupt_message"),
    "negative count": ("invalid_record", "corrupt_message"),
    "codec 5": ("unknown_server_error", "corrupt_message"),
    # Nilometer does not take a batch apart whose header answers all questions; Kafka walks its records.
    "more records than there are": ("invalid_record", "none"),
    "fewer records than there are": ("invalid_record", "none"),
    "not compressed as it says": ("unknown_server_error", "none"),
}
"""Where the two differ, and are known to."""


@pytest.mark.parametrize("what", BAD_BATCHES)
def test_produce_bad_batches(sides: tuple[Side, Side], what: str) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"bad-{what.replace(' ', '-')}")
        side.append(name, b"first")
        told = produce(side, 9, name, BAD_BATCHES[what])
        side.hang_up()
        return {"answer": told, "end": end_of(side, name)}

    if what in MEANT:
        answers = [scenario(side)["answer"]["responses"][0]["partition_responses"][0] for side in sides]
        assert tuple(answer["error_code"] for answer in answers) == MEANT[what]
    else:
        same(sides, scenario)


def test_no_records_at_all_are_refused(nilometer: Side) -> None:
    """Kafka never answers."""
    name = nilometer.create("null-records")
    assert produce(nilometer, 9, name, None)["responses"][0]["partition_responses"] == [
        {"index": 0, "error_code": "invalid_record"}
    ]


def test_produce_batches_of_every_codec(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        told = {}
        for codec in Codec:
            name = side.create(f"codec-{codec.name}")
            side.append(name, b"first")
            builder = BatchBuilder(codec)
            for number in range(100):
                builder.append(1_000 + number, b"key", b"value %d" % number)
            records = builder.build()
            told[codec.name] = (
                [produce(side, version, name, records) for version in (3, 6, 7, 12)],
                fetch(side, 11, name, [(0, 0)]),
            )
        return told

    same(sides, scenario)


LIMITED: dict[str, tuple[dict[str, str], bytes]] = {
    "too large": ({"max_message_bytes": "100"}, batch(b"x" * 100)),
    "just small enough": ({"max_message_bytes": str(len(batch(b"x" * 100)))}, batch(b"x" * 100)),
    "one too large": ({"max_message_bytes": str(len(batch(b"x" * 100)) - 1)}, batch(b"x" * 100)),
    "from the future": ({}, batch(b"x", timestamp=4_000_000_000_000)),
    "without a time": ({}, batch(b"x", timestamp=-1, step=0)),
    "too old": ({"message_timestamp_before_max_ms": "1000"}, batch(b"x")),
    "old enough": ({"message_timestamp_before_max_ms": "99999999999999"}, batch(b"x")),
    "compacted, without a key": ({"cleanup_policy": "compact"}, batch(b"x")),
    "recompressed": ({"compression_type": "gzip"}, batch(b"x" * 500, b"y" * 500)),
    "decompressed": ({"compression_type": "uncompressed"}, batch(b"x" * 500)),
}


@pytest.mark.parametrize("what", LIMITED)
def test_produce_within_limits(sides: tuple[Side, Side], what: str) -> None:
    configs, records = LIMITED[what]

    def scenario(side: Side) -> Plain:
        name = side.create(f"limits-{what.replace(' ', '-').replace(',', '')}", **configs)
        eventually(lambda: list_offsets(side, 7, name, 0, -1) is not None, "it is led")
        wait_led(side, name)
        told = produce(side, 9, name, records)
        return {"answer": told, "read": fetch(side, 11, name, [(0, 0)])}

    same(sides, scenario)


def wait_led(side: Side, name: str) -> None:
    def led() -> bool:
        return list_offsets(side, 7, name, 0, -1)["topics"][0]["partitions"][0]["error_code"] == "none"

    eventually(led, f"{side.name} leads {name}")


def test_zstd_is_not_sent_to_who_does_not_know_it(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create("zstd", compression_type="zstd")
        side.append(name, b"x" * 500)
        return {version: fetch(side, version, name, [(0, 0)]) for version in (4, 9, 10, 12)}

    same(sides, scenario)


def test_log_append_time(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create("append-time", message_timestamp_type="LogAppendTime")
        wait_led(side, name)
        before = int(time.time() * 1000)
        fields = produce_fields(9, name, {0: batch(b"x")})
        outcome = side.message(ApiKey.PRODUCE, 9, **fields).responses[0].partition_responses[0]
        newest = list_offsets(side, 7, name, 0, -3)["topics"][0]["partitions"][0]
        set_by = side.message(ApiKey.FETCH, 11, **fetch_fields(side, 11, name, [(0, 0)]))
        header = read_header(set_by.responses[0].partitions[0].records)
        appended = int(outcome.log_append_time.timestamp() * 1000)
        return {
            "told": appended >= before,
            "stored": header.max_timestamp == appended == newest["timestamp"],
            "type": header.attributes & 8,
        }

    same(sides, scenario)


def test_idempotent_producers(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create("idempotent", 3)
        for partition in range(3):
            side.append(name, b"first", partition=partition)
        first, other = 7001, 7002
        told: dict[str, Plain] = {}

        def step(what: str, records: bytes, partition: int = 0) -> None:
            told[what] = produce(side, 9, name, records, partition=partition)

        step("begins at 0", by_producer(first, 0, 0))
        step("goes on", by_producer(first, 0, 1, 2))
        step("again", by_producer(first, 0, 1, 2))
        step("the first again", by_producer(first, 0, 0))
        step("overlapping", by_producer(first, 0, 2, 2))
        step("a gap", by_producer(first, 0, 9))
        for sequence in range(3, 9):
            step(f"on to {sequence}", by_producer(first, 0, sequence))
        step("the fifth back", by_producer(first, 0, 4))
        step("more than five back", by_producer(first, 0, 0))
        step("a new epoch", by_producer(first, 1, 0))
        step("the old epoch", by_producer(first, 0, 9))
        step("a newer epoch from the middle", by_producer(first, 2, 5))
        step("unknown, from the middle", by_producer(other, 0, 5), 1)
        step("and on", by_producer(other, 0, 6), 1)
        step("to the last sequence", by_producer(7003, 0, 2**31 - 1), 2)
        step("and round", by_producer(7003, 0, 0), 2)
        step("and on from there", by_producer(7003, 0, 1), 2)
        told["read"] = [fetch(side, 11, name, [(partition, 0)]) for partition in range(3)]
        return told

    same(sides, scenario)


# ── ListOffsets ─────────────────────────────────────────────────────────────────────────────────────


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


@each_version(ApiKey.LIST_OFFSETS)
def test_list_offsets(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"offsets-{version}", 2)
        for number in range(4):
            side.append(name, b"a", b"b", timestamp=1_000 * (number + 1))
        side.append(name, b"late", timestamp=500)
        wait_led(side, name)
        told: dict[str, Plain] = {}
        for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0, 500, 999, 1_000, 1_001, 2_500, 4_001, 4_002, 2**62):
            told[f"at {timestamp}"] = list_offsets(side, version, name, 0, timestamp)
            told[f"at {timestamp}, empty"] = list_offsets(side, version, name, 1, timestamp)
        told["unknown partition"] = list_offsets(side, version, name, 7, -1)
        told["unknown topic"] = list_offsets(side, version, "nowhere", 0, -1)
        if version >= 2:
            for isolation in (0, 1):
                told[f"isolation {isolation}"] = list_offsets(
                    side, version, name, 0, -1, isolation_level=isolation
                )
        if version >= 4:
            for epoch in (0, 1):
                told[f"epoch {epoch}"] = list_offsets(side, version, name, 0, -1, epoch)
        told["debugging"] = list_offsets(side, version, name, 0, -1, replica_id=-2)
        return told

    same(sides, scenario)


def test_list_offsets_after_the_start_moved(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create("offsets-moved")
        for number in range(4):
            side.append(name, b"a", b"b", timestamp=1_000 * (number + 1))
        key = ApiKey.DELETE_RECORDS
        asked = make(key, 2, "DeleteRecordsPartition", partition_index=0, offset=3)
        topic = make(key, 2, "DeleteRecordsTopic", name=name, partitions=(asked,))
        told = {"deleted": side.ask(key, 2, topics=(topic,), timeout_ms=10_000)}
        for timestamp in (-1, -2, -3, -4, 0, 1_000, 2_000, 2_001, 2_002, 9_999):
            told[f"at {timestamp}"] = list_offsets(side, 8, name, 0, timestamp)
        told["below the start"] = fetch(side, 11, name, [(0, 1)])
        told["in the middle of a batch"] = fetch(side, 11, name, [(0, 3)])
        return told

    same(sides, scenario)


# ── Fetch ───────────────────────────────────────────────────────────────────────────────────────────


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


@each_version(ApiKey.FETCH)
def test_fetch(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"fetch-{version}", 3)
        for number in range(4):
            side.append(name, b"a%d" % number, b"b%d" % number)
        side.append(name, b"x" * 2000, partition=1)
        wait_led(side, name)
        told = {
            "from the start": fetch(side, version, name, [(0, 0)]),
            "from the middle of a batch": fetch(side, version, name, [(0, 3)]),
            "at the end": fetch(side, version, name, [(0, 8)]),
            "behind the end": fetch(side, version, name, [(0, 9)]),
            "negative": fetch(side, version, name, [(0, -1)]),
            "unknown partition": fetch(side, version, name, [(9, 0)]),
            "unknown topic": fetch(side, version, "nowhere", [(0, 0)]),
            "two partitions": fetch(side, version, name, [(0, 0), (1, 0)]),
            "one more than asked for": fetch(side, version, name, [(1, 0)], partition_max_bytes=10),
            "a part of a batch": fetch(side, version, name, [(0, 0)], partition_max_bytes=100),
            "nothing for the second": fetch(side, version, name, [(1, 0), (0, 0)], max_bytes=10),
            "no bytes at all": fetch(side, version, name, [(0, 0)], max_bytes=0, partition_max_bytes=0),
            "one bad of two": fetch(side, version, name, [(0, 0), (9, 0)]),
            "nothing asked": fetch(side, version, name, []),
            "empty partition": fetch(side, version, name, [(2, 0)]),
        }
        for isolation in (0, 1):
            told[f"isolation {isolation}"] = fetch(side, version, name, [(0, 0)], isolation_level=isolation)
        if version >= 9:
            told["known epoch"] = fetch(side, version, name, [(0, 0)], current_leader_epoch=0)
            told["epoch to come"] = fetch(side, version, name, [(0, 0)], current_leader_epoch=4)
        if version >= 12:
            told["fetched epoch"] = fetch(side, version, name, [(0, 2)], last_fetched_epoch=0)
            told["fetched epoch to come"] = fetch(side, version, name, [(0, 2)], last_fetched_epoch=3)
            told["beyond the epoch"] = fetch(side, version, name, [(0, 80)], last_fetched_epoch=0)
        return told

    same(sides, scenario)


@pytest.mark.parametrize("version", range(7, 19))
def test_fetch_sessions(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"session-{version}", 3)
        for partition in range(3):
            side.append(name, b"first", partition=partition)
        first = side.message(
            ApiKey.FETCH,
            version,
            **fetch_fields(side, version, name, [(0, 0), (1, 1)], session_id=0, session_epoch=0),
        )
        session = first.session_id
        assert session
        told: dict[str, Plain] = {"full": side.plain(first.responses)}

        def step(what: str, epoch: int, wanted: list[tuple[int, int]], **fields: object) -> None:
            told[what] = fetch(
                side, version, name, wanted, **{"session_id": session, "session_epoch": epoch, **fields}
            )

        step("read on", 1, [(0, 1)])
        step("nothing new", 2, [])
        side.append(name, b"second", partition=1)
        step("something new", 3, [])
        step("told once more until it reads on", 4, [])
        step("another partition", 5, [(2, 0), (1, 2)])
        forgotten = (
            make(ApiKey.FETCH, version, "ForgottenTopic", partitions=(2,), **_topic(side, version, name)),
        )
        step("one less", 6, [], forgotten_topics_data=forgotten)
        step("an unknown partition", 7, [(9, 0)])
        step("still unknown", 8, [])
        step("a wrong epoch", 7, [])
        step("the epoch after that", 9, [])
        step("closed", -1, [])
        step("after that", 10, [])
        told["unknown session"] = fetch(side, version, name, [(0, 0)], session_id=77, session_epoch=5)
        told["empty"] = fetch(side, version, name, [], session_id=0, session_epoch=0)
        return told

    same(sides, scenario)


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_a_fetch_waits_for_data(sides: tuple[Side, Side], version: int) -> None:
    """It asks for more than there is and would wait for ten minutes; what arrives meanwhile answers it."""

    def scenario(side: Side) -> Plain:
        name = side.create(f"wait-{version}")
        side.append(name, b"first")
        fields = fetch_fields(side, version, name, [(0, 1)], max_wait_ms=600_000, min_bytes=1)
        waiting = Side(side.name, side.bootstrap)
        waiting.topic_ids = side.topic_ids
        waiting.peer.tell(ApiKey.FETCH, version, **fields)
        side.append(name, b"second")
        answer = side.plain(waiting.peer.hear(ApiKey.FETCH, version))
        waiting.hang_up()
        return answer["responses"][0]["partitions"][0]["records"]

    same(sides, scenario)


def test_a_fetch_waits_for_as_many_bytes_as_it_asked_for(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create("wait-more")
        side.append(name, b"first")
        fields = fetch_fields(side, 11, name, [(0, 1)], max_wait_ms=600_000, min_bytes=3_000)
        waiting = Side(side.name, side.bootstrap)
        waiting.peer.tell(ApiKey.FETCH, 11, **fields)
        for number in range(3):
            side.append(name, b"%d" % number + b"." * 1_000)
        answer = side.plain(waiting.peer.hear(ApiKey.FETCH, 11))
        waiting.hang_up()
        return len(answer["responses"][0]["partitions"][0]["records"])

    same(sides, scenario)


def test_a_fetch_that_has_waited_long_enough_is_answered(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create("wait-in-vain")
        side.append(name, b"first")
        return [fetch(side, version, name, [(0, 1)], max_wait_ms=50, min_bytes=1) for version in (4, 11, 18)]

    same(sides, scenario)


def test_a_deleted_topic_answers_who_waits(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create("wait-deleted")
        side.append(name, b"first")
        waiting = Side(side.name, side.bootstrap)
        fields = fetch_fields(side, 11, name, [(0, 1)], max_wait_ms=600_000)
        waiting.peer.tell(ApiKey.FETCH, 11, **fields)
        state = make(ApiKey.DELETE_TOPICS, 6, "DeleteTopicState", name=name)
        assert side.message(ApiKey.DELETE_TOPICS, 6, topics=(state,), timeout_ms=10_000)
        answer = side.plain(waiting.peer.hear(ApiKey.FETCH, 11))
        waiting.hang_up()
        code = answer["responses"][0]["partitions"][0]["error_code"]
        # Either may see the end of the leadership or the end of the topic first.
        return code in (ErrorCode.unknown_topic_or_partition.name, ErrorCode.not_leader_or_follower.name)

    same(sides, scenario)
