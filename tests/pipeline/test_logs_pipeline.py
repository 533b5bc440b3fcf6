"""The shipped ``logs`` job against a count in plain Python that shares nothing with it."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nilometer.cli.log_census import Census
from nilometer.pipeline import runner
from nilometer.pipeline.errors import PipelineProblem
from nilometer.pipeline.shipped import logs
from support.filled_topics import Sent

pytestmark = pytest.mark.spark

RECORDED = datetime(2024, 2, 3, 12, 0, tzinfo=UTC)
ACCESS_LOG = Path(__file__).resolve().parents[3] / "shared" / "data" / "access.log"

HAND_PICKED = rb"""
127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326
127.0.0.1 - - [10/Oct/2000:13:55:36 +0000] "GET /a?b=c#d HTTP/1.0" 304 - "-" "Mozilla/4.08 [en]"
::1 - - [01/Jan/2024:00:00:00 +0530] "GET /\"quoted\" HTTP/1.1" 404 0 "-" "agent with \" in it"
::1 - - [01/Jan/2024:00:00:00 +0000] "-" 408 0
::1 - - [01/Jan/2024:00:00:00 +0000] "GET ?only=query HTTP/1.1" 400 5
::1 - - [01/Jan/2024:00:00:00 +0000] "" 400 5
::1 - - [01/Jan/2024:00:00:00 +0000] "GET /cut" 200 5 "-" "agent cut off
::1 - - [31/Feb/2024:00:00:00 +0000] "GET /no-such-day HTTP/1.1" 200 5
::1 - - [01/Jan/2024:24:00:00 +0000] "GET /no-such-hour HTTP/1.1" 200 5
::1 - - [01/Jan/2024:00:00:00 +0000] "GET /unfinished
::1 - - [01/Jan/2024:00:00:00 +0000] "GET / HTTP/1.1" 20 5
Feb  3 11:59:59 host sshd[812]: error: kex_exchange_identification
Feb  4 11:00:00 host kernel: [    0.000000] Linux version
Dec 31 23:59:59 host cron[1]: (root) CMD (true)
Feb 30 00:00:00 host cron[1]: no such day
<34>Oct 11 22:14:15 mymachine su: 'su root' failed
<191>Feb  1 01:02:03 h app-name: WARNING: the priority wins
Feb  1 01:02:03 h app: WARNING: disk
Feb  1 01:02:03 h app: [notice] bracketed
Feb  1 01:02:03 h app: errors are not an error
Feb  1 01:02:03 h not a tag
2024-02-01T01:02:03.123456+02:00 host systemd[1]: Started Session 1
2024-02-01T01:02:03Z host systemd[1]: (panic) no
2024-02-01T01:02:03 host app: plain
2024-13-01T01:02:03Z host app: no such month
2024-02-01 01:02:03 startup archives unpack
2024-02-01 01:02:03 install libc6:amd64 <none> 2.36
2024-02-01 01:02:03 status half-installed libc6:amd64 2.36
2024-02-01 01:02:03 conffile /etc/x keep
2024-02-01 01:02:03 dance libc6
Start-Date: 2024-02-01  01:02:03
Commandline: apt-get install -y make
Requested-By: someone (1000)
Install: make:amd64 (4.3-4.1)
End-Date: 2024-02-01  01:02:09
End-Date: tomorrow
update-alternatives 2024-02-01 01:02:03: run with --install /usr/bin/pager
update-alternatives 2024-02-01 01:02:03: link group pager updated

