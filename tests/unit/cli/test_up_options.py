"""What the options of `nilometer up` mean for a folder that has brokers already."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from nilometer.cli.brokers import (
    UpOptions,
    endpoint,
    ids,
    metrics_listener,
    settings_of_start,
    settings_of_topics,
    why_refused,
)
from nilometer.cli.cluster_options import DEFAULT_DATA_DIR, data_dir_option, in_full
from nilometer.local.local_cluster import BrokerProcess

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


def test_brokers_that_were_created_without_security() -> None:
    text = refused(brokers(1), secure=True)
    assert text is not None and "--secure: the brokers in data were created without it" in text
    assert refused([], secure=True) is None
    given = UpOptions(secure=True)
    assert why_refused(brokers(1), LOCAL, given, "data", is_secure=True) is None


def test_ports_that_do_not_exist() -> None:
    text = refused([], brokers=3, port=65_534)
    assert text is not None and "port 65536" in text
    assert refused([], brokers=2, port=65_534) is None


def test_endpoints() -> None:
    assert str(endpoint(2, [], UpOptions(), "h", 1, "SASL_SSL")) == "SASL_SSL://h:2"
    assert where(2, []) == "PLAINTEXT://127.0.0.1:9093"
    assert where(2, [], host="::1", port=1000) == "PLAINTEXT://[::1]:1001"
    moved = brokers(2, port=15_000)
    assert where(1, moved) == "PLAINTEXT://127.0.0.1:15000"
    assert where(3, moved) == "PLAINTEXT://127.0.0.1:15002", "a new broker is next to the others"
    assert where(2, moved, port=9092) == "PLAINTEXT://127.0.0.1:9093"
    assert where(2, moved, host="localhost") == "PLAINTEXT://localhost:15001"


def test_metrics_ports() -> None:
    given = UpOptions(metrics_port=9404)
    assert settings_of_start(3, brokers(3), given, "", 1) == {"metrics.listener": "127.0.0.1:9406"}
    chosen = UpOptions(port=1000, metrics_port=0)
    assert settings_of_start(2, [], chosen, "127.0.0.1", 1) == {
        "listeners": "PLAINTEXT://127.0.0.1:1001",
        "metrics.listener": "127.0.0.1:0",
    }
    assert settings_of_start(2, brokers(2), UpOptions(), "", 1) == {}
    text = refused([], brokers=3, metrics_port=65_534)
    assert text is not None and "would be 65536" in text
    assert refused([], brokers=2, metrics_port=65_534) is None


def test_the_metrics_of_a_broker_that_runs_do_not_move() -> None:
    (one,) = brokers(1, "running")
    served = replace(one, metrics="http://127.0.0.1:9404/metrics")
    assert (
        refused([served], metrics_port=9404) is refused([served]) is refused([served], metrics_port=0) is None
    )
    for other in (one, replace(one, metrics="http://127.0.0.1:41234/metrics")):
        text = refused([other], metrics_port=9404)
        assert text is not None and "cannot move its metrics to http://127.0.0.1:9404/metrics" in text
        assert "nilometer down --data-dir data" in text
        assert refused([replace(other, state="down")], metrics_port=9404) is None


def test_ids_of_a_machine_among_others() -> None:
    given = UpOptions(brokers=2, first_id=11)
    assert list(ids([], given)) == [11, 12]
    assert where(12, [], brokers=2, first_id=11) == "PLAINTEXT://127.0.0.1:9093"
    existing = [BrokerProcess(11 + index, "127.0.0.1", 9500 + index, 7, "down") for index in range(2)]
    assert list(ids(existing, UpOptions(brokers=3))) == [11, 12, 13]
    assert where(13, existing, brokers=3) == "PLAINTEXT://127.0.0.1:9502"
    assert metrics_listener(1, 9404) == "127.0.0.1:9405"
    assert settings_of_start(12, existing, UpOptions(metrics_port=9404), "", 1) == {
        "metrics.listener": "127.0.0.1:9405"
    }
    text = refused(existing, first_id=1)
    assert text is not None and "--first-id 1: the brokers in data have ids from 11" in text
    assert refused(existing, first_id=11) is None


def test_a_rack_means_brokers_on_other_machines() -> None:
    alone, among_others = UpOptions(brokers=2), UpOptions(brokers=2, rack="east")
    assert settings_of_topics(alone, 2)["default.replication.factor"] == "2"
    assert settings_of_topics(among_others, 2)["default.replication.factor"] == "3"
    assert settings_of_start(1, brokers(1), among_others, "", 1) == {"broker.rack": "east"}


def test_a_folder_is_named_with_the_place_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    default = Path(DEFAULT_DATA_DIR)
    assert (in_full(default), data_dir_option(default)) == (f".nilometer/data of {tmp_path}", "")
    other = tmp_path / "my data"
    assert (in_full(other), data_dir_option(other)) == (str(other), f" --data-dir '{other}'")
