"""Computes the expected result of the metrics pipeline in plain Python."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from nilometer.pipeline.shipped import metrics

Rollup = tuple[int, float, float, float, float]


def expected_rollups(
    values: Iterable[bytes],
) -> tuple[dict[tuple[datetime, str, str], Rollup], set[str]]:
    """Return (minute, service, metric) to (count, mean, least, greatest, sum), and the ids of the alerts."""
    by_window: dict[tuple[datetime, str, str], list[float]] = defaultdict(list)
    newest = datetime.min.replace(tzinfo=UTC)
    for value in values:
        said = json.loads(value)
        at = datetime.fromisoformat(said["at"])
        newest = max(newest, at)
        by_window[at.replace(second=0, microsecond=0), said["service"], said["metric"]].append(said["value"])
    until = newest - metrics.Settings().lateness
    rollups = {
        key: (len(said), sum(said) / len(said), min(said), max(said), sum(said))
        for key, said in by_window.items()
        if key[0] + timedelta(minutes=1) <= until
    }
    alerts: set[str] = set()
    for (minute, service, metric), (_, mean, _, greatest, total) in rollups.items():
        for rule, broken in (
            ("slow", metric == "latency_ms" and mean > 250),
            ("stalled", metric == "latency_ms" and greatest > 2000),
            ("failing", metric == "errors" and total > 10),
        ):
            if broken:
                alerts.add(f"{service}/{rule}/{minute:%Y-%m-%dT%H:%M:%S}Z")
    return rollups, alerts
