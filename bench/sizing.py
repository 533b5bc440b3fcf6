"""What the CPU of a broker follows from: so much for a Produce request, and so much for a GB.

    python -m bench.sizing

Both are fitted on two loads, one of small batches and one of large ones; what they predict for three other
loads is shown beside what these took. First for one broker, then for three brokers and three replicas: these
numbers are of all brokers together. librdkafka sends as fast as it can, so no request finds an idle broker;
one that does costs more (row `latency-1000`).
"""

from __future__ import annotations

import json
import signal
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from . import load, plays, report
from .growth.curve import running, scratch_folder, scratch_folders, three_brokers
from .run import console
from .systems import Nilometer, System, compile_nilometer, cpu_seconds, delete_topic

RESULT = report.RESULTS / "sizing.json"
SETTINGS = {"metrics.listener": "127.0.0.1:0"}
REQUESTS = 'kafka_network_requestmetrics_requests_total{request="Produce"'
ROUNDS = 3
CLUSTER_PARTITIONS = 6
"""A topic has one if there is one broker."""


@dataclass(frozen=True, slots=True)
class Shape:
    size: int
    """Of a record, in bytes."""
    batch: int
    """`batch.size` of the producer."""
    is_fitted: bool = False
    """Whether the costs are fitted on it; otherwise it is a check."""


SHAPES = (
    Shape(100, 1_000, is_fitted=True),
    Shape(1_000, 1_000_000, is_fitted=True),
    Shape(100, 16_384),
    Shape(500, 131_072),
    Shape(1_000, 16_384),
)


@dataclass(frozen=True, slots=True)
class Used:
    """What a round of a load sent, and the CPU that the brokers used for it."""

    requests: float
    gigabytes: float
    seconds: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Fit:
    us_per_request: float
    s_per_gigabyte: float

    @staticmethod
    def on(first: Used, second: Used) -> Fit:
        """Both equations hold: CPU = requests * per_request + gigabytes * per_gigabyte."""
        determinant = first.requests * second.gigabytes - second.requests * first.gigabytes
        per_request = first.cpu_s * second.gigabytes - second.cpu_s * first.gigabytes
        per_gigabyte = first.requests * second.cpu_s - second.requests * first.cpu_s
        return Fit(1e6 * per_request / determinant, per_gigabyte / determinant)

    def cpu_s(self, used: Used) -> float:
        return self.us_per_request / 1e6 * used.requests + self.s_per_gigabyte * used.gigabytes


def _play(system: System, pages: Sequence[str], shape: Shape, brokers: int, seconds: float) -> Used:
    topic = plays.fresh_topic(system, "sized", 1 if brokers == 1 else CLUSTER_PARTITIONS, brokers)
    requests, cpu = _requests(pages), cpu_seconds(system)
    done = load.run("produce", system.bootstrap, topic, seconds, shape.size, f"batch.size={shape.batch}")
    cpu = cpu_seconds(system) - cpu
    requests = _requests(pages) - requests
    delete_topic(system, topic)
    return Used(requests, done["records"] * shape.size / 1e9, done["seconds"], cpu)


def _requests(pages: Sequence[str]) -> float:
    """The Produce requests that all brokers have had so far."""
    count = 0.0
    for url in pages:
        with urllib.request.urlopen(url, timeout=30) as page:
            lines = page.read().decode().splitlines()
        count += sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(REQUESTS))
    return count


def _measure(system: System, pages: Sequence[str], brokers: int, seconds: float) -> dict[str, Any]:
    for shape in SHAPES:
        _play(system, pages, shape, brokers, seconds / 2)  # as a warm-up
    rounds = [[_play(system, pages, shape, brokers, seconds) for shape in SHAPES] for _ in range(ROUNDS)]
    medians = [
        sorted(each, key=lambda used: used.cpu_s / used.gigabytes)[ROUNDS // 2]
        for each in zip(*rounds, strict=True)
    ]
    fit = Fit.on(*(used for shape, used in zip(SHAPES, medians, strict=True) if shape.is_fitted))
    return {
        "us_per_request": fit.us_per_request,
        "s_per_gigabyte": fit.s_per_gigabyte,
        "loads": [
            {
                "record_bytes": shape.size,
                "batch_size": shape.batch,
                "is_fitted": shape.is_fitted,
                "requests_per_s": used.requests / used.seconds,
                "mb_per_s": 1000 * used.gigabytes / used.seconds,
                "requests_per_mb": used.requests / used.gigabytes / 1000,
                "cpu_s_per_gigabyte": used.cpu_s / used.gigabytes,
                "predicted_s_per_gigabyte": fit.cpu_s(used) / used.gigabytes,
            }
            for shape, used in zip(SHAPES, medians, strict=True)
        ],
        "rounds_cpu_s_per_gigabyte": [[each.cpu_s / each.gigabytes for each in one] for one in rounds],
    }


def _show(title: str, found: dict[str, Any]) -> None:
    console.print(
        f"[bold]{title}[/bold]: {found['us_per_request']:.0f} µs a request, "
        f"{found['s_per_gigabyte']:.2f} s a GB"
    )
    for one in found["loads"]:
        off = one["predicted_s_per_gigabyte"] / one["cpu_s_per_gigabyte"] - 1
        console.print(
            f"  {one['record_bytes']} B in batches of {one['batch_size']}: "
            f"{one['requests_per_mb']:.0f} requests/MB, {one['cpu_s_per_gigabyte']:.2f} s/GB, predicted "
            f"{one['predicted_s_per_gigabyte']:.2f} ({off:+.0%}{', fitted' if one['is_fitted'] else ''})",
            highlight=False,
        )


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(0.5), default=8.0, help="Length of a round.", show_default=True
)
@click.option("--dry", is_flag=True, help="Show the numbers, write nothing.")
def main(seconds: float, dry: bool) -> None:
    """Fit what a Produce request and a GB cost a broker, and check it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # brokers are stopped
    compile_nilometer()
    load.compile_load()
    with scratch_folders():
        with running(Nilometer(scratch_folder(), SETTINGS)) as system:
            one = _measure(system, [system.metrics_url], 1, seconds)
        _show("one broker", one)
        with three_brokers(SETTINGS) as cluster:
            three = _measure(cluster, cluster.metrics_urls(), 3, seconds)
        _show("three brokers, three replicas, all brokers together", three)
    if not dry:
        facts = {
            "command": f"python -m bench.sizing --seconds {seconds:g}",
            "measured_at": datetime.now(UTC).isoformat(timespec="minutes"),
            "revision": report.revision(),
            "machine": report.machine(),
        }
        RESULT.write_text(json.dumps({**facts, "one_broker": one, "three_brokers": three}, indent=1) + "\n")


if __name__ == "__main__":
    main()
