"""Transactional producers and ``read_committed`` consumers of Kafka and librdkafka while brokers are killed.

What they did is kept as a history, and judged: exactly once. Each run follows from a seed:

    NILOMETER_CHAOS_SEED=17 NILOMETER_CHAOS_KILLS=100 pytest tests/process/chaos -m soak -k exactly_once
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.chaos.run import seed_from_environment
from support.kafka.java_driver import JavaDriver
from support.transactions.committed_history import CommittedHistory
from support.transactions.families import Family, JavaFamily, LibrdkafkaFamily
from support.transactions.run import TransactionalRun

pytestmark = pytest.mark.java

KILLS = int(os.environ.get("NILOMETER_CHAOS_KILLS", "50"))
SEED = seed_from_environment(1)
WRITERS = 2


@pytest.fixture(scope="module")
def java() -> Iterator[JavaDriver]:
    with JavaDriver() as driver:
        yield driver


@pytest.mark.long
def test_exactly_once_while_brokers_are_killed(java: JavaDriver, tmp_path: Path) -> None:
    """Both families at once."""

    def families(bootstrap: str, run: CommittedHistory, chance: random.Random) -> list[Family]:
        return [
            JavaFamily(java, bootstrap, 1, run, chance),
            LibrdkafkaFamily(bootstrap, 1, run, chance),
        ]

    with TransactionalRun("exactly_once_while_brokers_are_killed", tmp_path, SEED, families) as run:
        run.play(kills=3)


@pytest.mark.soak
@pytest.mark.parametrize("family", ["java", "librdkafka"])
def test_exactly_once_soak(java: JavaDriver, family: str, tmp_path: Path) -> None:
    def families(bootstrap: str, run: CommittedHistory, chance: random.Random) -> list[Family]:
        if family == "java":
            return [JavaFamily(java, bootstrap, WRITERS, run, chance)]
        return [LibrdkafkaFamily(bootstrap, WRITERS, run, chance)]

    with TransactionalRun("exactly_once_soak", tmp_path, SEED, families) as run:
        run.play(KILLS)
