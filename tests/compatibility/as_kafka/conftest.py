"""Apache Kafka and Nilometer side by side, each started once for all tests that compare them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.recordings import LIVE, RECORDED, Kafka, Recordings
from support.brokers.two_brokers import KEEP_OLD_RECORDS, Side
from support.kafka.apache_kafka import ApacheKafka

BOTH = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
    "group.share.assignment.interval.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "500",
    **KEEP_OLD_RECORDS,
}
"""Settings of both brokers."""
AT_ONCE = {
    "group.consumer.assignor.offload.enable": "false",
    "group.share.assignor.offload.enable": "false",
    "group.streams.assignor.offload.enable": "false",
}
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


@contextmanager
def beside_kafka(folder: Path) -> Iterator[Side]:
    with NilometerBroker(folder / "data", BOTH) as broker:
        side = Side("Nilometer", broker.bootstrap)
        yield side
        side.hang_up()
    assert "Traceback" not in broker.output


@pytest.fixture(scope="package")
def nilometer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with beside_kafka(tmp_path_factory.mktemp("beside-kafka")) as side:
        yield side


@pytest.fixture(scope="package")
def beside_recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    """Another broker, for a test may have run on the first."""
    with beside_kafka(tmp_path_factory.mktemp("beside-recording")) as side:
        yield side


@pytest.fixture(scope="package")
def recordings(request: pytest.FixtureRequest) -> Iterator[Recordings]:
    recordings = Recordings(Path(__file__).parent / "recorded")
    yield recordings
    if request.config.option.record:
        recordings.write()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests marked ``recorded`` compare with what Apache Kafka answered once, and with Apache Kafka."""
    if "sides" in metafunc.fixturenames and metafunc.definition.get_closest_marker("recorded"):
        ways = (pytest.param(RECORDED, marks=pytest.mark.quick), pytest.param(LIVE, marks=pytest.mark.java))
        metafunc.parametrize("sides", ways, indirect=True)


@pytest.fixture
def sides(request: pytest.FixtureRequest) -> Iterator[tuple[Side | Kafka, Side]]:
    way = getattr(request, "param", None)
    if way is None:
        yield request.getfixturevalue("kafka"), request.getfixturevalue("nilometer")
        return
    recordings: Recordings = request.getfixturevalue("recordings")
    if way == RECORDED:
        yield Kafka(None, recordings.of(request)), request.getfixturevalue("beside_recording")
        return
    kafka = Kafka(request.getfixturevalue("kafka"), recordings.of(request))
    yield kafka, request.getfixturevalue("nilometer")
    if request.config.option.record:
        recordings.keep(request, kafka)
    else:
        kafka.check()
