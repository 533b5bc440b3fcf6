"""The ``table`` job on change events (``input=changes``): the table has the rows of the database's table."""

from __future__ import annotations

import json
import zlib

import pytest

from nilometer.pipeline.batches import RunFiles
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.run import runner
from nilometer.pipeline.shipped import table
from nilometer.pipeline.tables.delta_store import DeltaStore
from support.pipeline.debezium_events import decoded, events, rows_of
from support.pipeline.filled_topics import Sent
from support.pipeline.runs import forget_last_commit, read_values
from support.pipeline.table_batches import READERS

pytestmark = pytest.mark.spark


def send(topics, given, topic=None, partitions=2):
    """Events as (key, value, headers); those of one row are in one partition."""
    topic = topic or topics.create(partitions)
    records = [
        Sent(zlib.crc32(key or b"") % partitions, key, value, 1_700_000_000_000, tuple(headers))
        for key, value, headers in given
    ]
    topics.send(topic, records)
    return topic


def own(op, number, lsn, *, of="t", **row):
    key = None if op == "t" else {"id": number}
    after = {"id": number, **row} if op in "cru" else None
    event = {"op": op, "table": of, "key": key, "after": after, "lsn": lsn}
    return json.dumps(key).encode(), json.dumps(event).encode(), ()


def run(topics, spark, topic, output, **settings):
    dead = topics.create(1)
    chosen = table.Settings(**{"input": "changes", "schema": "infer", **settings})
    job = runner.Job(
        topic, str(output), topics.bootstrap, available_now=True, dead_letters=dead, settings=chosen
    )
    runner.run(spark, table, job)
    return dead


def rows(output, kind="delta"):
    found = {}
    for row in READERS[kind](output / "table"):
        key = bytes(row.pop("_key")).decode()
        assert key not in found
        found[key] = {name: value for name, value in row.items() if not name.startswith("_")}
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("name", ["pg37-envelope-precise", "mariadb35-envelope-precise"])
def test_recorded_events_make_the_databases_table(spark, topics, tmp_path, name, kind):
    given = events(name, ".docs")
    at = [decoded([one])[0][:1] for one in given]
    truncate = next(number for number, one in enumerate(at) if one and one[0].op == "t")
    sent = [(one.key, one.value, one.headers) for one in given]
    topic = send(topics, sent[:truncate])
    for last in (truncate, len(given)):
        run(topics, spark, topic, tmp_path, format=kind)
        expected = rows_of([one for ones in at[:last] for one in ones])
        found = rows(tmp_path, kind)
        assert found.keys() == expected.keys()
        for key, row in expected.items():
            assert {name: found[key][name] for name in row if name != "raw"} == {
                name: value for name, value in row.items() if name != "raw"
            }
        send(topics, sent[truncate:], topic)


def test_upserts_deletes_and_repeats_after_failures(spark, topics, tmp_path, monkeypatch):
    first = [
        own("r", 1, 5, n=1),
        own("r", 2, 5, n=2),
        own("u", 1, 7, n=3),
        own("d", 2, 8),
        own("c", 3, 9, n=4),
    ]
    topic = send(topics, first)
    commit = DeltaStore.commit

    def fail(self, batch):
        raise PipelineError("planted: the process ends here")

    monkeypatch.setattr(DeltaStore, "commit", fail)
    with pytest.raises(PipelineError, match="planted"):
        run(topics, spark, topic, tmp_path)
    monkeypatch.setattr(DeltaStore, "commit", commit)
    run(topics, spark, topic, tmp_path)
    expected = {'{"id":1}': {"id": 1, "n": 3}, '{"id":3}': {"id": 3, "n": 4}}
    assert rows(tmp_path) == expected
    send(topics, first[:3], topic)  # again, and late: nothing may change
    run(topics, spark, topic, tmp_path)
    forget_last_commit(tmp_path)
    run(topics, spark, topic, tmp_path)
    assert rows(tmp_path) == expected
    send(topics, [own("t", None, 20), own("c", 4, 21, n=5)], topic)
    run(topics, spark, topic, tmp_path)
    assert rows(tmp_path) == {'{"id":4}': {"id": 4, "n": 5}}
    account = RunFiles(spark, str(tmp_path)).last().totals[""]
    assert (account.read, account.of("results"), account.of("repeated")) == (10, 7, 3)


def test_a_row_that_the_columns_cannot_take_is_rejected_and_counted_so(spark, topics, tmp_path):
    topic = send(topics, [own("c", 1, 5, n=1)])
    run(topics, spark, topic, tmp_path)
    send(topics, [own("c", 2, 6, n="text"), own("c", 3, 7, n=3), (None, b"no event", ())], topic)
    dead = run(topics, spark, topic, tmp_path)
    assert rows(tmp_path).keys() == {'{"id":1}', '{"id":3}'}
    assert sorted(read_values(spark, topics, dead)) == [b"no event", b'{"id": 2, "n": "text"}']
    account = RunFiles(spark, str(tmp_path)).last().totals[""]
    assert (account.read, account.of("results"), account.of("rejected")) == (4, 2, 2)


def test_changes_of_two_tables_are_refused_by_name(spark, topics, tmp_path):
    topic = send(topics, [own("c", 1, 5, n=1), own("c", 1, 6, of="other", n=1)])
    with pytest.raises(PipelineError, match="changes of other and t: a table takes those of one"):
        run(topics, spark, topic, tmp_path)
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("settings", "says"), [({"input": "rows"}, "records or changes"), ({"registry": "u"}, "registry")]
)
def test_settings_that_cannot_be_followed(settings, says):
    with pytest.raises(PipelineError, match=says):
        table.Settings(**{"input": "changes", **settings}).check()
