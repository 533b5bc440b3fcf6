"""Pipelines and jobs on a standalone Spark cluster of a master and two workers, some of which die.

Executors import the package from the archive that was shipped to them. The first tests have the workers on
another machine: one with other folders, other paths and no package but those that executors need.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import deltalake
import pytest

from nilometer.pipeline.run.run_record import DIED, RunFolder
from nilometer.pipeline.spark.executors import EXECUTOR_PACKAGES, write_archive
from support.brokers.nilometer_broker import NilometerBroker
from support.eventually import eventually
from support.pipeline.filled_topics import Sent, Topics
from support.pipeline.log_lines import assert_same, counted, expected, generated, send_lines
from support.pipeline.other_machine import CHECKOUT, OtherMachine, can_have_another_machine
from support.pipeline.spark_cluster import SparkCluster, event_log, task_seconds
from support.unpacking import unpack

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_200)]

STEP_TIMEOUT_S = 400.0
NILOMETER = (sys.executable, "-m", "nilometer.cli")
HOW_TO = CHECKOUT / "docs" / "how-to" / "spark-cluster.md"

JOB = """
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]}
records = spark.read.format("nilometer").options(**options).load()
records.count()
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


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    if not can_have_another_machine():
        pytest.skip("a mount namespace needs root")
    return OtherMachine(tmp_path_factory.mktemp("machine"), [*EXECUTOR_PACKAGES, "pyspark"])


@pytest.fixture(scope="module")
def remote(tmp_path_factory, machine):
    with SparkCluster(tmp_path_factory.mktemp("remote"), machine=machine) as running:
        yield running


