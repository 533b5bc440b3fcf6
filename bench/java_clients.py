"""Apache Kafka's own measuring programs as clients: `kafka-producer-perf-test`, `kafka-consumer-perf-test`.

They run as their start scripts run them (heap, garbage collector). A program starts cold each time, with
either broker: the producer leaves its first records out (`--warmup-records`); of the consumer the time in
which it fetches is taken, which it reports without that of joining its group.
"""

from __future__ import annotations

import re
from typing import Any

from tests.support.kafka.apache_kafka import java_command

from . import load
from .client_watch import ClientWatch

JVM_OF_TOOLS = (
    "-Xmx512M",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
_PRODUCED = re.compile(
    r"(?P<records>\d+) steady state records sent, (?P<per_s>[\d.]+) records/sec .*? "
    r"(?P<avg>[\d.]+) ms avg latency, (?P<max>[\d.]+) ms max latency, (?P<p50>\d+) ms 50th, "
    r"(?P<p95>\d+) ms 95th, (?P<p99>\d+) ms 99th, (?P<p999>\d+) ms 99\.9th"
)


def _run(main_class: str, *arguments: str) -> tuple[str, dict[str, float]]:
    """What the program prints, and how busy it was."""
    process = load.start_client(java_command(main_class, *arguments, jvm=JVM_OF_TOOLS))
    with ClientWatch(process.pid) as watch:
        printed = load.printed_by(process)
    return printed, watch.numbers()


def produce(
    bootstrap: str, topic: str, records: int, size: int, *settings: str, warm_up_records: int
) -> dict[str, Any]:
    """Send ``records`` behind those of the warm-up, as fast as it can."""
    printed, busy = _run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--record-size", str(size)),
        *("--num-records", str(records + warm_up_records), "--warmup-records", str(warm_up_records)),
        *("--throughput", "-1", "--command-property", *settings),
    )
    return {**read_produced(printed), **busy}


def read_produced(printed: str) -> dict[str, float]:
    """The numbers of the steady state. Raises RuntimeError if there are none."""
    found = _PRODUCED.search(printed)
    if found is None:
        raise RuntimeError(f"kafka-producer-perf-test printed no steady state:\n{printed[-2000:]}")
    return {key: float(value) for key, value in found.groupdict().items()}


def consume(bootstrap: str, topic: str, records: int) -> dict[str, Any]:
    """Read ``records`` from the start as a group of its own."""
    printed, busy = _run(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records)),
        *("--timeout", "60000"),
    )
    lines = [line.split(", ") for line in printed.splitlines() if line.count(",") >= 9]
    if len(lines) < 2:
        raise RuntimeError(f"kafka-consumer-perf-test printed no numbers:\n{printed[-2000:]}")
    found = dict(zip(lines[0], lines[-1], strict=True))
    read = float(found["data.consumed.in.nMsg"])
    if read < records:
        raise RuntimeError(f"kafka-consumer-perf-test read {read:.0f} of {records} records")
    return {"records": read, "seconds": float(found["fetch.time.ms"]) / 1000, **busy}
