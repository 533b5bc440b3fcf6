"""Three brokers with a topic and a group, their exporter, and a Prometheus that scrapes them all.

Also the queries of the dashboard in docs/grafana/.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka

from ..brokers.nilometer_cluster import NilometerCluster
from ..documentation.code_blocks import DOCS
from ..ports import HOST, free_ports
from .exporter_process import exporter
from .prometheus_server import PrometheusServer

DASHBOARD = DOCS / "grafana" / "nilometer.json"
TOPIC, GROUP, PARTITIONS = "orders", "billing", 6
VARIABLES = {"$job": ".*", "$__rate_interval": "30s"}
WAIT_S = 120.0


def queries() -> dict[str, str]:
    """Return the queries by panel and reference, with the variables replaced."""
    found: dict[str, str] = {}
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, text in VARIABLES.items():
                expression = expression.replace(name, text)
            found[f"{panel['title']} {target['refId']}"] = expression
    assert len(found) > 20
    return found


@dataclass(frozen=True, slots=True)
class Observed:
    cluster: NilometerCluster
    prometheus: PrometheusServer
    ports: list[int]
    exporter_port: int

    def values(self, expression: str) -> list[float]:
        found: list[dict[str, Any]] = self.prometheus.query(expression)
        return [float(one["value"][1]) for one in found]

    def has_values(self, expression: str) -> bool:
        return any(not math.isnan(value) for value in self.values(expression))

    def produce(self) -> None:
        """Write records with an acknowledgement to all partitions."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.cluster.bootstrap})
        for number in range(60):
            producer.produce(TOPIC, b"x" * 100, partition=number % PARTITIONS)
        assert producer.flush(WAIT_S) == 0

    def consume(self) -> None:
        """Consume some of the records in a group, and commit."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([TOPIC])
        assert len(consumer.consume(10, WAIT_S)) == 10
        consumer.commit(asynchronous=False)
        consumer.close()


@contextmanager
def observed_cluster(folder: Path) -> Iterator[Observed]:
    """Start all of them, write records to the topic, and commit offsets of the group."""
    ports = free_ports(3)
    own = {number: {"metrics.listener": f"{HOST}:{port}"} for number, port in enumerate(ports, start=1)}
    with (
        NilometerCluster(folder / "cluster", own_overrides=own) as cluster,
        exporter("--bootstrap-server", cluster.bootstrap) as exporter_port,
        PrometheusServer(
            folder / "prometheus", {"nilometer": ports, "nilometer-exporter": [exporter_port]}
        ) as server,
    ):
        cluster.create_topic(TOPIC, PARTITIONS)
        found = Observed(cluster, server, ports, exporter_port)
        found.produce()
        found.consume()
        yield found
