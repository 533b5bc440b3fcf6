"""`metrics.listener` of a running broker: its numbers are those of what was done, and its health is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Side
from support.brokers.values import produce, side_of, values
from support.eventually import eventually
from support.metrics.scrape import Scrape, page
from support.ports import HOST, free_ports
from support.wire.wire_peer import ConnectionEnded, make

TRAFFIC = "kafka_server_brokertopicmetrics_"
REQUESTS = "kafka_network_requestmetrics_"


class Observed:
    """A broker with an endpoint for metrics."""

    def __init__(self, broker: NilometerBroker, port: int) -> None:
        self.broker = broker
        self.port = port

    def scrape(self) -> Scrape:
        return Scrape(self.port)


@pytest.fixture
def observed(tmp_path: Path) -> Iterator[Observed]:
    (port,) = free_ports(1)
    settings = {"metrics.listener": f"{HOST}:{port}", "metrics.per.partition.enable": "true"}
    with NilometerBroker(tmp_path / "data", settings) as broker:
        yield Observed(broker, port)


def delete(side: Side, name: str) -> None:
    state = make(ApiKey.DELETE_TOPICS, 6, "DeleteTopicState", name=name)
    assert (
        side.message(ApiKey.DELETE_TOPICS, 6, topics=(state,), timeout_ms=10_000).responses[0].error_code == 0
    )


def test_traffic_and_logs_are_those_of_the_topics(observed: Observed) -> None:
    side = side_of(observed.broker)
    side.create("a", 2)
    side.create("b")
    for topic, partition, count in (("a", 0, 3), ("a", 1, 2), ("b", 0, 1)):
        assert produce(side, topic, *([b"x" * 100] * count), partition=partition) == ErrorCode.none
    assert len(values(side, "a")) == 3
    found = observed.scrape()
    assert found(f"{TRAFFIC}messagesin_total", topic="a") == 5
    assert found(f"{TRAFFIC}messagesin_total", topic="b") == 1
    assert found(f"{TRAFFIC}messagesin_total", topic="") == 6
    sizes = {name: found.sum("kafka_log_log_size", topic=name) for name in ("a", "b")}
    for name, size in sizes.items():
        assert (
            found(f"{TRAFFIC}bytesin_total", topic=name)
            == found("nilometer_log_size_bytes", topic=name)
            == size
            > 0
        )
    assert found(f"{TRAFFIC}bytesin_total", topic="") == sum(sizes.values())
    assert found(f"{TRAFFIC}bytesout_total", topic="a") == found(
        "kafka_log_log_size", topic="a", partition="0"
    )
    assert found(f"{TRAFFIC}bytesout_total", topic="b") == 0
    for partition, end in (("0", 3), ("1", 2)):
        assert found("kafka_log_log_logendoffset", topic="a", partition=partition) == end
        assert found("nilometer_partition_high_watermark", topic="a", partition=partition) == end
        assert found("kafka_cluster_partition_insyncreplicascount", topic="a", partition=partition) == 1
    assert found("kafka_server_replicamanager_partitioncount") == 3
    assert found("kafka_server_replicamanager_leadercount") == 3
    assert found("kafka_server_replicamanager_underreplicatedpartitions") == 0
    side.hang_up()


def test_counts_do_not_decrease_when_a_topic_is_deleted(observed: Observed) -> None:
    side = side_of(observed.broker)
    side.create("goes")
    assert produce(side, "goes", b"1", b"2") == ErrorCode.none
    before = observed.scrape()
    delete(side, "goes")
    after = observed.scrape()
    for name in (f"{TRAFFIC}messagesin_total", f"{TRAFFIC}bytesin_total"):
        assert after(name, topic="") == before(name, topic="") > 0
        assert before.has(name, topic="goes") and not after.has(name, topic="goes")
    assert after("kafka_server_replicamanager_partitioncount") == 0
    side.create("goes")
    assert produce(side, "goes", b"3") == ErrorCode.none
    assert observed.scrape()(f"{TRAFFIC}messagesin_total", topic="goes") == 1, "it is another topic"
    assert observed.scrape()(f"{TRAFFIC}messagesin_total", topic="") == 3
    side.hang_up()


def test_requests_are_counted_and_timed_by_api(observed: Observed) -> None:
    side = side_of(observed.broker)
    side.create("a")
    for _ in range(5):
        assert produce(side, "a", b"x") == ErrorCode.none
    assert produce(side, "nowhere", b"x") != ErrorCode.none
    found = observed.scrape()
    assert found(f"{REQUESTS}requests_total", request="Produce", version="9") == 6
    assert found(f"{REQUESTS}totaltimems_count", request="Produce") == 6
    assert found(f"{REQUESTS}totaltimems", request="Produce", quantile="0.99") > 0
    assert found("nilometer_request_seconds_bucket", request="Produce", le="+Inf") == 6
    assert found("nilometer_requests_in_flight", request="Produce") == 0
    assert found(f"{TRAFFIC}failedproducerequests_total") == 1
    assert found.sum("kafka_server_socket_server_metrics_connection_count") >= 1
    assert found.types["kafka_server_socket_server_metrics_connection_count"] == "unknown"
    side.hang_up()


def test_a_request_whose_connection_is_closed_is_counted_as_failed(observed: Observed) -> None:
    side = side_of(observed.broker)
    side.create("a")
    with pytest.raises(ConnectionEnded):  # acks=0 gets no response: an error closes the connection
        produce(side, "nowhere", b"x", acks=0)
    eventually(
        lambda: observed.scrape().sum("nilometer_requests_failed_total", request="Produce") == 1,
        "the failed request is counted",
    )
    assert observed.scrape().sum("nilometer_requests_in_flight", request="Produce") == 0


def test_health_and_readiness_follow_the_broker(observed: Observed) -> None:
    assert (page(observed.port, "/healthz").status, page(observed.port, "/healthz").text) == (200, "ok\n")
    assert (page(observed.port, "/readyz").status, page(observed.port, "/readyz").text) == (200, "ready\n")
    assert page(observed.port, "/").status == 404
    found = observed.scrape()
    assert found("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert found("kafka_controller_kafkacontroller_activebrokercount") == 1
    assert found("nilometer_broker_registered") == 1
    observed.broker.stop()
    with pytest.raises(OSError):
        page(observed.port, "/healthz")


def test_series_of_partitions_are_off_and_a_used_port_is_named(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with NilometerBroker(tmp_path / "data", {"metrics.listener": str(port)}) as broker:
        side_of(broker).create("a")
        found = Scrape(port)
        assert found.has("nilometer_log_size_bytes", topic="a")
        assert not [
            name for name in found.names if "partition" in name and found.has(name, topic="a", partition="0")
        ]
        other = NilometerBroker(tmp_path / "other", {"metrics.listener": f"{HOST}:{port}"}, node_id=2)
        with pytest.raises(RuntimeError, match=rf"cannot listen on {HOST}:{port}.*metrics.listener="):
            other.start()


def test_flushes_groups_and_elections_are_shown(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = {"metrics.listener": str(port), "offsets.topic.num.partitions": "1"}
    with NilometerBroker(tmp_path / "data", settings) as broker:
        side = side_of(broker)
        side.create("flushed", flush_messages="1")
        assert produce(side, "flushed", b"x") == ErrorCode.none
        found = Scrape(port)
        assert found("nilometer_logs_flushed_total") >= 1
        assert found("kafka_log_logflushstats_logflushrateandtimems_count") >= 1
        assert found("kafka_log_logflushstats_logflushrateandtimems_sum") > 0
        consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        consumer.commit(offsets=[confluent_kafka.TopicPartition("flushed", 0, 1)], asynchronous=False)
        consumer.close()
        assert Scrape(port).sum("nilometer_groups") == 1
        assert Scrape(port)("nilometer_groups", state="Empty") == 1
        side.hang_up()
        broker.kill()
        broker.start()

        def has_elected() -> bool:
            return Scrape(port).sum("nilometer_leader_elections_total") >= 2

        eventually(has_elected, "the restarted broker was elected for both partitions")
        assert Scrape(port)("kafka_controller_controllerstats_leaderelectionrateandtimems_count") >= 1
