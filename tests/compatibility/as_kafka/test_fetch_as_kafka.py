"""Records read and looked up as Apache Kafka does it: every version both serve.

`support.brokers.comparison` says how the two are compared.
"""

from __future__ import annotations

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.comparison import each_version, same
from support.brokers.record_requests import (
    _topic,
    fetch,
    fetch_fields,
    list_offsets,
)
from support.brokers.two_brokers import Plain, Side
from support.wire.wire_peer import make

pytestmark = pytest.mark.recorded


def test_zstd_is_not_sent_to_who_does_not_know_it(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create("zstd", compression_type="zstd")
        side.append(name, b"x" * 500)
        return {version: fetch(side, version, name, [(0, 0)]) for version in (4, 9, 10, 12)}

    same(sides, scenario)


@each_version(ApiKey.LIST_OFFSETS)
def test_list_offsets(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"offsets-{version}", 2)
        for number in range(4):
            side.append(name, b"a", b"b", timestamp=1_000 * (number + 1))
        side.append(name, b"late", timestamp=500)
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


@each_version(ApiKey.FETCH)
def test_fetch(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"fetch-{version}", 3)
        for number in range(4):
            side.append(name, b"a%d" % number, b"b%d" % number)
        side.append(name, b"x" * 2000, partition=1)
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
