"""Numbers over the last minutes: records and bytes appended per second, and the points of a chart's line.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from nilometer.client.admin.replica_survey import Survey
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.own_apis import LEADER

# A small chart of a number over the last minutes, as the points of a line. Pure.

WIDTH, HEIGHT = 240, 40
"""Of the chart, in the units of its points."""


class Sample(msgspec.Struct, frozen=True):
    at_ms: int
    """Of a monotonic clock."""
    value: float


class Chart(msgspec.Struct, frozen=True):
    label: str
    is_bytes: bool
    lines: tuple[str, ...]
    """The points of each line, as in SVG's ``points``; a gap in the samples begins a new line."""
    largest: float
    newest: float
    minutes: int
    """How far back the chart goes."""


def chart(
    label: str, samples: Sequence[Sample], *, span_ms: int, gap_ms: int, is_bytes: bool = False
) -> Chart | None:
    """Return the chart of the samples in ``span_ms`` before the newest; None of less than two.

    The axis begins at zero. Samples that are further apart than ``gap_ms`` are not joined.
    """
    if len(samples) < 2:
        return None
    end = samples[-1].at_ms
    shown = [one for one in samples if one.at_ms >= end - span_ms]
    largest = max(one.value for one in shown)
    lines: list[list[str]] = []
    before: Sample | None = None
    for one in shown:
        if before is None or one.at_ms - before.at_ms > gap_ms:
            lines.append([])
        x = WIDTH * (1 - (end - one.at_ms) / span_ms)
        y = HEIGHT - (HEIGHT * one.value / largest if largest else 0)
        lines[-1].append(f"{x:.1f},{y:.1f}")
        before = one
    drawn = tuple(" ".join(line) for line in lines if len(line) > 1)
    return Chart(label, is_bytes, drawn, largest, samples[-1].value, span_ms // 60_000)


# Records and bytes appended per second, from one reading of a cluster to the next. Pure.

BETWEEN_MS = 500
"""Readings that are closer are no two readings: their rates would jump."""


class Rate(NamedTuple):
    records_per_s: float
    bytes_per_s: float
    """Of the leader's log; 0 while retention or compaction removes more than is appended."""


class _Seen(NamedTuple):
    at_ms: int
    log_end_offset: int
    size_bytes: int
    rate: Rate | None


class AppendRates:
    """The newest reading of each partition, and the rate up to it."""

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, _Seen] = {}

    def read(self, survey: Survey, at_ms: int, *, is_whole: bool) -> None:
        """Take the leaders' states of a survey.

        ``at_ms``: of a monotonic clock. ``is_whole``: the survey is of all topics, so that partitions without
        a leader in it have no rate any more.
        """
        seen = {} if is_whole else self._seen
        for row in survey.rows:
            if row.state is None or row.state.role != LEADER:
                continue
            partition, end, size = (
                TopicPartition(row.topic, row.partition),
                row.state.log_end_offset,
                row.state.size_bytes,
            )
            before = self._seen.get(partition)
            if before is None:
                seen[partition] = _Seen(at_ms, end, size, None)
            elif at_ms - before.at_ms >= BETWEEN_MS:
                seen[partition] = _Seen(at_ms, end, size, _rate(before, at_ms, end, size))
            else:
                seen[partition] = before
        self._seen = seen

    def keep(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget all other partitions, which no longer exist."""
        self._seen = {one: self._seen[one] for one in partitions if one in self._seen}

    def by_topic(self) -> Mapping[str, Rate]:
        """Return the sum of the known rates of each topic's partitions."""
        found: dict[str, Rate] = {}
        for partition, seen in self._seen.items():
            if seen.rate is not None:
                found[partition.topic] = _sum((found.get(partition.topic, Rate(0, 0)), seen.rate))
        return found

    def total(self) -> Rate | None:
        """Return the sum of all known rates; None if none is."""
        known = [seen.rate for seen in self._seen.values() if seen.rate is not None]
        return _sum(known) if known else None


def _rate(before: _Seen, at_ms: int, end: int, size: int) -> Rate:
    """An offset that went back (the leader changed and the new one truncated) counts as no record."""
    per_s = 1000 / (at_ms - before.at_ms)
    return Rate(max(0, end - before.log_end_offset) * per_s, max(0, size - before.size_bytes) * per_s)


def _sum(rates: Iterable[Rate]) -> Rate:
    rates = tuple(rates)
    return Rate(sum(one.records_per_s for one in rates), sum(one.bytes_per_s for one in rates))
