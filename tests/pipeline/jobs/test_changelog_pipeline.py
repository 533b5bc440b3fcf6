"""The shipped ``changelog`` job against a table kept in plain Python from the same changes."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime

import pytest

from nilometer.pipeline.batches import KEPT
from nilometer.pipeline.run.samples import sample_records
from nilometer.pipeline.shipped import changelog
from support.pipeline.filled_topics import Sent
from support.pipeline.runs import assert_reported, forget_last_commit, run_pipeline

pytestmark = pytest.mark.spark

COLUMNS = "id int, owner string, balance int"


def change(op, number, lsn, seq=0, balance=0):
    key = None if op == "t" else {"id": number}
    after = {"id": number, "owner": "x", "balance": balance} if op in "cru" else None
    at = f"2024-05-01T12:{lsn // 60:02d}:{lsn % 60:02d}Z"
    return {"op": op, "table": "public.a", "key": key, "after": after, "lsn": lsn, "seq": seq, "at": at}


def expected(changes):
    """The table as it is now, and every version with its times; changes by where they stand in the log."""
    now, versions = {}, Counter()
    begun = {}

    def end(key, at):
        if key in now:
            versions[key, now.pop(key), begun[key], at] += 1

    seen = set()
    for one in sorted(changes, key=lambda one: (one["lsn"], one["seq"])):
        if (one["lsn"], one["seq"]) in seen:
            continue
        seen.add((one["lsn"], one["seq"]))
        at = datetime.fromisoformat(one["at"])
        if one["op"] == "t":
            for key in list(now):
                end(key, at)
            continue
        key = one["key"]["id"]
        end(key, at)
        if one["after"] is not None:
            now[key], begun[key] = one["after"]["balance"], at
    for key, balance in now.items():
        versions[key, balance, begun[key], None] += 1
    return now, versions


def found(spark, output):
    now = {
        row.id: row.balance for row in changelog.columns(changelog.current(spark, output), COLUMNS).collect()
    }
    versions = changelog.columns(changelog.timeline(spark, output), COLUMNS).collect()
    versions = Counter(
        (row.id, row.balance, row.valid_from.astimezone(), row.valid_until and row.valid_until.astimezone())
        for row in versions
    )
    return now, versions


def send(topics, changes, topic=None, partitions=2):
    topic = topic or topics.create(partitions)
    records = []
    for one in changes:
        number = one["key"]["id"] if one["key"] else 0
        records.append(Sent(number % partitions, json.dumps(one["key"]).encode(), json.dumps(one).encode()))
    topics.send(topic, records)
    return topic


@pytest.mark.long
def test_current_table_and_history_equal_those_kept_in_plain_python(spark, topics, tmp_path):
    changes = [json.loads(one.value) for one in sample_records("changelog", 600)]
    topic = send(topics, changes)
    output, limited = str(tmp_path), {"maxOffsetsPerTrigger": "250"}
    run_pipeline(spark, topics, "changelog", topic, tmp_path, options=limited)
    assert found(spark, output) == expected(changes)
    send(topics, changes[-40:], topic)  # captured again after a crash: nothing may change
    forget_last_commit(tmp_path)
    run_pipeline(spark, topics, "changelog", topic, tmp_path, options=limited)
    assert found(spark, output) == expected(changes)
    kept = sorted(path.name for path in (tmp_path / "versions").glob("batch=*"))
    assert len(kept) <= KEPT


def test_deleted_rows_that_come_back_emptied_tables_and_repeats(spark, topics, tmp_path):
    first = [
        change("r", 1, 5, 0, 10),
        change("r", 2, 5, 1, 20),
        change("d", 1, 7),
        change("c", 1, 9, 0, 11),
        change("u", 1, 9, 1, 12),
    ]
    second = [
        *first[2:],  # all of them repeats
        change("t", None, 20),
        change("c", 2, 21, 0, 22),
        change("d", 2, 22),
        change("c", 3, 20, 2, 30),
    ]
    topic = send(topics, first)
    run_pipeline(spark, topics, "changelog", topic, tmp_path)
    assert found(spark, str(tmp_path)) == expected(first)
    send(topics, second, topic)
    run_pipeline(spark, topics, "changelog", topic, tmp_path)
    assert found(spark, str(tmp_path)) == expected([*first, *second])
    assert found(spark, str(tmp_path))[0] == {3: 30}
    assert_reported(spark, "changelog", tmp_path)
