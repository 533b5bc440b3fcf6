"""The metrics of share groups: what is read from share partitions, and what is counted for each group."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from nilometer.broker.monitoring.share_metrics import FAMILIES, PARTITIONS_PER_PART, ShareMetrics
from nilometer.broker.sharing import counts as counting
from nilometer.broker.sharing.counts import ShareCounts
from nilometer.broker.sharing.share_partitions import LedSharePartition, SharePartitions
from nilometer.identifiers import TopicId, TopicIdPartition
from nilometer.metrics import PAUSE, Registry
from nilometer.share.partition_events import (
    AcknowledgementBatch,
    Acquired,
    AcquireMode,
    DeadReason,
    Fetched,
    OffsetRange,
    ShareSettings,
)
from nilometer.share.share_partition import SharePartition
from nilometer.share.state_records import DeliveryState, SharePartitionKey, SharePartitionState, StateBatch


class Partitions:
    """Share partitions that are loaded."""

    def __init__(self) -> None:
        self.counts = ShareCounts()
        self.led: list[object] = []

    def __iter__(self) -> Any:
        return iter(self.led)

    def add(self, group: str, high_watermark: int, *batches: StateBatch) -> SharePartition:
        core = SharePartition(ShareSettings(), SharePartitionState(0, 0, 10, -1, batches))
        replica = SimpleNamespace(high_watermark=high_watermark)
        partition = SimpleNamespace(topic="jobs", replica=replica, leader_epoch=0)
        key = SharePartitionKey(group, TopicId("t"), 3)
        led = LedSharePartition(cast(Any, None), key, cast(Any, partition))
        led.core = core
        self.led.append(led)
        return core

    def lines(self) -> list[str]:
        registry = Registry()
        registry.add(FAMILIES, ShareMetrics(cast(Any, self)).collect)
        return "".join(registry.text()).splitlines()


def test_the_state_of_each_share_partition_is_read() -> None:
    partitions = Partitions()
    core = partitions.add("g", 30, StateBatch(14, 15, DeliveryState.ACKNOWLEDGED, 1))
    core.acquire(
        "m",
        Fetched(10, [OffsetRange(10, 13)]),
        max_records=100,
        batch_size=100,
        mode=AcquireMode.BATCH_OPTIMIZED,
        now_ms=0,
    )
    partitions.add("h", 5)  # a high watermark that is behind, after an election
    lines = partitions.lines()
    of_group = '{group="g",topic="jobs",partition="3"}'
    assert f"nilometer_share_partition_lag{of_group} 18" in lines
    assert f"nilometer_share_partition_locks_held{of_group} 4" in lines
    assert f"kafka_server_sharepartitionmetrics_inflightmessagecount{of_group} 6" in lines
    assert 'nilometer_share_partition_lag{group="h",topic="jobs",partition="3"} 0' in lines
    assert "nilometer_share_partitions 2" in lines


def test_thousands_of_share_partitions_are_read_a_few_at_a_time_while_they_come_and_go() -> None:
    partitions = Partitions()
    for number in range(100):
        partitions.add(f"g{number}", 5)
    led = cast(list[LedSharePartition], list(partitions.led))
    taken: list[LedSharePartition] = []

    class Watched(SharePartitions):
        def __iter__(self) -> Iterator[LedSharePartition]:
            for each in super().__iter__():
                taken.append(each)
                yield each

    hosted = object.__new__(Watched)
    hosted.counts = partitions.counts
    hosted._led = {TopicIdPartition(TopicId("t"), 3): {each.key.group_id: each for each in led}}
    hosted._led[TopicIdPartition(TopicId("t"), 4)] = {}
    parts = ShareMetrics(hosted).collect()
    pauses = 0
    while next(parts) is PAUSE:
        pauses += 1
        assert len(taken) == pauses * PARTITIONS_PER_PART
        hosted._led.popitem()
        hosted._led[TopicIdPartition(TopicId(f"u{pauses}"), 0)] = {}
    assert taken == led


def test_records_are_counted_for_each_group_and_for_all() -> None:
    partitions = Partitions()
    counts = partitions.counts
    counts.note_acquired("g", [Acquired(0, 4, 1), Acquired(5, 6, 3)])
    counts.note_acquired("h", [Acquired(0, 0, 1)])
    counts.note_acknowledged(
        [
            AcknowledgementBatch(0, 4, (1,)),
            AcknowledgementBatch(5, 7, (1, 3, 1)),
            AcknowledgementBatch(9, 9, (0,)),
        ]
    )
    for each in counts.of("g"):
        each.dead[DeadReason.DELIVERY_LIMIT] += 2
        each.letters += 2
    lines = partitions.lines()
    assert 'nilometer_share_records_acquired_total{group=""} 8' in lines
    assert 'nilometer_share_records_acquired_total{group="g"} 7' in lines
    assert 'nilometer_share_records_redelivered_total{group="g"} 2' in lines
    assert 'kafka_server_sharegroupmetrics_recordacknowledgements_total{acktype="Accept"} 7' in lines
    assert 'kafka_server_sharegroupmetrics_recordacknowledgements_total{acktype="Reject"} 1' in lines
    assert 'nilometer_share_records_dead_total{group="g",reason="delivery_limit"} 2' in lines
    assert 'kafka_server_sharegroupmetrics_deadletterqueuerecordcount_count{group="h"} 0' in lines


def test_clients_cannot_make_the_page_long(monkeypatch: Any) -> None:
    monkeypatch.setattr(counting, "GROUPS_MAX", 2)
    partitions = Partitions()
    for number in range(5):
        partitions.counts.note_acquired(f"g{number}", [Acquired(0, 0, 1)])
    lines = [line for line in partitions.lines() if line.startswith("nilometer_share_records_acquired_total")]
    assert [line.split()[1] for line in lines] == ["5", "1", "1"]
