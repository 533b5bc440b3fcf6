"""One broker and one Spark session for all pipeline tests.

`jobs/` has the shipped pipelines and commands, `connectors/` the Spark sources and the sink.
`PIPELINE_AGAINST=host:port pytest tests/pipeline` runs the same tests against a broker that is up already,
such as Apache Kafka: what fails there is a fault of the test or of the source.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.spark.java import require_java
from nilometer.pipeline.spark.spark_session import build_session, connector_settings
from support.brokers.nilometer_broker import NilometerBroker
from support.kafka.apache_kafka import SPARK_JARS, ensure_java
from support.pipeline.filled_topics import Topics
from support.pipeline.spark_streams import stream_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nilometer.pipeline.source.cluster.cluster_source import StreamReader


@pytest.fixture(scope="package")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    other = os.environ.get("PIPELINE_AGAINST")
    if other:
        yield Topics(other)
        return
    overrides = {"group.initial.rebalance.delay.ms": "0"}
    with NilometerBroker(tmp_path_factory.mktemp("pipeline") / "data", overrides) as running:
        yield Topics(running.bootstrap)


@pytest.fixture
def reader(topics: Topics) -> Iterator[Callable[..., StreamReader]]:
    """Each call gives a stream's reader as a query has it that starts: what Spark calls, without Spark."""
    made: list[StreamReader] = []

    def make(topic: str, **more: str) -> StreamReader:
        made.append(stream_reader({"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic, **more}))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture(scope="session")
def connector_jars() -> Path:
    ensure_java()
    return SPARK_JARS


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark with its own Kafka connector, unless only quick tests run: these need no Maven."""
    if all(item.get_closest_marker("quick") for item in request.session.items):
        try:
            require_java()
        except PipelineError as missing:
            pytest.skip(str(missing))
        settings = {}
    else:
        settings = connector_settings(str(request.getfixturevalue("connector_jars")))
    session = build_session(
        "tests",
        master="local[2]",
        quick=True,
        settings=settings,
        log_file=tmp_path_factory.mktemp("spark") / "spark.log",
    )
    yield session
    session.stop()
