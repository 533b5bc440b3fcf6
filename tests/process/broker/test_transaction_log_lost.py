"""A transaction log of one replica whose broker dies, or whose folder is removed: what clients get, and when.

What the broker coordinates waits until it is back; what another one coordinates goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from nilometer.client.admin.admin import Admin
from nilometer.client.admin.transaction_admin import TransactionAdmin
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.applications.committed_reader import CommittedReader, committed_records
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.transactions.clients import SURVIVING
from support.wire.wire_peer import WirePeer, make

TOPIC, LOG = "records", "__transaction_state"
WAIT_S = 60.0
TRANSACTIONS = 1
SETTINGS = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "min.insync.replicas": "1",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NilometerCluster]:
    with NilometerCluster(tmp_path, 2, SETTINGS) as running:
        running.create_topic(TOPIC, replication_factor=2)
        yield running
        assert "Traceback" not in running.output()


def find(cluster: NilometerCluster, broker_id: int, transactional_id: str) -> tuple[ErrorCode, int]:
    """Ask one broker for the coordinator: the error and the coordinator's id."""
    with WirePeer(cluster.brokers[broker_id].bootstrap) as peer:
        answer = peer.ask(
            ApiKey.FIND_COORDINATOR, 4, key_type=TRANSACTIONS, coordinator_keys=(transactional_id,)
        )
    [found] = answer.coordinators
    return found.error_code, found.node_id


def id_coordinated_by(cluster: NilometerCluster, broker_id: int) -> str:
    names = [f"id-{number}" for number in range(20)]
    found: list[str] = []

    def is_known() -> bool:
        found[:] = [name for name in names if find(cluster, broker_id, name) == (ErrorCode.none, broker_id)]
        return bool(found)

    eventually(is_known, f"broker {broker_id} coordinates", WAIT_S)
    return found[0]


def producer(cluster: NilometerCluster, transactional_id: str) -> Producer:
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": 600_000,  # a broker may take long to start on a busy machine
    }
    made = Producer({**SURVIVING, **settings})
    made.init_transactions(WAIT_S)
    return made


def produce(made: Producer, value: bytes) -> None:
    made.produce(TOPIC, value, partition=0)
    assert made.flush(WAIT_S) == 0


def errors_of_all_requests(
    cluster: NilometerCluster, broker_id: int, transactional_id: str
) -> dict[str, ErrorCode]:
    """What a broker answers to each request of a transactional client."""
    producer_id = {"producer_id": 1, "producer_epoch": 0}
    topics = (make(ApiKey.ADD_PARTITIONS_TO_TXN, 3, "AddPartitionsToTxnTopic", name=TOPIC, partitions=(0,)),)
    with WirePeer(cluster.brokers[broker_id].bootstrap) as peer:
        init = peer.ask(
            ApiKey.INIT_PRODUCER_ID, 4, transactional_id=transactional_id, transaction_timeout_ms=60_000
        )
        added = peer.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        )
        offsets = peer.ask(
            ApiKey.ADD_OFFSETS_TO_TXN, 3, transactional_id=transactional_id, group_id="g", **producer_id
        )
        end = peer.ask(ApiKey.END_TXN, 3, transactional_id=transactional_id, committed=True, **producer_id)
        described = peer.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=(transactional_id,))
    return {
        "InitProducerId": init.error_code,
        "AddPartitionsToTxn": added.results_by_topic_v3_and_below[0]
        .results_by_partition[0]
        .partition_error_code,
        "AddOffsetsToTxn": offsets.error_code,
        "EndTxn": end.error_code,
        "DescribeTransactions": described.transaction_states[0].error_code,
    }


def test_transactions_of_a_broker_that_is_away_wait_for_it_and_others_go_on(
    cluster: NilometerCluster,
) -> None:
    lost, kept = id_coordinated_by(cluster, 1), id_coordinated_by(cluster, 2)
    waiting, going_on = producer(cluster, lost), producer(cluster, kept)
    waiting.begin_transaction()
    produce(waiting, b"waits")
    cluster.wait_full_isr(TOPIC)

    cluster.kill(1)
    eventually(
        lambda: find(cluster, 2, lost) == (ErrorCode.coordinator_not_available, -1),
        "the log of the broker has no leader",
        WAIT_S,
    )
    answers = errors_of_all_requests(cluster, 2, lost)
    assert answers == dict.fromkeys(answers, ErrorCode.not_coordinator)
    going_on.begin_transaction()
    produce(going_on, b"goes on")
    going_on.commit_transaction(WAIT_S)
    with CommittedReader(cluster.bootstrap, TOPIC) as reader:
        eventually(lambda: not reader.look() and reader.was_at_ends(), "the open one holds it back", WAIT_S)

    cluster.start(1)
    waiting.commit_transaction(WAIT_S)

    def is_all_there() -> bool:
        return [one.value() for one in committed_records(cluster.bootstrap, TOPIC)] == [b"waits", b"goes on"]

    eventually(is_all_there, "both are committed", WAIT_S)


async def end_hanging(admin: Admin) -> int:
    """Abort the transactions that no coordinator knows; return how many there were."""
    transactions = TransactionAdmin(admin.client, int(WAIT_S * 1000))
    found, problems = await transactions.find_hanging([TopicPartition(TOPIC, 0)], older_than_ms=0)
    assert not problems
    for each in found:
        await transactions.abort(each.partition, each.producer)
    return len(found)


def test_with_a_removed_transaction_log_only_its_transactions_are_lost(cluster: NilometerCluster) -> None:
    """The open one of them hangs, and can be found and aborted."""
    lost, kept = id_coordinated_by(cluster, 1), id_coordinated_by(cluster, 2)
    waiting, going_on = producer(cluster, lost), producer(cluster, kept)
    waiting.begin_transaction()
    produce(waiting, b"open")
    going_on.begin_transaction()
    produce(going_on, b"goes on")
    cluster.wait_full_isr(TOPIC)
    cluster.kill(1)
    for folder in cluster.brokers[1].data_dir.glob(f"{LOG}-*"):
        shutil.rmtree(folder)
    cluster.start(1)

    with pytest.raises(KafkaException):
        waiting.commit_transaction(WAIT_S)
    going_on.commit_transaction(WAIT_S)
    again = producer(cluster, lost)
    again.begin_transaction()
    produce(again, b"again")
    again.commit_transaction(WAIT_S)
    eventually(lambda: cluster.operate(end_hanging) >= 1, "the lost transaction is found", WAIT_S)

    def is_all_there() -> bool:
        return [one.value() for one in committed_records(cluster.bootstrap, TOPIC)] == [b"goes on", b"again"]

    eventually(is_all_there, "what is committed is there, and nothing else", WAIT_S)
