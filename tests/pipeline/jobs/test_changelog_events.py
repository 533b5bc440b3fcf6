"""The ``changelog`` job on events that Debezium wrote, in batches and run again: rows, account, letters."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from nilometer.pipeline.batches import RunFiles
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.shipped import changelog
from support.pipeline.debezium_events import decoded, events, rows_of
from support.pipeline.filled_topics import Sent
from support.pipeline.runs import forget_last_commit, read_values, run_pipeline

pytestmark = pytest.mark.spark

IN_BATCHES = {"maxOffsetsPerTrigger": "12"}
TYPES = (
    "id int, part string, a_small smallint, a_big bigint, price decimal(20,2), a_bytes binary, a_date date, "
    "ts6 timestamp, tstz timestamp, numerics array<decimal(10,2)>, dates array<date>, `Odd Näme` string"
)


def send(topics, given, topic=None, partitions=3):
    """Events of one row are in one partition, as those of Debezium are."""
    topic = topic or topics.create(partitions)
    records = [
        Sent(zlib.crc32(one.key or b"") % partitions, one.key, one.value, one.timestamp, tuple(one.headers))
        for one in given
    ]
    topics.send(topic, records)
    return topic


def run(spark, topics, topic, output, options=None):
    letters = topics.create(1)
    run_pipeline(spark, topics, "changelog", topic, output, options=options, dead_letters=letters)
    return letters


def present(spark, output, table):
    rows = changelog.current(spark, str(output)).where(f"table like '%.{table}'").collect()
    assert len({row.key for row in rows}) == len(rows)
    return {row.key: json.loads(row.row) for row in rows}


def account(spark, output):
    return RunFiles(spark, str(output)).last().totals[""]


@pytest.mark.long
@pytest.mark.parametrize("name", ["pg37-envelope-precise", "mariadb35-plain-string"])
def test_rows_and_account_of_recorded_events(spark, topics, tmp_path, name):
    given = events(name)
    changes, others = decoded(given)
    topic = send(topics, given)
    letters = run(spark, topics, topic, tmp_path, options=IN_BATCHES)
    forget_last_commit(tmp_path)  # a crash before Spark has recorded the last batch's end
    letters_again = run(spark, topics, topic, tmp_path, options=IN_BATCHES)
    for table in ("types", "docs"):
        mine = [one for one in changes if one.table.endswith(table)]
        assert present(spark, tmp_path, table) == rows_of(mine)
    keyless = sum(count for reason, count in others.items() if "no key" in reason)
    found = account(spark, tmp_path)
    assert found.read == len(given)
    assert found.of("results") == len(changes)
    assert found.of("rejected") == keyless
    assert found.of("left out") == sum(others.values()) - keyless
    assert (found.of("repeated"), found.open) == (0, 0)
    assert len(read_values(spark, topics, letters)) == keyless
    assert len(read_values(spark, topics, letters_again)) <= keyless

    send(topics, given, topic)  # the whole topic again, as a connector sends it that has lost its offsets
    run(spark, topics, topic, tmp_path)
    assert present(spark, tmp_path, "docs") == rows_of([one for one in changes if one.table.endswith("docs")])
    found = account(spark, tmp_path)
    assert (found.read, found.of("results"), found.of("repeated")) == (
        2 * len(given),
        len(changes),
        len(changes),
    )


def test_values_have_the_types_of_the_table(spark, topics, tmp_path):
    topic = send(topics, events("pg37-envelope-precise", ".types")[:2])
    run(spark, topics, topic, tmp_path)
    rows = changelog.columns(changelog.current(spark, str(tmp_path)), TYPES).where("id = 1").collect()
    [row] = [one.asDict() for one in rows]
    expected = {
        "a_small": -32768,
        "a_big": 9_007_199_254_740_993,
        "price": Decimal("12345678901234567.89"),
        "a_bytes": bytearray(b"\x00\xff\x10"),
        "a_date": date(2024, 2, 29),
        "numerics": [Decimal("1.10"), Decimal("2.20")],
        "dates": [date(2024, 2, 29)],
        "Odd Näme": "odd",
    }
    assert {name: row[name] for name in expected} == expected
    assert row["ts6"].astimezone(UTC) == datetime(2024, 5, 1, 12, 0, 0, 123456, UTC)
    assert row["tstz"].astimezone(UTC) == datetime(2024, 5, 1, 10, 0, 0, 123456, UTC)


def own(op, number, lsn, *, table="t", at="2024-05-01T12:00:00Z", **more):
    key = None if op == "t" else {"id": number}
    after = {"id": number, "n": lsn} if op in "cru" else None
    event = {"op": op, "table": table, "key": key, "after": after, "lsn": lsn, "seq": 0, "at": at}
    return {name: value for name, value in {**event, **more}.items() if value is not None or name == "after"}


def send_own(topics, given, topic=None):
    topic = topic or topics.create(1)
    values = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in given]
    topics.send(topic, [Sent(0, None, value) for value in values])
    return topic


def current(spark, output):
    rows = changelog.current(spark, str(output)).collect()
    return Counter((row.table, json.loads(row.row)["id"], json.loads(row.row)["n"]) for row in rows)


def test_changes_without_a_time_have_one_current_version_each(spark, topics, tmp_path):
    topic = send_own(topics, [own("c", 1, lsn, at=None) for lsn in range(4)])
    run(spark, topics, topic, tmp_path)
    assert current(spark, tmp_path) == {("t", 1, 3): 1}
    assert changelog.timeline(spark, str(tmp_path)).where("valid_until is null").count() == 1


def test_a_late_change_stays_deleted_in_a_later_batch(spark, topics, tmp_path):
    topic = send_own(topics, [own("c", 1, 5), own("t", None, 10)])
    run(spark, topics, topic, tmp_path)
    send_own(topics, [own("c", 2, 7), own("c", 3, 12), own("t", None, 10)], topic)
    run(spark, topics, topic, tmp_path)
    assert current(spark, tmp_path) == {("t", 3, 12): 1}
    found = account(spark, tmp_path)
    assert (found.read, found.of("results"), found.of("repeated")) == (5, 4, 1)


def test_two_tables_of_one_topic_are_two_tables(spark, topics, tmp_path):
    topic = send_own(topics, [own("c", 1, 5), own("c", 1, 6, table="u"), own("t", None, 9, table="u")])
    run(spark, topics, topic, tmp_path)
    assert current(spark, tmp_path) == {("t", 1, 5): 1}
    [deleted] = changelog.versions(spark, str(tmp_path)).where("deleted and key is not null").collect()
    assert deleted.table == "u"


def test_what_is_no_change_is_a_dead_letter_and_nothing_else(spark, topics, tmp_path):
    bad = [own("u", 1, 6, after=None), own("c", 1, 6, key=None), b"no json", own("c", 1, 6, table=None)]
    missing = own("u", 9, 8, after={"id": 9, "n": "__debezium_unavailable_value"})
    topic = send_own(topics, [own("c", 1, 5), *bad, missing, b""])
    letters = run(spark, topics, topic, tmp_path)
    assert current(spark, tmp_path) == {("t", 1, 5): 1}
    found = account(spark, tmp_path)
    assert (found.read, found.of("results"), found.of("rejected"), found.of("left out")) == (7, 1, 5, 1)
    sent = [json.dumps(one).encode() if not isinstance(one, bytes) else one for one in [*bad, missing]]
    assert sorted(read_values(spark, topics, letters)) == sorted(sent)


def test_a_later_snapshot_ends_the_rows_that_it_does_not_have(spark, topics, tmp_path):
    topic = send_own(topics, [own("r", 1, 5), own("r", 2, 5), own("c", 3, 6)])
    run(spark, topics, topic, tmp_path)
    send_own(topics, [own("r", 1, 50), own("r", 4, 50)], topic)
    run(spark, topics, topic, tmp_path)
    assert current(spark, tmp_path) == {("t", 1, 50): 1, ("t", 4, 50): 1}


def test_tables_of_an_earlier_version_are_refused(spark, topics, tmp_path):
    topic = send_own(topics, [own("c", 1, 5)])
    run(spark, topics, topic, tmp_path)
    for path in (tmp_path / "account").iterdir():
        path.unlink()
    (tmp_path / "account").rmdir()
    send_own(topics, [own("c", 2, 6)], topic)
    with pytest.raises(PipelineError, match="--name"):
        run(spark, topics, topic, tmp_path)
