"""What is played for the evidence: the long campaigns of ``tests/process/chaos``, each a run of pytest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KILLS_PER_MINUTE = 18
"""About as many as fit."""


@dataclass(frozen=True, slots=True)
class Campaign:
    name: str
    title: str
    clients: str
    test: str
    """The test's id, as pytest has it."""
    counts_kills: bool = False
    """Whether the test is told how often to kill, rather than how long to go on."""

    def environment(self, seed: int, minutes: float) -> Mapping[str, str]:
        told = {"NILOMETER_CHAOS_SEED": str(seed)}
        if self.counts_kills:
            return {**told, "NILOMETER_CHAOS_KILLS": str(max(3, round(minutes * KILLS_PER_MINUTE)))}
        away = {"NILOMETER_CHAOS_AWAY_MINUTES": f"{minutes / 5:.2f}"}
        return {**told, "NILOMETER_CHAOS_MINUTES": f"{minutes:.2f}", **away}


_SOAK = "tests/process/chaos/test_chaos_soak.py::test_soak[{}]"
_ONCE = "tests/process/chaos/test_chaos_transactions.py::test_exactly_once_soak[{}]"
_CLIENTS = "librdkafka, the client for Python"
CAMPAIGNS = (
    Campaign("folder", "metadata in a folder that all brokers share", _CLIENTS, _SOAK.format("local")),
    Campaign("zookeeper", "metadata at three ZooKeeper servers", _CLIENTS, _SOAK.format("zookeeper")),
    Campaign("quorum", "metadata in the brokers' own quorum", _CLIENTS, _SOAK.format("quorum")),
    Campaign(
        "tiered",
        "a tiered topic, of which the disks keep seconds",
        _CLIENTS,
        "tests/process/chaos/test_chaos_soak.py::test_tiered_topics",
    ),
    Campaign("transactions-java", "exactly once", "Java", _ONCE.format("java"), counts_kills=True),
    Campaign(
        "transactions-librdkafka", "exactly once", "librdkafka", _ONCE.format("librdkafka"), counts_kills=True
    ),
)
BY_NAME = {one.name: one for one in CAMPAIGNS}
