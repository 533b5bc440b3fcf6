"""Formats in the pipelines: what they find and count is what the matcher finds in plain Python."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta

import pytest

from nilometer.pipeline.formats.columns import as_text
from nilometer.pipeline.formats.matcher import Matcher, text_of
from nilometer.pipeline.formats.tally import shortened, tallied
from nilometer.pipeline.recognition import Formats
from nilometer.pipeline.run import runner
from nilometer.pipeline.run.catalogue import SHIPPED
from nilometer.pipeline.run.samples import sample_records
from nilometer.pipeline.shipped import activity
from support.pipeline.filled_topics import Sent
from support.pipeline.log_lines import HAND_PICKED, HOSTILE
from support.pipeline.runs import AFTER_SAMPLES_MS, send_values

pytestmark = pytest.mark.spark

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OWN = Formats(
    (
        (
            "mine.toml",
            """
[[format]]
name = "shop"
pattern = '(?P<time>[^ ]+ [^ ]+) (?P<level>[A-Z]+) (?P<logger>[^ ]+): (?P<message>.*)'
time = "time"
time_format = "%d.%m.%Y %H:%M:%S"
level = "level"
key = "logger"
files = ["*/shop.log"]

[[format]]
name = "sensors"
columns = ["at", "service", "metric", "value"]
time = "at"
""",
        ),
    )
)
SHOP = [b"01.05.2024 10:00:0%d WARN cart: slow" % second for second in range(7)]


def run_to_end(spark, topics, name, topic, output, **more):
    """Return the newest progress of each batch."""
    batches: list[runner.Progress] = []
    job = runner.Job(topic, str(output), topics.bootstrap, available_now=True, **more)
    runner.run(spark, SHIPPED[name].load(), job, on_progress=batches.append)
    return job, list({one.batch_id: one for one in batches}.values())


def test_lines_fields_and_counts_by_file_equal_those_of_the_matcher(spark, topics, tmp_path):
    files = {"/srv/shop.log": SHOP, "/srv/mixed.log": [*HAND_PICKED, *HOSTILE, *SHOP], "": [b"", b"zorp"]}
    rows = [(path, line) for path, lines in files.items() for line in lines]
    topic = topics.create(2, prefix="lines")
    recorded = 1_714_557_700_000
    topics.send(
        topic,
        [
            Sent(n % 2, None, line, recorded, (("path", path.encode()),) if path else ())
            for n, (path, line) in enumerate(rows)
        ],
    )
    limited = {"maxOffsetsPerTrigger": "40"}
    _, batches = run_to_end(spark, topics, "logs", topic, tmp_path, formats=OWN, options=limited)
    assert len(batches) > 1

    matcher = Matcher(OWN.definitions())
    wanted = [(path, matcher.match(line, path, recorded * 1_000)) for path, line in rows]
    counts = Counter((path, one.format) for path, one in wanted)
    tally = tallied([one.tally for one in batches if one.tally is not None])
    found = Counter()
    for file in tally.files():
        found.update({(file["path"], form): lines for form, lines in file["by_format"].items()})
        found.update(
            {(file["path"], "blank"): file["blank"], (file["path"], "unparsed"): file["unrecognised"]}
        )
    assert +found == counts
    assert counts["/srv/shop.log", "shop"] == len(SHOP)
    assert counts["/srv/mixed.log", "shop"] == 0
    unparsed = {
        shortened(text_of(line))
        for (_, line), (_, one) in zip(rows, wanted, strict=True)
        if one.format == "unparsed"
    }
    assert set(tally.samples(50)) <= unparsed
    assert len(tally.samples(50)) >= 3

    table = spark.read.parquet(str(tmp_path / "lines")).drop("batch").collect()
    shown = Counter(
        (
            row.source,
            row.format,
            row.level,
            row.label,
            row.name,
            str(sorted(row.fields.items())),
            us(row.event_time),
        )
        for row in table
    )
    assert shown == Counter(
        (
            path,
            one.format,
            one.level,
            one.label,
            one.key,
            str(sorted((name, as_text(value)) for name, value in one.fields.items())),
            one.time_us,
        )
        for path, one in wanted
    )


def us(time) -> int | None:
    return None if time is None else (time.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)


def as_json(line: bytes) -> bytes:
    """An access line as nginx writes it with escape=json."""
    head, request, rest, *quoted = line.decode().split('"')
    host, _, _, time = head.split(" ", 3)
    listing = {"time_local": time.strip("[] "), "remote_addr": host, "request": request}
    return json.dumps({**listing, "status": rest.split()[0], "http_user_agent": quoted[2]}).encode()


def test_sessions_of_json_lines_are_those_of_access_lines_and_open_ones_are_explained_and_closed(
    spark, topics, tmp_path
):
    lines = [one.value for one in sample_records("activity", 1_500)]
    more = [one.value for one in sample_records("activity", 1_520)][1_500:]
    settings = activity.Settings(
        pause=timedelta(minutes=10), funnel=(activity.Step("home", "^/$"), activity.Step("blog", "^/blog"))
    )
    plain, other = tmp_path / "plain", tmp_path / "json"
    tables = []
    for output, values in ((plain, lines), (other, [b"{}", b"no request", *map(as_json, lines)])):
        topic = send_values(topics, values, timestamp=AFTER_SAMPLES_MS)
        job, batches = run_to_end(spark, topics, "activity", topic, output, settings=settings)
        last = batches[-1]
        assert {one.batch_id for one in batches} == {0}
        rows = spark.read.parquet(f"{output}/sessions").drop("batch").collect()
        tables.append(Counter(rows))
        assert last.tally is not None
        recognised = last.tally["recognised"]
        assert recognised == len(lines)
        assert last.tally["unrecognised"] == len(values) - len(lines)
        assert last.totals is not None
        account = last.totals[""]
        assert account["results"] == requests_of_closed_sessions(lines, settings) < recognised
        assert account["open"] == recognised - account["results"]
        assert (account["late"], account["rejected"]) == (0, len(values) - len(lines))
    assert tables[0] == tables[1]
    assert {row.steps for row in tables[0]} <= {0, 1, 2}

    runner.finish(spark, activity, job)
    finished = spark.read.parquet(f"{other}/sessions")
    assert sum(row.requests for row in finished.collect()) == len(lines)
    # The next run begins with the state, not with what was written as if the input had ended.
    send_values(topics, [as_json(line) for line in more], job.topic, timestamp=AFTER_SAMPLES_MS)
    _, batches = run_to_end(spark, topics, "activity", job.topic, other, settings=settings)
    assert not (other / "sessions" / "batch=open").exists()
    account = (batches[-1].totals or {})[""]
    assert account["results"] + account["open"] == len(lines) + len(more)
    rows = spark.read.parquet(f"{other}/sessions").collect()
    assert sum(row.requests for row in rows) == account["results"] < len(lines) + len(more)
    funnel = activity.results(spark, str(other), settings=settings)["Funnel"].collect()
    assert [row.step for row in funnel][:1] == ["home"]


def requests_of_closed_sessions(lines: list[bytes], settings: activity.Settings) -> int:
    by_visitor: dict[tuple[str, str], list[datetime]] = defaultdict(list)
    for line in lines:
        host, rest = line.decode().split(" ", 1)
        time = datetime.strptime(rest.partition("[")[2].partition("]")[0], "%d/%b/%Y:%H:%M:%S %z")
        by_visitor[host, line.decode().split('"')[5]].append(time)
    watermark = max(max(times) for times in by_visitor.values()) - settings.lateness
    closed = 0
    for times in by_visitor.values():
        session: list[datetime] = []
        for time in [*sorted(times), datetime.max.replace(tzinfo=UTC)]:
            if session and time - session[-1] > settings.pause:
                closed += len(session) if session[-1] + settings.pause <= watermark else 0
                session = []
            session.append(time)
    return closed


def test_measurements_of_ones_own_format_give_the_rollups_of_json(spark, topics, tmp_path):
    sample = [one.value for one in sample_records("metrics", 3_000)]
    lines = [b"at,service,metric,value"]
    for value in sample:
        one = json.loads(value)
        lines.append(f"{one['at']},{one['service']},{one['metric']},{one['value']}".encode())
    tables = []
    for name, values, formats in (("json", sample, None), ("csv", lines, OWN)):
        topic, alerts = send_values(topics, values, timestamp=AFTER_SAMPLES_MS), topics.create(1)
        _, batches = run_to_end(
            spark, topics, "metrics", topic, tmp_path / name, to_topic=alerts, formats=formats
        )
        tables.append(Counter(spark.read.parquet(f"{tmp_path}/{name}/rollups").drop("batch").collect()))
        account = (batches[-1].totals or {})[""]
        assert account["results"] + account["open"] == len(sample)
        assert account["left_out"] == (name == "csv")  # the line with the names of the columns
    assert tables[0] == tables[1] != Counter()
