"""Drawn records, valid, odd and hostile, beside what tasks make of them and the models' results; no Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.pipeline.changes.change_events import Change, LeftOut, decode_change
from nilometer.pipeline.changes.changed_rows import Emptied, Version, versions_of
from nilometer.pipeline.errors import RejectedValue
from nilometer.pipeline.events import EventSettings, typing_task
from nilometer.pipeline.formats.matcher import Matcher
from nilometer.pipeline.recognition import Formats
from nilometer.pipeline.shipped import join, metrics, notifications
from nilometer.pipeline.tables.table_writer import TableFormat, TableOptions
from support.pipeline.drawn_records import (
    SENT,
    Drawn,
    changes,
    log_lines,
    measurements,
    notified,
    orders,
    payments,
    rows,
)
from support.pipeline.pipeline_models import Books, model_of_changelog, model_of_table
from support.pipeline.table_batches import READERS, ROW_SCHEMA, Killed, Writing
from support.properties import DEFAULT, examples

SENT_US = int(SENT.timestamp()) * 1_000_000
NOTIFICATIONS = {
    "needed": notifications.NEEDED,
    "check": notifications.amount_check(notifications.Settings()),
}
TASKS = {
    "measurements": (measurements(), typing_task(metrics.MEASUREMENT, EventSettings())),
    "orders": (orders(), typing_task(join.ORDER, EventSettings())),
    "payments": (payments(), typing_task(join.PAYMENT, EventSettings())),
    "events": (notified(), typing_task(notifications.EVENT, EventSettings(), **NOTIFICATIONS)),
}
RECORDS = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "recorded": pa.int64(),
        "source": pa.string(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)
MATCHER = Matcher(Formats().definitions())


@pytest.mark.parametrize("name", TASKS)
@given(st.data())
@examples(DEFAULT, campaign=10_000)
def test_events_have_their_values_and_other_records_are_rejected_as_they_were(name, data):
    drawn, task = TASKS[name]
    records: list[Drawn] = data.draw(st.lists(drawn, max_size=75))
    given = [
        {"topic": "t", "partition": 0, "offset": n, "recorded": SENT_US, "source": "", "value": one.value}
        for n, one in enumerate(records)
    ]
    found = task(iter([pa.RecordBatch.from_pylist(given, schema=RECORDS)]))
    rows = [row for batch in found for row in batch.to_pylist()]
    for number, (one, row) in enumerate(zip(records, rows, strict=True)):
        said = row.pop("_record")
        assert (row.pop("_partition"), row.pop("_offset")) == (0, number)
        if one.event is None:
            assert (said["fate"], said["offset"], said["value"]) == (one.fate, number, one.value)
            assert said["reason"]
            assert set(row.values()) == {None}
        else:
            assert said is None
            assert row == {name: one.event[name] for name in row}


@given(st.lists(log_lines(), max_size=75))
@examples(DEFAULT, campaign=10_000)
def test_lines_have_their_format_time_label_and_name(lines):
    for one in lines:
        line = MATCHER.match(one.value or b"", one.source, SENT_US)
        at = None if one.event["at"] is None else int(one.event["at"].timestamp()) * 1_000_000
        event = one.event["format"], at, one.event["label"], one.event["name"]
        assert (line.format, line.time_us, line.label, line.key) == event


class Rows:
    """The rows of a table, from batch to batch."""

    def __init__(self) -> None:
        self.books = Books()
        self._known: dict[str, Version] = {}
        self._emptied: set[Emptied] = set()

    def take(self, batch: Sequence[Drawn]) -> None:
        by_key: dict[str, list[Change]] = {}
        for one in batch:
            self.books.read += 1
            try:
                change = decode_change(one.key, one.value, (), SENT_US)
            except LeftOut:
                self.books.became["left_out"] += 1
            except RejectedValue:
                self.books.became["rejected"] += 1
            else:
                if change.key is not None:
                    by_key.setdefault(change.key, []).append(change)
                    continue
                truncate = Emptied(change.lsn, change.seq, change.at_us)
                self.books.became["repeated" if truncate in self._emptied else "results"] += 1
                self._emptied.add(truncate)
        emptied = sorted(self._emptied, key=lambda one: one.position)
        for key in [*self._known, *(one for one in by_key if one not in self._known)]:
            known = [self._known[key]] if key in self._known else []
            given = by_key.get(key, [])
            outcome = versions_of(known, given, emptied)
            assert not outcome.rejected and not outcome.waiting
            self.books.became["repeated"] += len(outcome.repeated)
            self.books.became["results"] += len(given) - len(outcome.repeated)
            (self._known[key],) = [one for one in outcome.versions if one.newest]

    def present(self) -> dict[int, int]:
        found = [json.loads(one.row or "") for one in self._known.values() if not one.deleted]
        return {row["id"]: row["balance"] for row in found}


@given(st.lists(st.lists(changes(), max_size=25), max_size=6))
@examples(DEFAULT, campaign=10_000)
def test_changes_give_the_rows_and_the_account_of_the_model(batches):
    table = Rows()
    for one in batches:
        table.take(one)
    wanted = model_of_changelog([{"": one} for one in batches])
    assert (table.present(), {"": table.books}) == (wanted.results, wanted.books)


STEPS = st.lists(st.sampled_from(["files", "letters", "commit"]), max_size=2)


@pytest.mark.parametrize(
    ("form", "upsert"),
    [
        ("delta", True),
        ("iceberg", True),
        ("parquet", False),
        pytest.param("delta", False, marks=pytest.mark.thorough),
        pytest.param("iceberg", False, marks=pytest.mark.thorough),
    ],
)
@given(st.data())
@examples(10)
def test_a_table_has_the_rows_and_the_account_of_the_model_wherever_its_process_ends(
    form: TableFormat, upsert: bool, data
):
    drawn = st.tuples(st.lists(rows(upsert=upsert), min_size=1, max_size=20), STEPS)
    batches: list[tuple[list[Drawn], list[str]]] = data.draw(st.lists(drawn, min_size=1, max_size=4))
    with TemporaryDirectory() as folder:
        books, letters, end = Books(), set[int](), 0
        for number, (batch, steps) in enumerate(batches):
            first, end = end, end + len(batch)
            counts: Counter[str] = Counter()
            for step in [*steps, ""]:
                writing = Writing(
                    Path(folder), TableOptions(form, False, upsert), json.dumps(ROW_SCHEMA), killed_after=step
                )
                with suppress(Killed):
                    writing.write(number, records(batch, first))
                letters |= {offset for _, offset, _ in writing.rejected}
                if writing.counts:  # a batch that the table has is not staged again
                    counts = Counter(read=sum(one.read for one in writing.counts))
                    counts["results"] = sum(one.rows + one.deletions for one in writing.counts)
                    counts["rejected"] = len(writing.rejected)
            books.read += counts.pop("read")
            books.became += counts
        wanted = model_of_table([{"": batch} for batch, _ in batches], upsert=upsert)
        assert {"": books} == wanted.books
        everything = [one for batch, _ in batches for one in batch]
        assert letters == {offset for offset, one in enumerate(everything) if one.fate == "rejected"}
        found = READERS[form](Path(folder, "table"))
        assert [(row["_offset"], row["value"], row["service"], row["at"]) for row in found] == wanted.results


def records(batch: Sequence[Drawn], first: int) -> list[dict[str, Any]]:
    place = {"topic": "t", "partition": 0, "timestamp": SENT}
    return [
        {**place, "offset": offset, "key": one.key, "value": one.value}
        for offset, one in enumerate(batch, first)
    ]
