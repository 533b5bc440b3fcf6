"""The pytest plugin, in pytest runs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

UNUSED = """
import sys

def test_nothing_is_imported():
    ours = {name for name in sys.modules if name.split(".")[0] == "nilometer"}
    ours -= {"nilometer", "nilometer.compiled", "nilometer.version"}
    assert ours == {"nilometer.testing", "nilometer.testing.pytest_plugin"}
"""
SHARED = """
import os
import pytest
from pathlib import Path

@pytest.mark.parametrize("number", range(3))
@pytest.mark.nilometer_topic(partitions=3)
def test_the_cluster_is_shared(nilometer, nilometer_topic, number):
    assert nilometer_topic.startswith("test_the_cluster_is_shared-")
    assert nilometer.leader(nilometer_topic, 2) in nilometer.broker_ids
    worker = os.environ.get("PYTEST_XDIST_WORKER", "none")
    with open(Path("seen") / worker, "a") as seen:
        seen.write(f"{nilometer.bootstrap_servers} {nilometer_topic}\\n")
"""
OWN = """
from pathlib import Path

def test_the_number_of_brokers(nilometer):
    assert nilometer.broker_ids == (1, 2)

def test_an_own_cluster(nilometer_cluster):
    cluster = nilometer_cluster(settings={"num.partitions": 2})
    cluster.kill(1)
    assert cluster.running == []
    Path("own").write_text(str(cluster._folder))

def test_the_own_cluster_has_ended():
    assert not Path(Path("own").read_text()).exists()
"""
INI = """
[pytest]
addopts = -p no:cacheprovider --strict-markers
nilometer_brokers = {brokers}
nilometer_settings =
    log.retention.hours = 3
"""


def run(folder: Path, test: str, *arguments: str, brokers: str = "1") -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(test)
    (folder / "pytest.ini").write_text(INI.format(brokers=brokers))
    (folder / "seen").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run_without_the_fixtures_is_left_alone(tmp_path: Path):
    done = run(tmp_path, UNUSED, "-p", "no:xdist", "-p", "no:timeout", "-p", "no:hypothesispytest")
    assert done.returncode == 0, done.stdout


def test_each_worker_has_a_cluster(tmp_path: Path):
    done = run(tmp_path, SHARED, "--numprocesses", "2", "--dist", "each")
    assert done.returncode == 0, done.stdout
    seen = [path.read_text().split() for path in (tmp_path / "seen").iterdir()]
    assert len(seen) == 2
    clusters = [set(words[0::2]) for words in seen]
    assert [len(servers) for servers in clusters] == [1, 1]
    assert len(set.union(*clusters)) == 2
    assert len({topic for words in seen for topic in words[1::2]}) == 3 * 2


def test_a_test_may_start_clusters_of_its_own(tmp_path: Path):
    done = run(tmp_path, OWN, brokers="2")
    assert done.returncode == 0, done.stdout


def test_a_wrong_setting_is_named(tmp_path: Path):
    done = run(tmp_path, "def test_it(nilometer): pass", brokers="many")
    assert done.returncode != 0
    assert "nilometer_brokers, nilometer_settings: invalid literal" in done.stdout
