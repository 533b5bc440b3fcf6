"""The dashboard's values before and after a broker of three is killed: a table of docs/metrics.md.

`PYTHONPATH=tests python -m support.documentation.dashboard_values` prints it. It needs Debian's package
prometheus. A value is the sum over the series of a query.
"""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path

from ..eventually import eventually
from ..metrics.observed_cluster import TOPIC, WAIT_S, Observed, observed_cluster, queries

SETTLE_S = 40.0
"""More than the 30 s over which the dashboard's rates are taken."""
PACE_S = 1.0


def under_load(observed: Observed, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        observed.produce()
        time.sleep(PACE_S)


def look(observed: Observed) -> dict[str, str]:
    return {panel: shown(observed.values(expression)) for panel, expression in queries().items()}


def shown(values: list[float]) -> str:
    known = [value for value in values if not math.isnan(value)]
    return f"{sum(known):,.4g}" if known else "–"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, observed_cluster(Path(folder)) as observed:
        under_load(observed, SETTLE_S)
        before = look(observed)
        victim = observed.cluster.leader_of(TOPIC)
        assert victim is not None
        observed.cluster.kill(victim)
        up = queries()["Brokers up A"]
        eventually(lambda: observed.values(up) == [2], "the broker is missing", WAIT_S)
        under_load(observed, SETTLE_S / 2)
        after = look(observed)
        print("| panel | three brokers | one is killed |\n|---|---|---|")
        for panel, value in before.items():
            print(f"| {panel} | {value} | {after[panel]} |")


if __name__ == "__main__":
    main()
