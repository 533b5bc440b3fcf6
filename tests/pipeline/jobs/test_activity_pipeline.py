"""The shipped ``activity`` job against sessions made in plain Python from the same lines."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from nilometer.pipeline.run.samples import sample_records
from nilometer.pipeline.shipped import activity
from support.pipeline.runs import (
    AFTER_SAMPLES_MS,
    assert_reported,
    forget_last_commit,
    run_pipeline,
    send_values,
)

pytestmark = pytest.mark.spark

ACCESS_LOG = Path(__file__).resolve().parents[4] / "shared" / "data" / "access.log"
PAUSE = timedelta(minutes=30)
STRANGE = [
    b"",
    b"no access line",
    b"\xff\xfe",
    b'10.0.0.1 - - [31/Feb/2024:12:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "x"',
    b'10.0.0.1 - - [01/May/2024:12:00:00 +0000] "GET /cut',
    b'10.9.9.9 - - [01/May/2024:12:00:00 +0000] "GET /old HTTP/1.0" 200 5',
    b'10.9.9.9 - - [01/May/2024:14:30:00 +0200] "HEAD /?q=1 HTTP/1.0" 304 -',
]


def requests_in(lines):
    for line in lines:
        head, _, rest = line.decode("utf-8", "replace").partition("[")
        stamp, _, rest = rest.partition("] ")
        fields = rest.split('"')
        if len(fields) < 3 or len(head.split()) != 3:
            continue
        try:
            time = datetime.strptime(stamp, "%d/%b/%Y:%H:%M:%S %z")
        except ValueError:
            continue
        words, status = fields[1].split(" "), fields[2].split()
        path = re.split("[?#]", words[1])[0] if len(words) > 1 else ""
        if not words[0].isupper() or not path or not status or not status[0].isdecimal():
            continue
        agent = fields[5] if len(fields) >= 7 else ""
        yield head.split()[0], agent, time, path, int(status[0])


def is_page(path, status):
    ending = path.lower().rpartition(".")[2] if "." in path.rpartition("/")[2] else ""
    assets = {
        "css",
        "js",
        "png",
        "jpg",
        "jpeg",
        "gif",
        "ico",
        "svg",
        "woff",
        "woff2",
        "ttf",
        "map",
        "xml",
        "txt",
    }
    return status < 400 and ending not in assets


def funnel_steps(pages):
    taken = 0
    for path in pages:
        if taken == len(activity.FUNNEL):
            break
        part = path.split("/")
        takes = [
            True,
            len(part) > 2 and part[1] in {"blog", "articles", "projects", "presentations"} and part[2] != "",
            len(part) > 2 and part[1] in {"blog", "articles", "projects", "presentations"} and part[2] != "",
            len(part) > 2 and part[1] in {"files", "downloads", "misc"} and part[2] != "",
        ]
        taken += takes[taken]
    return taken


def expected(lines):
    """Closed sessions: (host, agent, start, end, requests, pages, steps), and views by (minute, path)."""
    requests = list(requests_in(lines))
    watermark = max(time for _, _, time, _, _ in requests) - activity.Settings().lateness
    by_visitor = defaultdict(list)
    for host, agent, time, path, status in requests:
        by_visitor[host, agent].append((time, path, status))
    sessions, views = Counter(), Counter()
    for (host, agent), mine in by_visitor.items():
        mine.sort()
        groups = [[mine[0]]]
        for one in mine[1:]:
            if one[0] <= groups[-1][-1][0] + PAUSE:
                groups[-1].append(one)
            else:
                groups.append([one])
        for group in groups:
            if group[-1][0] + PAUSE > watermark:
                continue
            pages = [path for _, path, status in group if is_page(path, status)]
            sessions[host, agent, group[0][0], group[-1][0], len(group), len(pages), funnel_steps(pages)] += 1
            for time, path, status in group:
                if is_page(path, status):
                    views[time.replace(second=0), path] += 1
    return sessions, views


def found(spark, output):
    table = spark.read.parquet(f"{output}/sessions").collect()
    sessions = Counter(
        (row.host, row.agent, utc(row.start), utc(row.end), row.requests, row.pages, row.steps)
        for row in table
    )
    views = Counter()
    for row in spark.read.parquet(f"{output}/page_views").collect():
        views[utc(row.minute), row.path] += row.views
    return sessions, views


def utc(time):
    return time.astimezone()


def test_sessions_equal_those_made_in_plain_python_and_a_repeated_batch_changes_nothing(
    spark, topics, tmp_path
):
    lines = [*STRANGE, *[one.value for one in sample_records("activity", 2_200)]]
    topic = send_values(topics, lines, timestamp=AFTER_SAMPLES_MS)
    limited = {"maxOffsetsPerTrigger": "1200"}
    run_pipeline(spark, topics, "activity", topic, tmp_path, options=limited)
    wanted = expected(lines)
    assert len(wanted[0]) > 100
    assert found(spark, tmp_path) == wanted
    forget_last_commit(tmp_path)
    run_pipeline(spark, topics, "activity", topic, tmp_path, options=limited)
    assert found(spark, tmp_path) == wanted
    funnel = activity.results(spark, str(tmp_path))["Funnel"].collect()
    by_steps = Counter()
    for (*_, steps), count in wanted[0].items():
        by_steps[steps] += count
    assert [row.sessions for row in funnel] == [
        sum(count for steps, count in by_steps.items() if steps >= step)
        for step in range(1, len(activity.FUNNEL) + 1)
    ]


def test_sessions_of_a_real_access_log(spark, topics, tmp_path):
    """Ten thousand real lines where they are at hand; as many made ones elsewhere."""
    if ACCESS_LOG.exists():
        lines = ACCESS_LOG.read_bytes().splitlines()
    else:
        lines = [one.value for one in sample_records("activity", 10_000, seed=3)]
    topic = send_values(topics, lines, timestamp=AFTER_SAMPLES_MS)
    run_pipeline(spark, topics, "activity", topic, tmp_path)
    assert found(spark, tmp_path) == expected(lines)
    assert_reported(spark, "activity", tmp_path)
