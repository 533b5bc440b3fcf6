"""Pipelines on drawn histories, in random batches and with restarts: results and account are a model's.

Fewer examples than other properties, as each is a few runs on Spark; ``pytest --examples 50`` draws more.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.pipeline.run import runner
from nilometer.pipeline.run.catalogue import SHIPPED
from nilometer.pipeline.shipped import changelog, join, metrics, table
from support.pipeline.filled_topics import Sent
from support.pipeline.histories import (
    MEASUREMENTS,
    ORDERS,
    PAYMENTS,
    SENT,
    Drawn,
    batches_of,
    changes,
    drawn,
    model_of_changelog,
    model_of_join,
    model_of_metrics,
)
from support.pipeline.runs import forget_last_commit
from support.pipeline.table_batches import READERS
from support.properties import examples

pytestmark = [pytest.mark.spark, pytest.mark.long]

MILLISECONDS = int(SENT.timestamp() * 1000)


def parts(event: st.SearchStrategy[Any], number: str) -> st.SearchStrategy[list[list[Drawn]]]:
    """Records that are sent before each of a few runs."""
    return st.lists(st.lists(drawn(event, number), max_size=25), min_size=1, max_size=3)


def send(topics, topic, records):
    topics.send(topic, [Sent(0, one.key, one.value, MILLISECONDS) for one in records])


def run(spark, topics, name, topic, output, **more):
    options = {"maxOffsetsPerTrigger": str(more.pop("batch", 10))}
    job = runner.Job(topic, str(output), topics.bootstrap, available_now=True, options=options, **more)
    return runner.run(spark, SHIPPED[name].load(), job)


def accounts(output):
    """The accounts of all batches, without the reasons; a test asserts that each fate has them."""
    last = max((output / "account").glob("batch=*.json"))
    totals = json.loads(last.read_text())["totals"]
    for one in totals.values():
        assert sum(sum(reasons.values()) for reasons in one["reasons"].values()) + one["open"] == one["read"]
        del one["reasons"], one["open_before"]
    return totals


def rollups(spark, output):
    rows = spark.read.parquet(f"{output}/rollups").collect()
    found = {
        (row.minute.astimezone(), row.service, row.metric): (row["count"], row.sum, row.least, row.greatest)
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def letters(spark, topics, topic):
    options = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic, "includeHeaders": "true"}
    options["kafka.isolation.level"] = "read_committed"
    rows = spark.read.format("nilometer").options(**options).load().collect()
    found = []
    for row in rows:
        headers = {one.key: bytes(one.value).decode() for one in row.headers}
        assert headers["dead.reason"]
        value = None if row.value is None else bytes(row.value)
        found.append((headers["dead.topic"], int(headers["dead.offset"]), value))
    return sorted(found)


def rejected(topic, records):
    return [(topic, n, one.value) for n, one in enumerate(records) if one.fate == "rejected"]


@given(parts(MEASUREMENTS, "value"), st.integers(3, 20), st.booleans())
@examples(4)
def test_metrics(spark, topics, sent, batch, repeated):
    topic, alerts = topics.create(1), topics.create(1)
    dead = topics.create(1, prefix="dead")
    with TemporaryDirectory() as folder:
        output = Path(folder, "out")
        for records in sent:
            send(topics, topic, records)
            run(spark, topics, "metrics", topic, output, to_topic=alerts, dead_letters=dead, batch=batch)
        everything = [one for records in sent for one in records]
        if not everything:
            return
        if repeated:
            forget_last_commit(output)
            run(spark, topics, "metrics", topic, output, to_topic=alerts, dead_letters=dead, batch=batch)
        batches = [one[topic] for one in batches_of(output, {topic: everything})]
        wanted, account = model_of_metrics(batches, metrics.LATENESS)
        assert accounts(output) == {"": account}
        assert rollups(spark, output) == wanted
        assert letters(spark, topics, dead) == rejected(topic, everything)


MOMENTS = (
    "checkpoint/offsets/[0-9]*",
    "rollups/batch=*",
    "state/rollups/batch=*",
    "account/batch=*",
    "checkpoint/commits/[0-9]*",
)
"""What a batch writes, in its order."""


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@given(parts(MEASUREMENTS, "value"), st.lists(st.sampled_from(MOMENTS), min_size=1, max_size=4))
@examples(5)
def test_metrics_through_kill_nine(spark, topics, sent, moments):
    """The process is killed when a batch has written a part of what it writes."""
    topic, alerts, dead = topics.create(1), topics.create(1), topics.create(1, prefix="dead")
    everything = [one for records in sent for one in records]
    send(topics, topic, everything)
    with TemporaryDirectory() as folder:
        output = Path(folder, "metrics")
        command = [sys.executable, "-m", "nilometer.cli", "pipeline", "run", "metrics", "--home", folder]
        command += ["--topic", topic, "--to", alerts, "--dead-letters", dead, "--available-now"]
        command += ["--bootstrap-server", topics.bootstrap, "--option", "maxOffsetsPerTrigger=5"]
        for moment in moments:
            known = set(output.glob(moment))
            with Path(folder, "output").open("wb") as printed:
                process = subprocess.Popen(command, stdout=printed, stderr=printed, start_new_session=True)
                try:
                    # Without an end in time: a run that reads nothing more ends by itself.
                    while process.poll() is None and set(output.glob(moment)) <= known:
                        time.sleep(0.005)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        run(spark, topics, "metrics", topic, output, to_topic=alerts, dead_letters=dead, batch=5)
        if not everything:
            return
        batches = [one[topic] for one in batches_of(output, {topic: everything})]
        wanted, account = model_of_metrics(batches, metrics.LATENESS)
        assert accounts(output) == {"": account}
        assert rollups(spark, output) == wanted
        assert letters(spark, topics, dead) == rejected(topic, everything)


@given(parts(ORDERS, "amount"), parts(PAYMENTS, "amount"), st.integers(3, 20), st.booleans())
@examples(4)
def test_join(spark, topics, orders, payments, batch, repeated):
    names = [topics.create(1), topics.create(1)]
    dead = topics.create(1, prefix="dead")
    settings = join.Settings(within=timedelta(minutes=10))
    with TemporaryDirectory() as folder:
        output = Path(folder, "out")
        customers = Path(folder, "customers.csv")
        customers.write_text("country,customer,name\nEgypt,c0,Ann\nKenya,c1,Bob\n")
        given = {"table": str(customers), "dead_letters": dead, "batch": batch, "settings": settings}
        for number in range(max(len(orders), len(payments))):
            for name, sent in zip(names, (orders, payments), strict=True):
                send(topics, name, sent[number] if number < len(sent) else [])
            run(spark, topics, "join", ",".join(names), output, **given)
        everything = [[one for records in sent for one in records] for sent in (orders, payments)]
        if not any(everything):
            return
        if repeated:
            forget_last_commit(output)
            run(spark, topics, "join", ",".join(names), output, **given)
        batches = batches_of(output, dict(zip(names, everything, strict=True)))
        by_input = [{"orders": one[names[0]], "payments": one[names[1]]} for one in batches]
        wanted, books = model_of_join(by_input, settings.lateness, settings.within)
        assert accounts(output) == books
        rows = spark.read.parquet(f"{output}/settled").collect()
        assert Counter((row.order, row.customer, row.payment, row.paid) for row in rows) == wanted
        known = {"c0": ("Ann", "Egypt"), "c1": ("Bob", "Kenya"), "stranger": (None, None)}
        assert all((row.name, row.country) == known[row.customer] for row in rows)
        refused = [one for name, sent in zip(names, everything, strict=True) for one in rejected(name, sent)]
        assert letters(spark, topics, dead) == sorted(refused)


@given(st.lists(st.lists(changes(), max_size=25), min_size=1, max_size=3), st.integers(3, 20), st.booleans())
@examples(4)
def test_changelog(spark, topics, sent, batch, repeated):
    topic, dead = topics.create(1), topics.create(1, prefix="dead")
    with TemporaryDirectory() as folder:
        output = Path(folder, "out")
        for records in sent:
            send(topics, topic, records)
            run(spark, topics, "changelog", topic, output, dead_letters=dead, batch=batch)
        everything = [one for records in sent for one in records]
        if not everything:
            return
        if repeated:
            forget_last_commit(output)
            run(spark, topics, "changelog", topic, output, dead_letters=dead, batch=batch)
        batches = [one[topic] for one in batches_of(output, {topic: everything})]
        wanted, account = model_of_changelog(batches)
        assert accounts(output) == {"": account}
        rows = changelog.columns(changelog.current(spark, str(output)), "id int, balance int").collect()
        assert sorted((row.id, row.balance) for row in rows) == sorted(wanted.items())
        assert letters(spark, topics, dead) == rejected(topic, everything)


SCHEMA = {
    "type": "object",
    "properties": {
        "at": {"type": "string", "format": "date-time"},
        "value": {"type": "number"},
        "service": {"type": "string"},
    },
    "required": ["at", "value"],
}


@st.composite
def keyed(draw: st.DrawFn) -> Drawn:
    """A record of a table: its key may be missing; one without a value is a tombstone."""
    one = draw(drawn(MEASUREMENTS, "value"))
    return replace(one, key=draw(st.sampled_from([None, b"k1", b"k2", b"k3"])))


@given(
    st.lists(st.lists(keyed(), max_size=25), min_size=1, max_size=2),
    st.sampled_from(["delta", "iceberg", "parquet"]),
    st.booleans(),
    st.integers(3, 20),
)
@examples(5)
def test_table(spark, topics, sent, kind, upsert, batch):
    upsert = upsert and kind != "parquet"
    topic, dead = topics.create(1), topics.create(1, prefix="dead")
    with TemporaryDirectory() as folder:
        output, schema = Path(folder, "out"), Path(folder, "schema.json")
        schema.write_text(json.dumps(SCHEMA))
        settings = table.Settings(format=kind, schema=str(schema), upsert=upsert)
        for records in sent:
            send(topics, topic, records)
            run(spark, topics, "table", topic, output, settings=settings, dead_letters=dead, batch=batch)
        everything = [one for records in sent for one in records]
        if not everything:
            return
        forget_last_commit(output)
        run(spark, topics, "table", topic, output, settings=settings, dead_letters=dead, batch=batch)
        rows, refused = model_of_table(topic, everything, upsert=upsert)
        assert letters(spark, topics, dead) == refused
        account = accounts(output)[""]
        assert (account["read"], account["rejected"]) == (len(everything), len(refused))
        assert account["results"] == len(everything) - len(refused)
        found = READERS[kind](output / "table")
        assert [(row["_offset"], row["value"], row["service"], row["at"]) for row in found] == rows


def model_of_table(topic: str, records: list[Drawn], *, upsert: bool) -> tuple[list[Any], list[Any]]:
    """Return the rows of the table, and the dead letters."""
    rows: dict[Any, Any] = {}
    refused: list[Any] = []
    for offset, one in enumerate(records):
        place = one.key if upsert else offset
        is_tombstone = upsert and one.value is None
        event = one.event or one.far  # the table takes each time: its rows are in no window
        if place is None or (event is None and not is_tombstone):
            refused.append((topic, offset, one.value))
        elif is_tombstone:
            rows.pop(place, None)
        else:
            assert event is not None
            rows[place] = (offset, float(event["value"]), event["service"], event["at"])
    return sorted(rows.values()), refused
