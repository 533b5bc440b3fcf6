"""``nilometer export`` on Spark: what a topic gets between two runs is added, and wrong use is told."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from nilometer.cli.pipelines.folder_commands import COMPRESSIONS, export_command
from nilometer.pipeline.spark import spark_session
from support.brokers.nilometer_broker import NilometerBroker
from support.pipeline.checkpoints import wait_for_checkpoint
from support.pipeline.filled_topics import Sent, Topics

pytestmark = pytest.mark.spark

QUICK = {"replica.high.watermark.checkpoint.interval.ms": "100"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with NilometerBroker(tmp_path_factory.mktemp("export") / "data", QUICK) as running:
        yield running


@pytest.fixture
def command(spark, monkeypatch):
    """The command, on the tests' own session, which goes on behind it."""
    monkeypatch.setattr(spark_session, "build_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    return lambda *arguments: CliRunner().invoke(export_command, list(arguments))


def test_a_second_run_adds_what_is_new(spark, broker, command, tmp_path):
    topics = Topics(broker.bootstrap)
    name = topics.create(2)
    asked = ["--topic", name, "--to", str(tmp_path / "out"), "--log-dirs", str(broker.data_dir), "--json"]
    known = 0
    for last in (100, 130):
        topics.send(name, [Sent(n % 2, b"k%d" % n, b"v%d" % n) for n in range(known, last)])
        wait_for_checkpoint(broker.data_dir, name, {0: last // 2, 1: last // 2})
        done = command(*asked, "--columns", "partition,offset,value")
        assert done.exit_code == 0, done.output
        told = json.loads(done.output)
        assert told["records"] == last - known
        assert told["partitions"] == [
            {"topic": name, "partition": number, "start_offset": known // 2, "end_offset": last // 2}
            for number in range(2)
        ]
        found = spark.read.parquet(str(tmp_path / "out" / "data" / "*")).orderBy("offset", "partition")
        assert [bytes(row.value) for row in found.collect()] == [b"v%d" % n for n in range(last)]
        known = last


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_spark_reads_each_codec(spark, broker, command, tmp_path, compression):
    topics = Topics(broker.bootstrap)
    name = topics.create(1)
    topics.send(name, [Sent(0, None, b"v" * n) for n in range(50)])
    wait_for_checkpoint(broker.data_dir, name, {0: 50})
    asked = ("--topic", name, "--to", str(tmp_path / "out"), "--log-dirs", str(broker.data_dir))
    done = command(*asked, "--compression", compression)
    assert done.exit_code == 0, done.output
    assert "Wrote 50 records to 1 files" in done.output
    found = spark.read.parquet(str(tmp_path / "out" / "data" / "*"))
    assert sorted(len(row.value) for row in found.collect()) == list(range(50))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--topic", "nowhere"), "topic nowhere has no replica in"),
        (("--topic", "t", "--columns", "colour"), "option columns = 'colour': must be some of key, value"),
        (("--topic", "t", "--option", "startAt=5"), "option startAt = '5': there is no such option"),
    ],
)
def test_wrong_use_is_told_and_writes_no_data(broker, command, tmp_path, more, told):
    done = command("--to", str(tmp_path / "out"), "--log-dirs", str(broker.data_dir), *more)
    assert done.exit_code == 1
    assert told in " ".join(done.output.split())
    assert not list((tmp_path / "out").rglob("*.parquet"))