def table_run(cluster, broker, topic, home, *more):
    """Run the table pipeline on a cluster; return the finished process."""
    given = ["pipeline", "run", "table", "--topic", topic, "--bootstrap-server", broker.bootstrap]
    given += ["--available-now", "--set", "schema=infer", "--home", str(home), "--master", cluster.master]
    return subprocess.run(
        [*NILOMETER, *given, *confs(cluster), *more],
        cwd=home.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def with_rows(broker, count):
    topics = Topics(broker.bootstrap)
    topic = topics.create(2)
    topics.send(topic, [Sent(n % 2, None, b'{"n": %d}' % n) for n in range(count)])
    return topic


@pytest.mark.long
@pytest.mark.soak  # three JVMs of a cluster, beside those of other tests
def test_a_table_is_written_by_workers_that_have_nothing_of_the_driver_but_a_shared_folder(
    remote, broker, tmp_path
):
    topic = with_rows(broker, 300)
    done = table_run(remote, broker, topic, tmp_path / "shared")
    assert done.returncode == 0, done.stderr
    rows = deltalake.DeltaTable(str(tmp_path / "shared" / "table" / "table")).to_pyarrow_table()
    assert sorted(rows.column("n").to_pylist()) == list(range(300))


@pytest.mark.soak
def test_a_table_is_exact_after_worker_broker_and_driver_were_killed(remote, broker, tmp_path):
    topic = with_rows(broker, 4_000)
    home = tmp_path / "shared"
    given = ["pipeline", "run", "table", "--topic", topic, "--bootstrap-server", broker.bootstrap]
    given += ["--set", "schema=infer", "--home", str(home), "--master", remote.master, *confs(remote)]
    folder = RunFolder(home, "table")
    with (tmp_path / "run.out").open("wb") as output:
        job = subprocess.Popen(
            [*NILOMETER, *given, "--option", "maxOffsetsPerTrigger=200", "--every", "1"],
            cwd=tmp_path,
            stdout=output,
            stderr=output,
        )
        try:
            wait_for_more_batches(folder, job, 2)
            remote.kill_worker(1)
            wait_for_more_batches(folder, job, 2)
            broker.kill()
            broker.start()
            wait_for_more_batches(folder, job, 2)
        finally:
            job.kill()
            job.wait()
            remote.start_worker(1)
    done = table_run(remote, broker, topic, home)
    assert done.returncode == 0, done.stderr
    rows = deltalake.DeltaTable(str(home / "table" / "table")).to_pyarrow_table()
    assert sorted(rows.column("n").to_pylist()) == list(range(4_000))


@pytest.mark.long
@pytest.mark.soak  # three JVMs of a cluster, beside those of other tests
def test_a_folder_that_the_workers_do_not_share_is_refused_by_name(remote, broker, machine):
    topic = with_rows(broker, 30)
    done = table_run(remote, broker, topic, machine.private / "home")
    assert done.returncode == 1
    assert f"does not share the folder {machine.private}/home/table with this machine" in done.stderr
    assert not list(machine.private.rglob("*.parquet"))
    assert not list(machine.private.rglob(".probe*"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("python", "says"),
    [
        (Path(sys.executable).resolve(), "an executor's Python has no package"),
        ("/nowhere/bin/python3.99", "an executor does not find its Python, python3.99"),
    ],
)
def test_what_an_executor_lacks_is_said_with_the_remedy(remote, broker, tmp_path, python, says):
    topic = with_rows(broker, 30)
    done = table_run(remote, broker, topic, tmp_path / "home", "--conf", f"spark.pyspark.python={python}")
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_job_is_submitted_as_the_how_to_says(remote, broker, machine, tmp_path):
    topics = Topics(broker.bootstrap)
    topic = topics.create(2)
    topics.send(topic, [Sent(n % 2, None, b"%03d" % n) for n in range(250)])
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "whereabouts.py").write_text(WHEREABOUTS)
    more = {"spark.pyspark.python": str(machine.python), **event_log(tmp_path / "events")}
    given = ["spark", "submit", "--master", remote.master, *confs(remote, **more)]
    given += ["--py-files", "whereabouts.py"]
    printed = nilometer(tmp_path, *given[:2], "--print", *given[2:], "job.py", broker.bootstrap, topic)
    done = subprocess.run(
        shlex.split(printed), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found")]
    assert line.startswith("found 250 249 ")
    assert "nilometer-package" in line
    for executor, (first_s, *others_s) in task_seconds(tmp_path / "events").items():
        print(f"executor {executor}: the first task took {first_s} s, the others {others_s} s")


@pytest.mark.soak
def test_the_how_to_runs_word_for_word_and_its_counts_are_exact_after_a_worker_was_killed(
    remote, broker, machine, tmp_path
):
    page = HOW_TO.read_text(encoding="utf-8")
    here = {
        "broker1:9092,broker2:9092": broker.bootstrap,
        "broker1:9092": broker.bootstrap,
        "spark://head:7077": remote.master,
        "s3a://bucket/counts": str(tmp_path / "counts"),
    }
    for said, place in here.items():
        assert said in page
        page = page.replace(said, place)
    (tmp_path / "job.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    commands = [line.split() for line in page.splitlines() if line.startswith("nilometer ")]
    listed, submit = [one for one in commands if "--print" not in one]
    assert broker.bootstrap.partition(":")[2] in nilometer(tmp_path, *listed[1:])
    topics = Topics(broker.bootstrap)
    topics.create(2, name="orders")
    wanted = dict.fromkeys(("Ann", "Bob", "Eve"), 0)

    def send() -> None:
        for number, customer in enumerate(wanted, 1):
            sent = [Sent(n % 2, customer.encode(), b"{}") for n in range(100 * number)]
            topics.send("orders", sent)
            wanted[customer] += len(sent)

    def counts() -> dict[str, int]:
        """Of the newest batch on the console."""
        newest = (tmp_path / "job.out").read_text(errors="replace").rpartition("Batch: ")[2]
        rows = [line.strip("|").split("|") for line in newest.splitlines() if line.startswith("|")]
        return {name.strip(): int(count) for name, count in rows if count.strip().isdecimal()}

    few = {"spark.sql.shuffle.partitions": "2", "spark.pyspark.python": str(machine.python)}
    command = [*NILOMETER, *submit[1:-1], *confs(remote, **few), submit[-1]]
    with (tmp_path / "job.out").open("wb") as output, (tmp_path / "job.err").open("wb") as errors:
        job = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=errors, start_new_session=True)
        try:
            # A stream starts at the latest offsets, which its first batch fixes.
            eventually((tmp_path / "counts" / "offsets" / "0").exists, "the query runs", STEP_TIMEOUT_S)
            send()
            eventually(lambda: counts() == wanted, f"the counts are {wanted}", STEP_TIMEOUT_S)
            remote.kill_worker(0)
            send()
            eventually(lambda: counts() == wanted, f"the counts are {wanted}", STEP_TIMEOUT_S)
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            remote.start_worker(0)


def test_the_how_to_names_the_packages_that_executors_need():
    lines = HOW_TO.read_text(encoding="utf-8").splitlines()
    assert f"pip install {' '.join(EXECUTOR_PACKAGES)}" in lines


def test_an_executor_compiles_nothing_that_the_driver_has_compiled(tmp_path):
    unpack(write_archive(tmp_path), tmp_path / "unpacked")
    program = (
        "import json, sys\n"
        f"sys.path[:0] = [{str(tmp_path / 'unpacked')!r}]\n"
        "from nilometer.pipeline.decode import batch_kernels, column_decoder, decode_kernels\n"
        "column_decoder.warm_up()\n"
        "made = [one for module in (batch_kernels, decode_kernels) for one in vars(module).values()]\n"
        "made = [one.stats for one in made if hasattr(one, 'stats')]\n"
        "print(json.dumps([column_decoder.__file__, sum(sum(one.cache_misses.values()) for one in made),\n"
        "    sum(sum(one.cache_hits.values()) for one in made)]))\n"
    )
    environment = {**os.environ, "HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    file, compiled, found = json.loads(done.stdout)
    assert file.startswith(str(tmp_path))
    assert (compiled, found > 0) == (0, True)


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
    assert "nilometer-package" in where


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
    slowly = ["--option", "maxOffsetsPerTrigger=200", "--every", "1"]
    folder = RunFolder(home, "logs")
    with (tmp_path / "run.out").open("wb") as output:
        job = subprocess.Popen([*NILOMETER, *given, *slowly], stdout=output, stderr=output)
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
    return any(Path(cluster.work_dir(worker)).glob("*/*/nilometer-package"))
