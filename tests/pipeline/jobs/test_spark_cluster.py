"""Pipelines and jobs on a standalone Spark cluster of a master and two workers, some of which die.

Executors import the package from the archive that was shipped to them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nilometer.pipeline.run.run_record import DIED, RunFolder
from support.brokers.nilometer_broker import NilometerBroker
from support.eventually import eventually
from support.pipeline.filled_topics import Sent, Topics
from support.pipeline.log_lines import assert_same, counted, expected, generated, send_lines
from support.pipeline.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_200)]

STEP_TIMEOUT_S = 400.0
NILOMETER = (sys.executable, "-m", "nilometer.cli")

JOB = """
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]}
records = spark.read.format("nilometer").options(**options).load()
found = sorted(bytes(row.value).decode() for row in records.collect())
where = spark.range(1).mapInArrow(__import__("whereabouts").of_package, "file string").collect()[0].file
print("found", len(found), found[-1], where)
"""
WHEREABOUTS = """
def of_package(batches):
    import nilometer
    import pyarrow as pa

    for _ in batches:
        yield pa.RecordBatch.from_arrays([pa.array([nilometer.__file__])], names=["file"])
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with SparkCluster(tmp_path_factory.mktemp("standalone")) as running:
        yield running


@pytest.fixture
def broker(tmp_path):
    with NilometerBroker(tmp_path / "broker") as running:
        yield running


ALL_AT_WORK = {
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
}
"""No task before both workers' executors are there: else the quicker one may do all."""


def confs(cluster, **more):
    settings = {**cluster.settings, **more}
    return [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]


def nilometer(folder, *arguments):
    done = subprocess.run(
        [*NILOMETER, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_pipeline_on_a_cluster_gives_what_plain_python_counts(cluster, broker, tmp_path, spark):
    topics = Topics(broker.bootstrap)
    lines = generated(1_000, seed=20)
    topic = send_lines(topics, lines)
    given = ["--topic", topic, "--bootstrap-server", broker.bootstrap, "--home", str(tmp_path / "pipelines")]
    given += ["--max-unrecognised", "100"]
    nilometer(
        tmp_path,
        *("pipeline", "run", "logs", "--available-now", "--master", cluster.master),
        *given,
        *confs(cluster, **ALL_AT_WORK),
    )
    assert_same(counted(spark, tmp_path / "pipelines" / "logs"), expected(lines))
    assert [has_archive(cluster, number) for number in (0, 1)] == [True, True]


@pytest.mark.soak
def test_a_job_of_ones_own_is_submitted_with_all_that_it_needs(cluster, broker, tmp_path):
    topics = Topics(broker.bootstrap)
    topic = topics.create(2)
    topics.send(topic, [Sent(n % 2, None, b"%03d" % n) for n in range(250)])
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "whereabouts.py").write_text(WHEREABOUTS)
    given = ["spark", "submit", "--master", cluster.master, *confs(cluster), "--py-files", "whereabouts.py"]
    said = nilometer(tmp_path, *given, "job.py", broker.bootstrap, topic)
    (line,) = [line for line in said.splitlines() if line.startswith("found")]
    _, count, last, where = line.split(maxsplit=3)
    assert (count, last) == ("250", "249")
    assert "nilometer.zip" in where


@pytest.mark.soak
def test_worker_broker_and_driver_die_and_the_tables_are_those_of_an_undisturbed_run(
    cluster, broker, tmp_path, spark
):
    topics = Topics(broker.bootstrap)
    lines = generated(4_000, seed=21)
    topic = send_lines(topics, lines)
    home = tmp_path / "pipelines"
    given = ["pipeline", "run", "logs", "--topic", topic, "--bootstrap-server", broker.bootstrap]
    given += ["--max-unrecognised", "100"]
    given += ["--home", str(home), "--master", cluster.master, *confs(cluster)]
    given += ["--option", "maxOffsetsPerTrigger=200", "--every", "1"]
    folder = RunFolder(home, "logs")
    with (tmp_path / "run.out").open("wb") as output:
        job = subprocess.Popen([*NILOMETER, *given], stdout=output, stderr=output)
        try:
            wait_for_more_batches(folder, job, 2)
            cluster.kill_worker(0)
            wait_for_more_batches(folder, job, 2)
            broker.kill()
            broker.start()
            wait_for_more_batches(folder, job, 2)
        finally:
            job.kill()
            job.wait()
    assert folder.read().state == DIED
    assert sum(one["rows"] for one in folder.progress()) < len(lines)
    nilometer(tmp_path, *given, "--available-now", "--option", "maxOffsetsPerTrigger=2000")
    assert_same(counted(spark, home / "logs"), expected(lines))
    (status,) = json.loads(nilometer(tmp_path, "pipeline", "status", "--json", "--home", str(home)))["runs"]
    assert (status["state"], status["progress"]["lag"]) == ("finished", 0)


def wait_for_more_batches(folder: RunFolder, job: subprocess.Popen, count: int) -> None:
    before = len(folder.progress())

    def came() -> bool:
        assert job.poll() is None, "the job has ended"
        return len(folder.progress()) >= before + count

    eventually(came, f"{count} more batches", STEP_TIMEOUT_S)


def has_archive(cluster: SparkCluster, worker: int) -> bool:
    """Whether the package lies where executors of that worker start: it had one, then."""
    return any(Path(cluster.work_dir(worker)).glob("*/*/nilometer.zip"))
