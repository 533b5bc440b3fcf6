"""The table of an audit: the empty partitions of an internal topic are one row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nilometer.pipeline.audit.audit import folded_rows
from nilometer.storage.names import TopicPartition


def replica(topic: str, partition: int, batches: int = 0) -> Any:
    part = TopicPartition(topic, partition)
    return SimpleNamespace(
        replica=SimpleNamespace(part=part),
        segments=1,
        batches=batches,
        records=batches,
        bytes=10 * batches,
        log_start=0,
        high_watermark=batches,
        end_offset=batches,
    )


def rows(*replicas: Any, wrong: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    return folded_rows(SimpleNamespace(replicas=replicas, wrong=wrong))  # type: ignore[arg-type]


def test_empty_partitions_of_internal_topics_are_one_row() -> None:
    offsets = [replica("__consumer_offsets", number, batches=number == 7) for number in range(50)]
    other = [replica("mine", 0), replica("mine", 0), replica("mine", 1)]
    names = [(row[0], row[1], row[3]) for row in rows(*offsets, *other)]
    assert names == [
        ("__consumer_offsets-7", 1, 1),
        ("mine-0", 2, 0),
        ("mine-1", 1, 0),
        ("__consumer_offsets: 49 empty", 49, 0),
    ]


def test_an_empty_partition_with_an_error_has_its_row() -> None:
    offsets = [replica("__consumer_offsets", number) for number in range(3)]
    wrong = SimpleNamespace(topic="__consumer_offsets", partition=1)
    found = [(row[0], row[-1]) for row in rows(*offsets, wrong=(wrong,))]
    assert found == [("__consumer_offsets-1", 1), ("__consumer_offsets: 2 empty", 0)]


def test_one_empty_partition_stays_as_it_is() -> None:
    assert [row[0] for row in rows(replica("__consumer_offsets", 3))] == ["__consumer_offsets-3"]
