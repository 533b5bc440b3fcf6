"""Tables of a real PostgreSQL as they are: captured events make the rows that the table has."""

from __future__ import annotations

import json
import threading

import psycopg
import pytest
from click.testing import CliRunner

from nilometer.cli.pipelines.pipeline_commands import pipeline
from nilometer.pipeline.changes.change_events import decode_change
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.postgres.capture import Capture, slot_name, slots
from support.applications.postgres_server import PostgresServer
from support.eventually import eventually
from support.pipeline.debezium_events import rows_of


@pytest.fixture(scope="module")
def server():
    with PostgresServer() as one:
        yield one


@pytest.fixture
def database(server):
    """A database of its own for each test, whose slots are dropped."""
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS shop")
        admin.execute("CREATE DATABASE shop")
        dsn = server.dsn.removesuffix("postgres") + "shop"
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield connection
        admin.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


@pytest.fixture
def dsn(server):
    return server.dsn.removesuffix("postgres") + "shop"


def in_order(row):
    return json.dumps(row, sort_keys=True)


class Captured:
    """The events of a table so far."""

    def __init__(self, dsn, table):
        self._dsn, self._table = dsn, table
        self.events = []

    def read_first(self):
        with Capture(self._dsn, self._table, slot_name(self._table)) as source:
            source.prepare()
            if not source.has_begun:
                self.events += source.first_rows()
                source.confirm_first_rows()
        return self

    def read(self):
        self.read_first()
        with Capture(self._dsn, self._table, slot_name(self._table)) as source:
            source.prepare()
            while found := list(source.events()):
                self.events += found
                source.confirm()
            source.confirm()
        return self

    def rows(self):
        changes = [decode_change(key, value, (), 0) for key, value in self.events]
        return sorted(rows_of(changes).values(), key=in_order)


def rows_in(database, table):
    query = f"SELECT to_jsonb(t) FROM {table} t"
    return sorted((row[0] for row in database.execute(query.encode()).fetchall()), key=in_order)


def test_keys_that_a_cast_prints_in_another_way(database, dsn):
    database.execute("CREATE TABLE t (c char(5), b boolean, n int, PRIMARY KEY (c, b))")
    database.execute("INSERT INTO t VALUES ('ab', true, 1), ('ab', false, 2), ('cd', true, 3)")
    captured = Captured(dsn, "t").read()
    database.execute("UPDATE t SET n = 10 WHERE n = 1")
    database.execute("DELETE FROM t WHERE n = 2")
    assert captured.read().rows() == rows_in(database, "t")


def test_large_values_through_updates_and_another_key(database, dsn):
    database.execute("CREATE TABLE t (c char(5) PRIMARY KEY, n int, body text)")
    database.execute("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
    database.execute("INSERT INTO t VALUES ('ab', 1, repeat('x', 9000)), ('cd', 1, repeat('y', 9000))")
    captured = Captured(dsn, "t").read()
    database.execute("UPDATE t SET n = 2")
    database.execute("UPDATE t SET c = 'ef' WHERE c = 'ab'")
    database.execute("DELETE FROM t WHERE c = 'cd'")  # before it is read: the log alone has what it was
    assert captured.read().rows() == rows_in(database, "t")
    updated = [json.loads(value) for _, value in captured.events][2]
    assert updated["after"]["body"] == "__debezium_unavailable_value"


def test_a_capture_that_starts_under_load_loses_no_change(database, dsn):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    database.execute("INSERT INTO t SELECT n, 0 FROM generate_series(1, 200) n")
    stop = threading.Event()
    updated = []

    def update():
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.is_set():
                connection.execute("UPDATE t SET n = n + 1 WHERE id = %s", (len(updated) % 200 + 1,))
                updated.append(1)

    writers = [threading.Thread(target=update) for _ in range(2)]
    for one in writers:
        one.start()
    try:
        eventually(lambda: len(updated) > 50, "rows are updated")
        captured = Captured(dsn, "t").read_first()
        seen = len(updated)
        eventually(lambda: len(updated) > seen + 50, "rows are updated after the first rows were read")
    finally:
        stop.set()
        for one in writers:
            one.join()
    assert captured.read().rows() == rows_in(database, "t")


def test_columns_dropped_added_and_renamed_between_two_runs(database, dsn):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b text)")
    database.execute("INSERT INTO t VALUES (1, 1, 'x')")
    captured = Captured(dsn, "t").read()
    database.execute("INSERT INTO t VALUES (2, 2, 'y')")
    database.execute("ALTER TABLE t DROP a")
    database.execute("ALTER TABLE t RENAME id TO number")
    database.execute("ALTER TABLE t ADD c numeric DEFAULT 1.10")
    captured.read()
    assert [json.loads(key) for key, _ in captured.events] == [{"id": 1}, {"id": 2}]
    database.execute("INSERT INTO t VALUES (3, 'z', 2.50)")
    captured.read()
    assert json.loads(captured.events[-1][1])["after"] == {"number": 3, "b": "z", "c": 2.5}


