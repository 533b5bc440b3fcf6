"""Pipelines on data as it is: one record ends no run, and each is where the account says."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from pyspark.errors import PythonException

from nilometer.cli.pipelines.pipeline_commands import pipeline
from nilometer.cli.pipelines.pipeline_run_command import tables_of
from nilometer.pipeline import batches
from nilometer.pipeline.csv_table import check_table, read_table
from nilometer.pipeline.errors import PipelineError, readable
from nilometer.pipeline.events import EventSettings, typed
from nilometer.pipeline.run import runner
from nilometer.pipeline.shipped import activity, join, metrics, notifications, table
from nilometer.pipeline.tables.values import without_collisions
from support.pipeline.runs import AFTER_SAMPLES_MS, assert_reported, read_values, run_pipeline, send_values

pytestmark = pytest.mark.spark


def measurement(at: object, value: object = 5) -> bytes:
    return json.dumps({"at": at, "service": "web", "metric": "latency_ms", "value": value}).encode()


def minute(number: int) -> bytes:
    return measurement(f"2024-05-01T12:{number:02d}:00Z")


def letters(spark, topics, topic):
    """The reasons of the dead letters, by value."""
    options = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic, "includeHeaders": "true"}
    rows = spark.read.format("nilometer").options(**options).load().collect()
    return {
        bytes(row.value): next(bytes(one.value).decode() for one in row.headers if one.key == "dead.reason")
        for row in rows
    }


def test_bad_times_and_numbers_are_rejected_and_move_no_watermark(spark, topics, tmp_path):
    bad = {
        measurement(1_714_557_613_000): "`$.at` is an integer, and its column takes a time",
        measurement("2099-01-01T00:00:00Z"): "its at is more than 1:00:00 ahead of the record's time stamp",
        measurement("2024-05-01T12:00:30Z", float("inf")): "no JSON",
        measurement("2024-05-01T12:00:30Z", -1.7e308): "its value is too large to be summed",
        measurement("2024-05-01T12:00:30Z", "900"): "`$.value` is a text, and its column takes a number",
    }
    topic = send_values(topics, [minute(0), *bad], timestamp=AFTER_SAMPLES_MS)
    alerts, dead = topics.create(1), topics.create(1, prefix="dead")
    given = {"to_topic": alerts, "dead_letters": dead}
    run_pipeline(spark, topics, "metrics", topic, tmp_path, **given)
    send_values(topics, [minute(number) for number in range(1, 9)], topic, timestamp=AFTER_SAMPLES_MS)
    last = run_pipeline(spark, topics, "metrics", topic, tmp_path, **given)
    assert last is not None
    assert last.totals is not None
    account = last.totals[""]
    assert (account["read"], account["results"], account["rejected"], account["open"]) == (14, 6, 5, 3)
    assert str(last.event_time_watermark) == "2024-05-01 12:06:00+00:00"
    rows = spark.read.parquet(f"{tmp_path}/rollups").orderBy("minute").collect()
    assert [(row.minute.minute, row["count"], row.mean) for row in rows] == [(n, 1, 5.0) for n in range(6)]
    found = letters(spark, topics, dead)
    assert found.keys() == bad.keys()
    assert all(found[value].startswith(reason) for value, reason in bad.items())


def test_times_of_the_first_and_the_last_day_are_shown(spark, topics, tmp_path):
    # The least time of .NET, that of a field without a value.
    topic = send_values(topics, [measurement("0001-01-01T00:00:00Z"), minute(0)], timestamp=AFTER_SAMPLES_MS)
    given = {"to_topic": topics.create(1), "dead_letters": topics.create(1, prefix="dead")}
    run_pipeline(spark, topics, "metrics", topic, tmp_path, **given)
    minutes = [
        row["minute"] for row in tables_of(metrics.results(spark, str(tmp_path)))["Slowest 10 minutes"]
    ]
    assert minutes == [datetime(1, 1, 1)]
    assert_reported(spark, "metrics", tmp_path)
    zone = spark.conf.get("spark.sql.session.timeZone")
    times = "array(timestamp'0001-01-01 00:00:00Z', timestamp'9999-12-31 23:00:00Z')"
    try:
        for west_or_east in ("-12:00", "+12:00"):
            spark.conf.set("spark.sql.session.timeZone", west_or_east)
            assert len(tables_of({"all": spark.sql(f"SELECT explode({times}) AS at")})["all"]) == 2
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_late_records_are_in_their_topic_as_they_were_to_be_run_again(spark, topics, tmp_path):
    topic, alerts, late = topics.create(1), topics.create(1), topics.create(1, prefix="late")
    given = {"to_topic": alerts, "settings": metrics.Settings(late_topic=late)}
    for values in ([minute(0), minute(30)], [minute(1), minute(2), minute(31)]):
        send_values(topics, values, topic, timestamp=AFTER_SAMPLES_MS)
        last = run_pipeline(spark, topics, "metrics", topic, tmp_path / "first", **given)
    assert last is not None
    assert last.totals is not None
    assert last.totals[""]["late"] == 2
    assert read_values(spark, topics, late) == [minute(1), minute(2)]
    run_pipeline(spark, topics, "metrics", late, tmp_path / "late", to_topic=alerts)
    runner.finish(spark, metrics, runner.Job(late, str(tmp_path / "late"), topics.bootstrap))
    rows = spark.read.parquet(f"{tmp_path}/late/rollups").collect()
    assert sorted(row.minute.minute for row in rows) == [1, 2]


def test_late_records_of_two_inputs_are_in_a_topic_for_each(spark, topics, tmp_path):
    def order(number: int, at: str) -> bytes:
        event = {"order": f"o{number}", "customer": "c1", "amount": 5, "at": f"2024-05-01T{at}:00Z"}
        return json.dumps(event).encode()

    def payment(number: int, at: str) -> bytes:
        event = {"payment": f"p{number}", "order": f"o{number}", "amount": 5, "at": f"2024-05-01T{at}:00Z"}
        return json.dumps(event).encode()

    inputs = [topics.create(1), topics.create(1)]
    late = topics.create(1, prefix="late")
    late_topics = [topics.create(1, name=f"{late}-{name}") for name in ("orders", "payments")]
    table = tmp_path / "customers.csv"
    table.write_text("customer,name,country\nc1,Ann,Egypt\n")
    for orders, payments in (
        ([order(1, "12:00"), order(2, "14:00")], [payment(2, "14:00")]),
        ([order(3, "13:49"), order(4, "13:50")], [payment(1, "12:30"), payment(4, "13:50")]),
    ):
        for topic, values in zip(inputs, (orders, payments), strict=True):
            send_values(topics, values, topic, timestamp=AFTER_SAMPLES_MS)
        settings = join.Settings(late_topic=late)
        last = run_pipeline(
            spark, topics, "join", ",".join(inputs), tmp_path / "out", table=str(table), settings=settings
        )
    assert last is not None
    assert last.totals is not None
    assert {name: one["late"] for name, one in last.totals.items()} == {"orders": 1, "payments": 1}
    sent = [read_values(spark, topics, topic) for topic in late_topics]
    assert sent == [[order(3, "13:49")], [payment(1, "12:30")]]


def test_records_of_aborted_transactions_are_in_no_result_and_no_account(spark, topics, tmp_path):
    topic, alerts = topics.create(1), topics.create(1)
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for number, end in ((0, producer.abort_transaction), (1, producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, minute(number), timestamp=AFTER_SAMPLES_MS)
        end(30)
    send_values(topics, [minute(5)], topic, timestamp=AFTER_SAMPLES_MS)
    last = run_pipeline(spark, topics, "metrics", topic, tmp_path, to_topic=alerts)
    assert last is not None
    assert last.totals is not None
    account = last.totals[""]
    assert (account["read"], account["results"], account["open"]) == (2, 1, 1)
    rows = spark.read.parquet(f"{tmp_path}/rollups").collect()
    assert [row.minute.minute for row in rows] == [1]


def test_a_failed_batch_leaves_nothing_and_the_next_run_gives_what_it_would_have(
    spark, topics, tmp_path, monkeypatch
):
    topic, alerts = topics.create(1), topics.create(1)
    send_values(topics, [minute(number) for number in range(20)], topic, timestamp=AFTER_SAMPLES_MS)
    given = {"to_topic": alerts, "options": {"maxOffsetsPerTrigger": "8"}}
    keep = batches.Batch.keep

    def fail_in_second_batch(self, name, frame):
        if self.number == 1:
            raise PipelineError("planted: the disk is full")
        keep(self, name, frame)

    monkeypatch.setattr(batches.Batch, "keep", fail_in_second_batch)
    with pytest.raises(PipelineError, match=r"^planted: the disk is full$"):
        run_pipeline(spark, topics, "metrics", topic, tmp_path, **given)
    monkeypatch.undo()
    assert sorted(path.name for path in (tmp_path / "rollups").glob("batch=*")) == ["batch=00000000"]
    assert sorted(path.name for path in (tmp_path / "account").glob("batch=*")) == ["batch=00000000.json"]
    last = run_pipeline(spark, topics, "metrics", topic, tmp_path, **given)
    assert last is not None
    assert last.totals is not None
    account = last.totals[""]
    assert (account["read"], account["results"], account["open"]) == (20, 17, 3)
    rows = spark.read.parquet(f"{tmp_path}/rollups").collect()
    assert sorted((row.minute.minute, row["count"]) for row in rows) == [(n, 1) for n in range(17)]


def test_a_run_whose_state_is_lost_or_in_spark_is_not_continued(spark, topics, tmp_path):
    topic, alerts = topics.create(1), topics.create(1)
    send_values(topics, [minute(0)], topic, timestamp=AFTER_SAMPLES_MS)
    run_pipeline(spark, topics, "metrics", topic, tmp_path, to_topic=alerts)
    for path in (tmp_path / "state").rglob("*"):
        if path.is_file():
            path.unlink()
    (tmp_path / "state" / "rollups" / "batch=00000000").rmdir()
    send_values(topics, [minute(1)], topic, timestamp=AFTER_SAMPLES_MS)
    with pytest.raises(PipelineError, match="is missing: the run cannot go on"):
        run_pipeline(spark, topics, "metrics", topic, tmp_path, to_topic=alerts)
    (tmp_path / "checkpoint" / "state").mkdir()
    with pytest.raises(PipelineError, match="written by an earlier version"):
        run_pipeline(spark, topics, "metrics", topic, tmp_path, to_topic=alerts)


def test_events_count_once_and_only_with_a_number_where_one_is_summed(spark, topics, tmp_path):
    def paid(number: int, amount: object) -> bytes:
        event = {"id": f"e{number}", "user": "u1", "kind": "payment", "amount": amount}
        return json.dumps({**event, "at": f"2024-05-01T12:00:0{number}Z"}).encode()

    values = [paid(1, 300), paid(1, 300), paid(2, "900"), paid(3, None), paid(4, 150)]
    topic, messages = send_values(topics, values, timestamp=AFTER_SAMPLES_MS), topics.create(1)
    dead = topics.create(1, prefix="dead")
    table = tmp_path / "users.csv"
    table.write_text("address,language,user,name\nu1@example.org,en,u1,Ann {sum}\n")
    given = {"to_topic": messages, "table": str(table), "dead_letters": dead}
    run_pipeline(spark, topics, "notifications", topic, tmp_path / "out", **given)
    assert read_values(spark, topics, messages) == []  # 450 are below the threshold
    for number, amount in ((5, 50), (6, -100), (7, 101)):  # the sum reaches the threshold twice
        send_values(topics, [paid(number, amount)], topic, timestamp=AFTER_SAMPLES_MS)
        last = run_pipeline(spark, topics, "notifications", topic, tmp_path / "out", **given)
    (message,) = map(json.loads, read_values(spark, topics, messages))
    assert (message["user"], message["address"]) == ("u1", "u1@example.org")
    assert message["text"] == "Hello Ann {sum}, you have paid 500.00 within ten minutes."
    assert last is not None
    assert last.totals is not None
    account = last.totals[""]
    assert (account["repeated"], account["rejected"], account["open"]) == (1, 2, 5)
    reasons = set(letters(spark, topics, dead).values())
    assert any(one.startswith("`$.amount` is a text") for one in reasons)
    assert "no amount, which a rule of its kind sums" in reasons
    (by_rule,) = notifications.results(spark, str(tmp_path / "out"))["Messages by rule"].collect()
    assert by_rule.messages == 1


def test_a_table_with_a_key_twice_or_without_a_column_is_refused(spark, tmp_path):
    columns = "customer,name,country"
    twice = tmp_path / "twice.csv"
    twice.write_text("\ufeffcountry,customer,name\nEgypt,c1,Ann\nKenya,c2,Bob\nSudan,c1,Ann\n")
    with pytest.raises(PipelineError, match="customer c1 is there twice, in lines 2 and 4"):
        check_table(str(twice), columns)
    with pytest.raises(PipelineError, match="customer c1 is there 2 times"):
        read_table(spark, str(twice), columns)
    other = tmp_path / "other.csv"
    other.write_text("customer,country\nc1,Egypt\n")
    for check in (check_table, lambda *given: read_table(spark, *given)):
        with pytest.raises(PipelineError, match=r"no column name. .* here customer, country; needed are"):
            check(str(other), columns)
    good = tmp_path / "good.csv"
    text = (
        '\ufeff"country",customer,name,more\r\nEgypt,c1,"Ann ""the, first""",x\r\n'
        '"Kenya",c2,"Bob\nJunior\\",x\r\n,"c\\3",,\r\n\r\n'
    )
    good.write_bytes(text.encode())
    check_table(str(good), columns)
    assert [tuple(row) for row in read_table(spark, str(good), columns).collect()] == [
        ("c1", 'Ann "the, first"', "Egypt"),
        ("c2", "Bob\nJunior\\", "Kenya"),
        ("c\\3", None, None),
    ]


