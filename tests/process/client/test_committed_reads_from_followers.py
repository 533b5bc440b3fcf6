"""A reader of committed records that reads from a follower (KIP-392) gets what the leader would give it."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer

from nilometer.wire.api_keys import ApiKey
from support.brokers.nilometer_cluster import NilometerCluster
from support.brokers.record_requests import fetch_fields
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.wire.wire_peer import ConnectionEnded

LEADER, FOLLOWER = 1, 2
TOPIC = "read"
VERSION = 12
COMMITTED = 1
WAIT_S = 60.0


class Writer:
    """A transactional producer; each transaction has one record."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
        self._producer.init_transactions(WAIT_S)

    def begin(self, value: bytes) -> None:
        self._producer.begin_transaction()
        self._producer.produce(TOPIC, value, partition=0)
        assert self._producer.flush(WAIT_S) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)


def fetched(cluster: NilometerCluster, broker: int, offset: int) -> tuple[object, ...]:
    """What a reader of committed records gets from this replica: stable offset, aborted, records."""
    side = Side(str(broker), cluster.brokers[broker].bootstrap)
    fields = fetch_fields(side, VERSION, TOPIC, [(0, offset)], isolation_level=COMMITTED)
    try:
        answer = side.message(ApiKey.FETCH, VERSION, **fields)
    except (ConnectionEnded, OSError):
        return ()
    finally:
        side.hang_up()
    (part,) = answer.responses[0].partitions
    aborted = [(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()]
    return part.error_code.name, part.last_stable_offset, aborted, bytes(part.records or b"")


def test_p_5_a_follower_shows_no_open_and_names_every_aborted_transaction(tmp_path: Path) -> None:
    settings = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.min.isr": "1",
    }
    with NilometerCluster(tmp_path, 2, settings) as cluster:
        cluster.create_topic(TOPIC, assignments={0: (LEADER, FOLLOWER)})
        first, second = (Writer(cluster.bootstrap, name) for name in ("first", "second"))

        def is_shown(stable: int, aborted: int) -> None:
            """Both replicas show the same records, up to ``stable``."""

            answers: list[tuple[object, ...]] = []

            def agree() -> bool:
                answers[:] = [fetched(cluster, broker, 0) for broker in (LEADER, FOLLOWER)]
                return answers[0] == answers[1] and answers[0][:2] == ("none", stable)

            try:
                eventually(agree, f"both replicas show what is below {stable}", WAIT_S)
            except AssertionError as missed:
                raise AssertionError(f"{missed}: {answers}") from None
            listed = fetched(cluster, FOLLOWER, 0)[2]
            assert isinstance(listed, list)
            assert len(listed) == aborted

        first.begin(b"committed")
        first.commit()
        is_shown(2, 0)
        second.begin(b"open")  # at 2
        first.begin(b"aborted")  # at 3
        first.abort()  # at 4
        first.begin(b"behind")  # at 5
        first.commit()  # at 6
        is_shown(2, 0)
        second.commit()  # at 7
        is_shown(8, 1)
        assert fetched(cluster, FOLLOWER, 2) == fetched(cluster, LEADER, 2)

        cluster.kill(FOLLOWER)
        second.begin(b"while it is away")  # at 8
        cluster.start(FOLLOWER)
        is_shown(8, 1)
        second.abort()
        is_shown(10, 2)
