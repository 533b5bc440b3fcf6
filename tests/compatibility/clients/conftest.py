"""The broker that all client tests share, and the clients.

`CLIENTS_AGAINST=apache-kafka pytest tests/compatibility/clients` runs the same tests against Apache Kafka:
what fails there is a fault of the test.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest

from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.serving import Serving
from support.kafka.apache_kafka import ApacheKafka
from support.kafka.clients import (
    AiokafkaClient,
    ConfluentClient,
    JavaClient,
    KafkaClient,
    KafkaPythonClient,
    KcatClient,
)
from support.kafka.java_driver import JavaDriver

CLIENT_NAMES = ("confluent-kafka", "aiokafka", "kafka-python", "java", "kcat")


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("clients")
    if os.environ.get("CLIENTS_AGAINST") == "apache-kafka":
        with ApacheKafka(folder) as apache:
            yield Serving(apache.bootstrap, apache.data_dir)
    else:
        with NilometerBroker(folder / "data") as nilometer:
            yield Serving(nilometer.bootstrap, nilometer.data_dir)


@pytest.fixture(scope="package")
def java() -> Iterator[JavaDriver]:
    with JavaDriver() as driver:
        yield driver


@pytest.fixture(scope="package")
def clients(broker: Serving, java: JavaDriver) -> Iterator[dict[str, KafkaClient]]:
    _require_kcat()
    everyone: list[KafkaClient] = [
        ConfluentClient(broker.bootstrap),
        AiokafkaClient(broker.bootstrap),
        KafkaPythonClient(broker.bootstrap),
        JavaClient(broker.bootstrap, java),
        KcatClient(broker.bootstrap),
    ]
    yield {client.name: client for client in everyone}
    for client in everyone:
        client.close()


@pytest.fixture(params=CLIENT_NAMES)
def client(request: pytest.FixtureRequest, clients: dict[str, KafkaClient]) -> KafkaClient:
    return clients[request.param]


@pytest.fixture(scope="package")
def _topic_numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def new_topic(
    broker: Serving, java: JavaDriver, request: pytest.FixtureRequest, _topic_numbers: Iterator[int]
) -> Callable[..., str]:
    """Creates a topic for one test: `new_topic(3, max_message_bytes="10")`; underscores stand for dots."""

    def create(partitions: int = 1, **configs: str) -> str:
        name = f"{request.node.originalname.removeprefix('test_')}-{next(_topic_numbers)}"
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        java.run(
            "create_topics",
            config={"bootstrap.servers": broker.bootstrap},
            topics=[{"name": name, "partitions": partitions, "configs": settings}],
        )
        return name

    return create


def _require_kcat() -> None:
    if shutil.which("kcat"):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-q"], check=False, capture_output=True)
        subprocess.run(["apt-get", "install", "-qy", "kcat"], check=False, capture_output=True)
    if not shutil.which("kcat"):
        raise RuntimeError("kcat is needed for these tests: install it (Debian, Ubuntu: apt install kcat)")
