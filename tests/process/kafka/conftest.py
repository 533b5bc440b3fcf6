"""A cluster of one broker for each file of tests, and a topic for each test."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import nilometer
from nilometer.kafka import Kafka
from nilometer.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = re.sub("[^a-z0-9]+", "-", request.node.name).strip("-")
    cluster.create_topic(name, partitions=2)
    return name


@pytest.fixture
def kafka(cluster: Cluster) -> Kafka:
    """A connection that the test opens with ``async with``."""
    return nilometer.connect(cluster.bootstrap_servers)
