"""Apache Kafka's transactional producer uses the protocol of the finalized ``transaction.version``.

With version 2 every end of a transaction bumps the producer's epoch (KIP-890): that shows which protocol the
producer uses. The levels are kept: the broker is killed and started again between lowering and looking.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.eventually import eventually
from support.kafka.java_driver import JavaDriver, decoded, encoded
from support.wire.wire_peer import WirePeer, make

pytestmark = pytest.mark.java

PARTITIONS = 2
WAIT_S = 60.0
UPGRADE, SAFE_DOWNGRADE = 1, 2
SETTINGS = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}


@pytest.fixture(scope="module")
def transactions_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    with NilometerBroker(tmp_path_factory.mktemp("java-transactions") / "data", SETTINGS) as running:
        yield running
        assert "Traceback" not in running.output


def set_level(broker: NilometerBroker, level: int) -> None:
    with WirePeer(broker.bootstrap) as peer:
        for kind in (SAFE_DOWNGRADE, UPGRADE):  # to level 0 first, whatever it is now
            update = make(
                ApiKey.UPDATE_FEATURES,
                2,
                "FeatureUpdateKey",
                feature="transaction.version",
                max_version_level=0 if kind == SAFE_DOWNGRADE else level,
                upgrade_type=kind,
            )
            answer = peer.ask(ApiKey.UPDATE_FEATURES, 2, feature_updates=(update,), timeout_ms=10_000)
            assert answer.error_code is ErrorCode.none, answer


def epoch_of(broker: NilometerBroker, transactional_id: str) -> int:
    """Once no transaction is being ended."""
    epochs: list[int] = []

    def is_complete() -> bool:
        with WirePeer(broker.bootstrap) as peer:
            answer = peer.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=(transactional_id,))
        [state] = answer.transaction_states
        epochs[:] = [state.producer_epoch]
        return state.transaction_state.startswith("Complete")

    eventually(is_complete, f"the transactions of {transactional_id} are complete", WAIT_S)
    return epochs[0]


def committed_offset(broker: NilometerBroker, group: str, topic: str) -> int:
    offsets: list[int] = []

    def is_stable() -> bool:
        with WirePeer(broker.bootstrap) as peer:
            asked = make(
                ApiKey.OFFSET_FETCH, 8, "OffsetFetchRequestTopics", name=topic, partition_indexes=(0,)
            )
            wanted = make(ApiKey.OFFSET_FETCH, 8, "OffsetFetchRequestGroup", group_id=group, topics=(asked,))
            answer = peer.ask(ApiKey.OFFSET_FETCH, 8, groups=(wanted,), require_stable=True)
        [found] = answer.groups[0].topics[0].partitions
        offsets[:] = [found.committed_offset]
        return found.error_code is ErrorCode.none

    eventually(is_stable, f"the offsets of {group} are decided", WAIT_S)
    return offsets[0]


@pytest.mark.parametrize(("level", "epoch"), [(0, 0), (1, 0), (2, 4)])
def test_p_5_a_java_producer_uses_the_protocol_of_the_finalized_transaction_version(
    transactions_broker: NilometerBroker, java: JavaDriver, level: int, epoch: int
) -> None:
    broker, topic, name = transactions_broker, f"level-{level}", f"producer-{level}"
    set_level(broker, level)
    broker.kill()
    broker.start()
    bootstrap = {"bootstrap.servers": broker.bootstrap}
    java.run(
        "create_topics",
        config=bootstrap,
        topics=[{"name": topic, "partitions": PARTITIONS, "replication": 1}],
    )
    ends = ("commit", "abort", "commit", "abort")
    java.run(
        "transact",
        config={**bootstrap, "transactional.id": name},
        topic=topic,
        partitions=PARTITIONS,
        transactions=[
            {"value": encoded(b"%d" % index), "end": end, "group": f"group-{level}", "offset": 10 + index}
            for index, end in enumerate(ends)
        ],
    )
    assert epoch_of(broker, name) == epoch
    read = java.run("consume", config={**bootstrap, "isolation.level": "read_committed"}, topic=topic)
    values = sorted((record["partition"], decoded(record["value"])) for record in read)
    assert values == [(partition, value) for partition in range(PARTITIONS) for value in (b"0", b"2")]
    assert committed_offset(broker, f"group-{level}", topic) == 12
