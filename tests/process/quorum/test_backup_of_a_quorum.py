"""docs/how-to/backup.md, with a metadata quorum: log directories are copied while the brokers are down."""

from __future__ import annotations

import shutil
from pathlib import Path

from nilometer.cli.main import run
from support.brokers.quorum_brokers import QuorumBrokers
from support.brokers.quorum_clients import described, produce, texts_in
from support.eventually import eventually

TIMEOUT_S = 60.0
TEXTS = [f"{number:02}" for number in range(20)]


def test_all_log_directories_are_put_back_or_one_that_others_join(tmp_path: Path) -> None:
    with QuorumBrokers(tmp_path / "cluster") as cluster:
        cluster.create_topic("orders")
        produce(cluster, "orders", TEXTS)

        def put_back(*broker_ids: int) -> None:
            for broker_id, broker in cluster.brokers.items():
                shutil.rmtree(broker.data_dir)
                if broker_id in broker_ids:
                    shutil.copytree(tmp_path / f"copy-{broker_id}", broker.data_dir)

        cluster.stop(1)
        cluster.kill(2, 3)
        for broker_id, broker in cluster.brokers.items():
            shutil.copytree(broker.data_dir, tmp_path / f"copy-{broker_id}")
        cluster.start()
        cluster.operate(lambda admin: admin.delete_topics(["orders"]))
        cluster.kill(*cluster.running)
        put_back(1, 2, 3)
        cluster.start()
        cluster.wait_full_isr("orders", TIMEOUT_S)
        assert texts_in(cluster, "orders", 1, len(TEXTS)) == TEXTS

        # Only one copy is left: its voter goes on alone, and the others join it with empty directories.
        cluster.kill(*cluster.running)
        put_back(2)
        assert run(["storage", "recover", str(cluster.brokers[2].data_dir), "--unsafe", "--yes"]) == 0
        cluster.start(2)
        cluster.start(1, 3)

        def joined() -> bool:
            found = described(cluster, 2)
            return found is not None and (found.voters, sorted(found.observers)) == ([2], [1, 3])

        eventually(joined, "the others observe", TIMEOUT_S)
        cluster.wait_full_isr("orders", TIMEOUT_S)
        assert texts_in(cluster, "orders", 1, len(TEXTS)) == TEXTS
