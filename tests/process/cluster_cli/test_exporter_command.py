"""`nilometer exporter` beside a cluster: the lag of groups, also while a broker is dead."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka

from nilometer.client.admin.admin import Admin
from nilometer.client.admin.group_admin import GroupAdmin
from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.metrics.exporter_process import exporter
from support.metrics.scrape import Scrape, page

TOPIC = "orders"


def produce(cluster: NilometerCluster, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(count):
        producer.produce(TOPIC, str(number), partition=number % 2)
    assert producer.flush(60) == 0


def commit(cluster: NilometerCluster, group: str, first: int, second: int) -> None:
    async def work(admin: Admin) -> None:
        offsets = {
            TopicPartition(TOPIC, index): OffsetAndMetadata(at) for index, at in enumerate((first, second))
        }
        await GroupAdmin(admin.client, admin.timeout_ms).alter_offsets(group, offsets)

    cluster.operate(work)


def test_the_lag_of_groups_is_known_also_after_a_broker_has_died(tmp_path: Path) -> None:
    with NilometerCluster(tmp_path, overrides={"offsets.topic.num.partitions": "3"}) as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        produce(cluster, 20)
        commit(cluster, "slow", 1, 4)
        commit(cluster, "hidden", 0, 0)
        with exporter("--bootstrap-server", cluster.bootstrap, "--groups", "s.*") as port:
            found = Scrape(port)
            assert found("kafka_consumergroup_lag", consumergroup="slow", topic=TOPIC, partition="0") == 9
            assert found("kafka_consumergroup_lag_sum", consumergroup="slow", topic=TOPIC) == 15
            assert not found.has("kafka_consumergroup_lag_sum", consumergroup="hidden", topic=TOPIC)
            assert found("kafka_brokers") == 3
            leader = cluster.leader_of(TOPIC)
            assert leader is not None
            cluster.kill(leader)
            cluster.wait_leader(TOPIC, 0, other_than=leader)

            def knows_lag() -> bool:
                if page(port, "/metrics").status != 200:
                    return False
                now = Scrape(port)
                return now("kafka_brokers") == 2 and now.sum("kafka_consumergroup_lag_sum") == 15

            eventually(knows_lag, "the lag is known from the other brokers", 60)
        with exporter("--bootstrap-server", "127.0.0.1:1") as port:
            assert page(port, "/metrics").status == 503
            assert page(port, "/healthz").status == 200
