"""This version beside each one that changed what is stored or sent between brokers, and those before it.

Three brokers are upgraded one at a time under load, taken back, and upgraded again.

    pytest -m soak tests/process/upgrade/test_every_format.py

It needs the history of the repository.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from support.brokers.nilometer_cluster import NilometerCluster
from support.brokers.quorum_brokers import QuorumBrokers
from support.upgrade.earlier_package import THIS_VERSION, program
from support.upgrade.filled_folder import SETTINGS, read
from support.upgrade.rolling import PARTITIONS, TOPIC, Load, in_remote_storage, upgrade_under_load

REPOSITORY = Path(__file__).resolve().parents[3]
FIRST = "0bd9454f"
"""The end of the first day: its brokers have no proof of who they are, and no others serve them."""
VERSIONS = {
    "86ae9422~": "format 1 of the metadata log",
    "86ae9422": "format 2: levels of features",
    "cdaa5082": "format 3: settings of groups",
    "2f7f9b7d": "format 4: ACLs",
    "a49cbeaa": "format 5: SCRAM credentials",
    "bf45e0f7": "format 6: quotas",
    "8520a8da": "format 7: delegation tokens",
    "119a5600~": "before share groups",
    "119a5600": "the share group state topic",
    "ebf0f50a": "its rejected records, and dead letters",
    "c584b30d~": "before tiered topics",
    "2c20b55e": "format 8: tiered topics",
}
WITH_REMOTE_STORAGE = {
    "39350dcb": "manifests with many segments are read in lines",
    "664d1946": "the format of archives, too",
    "bddbb27c": "the CRC of the last batch in the id of a segment",
}
"""Only these meet a tiered topic: those before have none, or do not read manifests of several lines."""
IN_A_QUORUM = {
    "3decd9c4": "the first metadata quorum whose nodes prove themselves as they do now",
    "c584b30d~": "before tiered topics",
    "2c20b55e": "format 8: tiered topics",
}
pytestmark = pytest.mark.soak


def unpacked(commit: str, folder: Path) -> Path:
    """Unpack the package at ``commit`` into ``folder``."""
    if subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=REPOSITORY, check=False
    ).returncode:
        pytest.skip(f"this checkout's history does not have {commit}")
    packed = subprocess.run(
        ["git", "archive", commit, "src/nilometer"], cwd=REPOSITORY, check=True, capture_output=True
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder)
    return folder / "src"


@pytest.mark.parametrize("commit", VERSIONS)
def test_brokers_are_upgraded_taken_back_and_upgraded_again(commit: str, tmp_path: Path) -> None:
    earlier = program(unpacked(commit, tmp_path / "earlier"))
    upgrade_under_load(NilometerCluster(tmp_path / "cluster", 3, SETTINGS), earlier, and_back=True)


@pytest.mark.parametrize("commit", WITH_REMOTE_STORAGE)
def test_brokers_of_tiered_topics_are_upgraded_taken_back_and_upgraded_again(
    commit: str, tmp_path: Path
) -> None:
    earlier, tier = program(unpacked(commit, tmp_path / "earlier")), tmp_path / "tier"
    cluster = NilometerCluster(tmp_path / "cluster", 3, SETTINGS | in_remote_storage(tier))
    upgrade_under_load(cluster, earlier, and_back=True, tier=tier)


def test_brokers_of_the_first_day_are_upgraded_together(tmp_path: Path) -> None:
    cluster = NilometerCluster(tmp_path / "cluster", 3)
    earlier = program(unpacked(FIRST, tmp_path / "earlier"))
    for broker in cluster.brokers.values():
        broker.program = earlier
    with cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        load = Load(cluster.bootstrap)
        load.start()
        load.wait_progress()
        load.end()
        assert load.failures == []
        for broker_id, broker in cluster.brokers.items():
            assert cluster.stop(broker_id) == 0
            broker.program = THIS_VERSION
        cluster.start()
        cluster.wait_full_isr(TOPIC)
        found = [int(value) for value in read(cluster.bootstrap, TOPIC, PARTITIONS, len(load.acknowledged))]
        assert sorted(found) == sorted(load.acknowledged)
        assert "Traceback" not in cluster.output()


@pytest.mark.parametrize("commit", IN_A_QUORUM)
def test_voters_are_upgraded_taken_back_and_upgraded_again(commit: str, tmp_path: Path) -> None:
    earlier = program(unpacked(commit, tmp_path / "earlier"))
    upgrade_under_load(QuorumBrokers(tmp_path / "cluster", 3, SETTINGS), earlier, and_back=True)
