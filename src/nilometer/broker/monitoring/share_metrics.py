"""Metrics of share groups: of the share partitions whose members fetch from this broker, and what the groups
have done here since its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from nilometer.broker.sharing.counts import GROUPS_MAX, GroupCounts
from nilometer.broker.sharing.share_partitions import LedSharePartition, SharePartitions
from nilometer.metrics import PAUSE, Family, Kind, Measured, Pause, Series
from nilometer.share.partition_events import AcknowledgeType, DeadReason

_GROUP = ("group",)
_PARTITION = ("group", "topic", "partition")
_OF_ALL = f'The series with group="" has all groups; the first {GROUPS_MAX} groups have one each.'
PARTITIONS_PER_PART = 8

SHARE_PARTITIONS = Family(
    "nilometer_share_partitions", Kind.GAUGE, "Share partitions whose members fetch from this broker."
)
LAG = Family(
    "nilometer_share_partition_lag",
    Kind.GAUGE,
    "Records of a share partition up to the high watermark that are neither acknowledged nor archived.",
    _PARTITION,
)
HELD = Family(
    "nilometer_share_partition_locks_held",
    Kind.GAUGE,
    "Records of a share partition that members have acquired and not acknowledged.",
    _PARTITION,
)
IN_FLIGHT = Family(
    "kafka_server_sharepartitionmetrics_inflightmessagecount",
    Kind.GAUGE,
    "Records from the start offset of a share partition up to the first one that was never delivered, "
    "which share.partition.max.record.locks limits.",
    _PARTITION,
)
ACKNOWLEDGEMENTS = Family(
    "kafka_server_sharegroupmetrics_recordacknowledgements_total",
    Kind.COUNTER,
    "Acknowledgements of records, by what members said.",
    ("acktype",),
)
ACQUIRED = Family(
    "nilometer_share_records_acquired_total",
    Kind.COUNTER,
    f"Records delivered to members of share groups, the repeated deliveries included. {_OF_ALL}",
    _GROUP,
)
REDELIVERED = Family(
    "nilometer_share_records_redelivered_total",
    Kind.COUNTER,
    "Deliveries of records that were delivered before.",
    _GROUP,
)
LOCK_TIMEOUTS = Family(
    "nilometer_share_lock_timeouts_total",
    Kind.COUNTER,
    "Records whose lock ended before they were acknowledged.",
    _GROUP,
)
DEAD = Family(
    "nilometer_share_records_dead_total",
    Kind.COUNTER,
    "Records that no member accepted: rejected, or delivered as often as they may be (delivery_limit).",
    (*_GROUP, "reason"),
    series_max=len(DeadReason) * (GROUPS_MAX + 1),
)
LETTERS = Family(
    "kafka_server_sharegroupmetrics_deadletterqueuerecordcount_count",
    Kind.UNTYPED,
    "Dead letters that this broker has written.",
    _GROUP,
)
LETTERS_FAILED = Family(
    "nilometer_share_dead_letters_failed_total",
    Kind.COUNTER,
    "Dead letters that could not be written: their records are archived without; the log says why.",
    _GROUP,
)
LETTER_REQUESTS = Family(
    "kafka_server_sharegroupmetrics_deadletterqueuetotalproducerequests_total",
    Kind.COUNTER,
    "Attempts to write a batch of dead letters.",
    _GROUP,
)
LETTER_REQUESTS_FAILED = Family(
    "kafka_server_sharegroupmetrics_deadletterqueuefailedproducerequests_total",
    Kind.COUNTER,
    "Batches of dead letters that were given up.",
    _GROUP,
)
_COUNTS: tuple[tuple[Family, Callable[[GroupCounts], int]], ...] = (
    (ACQUIRED, lambda counts: counts.acquired),
    (REDELIVERED, lambda counts: counts.redelivered),
    (LOCK_TIMEOUTS, lambda counts: counts.lock_timeouts),
    (LETTERS, lambda counts: counts.letters),
    (LETTERS_FAILED, lambda counts: counts.letters_failed),
    (LETTER_REQUESTS, lambda counts: counts.letter_requests),
    (LETTER_REQUESTS_FAILED, lambda counts: counts.letter_requests_failed),
)
FAMILIES = (SHARE_PARTITIONS, LAG, HELD, IN_FLIGHT, ACKNOWLEDGEMENTS, DEAD, *(one for one, _ in _COUNTS))


class ShareMetrics:
    def __init__(self, partitions: SharePartitions) -> None:
        self._partitions = partitions

    def collect(self) -> Iterator[Measured | Literal[Pause.PAUSE]]:
        found: list[tuple[tuple[str, str, str], int, int, int]] = []
        count = 0
        for led in self._partitions:
            core = led.core
            if core is None or led.is_dropped:
                continue
            found.append((_labels(led), led.lag, core.acquired, core.in_flight))
            count += 1
            if count % PARTITIONS_PER_PART == 0:
                yield PAUSE
        yield Measured(SHARE_PARTITIONS, [((), count)])
        yield Measured(LAG, ((labels, lag) for labels, lag, _, _ in found))
        yield Measured(HELD, ((labels, held) for labels, _, held, _ in found))
        yield Measured(IN_FLIGHT, ((labels, in_flight) for labels, _, _, in_flight in found))
        said = self._partitions.counts.acknowledgements
        yield Measured(
            ACKNOWLEDGEMENTS, [((kind.name.capitalize(),), said[kind]) for kind in AcknowledgeType]
        )
        for family, value_of in _COUNTS:
            yield Measured(family, (((group,), value_of(one)) for group, one in self._groups()))
        yield Measured(DEAD, self._dead())

    def _groups(self) -> list[tuple[str, GroupCounts]]:
        counts = self._partitions.counts
        return [("", counts.all), *counts.by_group.items()]

    def _dead(self) -> Iterator[Series]:
        for group, counts in self._groups():
            for reason in DeadReason:
                yield (group, reason.name.lower()), counts.dead[reason]


def _labels(led: LedSharePartition) -> tuple[str, str, str]:
    return led.key.group_id, led.partition.topic, str(led.key.partition)