def test_names_with_every_kind_of_character(database, dsn):
    database.execute('CREATE TABLE "order-lines" (id int PRIMARY KEY, "a%%b" text, "Q""q" int)')
    database.execute("INSERT INTO \"order-lines\" VALUES (1, 'x', 2)")
    captured = Captured(dsn, "public.order-lines").read()
    database.execute('UPDATE "order-lines" SET "a%%b" = \'y\'')
    assert captured.read().rows() == rows_in(database, '"order-lines"')


def test_a_database_in_latin1(server):
    latin = server.dsn.removesuffix("postgres") + "latin"
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(
            "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        )
    with psycopg.connect(latin, autocommit=True, client_encoding="utf8") as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        database.execute("INSERT INTO t VALUES (1, 'grüße')")
        captured = Captured(latin, "t").read()
        database.execute("INSERT INTO t VALUES (2, 'weiß')")
        assert captured.read().rows() == [{"id": 1, "a": "grüße"}, {"id": 2, "a": "weiß"}]
        with Capture(latin, "t", "nilometer_t") as source:
            source.drop()


def test_a_partitioned_table_is_one_table(database, dsn):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    database.execute("CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)")
    database.execute("INSERT INTO t VALUES (1, 'a'), (11, 'b')")
    captured = Captured(dsn, "t").read()
    database.execute("UPDATE t SET a = 'c'")
    database.execute("UPDATE t SET id = 12 WHERE id = 1")
    assert captured.read().rows() == rows_in(database, "t")
    assert {json.loads(value)["table"] for _, value in captured.events} == {"public.t"}
    database.execute("TRUNCATE t")
    assert captured.read().rows() == []


def test_a_slot_that_was_dropped_and_begun_again_ends_rows_deleted_in_between(database, dsn):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1), (2)")
    captured = Captured(dsn, "t").read()
    with Capture(dsn, "t", "nilometer_t") as source:
        source.drop()
    database.execute("DELETE FROM t WHERE id = 1")
    before = len(captured.events)
    captured.read()
    again = [json.loads(value) for _, value in captured.events[before:]]
    assert [one["op"] for one in again] == ["r"]
    assert again[0]["lsn"] > json.loads(captured.events[0][1])["lsn"]


@pytest.mark.parametrize("identity", ["NOTHING", "USING INDEX other"])
def test_a_replica_identity_without_the_primary_key_is_refused(database, dsn, identity):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)")
    database.execute("CREATE UNIQUE INDEX other ON t (n)")
    database.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}".encode())
    with pytest.raises(PipelineError, match="REPLICA IDENTITY DEFAULT"):
        Captured(dsn, "t").read()