a line of no format
2024
{"level": "info"}
""".removeprefix(b"\n").splitlines()
HOSTILE = [
    b"\x00\x01\xff\xfe not utf-8 \xc3(",
    b"ends in CR\r",
    b'::1 - - [01/Jan/2024:00:00:00 +0000] "GET /cr HTTP/1.1" 200 5\r',
    b'::1 - - [01/Jan/2024:00:00:00 +0000] "' + b'\\"' * 100_000,
    b'::1 - - [01/Jan/2024:00:00:00 +0000] "GET /' + b"a" * 200_000 + b'" 200 5',
    b"Feb  1 01:02:03 h " + b"x" * 200_000,
]


def generated(count: int, seed: int) -> list[bytes]:
    """Lines of every format, whole and damaged."""
    rng = random.Random(seed)
    whole = [line for line in HAND_PICKED if line]
    lines: list[bytes] = []
    for _ in range(count):
        line = bytearray(rng.choice(whole))
        for _ in range(rng.choice((0, 0, 0, 1, 1, 3))):
            at = rng.randrange(len(line))
            match rng.randrange(4):
                case 0:
                    line[at] = rng.choice(b' "[]:\\09aZ-+<>/.')
                case 1:
                    del line[at]
                case 2:
                    line.insert(at, rng.choice(b' "[]:\\09aZ'))
                case _:
                    del line[at:]
            if not line:
                break
        lines.append(bytes(line))
    return lines


def expected(lines: list[bytes]) -> Census:
    census = Census()
    for line in lines:
        census.add(line, RECORDED)
    return census


def counted(spark, output) -> Census:
    counts = spark.read.parquet(f"{output}/counts").collect()
    census = Census()
    for row in counts:
        match row.by:
            case "label":
                census.by_label[row.format, row.label] += row.lines
                census.by_format[row.format] += row.lines
                census.lines += row.lines
            case "name":
                census.by_name[row.format, row.name] += row.lines
            case _:
                census.by_minute[row.format, row.minute] += row.lines
    return census


def send_lines(topics, lines: list[bytes], topic: str | None = None, partitions: int = 3) -> str:
    topic = topic or topics.create(partitions, prefix="lines")
    at = int(RECORDED.timestamp() * 1000)
    topics.send(topic, [Sent(n % partitions, None, line, at) for n, line in enumerate(lines)])
    return topic


def run_logs(spark, topics, topic, output, connector="nilometer", **more):
    job = runner.Job(
        topic, str(output), topics.bootstrap, connector=connector, available_now=True, options=more
    )
    return runner.run(spark, logs, job)


def assert_same(found: Census, wanted: Census) -> None:
    assert found.lines == wanted.lines
    assert found.by_label == wanted.by_label
    assert found.by_minute == wanted.by_minute
    assert found.by_name == wanted.by_name


def test_results_equal_a_count_in_plain_python(spark, topics, tmp_path):
    lines = [*HAND_PICKED, *HOSTILE, *generated(4_000, seed=11)]
    topic = send_lines(topics, lines)
    run_logs(spark, topics, topic, tmp_path / "out")
    assert_same(counted(spark, tmp_path / "out"), expected(lines))


def test_lines_that_fit_no_format_are_kept_whole_and_findable(spark, topics, tmp_path):
    topic = send_lines(topics, HAND_PICKED)
    run_logs(spark, topics, topic, tmp_path / "out")
    kept = spark.read.parquet(str(tmp_path / "out" / "lines"))
    assert sorted(kept.select("line").toPandas()["line"]) == sorted(line.decode() for line in HAND_PICKED)
    unparsed = kept.where("format = 'unparsed'").select("partition", "offset", "line").collect()
    assert {HAND_PICKED[row.offset * 3 + row.partition].decode() for row in unparsed} == {
        row.line for row in unparsed
    }
    assert any(row.line == "a line of no format" for row in unparsed)


def test_both_connectors_give_the_same_tables(spark, topics, tmp_path):
    topic = send_lines(topics, [*HAND_PICKED, *generated(500, seed=12)])
    tables = []
    for connector in runner.CONNECTORS:
        output = tmp_path / connector
        last = run_logs(spark, topics, topic, output, connector)
        assert set(last.end_offsets) == {topic}
        rows = spark.read.parquet(str(output / "lines")).drop("batch").collect()
        results = {title: frame.collect() for title, frame in logs.results(spark, str(output)).items()}
        tables.append((Counter(rows), results))
    assert tables[0] == tables[1]


def test_a_batch_that_is_run_again_counts_once(spark, topics, tmp_path):
    """A crash between the tables' write and the checkpoint's commit: the batch comes again with its id."""
    lines = generated(300, seed=13)
    topic = send_lines(topics, lines)
    output = tmp_path / "out"
    run_logs(spark, topics, topic, output, maxOffsetsPerTrigger="100")
    commits = sorted((output / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(commits) >= 3
    last = commits[-1]
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    more = generated(50, seed=14)
    send_lines(topics, more, topic)
    run_logs(spark, topics, topic, output, maxOffsetsPerTrigger="100")
    assert_same(counted(spark, output), expected([*lines, *more]))


def test_the_event_time_watermark_follows_the_newest_line_and_late_lines_count(spark, topics, tmp_path):
    newest = b'::1 - - [01/Jan/2024:10:00:00 +0000] "GET /new HTTP/1.1" 200 5'
    late = b'::1 - - [01/Jan/2023:10:00:00 +0000] "GET /late HTTP/1.1" 200 5'
    topic = send_lines(topics, [newest], partitions=1)
    last = run_logs(spark, topics, topic, tmp_path / "out")
    assert last.event_time_watermark == datetime(2024, 1, 1, 10, 0, tzinfo=UTC) - logs.LATENESS
    send_lines(topics, [late], topic, partitions=1)
    last = run_logs(spark, topics, topic, tmp_path / "out")
    assert last.event_time_watermark == datetime(2024, 1, 1, 10, 0, tzinfo=UTC) - logs.LATENESS
    assert_same(counted(spark, tmp_path / "out"), expected([newest, late]))


def test_a_running_job_is_stopped_between_two_batches_and_goes_on_later(spark, topics, tmp_path):
    lines = generated(60, seed=15)
    topic = send_lines(topics, lines)
    batches: list[runner.Progress] = []
    job = runner.Job(topic, str(tmp_path / "out"), topics.bootstrap, seconds=1)
    last = runner.run(spark, logs, job, on_progress=batches.append, stopped=lambda: bool(batches))
    assert last == batches[-1]
    assert [stream for stream in spark.streams.active if stream.name == "logs"] == []
    more = generated(20, seed=16)
    send_lines(topics, more, topic)
    run_logs(spark, topics, topic, tmp_path / "out")
    assert_same(counted(spark, tmp_path / "out"), expected([*lines, *more]))


def test_tables_without_their_checkpoint_are_refused(spark, topics, tmp_path):
    (tmp_path / "lines" / "batch=00000000").mkdir(parents=True)
    with pytest.raises(PipelineProblem, match=r"has tables \(lines\) but no checkpoint"):
        run_logs(spark, topics, "any", tmp_path)


def test_a_real_access_log(spark, topics, tmp_path):
    """Ten thousand real lines where they are at hand; as many made ones elsewhere."""
    if ACCESS_LOG.exists():
        lines = ACCESS_LOG.read_bytes().splitlines()
        by_status = Counter(line.split(b" ")[8].decode() for line in lines)
    else:
        statuses = random.Random(1).choices((200, 301, 404, 500), k=10_000)
        lines = [
            b'::1 - - [01/Jan/2024:00:%02d:00 +0000] "GET /%d HTTP/1.1" %d 5' % (n % 60, n % 97, status)
            for n, status in enumerate(statuses)
        ]
        by_status = Counter(map(str, statuses))
    topic = send_lines(topics, lines)
    run_logs(spark, topics, topic, tmp_path / "out")
    found = counted(spark, tmp_path / "out")
    assert found.by_label == {("access", status): count for status, count in by_status.items()}
    assert found.lines == len(lines) == 10_000