def test_two_lines_are_no_request_and_a_path_may_have_spaces(spark, topics, tmp_path):
    def line(request: str, host: str = "10.0.0.1") -> bytes:
        return f'{host} - - [01/May/2024:12:00:00 +0000] "{request}" 200 5 "-" "x"'.encode()

    two = line("GET /1 HTTP/1.1") + b"\n" + line("GET /2 HTTP/1.1")
    values = [line("GET /a b c"), line("GET /d e?f=g HTTP/1.1"), line("GET /h?i j HTTP/1.0"), two, b""]
    topic, dead = send_values(topics, values, timestamp=AFTER_SAMPLES_MS), topics.create(1, prefix="dead")
    last = run_pipeline(spark, topics, "activity", topic, tmp_path, dead_letters=dead)
    assert last is not None
    assert last.totals is not None
    account = last.totals[""]
    assert (account["read"], account["rejected"], account["left_out"], account["open"]) == (5, 1, 1, 3)
    runner.finish(spark, activity, runner.Job(topic, str(tmp_path), topics.bootstrap))
    views = spark.read.parquet(f"{tmp_path}/page_views").collect()
    assert sorted(row.path for row in views) == ["/a b c", "/d e", "/h"]
    assert letters(spark, topics, dead) == {two: "of no format"}