def test_what_is_of_another_table_or_database_is_refused_and_stays(server, database, dsn):
    database.execute("CREATE SCHEMA a_b; CREATE SCHEMA a; CREATE TABLE a_b.c (id int PRIMARY KEY)")
    database.execute("CREATE TABLE a.b_c (id int PRIMARY KEY); INSERT INTO a_b.c VALUES (1)")
    assert slot_name("a_b.c") == slot_name("a.b_c")
    captured = Captured(dsn, "a_b.c").read()
    database.execute("INSERT INTO a_b.c VALUES (2)")
    with pytest.raises(
        PipelineError, match=r"publication .* it has a_b\.c\. Choose another name with --slot"
    ):
        Captured(dsn, "a.b_c").read()
    with psycopg.connect(server.dsn, autocommit=True) as other:
        other.execute(
            "CREATE SCHEMA IF NOT EXISTS a_b; CREATE TABLE IF NOT EXISTS a_b.c (id int PRIMARY KEY)"
        )
    for one in (Captured(server.dsn, "a_b.c").read, lambda: drop(server.dsn, "a_b.c")):
        with pytest.raises(PipelineError, match="slot nilometer_a_b_c is of database shop"):
            one()
    assert captured.read().rows() == [{"id": 1}, {"id": 2}]


def drop(dsn, table):
    with Capture(dsn, table, slot_name(table)) as source:
        source.drop()


def test_a_publication_without_all_changes_is_refused(database, dsn):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION nilometer_t_publication FOR TABLE t WITH (publish = 'insert')")
    with pytest.raises(PipelineError, match="is not that of all changes"):
        Captured(dsn, "t").read()


def test_the_slot_of_a_table_that_is_gone_is_listed_with_its_log_and_dropped(database, dsn):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    Captured(dsn, "t").read()
    [listed] = slots(dsn)
    assert (listed.name, listed.database, listed.tables) == ("nilometer_t", "shop", ("public.t",))
    database.execute("CREATE TABLE other AS SELECT n, repeat('x', 100) FROM generate_series(1, 10000) n")
    said = CliRunner().invoke(pipeline, ["capture", "--dsn", dsn, "--list", "--json"])
    assert said.exit_code == 0, said.output
    [found] = json.loads(said.output)
    assert found["wal_bytes"] > listed.wal_bytes + 1_000_000
    assert not found["is_active"]
    text = CliRunner().invoke(pipeline, ["capture", "--dsn", dsn, "--list"]).output
    assert "nilometer_t" in text and "MiB" in text
    database.execute("DROP TABLE t")
    arguments = ["capture", "--dsn", dsn, "--table", "t", "--topic", "t", "--drop", "--yes"]
    dropped = CliRunner().invoke(pipeline, arguments)
    assert dropped.exit_code == 0, dropped.output
    assert slots(dsn) == []


def test_what_the_database_refuses_is_an_error_in_its_words(database, dsn):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("DROP ROLE IF EXISTS reader")
    database.execute("CREATE ROLE reader LOGIN")
    with pytest.raises(PipelineError, match="PostgreSQL says: permission denied"):
        Captured(dsn.replace("//postgres@", "//reader@"), "t").read()
    database.execute("GRANT ALL ON DATABASE shop TO reader; ALTER TABLE t OWNER TO reader")
    with pytest.raises(PipelineError, match=r"(?i)PostgreSQL.*(replication|permission)"):
        Captured(dsn.replace("//postgres@", "//reader@"), "t").read()
    database.execute("REASSIGN OWNED BY reader TO postgres; DROP OWNED BY reader; DROP ROLE reader")


def test_a_connection_that_the_server_ends_is_an_error_and_the_next_run_goes_on(database, dsn):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured = Captured(dsn, "t").read()
    database.execute("INSERT INTO t VALUES (1)")
    with Capture(dsn, "t", "nilometer_t") as source:
        source.prepare()
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = 'shop' AND pid <> pg_backend_pid()"
        )
        with pytest.raises(PipelineError, match="PostgreSQL says"):
            list(source.events())
    assert captured.read().rows() == [{"id": 1}]
