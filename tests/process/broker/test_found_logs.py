"""A broker refuses logs of other clusters, and keeps those that the metadata do not assign to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nilometer.broker.replicas.log_directories import MARKER_NAME
from nilometer.cli.main import run
from nilometer.client.admin.admin import NewTopic
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.unpacking import unpack
from support.upgrade.earlier_package import DATA_FOLDER

WAIT_S = 60.0
GONE, KEPT = "deleted-meanwhile", "stays"


def content(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def refused(folder: Path, **settings: str) -> str:
    """Start a broker that must not start; return its output. Nothing may have changed in its folder."""
    before = content(folder)
    broker = NilometerBroker(folder, {name.replace("_", "."): value for name, value in settings.items()})
    try:
        with pytest.raises(RuntimeError, match="ended"):
            broker.start()
    finally:
        broker.stop()
    assert "Traceback" not in broker.output
    assert content(folder) == before
    return broker.output


@pytest.fixture
def of_other_cluster(tmp_path: Path) -> Path:
    """Return a stopped broker's folder with logs; the coordination store of its cluster is not in it."""
    data = unpack(DATA_FOLDER, tmp_path / "data")
    shutil.rmtree(data / ".coordination")
    assert len(list(data.glob("*-0"))) > 1
    return data


def test_logs_begin_no_new_cluster(of_other_cluster: Path) -> None:
    told = refused(of_other_cluster)
    assert "has the logs of" in told and "contains no coordination store" in told
    assert "Set nilometer.coordination or zookeeper.connect" in told
    assert not (of_other_cluster / ".coordination").exists()


def test_logs_do_not_join_another_cluster(of_other_cluster: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with NilometerBroker(tmp_path / "other", {"nilometer.coordination": f"local:{store}"}, node_id=2):
        told = refused(of_other_cluster, nilometer_coordination=f"local:{store}")
    assert f"{store} belongs to cluster " in told and "set nilometer.coordination to the folder" in told


def test_logs_of_an_unknown_cluster(of_other_cluster: Path) -> None:
    (of_other_cluster / "meta.properties").unlink()
    told = refused(of_other_cluster)
    assert "no meta.properties with a cluster.id" in told and "Restore that file" in told


def test_the_folder_of_a_kafka_broker(of_other_cluster: Path) -> None:
    (of_other_cluster / MARKER_NAME).unlink()
    (of_other_cluster / "__cluster_metadata-0").mkdir()
    (of_other_cluster / "__cluster_metadata-0/quorum-state").touch()
    told = refused(of_other_cluster)
    assert "has __cluster_metadata-0, the metadata log of Apache Kafka" in told
    assert "set log.dirs to an empty folder" in told


def test_a_stray_log_is_kept_until_a_command_deletes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("a record\n")
    with NilometerCluster(tmp_path, 2) as cluster:
        folder = cluster.brokers[2].data_dir

        def status() -> str:
            run(["status", "--bootstrap-server", cluster.bootstrap])
            return capsys.readouterr().out

        for topic in (GONE, KEPT):
            cluster.create_topic(topic, assignments={0: (1, 2)})
            assert run(["produce", topic, str(lines), "--bootstrap-server", cluster.bootstrap]) == 0
        cluster.operate(lambda admin: admin.create_topic(NewTopic("empty", assignments={0: (2, 1)})))
        eventually((folder / "empty-0").is_dir, "the empty log is there", WAIT_S)
        eventually(lambda: has_records(folder / f"{GONE}-0"), "the record is replicated", WAIT_S)
        assert "stray" not in status()

        cluster.stop(2)
        deleted = cluster.operate(lambda admin: admin.delete_topics([GONE, "empty"]))
        assert deleted == {GONE: None, "empty": None}
        cluster.start(2)

        (stray,) = folder.glob(f"{GONE}-0.*-stray")
        assert has_records(stray)
        assert (folder / f"{KEPT}-0").is_dir()
        assert not [one for one in folder.glob("empty-0*") if one.name.endswith("-stray")]
        assert f"Broker 2 keeps 1 stray logs, which are no replicas: {stray}" in status()

        capsys.readouterr()
        assert run(["log", "strays", str(folder)]) == 0
        assert str(stray) in capsys.readouterr().out
        assert run(["log", "delete-strays", str(folder)]) == 2
        told = capsys.readouterr().err
        assert str(stray) in told and "--yes" in told
        assert has_records(stray)
        assert run(["log", "delete-strays", str(tmp_path)]) == 2
        assert "is no log directory" in capsys.readouterr().err

        assert run(["log", "delete-strays", str(folder), "--yes"]) == 0
        assert f"Deleted {stray}." in capsys.readouterr().out
        assert not stray.exists()
        assert has_records(folder / f"{KEPT}-0")
        eventually(lambda: "stray" not in status(), "broker 2 forgets what was deleted", WAIT_S)


def has_records(folder: Path) -> bool:
    return any(one.stat().st_size for one in folder.glob("*.log"))