def test_spans_with_a_fraction_of_a_second_count_as_they_are(spark, topics, tmp_path):
    span = timedelta(seconds=1.5)
    values = [measurement(f"2024-05-01T12:00:{at:06.3f}Z") for at in (0, 1.4, 1.5, 2.9, 3)]
    topic = send_values(topics, [*values, minute(5)], timestamp=AFTER_SAMPLES_MS)
    settings = metrics.Settings(window=span)
    run_pipeline(spark, topics, "metrics", topic, tmp_path, to_topic=topics.create(1), settings=settings)
    rollups = spark.read.parquet(f"{tmp_path}/rollups")
    rows = rollups.collect()
    starts = {row.minute.second + row.minute.microsecond / 1e6: row["count"] for row in rows}
    assert starts == {0: 2, 1.5: 2, 3: 1}
    everything = metrics.Settings(rules=(metrics.Rule("any", "latency_ms", "count", 0),))
    alerts = [json.loads(row.value) for row in metrics.alerts_of(rollups, everything).collect()]
    assert sorted(one["id"] for one in alerts) == [
        "web/any/2024-05-01T12:00:00Z",
        "web/any/2024-05-01T12:00:01.500000Z",
        "web/any/2024-05-01T12:00:03Z",
    ]

    start = datetime(2024, 5, 1, 12, tzinfo=UTC)
    schema = "host string, agent string, time timestamp, path string, status int"
    visits = [("h", "a", start + timedelta(seconds=at), "/", 200) for at in (0, 1.4, 3)]
    sessions = activity.sessions_of(
        spark.createDataFrame(visits, schema), activity.Settings(pause=span)
    ).collect()
    assert sorted(len(row.requests) for row in sessions) == [1, 2]

    orders = spark.createDataFrame(
        [("o1", start, True)], "`order` string, ordered_at timestamp, is_new boolean"
    )
    columns = "payment string, paid_order string, paid double, paid_at timestamp, is_new boolean"
    paid = [(f"p{at}", "o1", 1.0, start + timedelta(seconds=at), True) for at in (0, 1.4, 1.8)]
    met = join.pairs_of(orders, spark.createDataFrame(paid, columns), join.Settings(within=span)).collect()
    assert sorted(row.payment for row in met) == ["p0", "p1.4"]


