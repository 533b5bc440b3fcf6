"""Where `nilometer consume` begins in a partition, and which records of several partitions are the newest."""

from __future__ import annotations

import click
import pytest

from nilometer.cli.consume import Start, parse_places, resolve
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.consumer.tail import LogRange, newest
from nilometer.client.network.cluster_metadata import TopicPartition

LOG = LogRange(start=5, high_watermark=20, end=18)


@pytest.mark.parametrize(
    ("place", "offset"),
    [
        ("earliest", 5),
        ("latest", 18),
        ("-3", 15),
        ("-0", 18),
        ("-100", 5),
        ("5", 5),
        ("20", 20),
        ("4", None),
        ("21", None),
        ("9999999999999999999", None),
    ],
)
def test_a_place_in_a_log(place: str, offset: int | None) -> None:
    assert resolve(place, LOG) == offset


def test_places_of_partitions() -> None:
    assert parse_places(["3:-1", "latest"]) == Start("latest", {3: "-1"})
    assert parse_places(["3:-1", "0:7"]).only_partitions == (3, 0)
    assert parse_places(["3:-1", "7"]).only_partitions is None
    assert parse_places([]) == Start()
    for wrong in (["x"], ["1:"], [":1"], ["-1:2"], ["1", "2"], ["1:1", "1:2"], ["1" * 30], ["٣"]):
        with pytest.raises(click.BadParameter):
            parse_places(wrong)


def record(partition: int, offset: int, timestamp: int) -> ConsumerRecord:
    return ConsumerRecord("t", partition, offset, timestamp, 0, None, b"", (), 0)


def test_the_newest_records_keep_the_order_of_their_partition() -> None:
    found = {
        TopicPartition("t", 0): [record(0, 7, 100), record(0, 8, 1), record(0, 9, 300)],
        TopicPartition("t", 1): [record(1, 3, 200)],
    }
    order = [(one.partition, one.offset) for one in newest(found, 10)]
    assert order == [(0, 7), (0, 8), (1, 3), (0, 9)], "a record set back in time stays behind its predecessor"
    assert [one.offset for one in newest(found, 2)] == [3, 9]
