"""The dashboard of docs/grafana/ in front of a real Prometheus, while a broker of three is killed.

Every query of the dashboard is run: one with a misspelt metric finds nothing, and fails the test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import pytest

from support.brokers.nilometer_cluster import NilometerCluster
from support.documentation.code_blocks import DOCS
from support.eventually import eventually
from support.metrics.exporter_process import exporter
from support.metrics.prometheus_server import PrometheusServer, findings_of_promtool, is_installed
from support.metrics.scrape import Scrape
from support.ports import HOST, free_ports

pytestmark = pytest.mark.skipif(not is_installed(), reason="Debian's package prometheus is not installed")

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


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    folder, ports = tmp_path_factory.mktemp("observed"), free_ports(3)
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


def test_promtool_finds_nothing_wrong(observed: Observed) -> None:
    for port in (*observed.ports, observed.exporter_port):
        assert findings_of_promtool(Scrape(port).text) == ""


def test_each_query_of_the_dashboard_finds_values(observed: Observed) -> None:
    # " > 0" ends the query of a panel that is empty while all is well.
    pending = {name: expression.removesuffix(" > 0") for name, expression in queries().items()}

    def all_found() -> bool:
        observed.produce()  # a quantile of a rate needs requests between two scrapes
        for name in [name for name, expression in pending.items() if observed.has_values(expression)]:
            del pending[name]
        return not pending

    try:
        eventually(all_found, "each query has values", WAIT_S)
    except AssertionError:
        raise AssertionError(f"these queries have no values: {pending}") from None


def test_the_dashboard_shows_the_death_of_a_broker(observed: Observed) -> None:
    named, values = queries(), observed.values

    def shows(panel: str, value: float) -> None:
        eventually(lambda: values(named[panel]) == [value], f"{panel} is {value}", WAIT_S)

    def shows_some(panel: str) -> None:
        eventually(lambda: max(values(named[panel]), default=0) > 0, f"{panel} is not 0", WAIT_S)

    shows("Brokers up A", 3)
    shows("Under-replicated partitions A", 0)
    victim = observed.cluster.leader_of(TOPIC)
    assert victim is not None
    observed.cluster.kill(victim)
    shows("Brokers up A", 2)
    all_partitions = "max(kafka_controller_kafkacontroller_globalpartitioncount)"
    led = f'sum(kafka_server_replicamanager_leadercount{{instance!~".*:{observed.ports[victim - 1]}"}})'
    eventually(lambda: values(f"{led} == {all_partitions}") != [], "the others lead all partitions", WAIT_S)
    under = named["Under-replicated partitions A"]
    eventually(lambda: values(under) == values(all_partitions), "each has lost a replica", WAIT_S)
    shows("Active controllers A", 1)
    shows("Offline partitions A", 0)
    shows_some("Changes of the ISR A")
    shows_some("Elections A")
    observed.produce()
    lag = f'nilometer_follower_lag_records{{follower="{victim}"}}'
    eventually(lambda: max(values(lag), default=0) > 0, "the dead broker falls behind", WAIT_S)
