"""Twelve hostile clients against three brokers, for as long as is asked, while others work.

    NILOMETER_CHAOS_SEED=17 NILOMETER_CHAOS_MINUTES=20 pytest tests/process/chaos/test_hostile_soak.py -m soak

No acknowledged record is lost, no broker loses its session, memory stays within its bound and is given back.
How long a neighbour waits is printed, beside what it waited alone.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_cluster import NilometerCluster
from support.brokers.two_brokers import batch, produce_fields
from support.chaos.hostile import HostileClients
from support.chaos.run import TOPIC, ChaosRun, seed_from_environment
from support.eventually import eventually
from support.wire.new_topics import new_topic
from support.wire.wire_peer import WirePeer, make

MINUTES = float(os.environ.get("NILOMETER_CHAOS_MINUTES", "20"))
SEED = seed_from_environment(1)
HOSTILE = 12
ALONE_S = 20.0
MIB = 1 << 20
PEAK_BYTES_MAX = 400 * MIB
AFTER_BYTES_MAX = 160 * MIB
GIVEN_BACK_S = 60.0
OVERRIDES = {
    "zookeeper.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "10000",
    "metrics.listener": "127.0.0.1:0",
}
"""A broker's own settings, not the impatient ones of runs with faults."""


@pytest.mark.soak
@pytest.mark.timeout(int(MINUTES * 60) + 900)
def test_hostile_clients_stop_and_fill_no_broker(tmp_path: Path) -> None:
    play(tmp_path, SEED, MINUTES)


def play(folder: Path, seed: int, minutes: float) -> None:
    with ChaosRun("hostile", folder, seed, overrides=OVERRIDES) as run:
        create_topics(run.cluster)
        waits_alone = sorted(neighbour(run.cluster, ALONE_S))
        before = [rss_bytes(run.cluster, one) // MIB for one in run.cluster.brokers]
        bootstraps = [broker.bootstrap for broker in run.cluster.brokers.values()]
        with HostileClients(bootstraps, TOPIC, run.partitions, seed, HOSTILE) as hostile:
            waits = list[float]()
            peak = 0
            ends = time.monotonic() + minutes * 60
            while time.monotonic() < ends:
                waits += neighbour(run.cluster, 1.0)
                peak = max(peak, *(rss_bytes(run.cluster, one) for one in run.cluster.brokers))
        print(f"attacks: {dict(sorted(hostile.attacks.items()))}")
        print(f"neighbour alone: {percentiles(waits_alone)}; beside them: {percentiles(sorted(waits))}")
        print(f"resident sets before: {before} MiB, largest: {peak // MIB} MiB")
        assert not hostile.failures, hostile.failures[:5]
        for broker in run.cluster.brokers.values():
            fenced = re.findall(r".*(?:Session \S+ expired|Registered again).*", broker.output)
            assert not fenced, fenced[:5]
        assert peak < PEAK_BYTES_MAX
        for one in run.cluster.brokers:
            eventually(
                lambda one=one: rss_bytes(run.cluster, one) < AFTER_BYTES_MAX,
                f"broker {one} gives memory back",
                GIVEN_BACK_S,
            )


def create_topics(cluster: NilometerCluster) -> None:
    compacted = make(ApiKey.CREATE_TOPICS, 7, "CreatableTopicConfig", name="cleanup.policy", value="compact")
    topics = (new_topic("neighbour"), new_topic("hostile-compacted", configs=(compacted,)))
    with WirePeer(cluster.brokers[1].bootstrap) as peer:
        created = peer.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout_ms=10_000)
    assert {topic.error_code for topic in created.topics} == {ErrorCode.none}
    cluster.wait_leader("neighbour", 0)


def neighbour(cluster: NilometerCluster, seconds: float) -> Iterator[float]:
    """Produce one record after the other for a while; yield how long each waited (ms)."""
    fields = produce_fields(9, "neighbour", {0: batch(b"value")}, acks=1)
    leader = cluster.wait_leader("neighbour", 0)
    with WirePeer(cluster.brokers[leader].bootstrap) as peer:
        ends = time.monotonic() + seconds
        while (began := time.monotonic()) < ends:
            (answered,) = peer.ask(ApiKey.PRODUCE, 9, **fields).responses
            assert answered.partition_responses[0].error_code == ErrorCode.none
            yield (time.monotonic() - began) * 1000
            time.sleep(0.01)


def percentiles(ordered: list[float]) -> str:
    shares = ", ".join(f"p{share} {ordered[len(ordered) * share // 100]:.1f} ms" for share in (50, 99))
    return f"{len(ordered)} records, {shares}, longest {ordered[-1]:.1f} ms"


def rss_bytes(cluster: NilometerCluster, broker_id: int) -> int:
    status = Path(f"/proc/{cluster.brokers[broker_id].pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024
