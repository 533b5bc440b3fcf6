"""What the options of `nilometer up` mean for a folder that has brokers already."""

from __future__ import annotations

from nilometer.cli.cluster.up_options import UpOptions, endpoint, why_refused
from nilometer.local.broker_process import BrokerProcess

LOCAL = "local:/data/coordination"


def brokers(count: int, state: str = "down", port: int = 9092) -> list[BrokerProcess]:
    return [BrokerProcess(1 + index, "127.0.0.1", port + index, 7, state) for index in range(count)]


def refused(existing: list[BrokerProcess], **given: object) -> str | None:
    return why_refused(existing, LOCAL if existing else None, UpOptions(**given), "data")  # type: ignore[arg-type]


def where(broker_id: int, existing: list[BrokerProcess], **given: object) -> str:
    return str(endpoint(broker_id, existing, UpOptions(**given), "127.0.0.1", 9092))  # type: ignore[arg-type]


def test_fewer_brokers_than_there_are() -> None:
    text = refused(brokers(4), brokers=3)
    assert text is not None and "--brokers 3: the cluster in data has 4 brokers" in text
    assert refused(brokers(4)) is refused(brokers(4), brokers=4) is refused(brokers(4), brokers=5) is None


def test_another_port_or_host_for_brokers_that_run() -> None:
    for options in ({"port": 9192}, {"host": "127.0.0.2"}):
        text = refused(brokers(2, "running"), **options)
        assert text is not None and "broker 1 of data runs on 127.0.0.1:9092" in text
        assert "nilometer down --data-dir data" in text
        assert refused(brokers(2, "fenced"), **options) is not None
        assert refused(brokers(2), **options) is None, "those that do not run are moved"
    assert refused(brokers(2, "running"), port=9092, host="127.0.0.1") is None


def test_another_coordination_store() -> None:
    text = refused(brokers(1), coordination="zookeeper://127.0.0.1:2181")
    assert text is not None and f"the brokers in data have {LOCAL}" in text
    assert refused(brokers(1), coordination=LOCAL) is None
    assert refused([], coordination="zookeeper://127.0.0.1:2181") is None


def test_ports_that_do_not_exist() -> None:
    text = refused([], brokers=3, port=65_534)
    assert text is not None and "port 65536" in text
    assert refused([], brokers=2, port=65_534) is None


def test_endpoints() -> None:
    assert where(2, []) == "PLAINTEXT://127.0.0.1:9093"
    assert where(2, [], host="::1", port=1000) == "PLAINTEXT://[::1]:1001"
    moved = brokers(2, port=15_000)
    assert where(1, moved) == "PLAINTEXT://127.0.0.1:15000"
    assert where(3, moved) == "PLAINTEXT://127.0.0.1:15002", "a new broker is next to the others"
    assert where(2, moved, port=9092) == "PLAINTEXT://127.0.0.1:9093"
    assert where(2, moved, host="localhost") == "PLAINTEXT://localhost:15001"
