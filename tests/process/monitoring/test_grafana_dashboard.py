"""The dashboard of docs/grafana/ in front of a real Prometheus, while a broker of three is killed.

Every query of the dashboard is run: one with a misspelt metric finds nothing, and fails the test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.eventually import eventually
from support.metrics.observed_cluster import TOPIC, WAIT_S, Observed, observed_cluster, queries
from support.metrics.prometheus_server import findings_of_promtool, is_installed
from support.metrics.scrape import Scrape

pytestmark = pytest.mark.skipif(not is_installed(), reason="Debian's package prometheus is not installed")


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    with observed_cluster(tmp_path_factory.mktemp("observed")) as found:
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