def test_a_name_with_a_dot_beside_the_path_that_it_looks_like_ends_no_run(spark):
    values = [b'{"id": 1}', b'{"a.b": 1, "a": {"b": 2}}', b'{"n": "x"}']
    rows = [(value, 0, offset) for offset, value in enumerate(values)]
    batch = spark.createDataFrame(rows, "value binary, partition int, offset bigint")
    for tasks in (1, 3):
        row = without_collisions(table.inferred(batch.repartition(tasks)))
        assert sorted(field.name for field in row.fields) == ["a.b", "id", "n"]


def test_settings_that_cannot_be_followed_are_found_before_spark_starts(tmp_path):
    def run(*arguments: str):
        given = ["run", *arguments, "--home", str(tmp_path), "--bootstrap-server", "127.0.0.1:9"]
        return CliRunner().invoke(pipeline, given)

    no_schema = run("table")
    assert no_schema.exit_code == 1
    assert "the table needs columns: --set schema=FILE" in no_schema.output
    two_topics = run("table", "--topic", "orders,customers", "--set", "schema=infer")
    assert two_topics.exit_code == 2
    assert "an input is one topic" in two_topics.output
    table = tmp_path / "customers.csv"
    table.write_text("customer,name,country\nc1,Ann,Egypt\nc1,Bob,Kenya\n")
    twice = run("join", "--table", str(table))
    assert twice.exit_code == 1
    assert "customer c1 is there twice, in lines 2 and 3" in twice.output


