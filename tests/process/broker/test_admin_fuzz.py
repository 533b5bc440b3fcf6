"""Three brokers under random requests of an administrator, valid and not: none ends, all are answered.

`ADMIN_FUZZ=7 pytest tests/process/broker/test_admin_fuzz.py` is the run of a seed, `ADMIN_FUZZ=7:1234` one
request of it alone; what stands before it may be needed too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nilometer.client.admin.admin import Admin, AlterOperation, ConfigChange, NewTopic, ResourceType
from nilometer.simulation.workload.random_administrator import Subjects
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.wire.admin_fuzz import AdminFuzz

SEED, _, ONLY = os.environ.get("ADMIN_FUZZ", "20").partition(":")
REQUESTS = 300
REQUESTS_LONG = 20_000
TOPICS = ("first", "second")
CLUSTER_WIDE = ("min.insync.replicas", "unclean.leader.election.enable")


def test_no_request_of_an_administrator_ends_a_broker(tmp_path: Path) -> None:
    _fuzz(tmp_path, int(SEED), range(REQUESTS))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_thousand_requests_of_an_administrator_end_no_broker(tmp_path: Path) -> None:
    _fuzz(tmp_path, int(SEED) + 1, range(REQUESTS_LONG))


def _fuzz(folder: Path, seed: int, numbers: range) -> None:
    replay = f"ADMIN_FUZZ={seed} pytest tests/process/broker/test_admin_fuzz.py"
    with NilometerCluster(folder, overrides={"log.segment.delete.delay.ms": "100"}) as cluster:
        for name in TOPICS:
            cluster.create_topic(name, partitions=2, replication_factor=3)
        pids = [broker.pid for broker in cluster.brokers.values()]
        subjects = Subjects(topics=TOPICS, brokers=(1, 2, 3))
        fuzz = AdminFuzz([broker.bootstrap for broker in cluster.brokers.values()], subjects, seed)
        fuzz.drive([int(ONLY)] if ONLY else numbers)
        print(f"{fuzz.sent} requests; answers: {dict(fuzz.answers.most_common())}")
        assert [broker.alive() for broker in cluster.brokers.values()] == [True] * 3, replay
        assert [broker.pid for broker in cluster.brokers.values()] == pids, replay
        assert fuzz.unanswered == [], replay
        _check_well(cluster, replay)


def _check_well(cluster: NilometerCluster, replay: str) -> None:
    """A topic can still be created and is served by all, and no broker complained of itself."""

    async def restore(admin: Admin) -> None:
        changes = [ConfigChange(key, None, AlterOperation.DELETE) for key in CLUSTER_WIDE]
        await admin.incremental_alter_configs(ResourceType.BROKER, "", changes)
        await admin.create_topic(NewTopic("afterwards", 1, 3))

    cluster.operate(restore)
    cluster.wait_full_isr("afterwards", 60)
    eventually(lambda: cluster.controller() is not None, "there is a controller")
    for broker in cluster.brokers.values():
        said = [
            line
            for line in broker.output.splitlines()
            if "Traceback" in line or " CRITICAL " in line or "A request failed" in line
        ]
        assert said == [], f"{replay}: {said[:3]} of broker {broker.node_id}"
