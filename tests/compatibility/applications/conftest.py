"""A cluster for each application of this folder, in which brokers are killed.

`__transaction_state` and `__consumer_offsets` have one partition each, so that a test can kill the broker
that coordinates whatever the application does.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.brokers.nilometer_cluster import NilometerCluster

SETTINGS = {
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.min.session.timeout.ms": "10000",
    "group.streams.session.timeout.ms": "10000",
    "group.streams.min.heartbeat.interval.ms": "1000",
    "group.streams.heartbeat.interval.ms": "1000",
    "replica.lag.time.max.ms": "5000",
}


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    with NilometerCluster(tmp_path_factory.mktemp("applications"), overrides=SETTINGS) as running:
        yield running
        assert "Traceback" not in running.output()