def test_a_run_says_its_account_and_ends_with_3_if_too_much_was_rejected(topics, tmp_path):
    values = [minute(0), minute(30), b"no json", measurement(5)]
    topic = send_values(topics, values, timestamp=AFTER_SAMPLES_MS)

    def nilometer(*arguments: str):
        command = [sys.executable, "-m", "nilometer.cli", "pipeline", *arguments, "--home", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    given = ["--topic", topic, "--to", topics.create(1), "--bootstrap-server", topics.bootstrap]
    given += ["--available-now", "--dead-letters", topics.create(1, prefix="dead")]
    done = nilometer("run", "metrics", *given, "--json", "--report", str(tmp_path / "report.html"))
    assert done.returncode == 3, done.stderr
    assert "WARNING: 2 of 4 records (50.0%) were rejected; --max-rejected is 20 %" in done.stderr
    answer = json.loads(done.stdout)
    assert answer["account"]["run"] == answer["account"]["all_runs"]
    account = answer["account"]["run"][""]
    assert (account["read"], account["results"], account["rejected"], account["open"]) == (4, 1, 2, 1)
    assert "1 records are still open" in answer["notes"][0]
    page = (tmp_path / "report.html").read_text()
    assert "Account of all runs" in page
    assert "its column takes a time" in page
    status = nilometer("status").stdout
    assert "metrics: records: 4 read = 1 in the results + 2 rejected + 1 still open" in status
    series = nilometer("status", "--metrics").stdout.splitlines()
    assert (
        f'nilometer_pipeline_records_total{{pipeline="metrics",input="{topic}",fate="rejected"}} 2' in series
    )
    assert f'nilometer_pipeline_open_records{{pipeline="metrics",input="{topic}"}} 1' in series
    again = nilometer("run", "metrics", *given, "--max-rejected", "50")
    assert again.returncode == 0, again.stderr
    assert "Account of this run" in again.stdout
    assert "records: 1 open before + 0 read = 1 still open" in again.stdout
    assert "records: 4 read = 1 in the results + 2 rejected + 1 still open" in again.stdout


def test_a_mistake_of_ours_names_the_record_and_is_said_in_its_own_words(spark, topics):
    topic = send_values(topics, [minute(0)], timestamp=AFTER_SAMPLES_MS)
    options = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic, "includeHeaders": "true"}
    records = spark.read.format("nilometer").options(**options).load()

    def mistaken(_):
        raise ZeroDivisionError("planted")

    with pytest.raises(PythonException) as raised:
        typed(records, metrics.MEASUREMENT, EventSettings(), check=mistaken).collect()
    said = readable(raised.value)
    assert said == f"the record in {topic}-0 at offset 0 cannot be processed: ZeroDivisionError: planted"
    within = "Traceback ...\nnilometer.pipeline.tables.values.SchemaError: $.a: no column\n\tat ..."
    assert readable(RuntimeError(within)) == "$.a: no column"
