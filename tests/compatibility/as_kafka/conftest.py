"""Apache Kafka and Nilometer side by side, each started once for all tests that compare them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import KEEP_OLD_RECORDS, Side
from support.kafka.apache_kafka import ApacheKafka

BOTH = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
    **KEEP_OLD_RECORDS,
}
"""Settings of both brokers."""
AT_ONCE = {"group.consumer.assignor.offload.enable": "false"}
"""Nilometer never assigns behind a request's back."""


@pytest.fixture(scope="package")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    apache = ApacheKafka(tmp_path_factory.mktemp("kafka"), overrides={**BOTH, **AT_ONCE})
    try:
        apache.start()
        side = Side("Apache Kafka", apache.bootstrap)
        yield side
        side.hang_up()
    finally:
        apache.kill()  # its data is not used any more: stopping in order takes seconds


@pytest.fixture(scope="package")
def nilometer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with NilometerBroker(tmp_path_factory.mktemp("beside-kafka") / "data", BOTH) as broker:
        side = Side("Nilometer", broker.bootstrap)
        yield side
        side.hang_up()
    assert "Traceback" not in broker.output


@pytest.fixture
def sides(kafka: Side, nilometer: Side) -> tuple[Side, Side]:
    return kafka, nilometer
