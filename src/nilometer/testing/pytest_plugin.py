"""The pytest plugin: the fixtures ``nilometer``, ``nilometer_cluster`` and ``nilometer_topic``.

pytest imports this module in every run where Nilometer is installed, so it imports nothing until a fixture is
used. All its names begin with ``nilometer``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nilometer.testing.cluster import Cluster, Settings

BROKERS, SETTINGS, TOPIC = "nilometer_brokers", "nilometer_settings", "nilometer_topic"
SECURE = "nilometer_secure"
TOPIC_NAME_MAX = 200


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(BROKERS, "The number of brokers of the fixture nilometer, 1 by default.", default="1")
    parser.addini(
        SECURE, "Whether the fixture nilometer has TLS, SCRAM and ACLs.", type="bool", default=False
    )
    parser.addini(SETTINGS, "Broker settings of the fixture nilometer: KEY=VALUE lines.", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{TOPIC}(partitions=1, replication_factor=None, configs=None): how the fixture {TOPIC} creates "
        "the test's topic.",
    )


@pytest.fixture(scope="session")
def nilometer(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A cluster for the whole session; with pytest-xdist one for each worker."""
    from nilometer.testing.cluster import Cluster

    try:
        cluster = Cluster(
            int(pytestconfig.getini(BROKERS)),
            settings=_settings(pytestconfig),
            secure=bool(pytestconfig.getini(SECURE)),
        )
    except ValueError as error:
        raise pytest.UsageError(f"{BROKERS}, {SETTINGS}: {error}") from None
    with cluster:
        yield cluster


@pytest.fixture
def nilometer_cluster() -> Iterator[Callable[..., Cluster]]:
    """A function that starts a cluster of the test's own: its brokers may be killed.

    Its parameters are those of ``nilometer.testing.Cluster``. All its clusters end with the test.
    """
    from nilometer.testing.cluster import Cluster

    with ExitStack() as clusters:

        def start(
            brokers: int = 1, *, settings: Settings | None = None, secure: bool = False, faults: bool = False
        ) -> Cluster:
            return clusters.enter_context(Cluster(brokers, settings=settings, secure=secure, faults=faults))

        yield start


@pytest.fixture
def nilometer_topic(nilometer: Cluster, request: pytest.FixtureRequest) -> str:
    """The name of a new topic of the cluster ``nilometer``, for this test only.

    The marker ``nilometer_topic`` has the parameters of ``Cluster.create_topic``, without the name.
    """
    node: pytest.Item = request.node
    marker = node.get_closest_marker(TOPIC)
    options: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", node.name)[:TOPIC_NAME_MAX]
    name = f"{readable}-{uuid.uuid4().hex[:8]}"
    nilometer.create_topic(name, **options)
    return name


def _settings(config: pytest.Config) -> dict[str, str]:
    """Return the settings of the ini file. Raises ValueError for a line without ``=``."""
    settings: dict[str, str] = {}
    for line in config.getini(SETTINGS):
        key, separator, value = line.partition("=")
        if not separator:
            raise ValueError(f"{line!r} is not of the form KEY=VALUE")
        settings[key.strip()] = value.strip()
    return settings
