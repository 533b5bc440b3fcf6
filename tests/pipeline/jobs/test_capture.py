"""``nilometer pipeline capture`` on a PostgreSQL: each committed change once, and what it refuses."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from psycopg.rows import dict_row

from nilometer.pipeline.capture.capture import source_of
from nilometer.pipeline.capture.databases import slots
from nilometer.pipeline.changes.change_events import Change
from nilometer.pipeline.errors import PipelineError
from support.applications.application import WAIT_S
from support.applications.capture import NILOMETER, CaptureCommand, captured_changes, listed
from support.applications.committed_reader import committed_records
from support.applications.postgres_server import PostgresServer
from support.eventually import eventually
from support.pipeline.debezium_events import rows_of
from support.pipeline.filled_topics import Topics

pytestmark = [pytest.mark.java, pytest.mark.application]

Database = psycopg.Connection[Any]
VALUES = {
    "smallint": ("-7", -7),
    "bigint": ("9223372036854775807", 2**63 - 1),
    "real": ("1.5", 1.5),
    "double precision": ("0.1", 0.1),
    "numeric": ("12345678901234567.89", "12345678901234567.89"),
    "numeric(20,4)": ("1.1000", "1.1000"),
    "numeric(20,5)": ("'NaN'", "NAN"),
    "decimal": ("'-Infinity'", "NEGATIVE_INFINITY"),
    "numeric(10,0)": ("12", "12"),
    "money": ("12.34", "12.34"),
    "boolean": ("true", True),
    "char(5)": ("'ab'", "ab   "),
    "varchar(9)": ("'grüße'", "grüße"),
    "text": ("'x \" \\ y'", 'x " \\ y'),
    "name": ("'nm'", "nm"),
    "bytea": ("'\\x00ff'", "AP8="),
    "bit(1)": ("B'1'", True),
    "bit(5)": ("B'10110'", "Fg=="),
    "varbit": ("B'101'", "BQ=="),
    "date": ("'2024-02-29'", "2024-02-29"),
    "time": ("'12:34:56.123456'", "12:34:56.123456"),
    "timetz": ("'12:34:56.1+02'", "10:34:56.1Z"),
    "timestamp": ("'2024-05-01 12:00:00.123456'", "2024-05-01T12:00:00.123456"),
    "timestamp(3)": ("'2024-05-01 12:00:00.123'", "2024-05-01T12:00:00.123000"),
    "timestamptz": ("'2024-05-01 12:00:00.000001+02'", "2024-05-01T10:00:00.000001Z"),
    "interval": ("'1 year 2 months 3 days 04:05:06.7'", "P1Y2M3DT4H5M6.7S"),
    "uuid": ("'00000000-0000-0000-0000-000000000001'", "00000000-0000-0000-0000-000000000001"),
    "json": ("'{\"a\": [1, 2.50]}'", '{"a": [1, 2.50]}'),
    "jsonb": ("'{\"a\": [1, 2.50]}'", '{"a": [1, 2.50]}'),
    "xml": ("'<a/>'", "<a/>"),
    "inet": ("'10.0.0.1/8'", "10.0.0.1/8"),
    "cidr": ("'10.0.0.0/8'", "10.0.0.0/8"),
    "macaddr": ("'08:00:2b:01:02:03'", "08:00:2b:01:02:03"),
    "macaddr8": ("'08:00:2b:01:02:03:04:05'", "08:00:2b:01:02:03:04:05"),
    "int4range": ("'[1,5)'", "[1,5)"),
    "numrange": ("'[1.5,2.5)'", "[1.5,2.5)"),
    "daterange": ("'[2024-01-01,2024-02-01)'", "[2024-01-01,2024-02-01)"),
    "int[]": ("'{1,NULL,3}'", [1, None, 3]),
    "text[]": ("'{a,NULL,\"b c\"}'", ["a", None, "b c"]),
    "numeric(10,2)[]": ("'{1.10,2.00}'", ["1.10", "2.00"]),
    "timestamptz[]": ("'{2024-05-01 12:00:00+02}'", ["2024-05-01T10:00:00.000000Z"]),
    "tsvector": ("'a b'", "'a' 'b'"),
    "oid": ("26", 26),
    "mood": ("'happy'", "happy"),
    "short": ("'x'", "x"),
}
"""Literals of each type, and what they are in a row's JSON."""
ODD = '"order-lines"'


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as one:
        yield one


@pytest.fixture
def dsn(server: PostgresServer) -> str:
    return server.dsn.removesuffix("postgres") + "shop"


@pytest.fixture
def database(server: PostgresServer, dsn: str) -> Iterator[Database]:
    """A database of its own for each test, in LATIN1, whose slots are dropped."""
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)")
        admin.execute("CREATE DATABASE shop ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    with psycopg.connect(dsn, autocommit=True, client_encoding="utf8") as connection:
        yield connection
    with psycopg.connect(server.dsn, autocommit=True) as admin:  # a test may have restarted the server
        slot = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
        eventually(
            lambda: (
                admin.execute(slot) and not admin.execute("SELECT 1 FROM pg_replication_slots").fetchall()
            ),
            "no slot is in use",
        )


@pytest.fixture
def topic(topics: Topics) -> Iterator[str]:
    """A topic of its own; what captures keep in others is removed, since all captures have the same name."""
    yield topics.create(3, prefix="captured")
    for name in topics.names():
        if name.startswith("nilometer-capture-"):
            topics.delete(name)


def changes_in(topics: Topics, topic: str) -> list[Change]:
    return captured_changes(topics.bootstrap, topic, partitions=3)


def updates_in(topics: Topics, topic: str) -> Counter[Any]:
    return Counter(one.row for one in changes_in(topics, topic) if one.op == "u")


def in_order(row: Any) -> str:
    return json.dumps(row, sort_keys=True)


def captured_rows(topics: Topics, topic: str) -> list[dict[str, Any]]:
    return sorted(rows_of(changes_in(topics, topic)).values(), key=in_order)


def rows_in(database: Database, table: str) -> list[dict[str, Any]]:
    with database.cursor(row_factory=dict_row) as cursor:
        return sorted(cursor.execute(f"SELECT * FROM {table}".encode()).fetchall(), key=in_order)


@pytest.mark.long
def test_a_value_of_every_type_is_the_same_in_the_first_rows_and_in_the_changes(
    topics: Topics, topic: str, dsn: str, database: Database, tmp_path: Path
) -> None:
    columns = {kind: f"c{number}" for number, kind in enumerate(VALUES)}
    database.execute("CREATE TYPE mood AS ENUM ('happy', 'sad'); CREATE DOMAIN short AS text")
    declared = ", ".join(f"{name} {kind}" for kind, name in columns.items())
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, {declared})".encode())
    literals = ", ".join(literal for literal, _ in VALUES.values())

    def insert(number: int) -> None:
        database.execute(f"INSERT INTO t VALUES ({number}, {literals})".encode())

    insert(1)
    capture = CaptureCommand(tmp_path, topics.bootstrap, dsn, "t", topic)
    assert f"All changes of public.t until now are in {topic}" in capture.now()
    insert(2)
    capture.now()
    wanted = {columns[kind]: value for kind, (_, value) in VALUES.items()}
    assert captured_rows(topics, topic) == [{"id": 1, **wanted}, {"id": 2, **wanted}]


@pytest.mark.long
def test_a_partitioned_table_with_odd_names_odd_keys_and_large_values(
    topics: Topics, topic: str, dsn: str, database: Database, tmp_path: Path
) -> None:
    database.execute(
        f'CREATE TABLE {ODD} (c char(5), b boolean, "a%%b" text, "Q""q" int, body text, PRIMARY KEY (c, b)) '
        f"PARTITION BY LIST (b); CREATE TABLE yes PARTITION OF {ODD} FOR VALUES IN (true); "
        f"CREATE TABLE no PARTITION OF {ODD} FOR VALUES IN (false); "
        "ALTER TABLE yes ALTER body SET STORAGE EXTERNAL; ALTER TABLE no ALTER body SET STORAGE EXTERNAL"
    )
    database.execute(
        f"INSERT INTO {ODD} SELECT 'n' || n, n % 2 = 0, 'weiß', n, repeat('x', 9000) "
        "FROM generate_series(1, 9) n"
    )
    capture = CaptureCommand(tmp_path, topics.bootstrap, dsn, "public.order-lines", topic)
    assert "public.order-lines is partitioned: PostgreSQL publishes no TRUNCATE" in capture.now()
    assert captured_rows(topics, topic) == rows_in(database, ODD)
    database.execute(f'UPDATE {ODD} SET "a%%b" = \'grüße\' WHERE "Q""q" < 5')
    database.execute(f"UPDATE {ODD} SET c = 'new' WHERE c = 'n1'")
    database.execute(f"UPDATE {ODD} SET b = NOT b WHERE c = 'n2'")
    database.execute(f"DELETE FROM {ODD} WHERE c = 'n3'")
    capture.now()
    assert captured_rows(topics, topic) == rows_in(database, ODD)
    assert {one.table for one in changes_in(topics, topic)} == {"shop.public.order-lines"}
    before = changes_in(topics, topic)
    database.execute("TRUNCATE yes")  # as the warning says
    capture.now()
    assert changes_in(topics, topic) == before
    database.execute(f"TRUNCATE {ODD}")
    capture.now()
    assert captured_rows(topics, topic) == []


@contextmanager
def transactions(dsn: str, count: int) -> Iterator[list[int]]:
    """Run transactions until the end; each has one more update and sets n to a number of its own."""
    numbers, done = itertools.count(1), list[int]()
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.wait(1 / 80 * count):
                with connection.transaction():
                    mine = [next(numbers) for _ in range(2)]
                    for one in mine:
                        connection.execute("UPDATE t SET n = %s WHERE id = %s", (one, one % 200 + 1))
                done.extend(mine)

    writers = [threading.Thread(target=write) for _ in range(count)]
    for one in writers:
        one.start()
    try:
        yield done
    finally:
        stop.set()
        for one in writers:
            one.join()


@pytest.mark.long
@pytest.mark.parametrize("kills", [2, pytest.param(18, marks=pytest.mark.soak)])
def test_each_change_is_there_once_after_captures_were_killed_under_transactions(
    kills: int, topics: Topics, topic: str, dsn: str, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    database.execute("INSERT INTO t SELECT n, 0 FROM generate_series(1, 200) n")
    capture = CaptureCommand(tmp_path, topics.bootstrap, dsn, "t", topic)
    with transactions(dsn, 2) as done:
        for _ in range(kills):
            eventually(lambda: len(done) > 50, "rows are updated")
            seen = updates_in(topics, topic).total()
            with capture:
                capture.wait_running()
                # A capture that is killed among the first rows begins with them again.
                eventually(
                    lambda seen=seen: updates_in(topics, topic).total() > seen + 100,
                    "updates are captured",
                    WAIT_S,
                )
            eventually(lambda: not slots(dsn)[0].is_active, "the killed capture's worker has ended, too")
    capture.now()
    assert captured_rows(topics, topic) == rows_in(database, "t")
    updates = updates_in(topics, topic)
    assert updates.most_common(1)[0][1] == 1
    assert len(updates) > 100 * kills


@pytest.mark.long
@pytest.mark.parametrize("rows", [20_000, pytest.param(200_000, marks=pytest.mark.soak)])
def test_a_large_transaction_a_prepared_one_and_one_that_is_rolled_back(
    rows: int, topics: Topics, topic: str, dsn: str, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    capture = CaptureCommand(tmp_path, topics.bootstrap, dsn, "t", topic)
    capture.now()
    for name, number in (("kept", -1), ("undone", -2)):
        with psycopg.connect(dsn) as other:
            other.execute("INSERT INTO t VALUES (%s, 0)", (number,))
            other.execute(f"PREPARE TRANSACTION '{name}'".encode())
    database.execute("BEGIN; INSERT INTO t VALUES (-3, 0); ROLLBACK")
    database.execute(f"INSERT INTO t SELECT n, n FROM generate_series(1, {rows}) n".encode())
    capture.now()
    assert len(changes_in(topics, topic)) == rows
    database.execute("COMMIT PREPARED 'kept'")
    database.execute("ROLLBACK PREPARED 'undone'")
    capture.now()
    changes = changes_in(topics, topic)
    assert len(changes) == rows + 1
    assert {json.loads(one.key or "")["id"] for one in changes} == {-1, *range(1, rows + 1)}


@pytest.mark.long
def test_a_row_that_the_topic_does_not_take_and_what_helps(
    topics: Topics, topic: str, dsn: str, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    database.execute("INSERT INTO t SELECT 1, string_agg(md5(n::text), '') FROM generate_series(1, 62500) n")
    capture = CaptureCommand(tmp_path, topics.bootstrap, dsn, "t", topic)
    said = capture.run("--available-now", code=1)
    assert f"a row of public.t is larger than max.message.bytes of topic {topic}" in said
    advice = said.partition("start again: ")[2].partition("\n")[0].replace("BYTES", "4000000")
    command = [*NILOMETER, *advice.split()[1:], "--bootstrap-server", topics.bootstrap]
    subprocess.run(command, check=True, capture_output=True)
    capture.now()
    assert captured_rows(topics, topic) == rows_in(database, "t")


@pytest.mark.long
def test_what_is_dropped_in_the_database_and_here(
    topics: Topics, topic: str, dsn: str, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    secret = dsn.replace("//postgres@", "//postgres:not-to-be-seen@")
    capture = CaptureCommand(tmp_path, topics.bootstrap, secret, "t", topic)
    capture.now()
    [mine] = listed(dsn)
    assert (mine["database"], mine["tables"], mine["is_active"]) == ("shop", ["public.t"], False)
    state = [one for one in topics.names() if one.startswith(f"nilometer-capture-{mine['name']}-")]
    assert len(state) == 4
    for one in state:
        for record in committed_records(topics.bootstrap, one):
            assert b"not-to-be-seen" not in (record.value() or b"")

    database.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    assert f"the slot {mine['name']} was dropped" in capture.run("--available-now", code=1)
    unsaid = capture.run("--drop", code=2)
    assert f"slot {mine['name']} of public.t" in unsaid and "--yes" in unsaid
    capture.run("--drop", "--yes")
    assert not set(state) & topics.names()
    database.execute("DELETE FROM t WHERE id = 1")
    before = max(one.lsn for one in changes_in(topics, topic))
    capture.now()
    again = [one for one in changes_in(topics, topic) if one.lsn > before]
    assert [(one.op, one.row) for one in again] == [("r", '{"id":2}')]

    other = topics.create(1)
    moved = CaptureCommand(tmp_path, topics.bootstrap, dsn, "t", other)
    assert f"is of {topic}: choose another name" in moved.run("--available-now", code=1)
    elsewhere = CaptureCommand(tmp_path, topics.bootstrap, dsn, "t", other, "--slot", "second")
    elsewhere.now()
    database.execute("CREATE TABLE load AS SELECT n, repeat('x', 100) FROM generate_series(1, 10000) n")
    assert all(one["wal_bytes"] > 1_000_000 for one in listed(dsn))
    elsewhere.run("--drop", "--yes")
    assert [one["name"] for one in listed(dsn)] == [mine["name"]]
    database.execute("DROP TABLE t")
    assert "the database has no table public.t" in capture.run("--available-now", code=1)
    capture.run("--drop", "--yes")
    assert listed(dsn) == []


@pytest.mark.long
def test_a_table_that_is_empty_when_it_is_captured_again_is_empty(
    topics: Topics, topic: str, dsn: str, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    capture = CaptureCommand(tmp_path, topics.bootstrap, dsn, "t", topic)
    capture.now()
    capture.run("--drop", "--yes")
    database.execute("DELETE FROM t")
    capture.now()
    assert captured_rows(topics, topic) == []
    database.execute("INSERT INTO t VALUES (2)")
    capture.now()
    assert captured_rows(topics, topic) == [{"id": 2}]


@pytest.mark.long
def test_a_topic_that_was_created_again_has_not_what_was_captured(
    topics: Topics, topic: str, dsn: str, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    capture = CaptureCommand(tmp_path, topics.bootstrap, dsn, "t", topic)
    capture.now()
    topics.delete(topic)
    topics.create(3, name=topic)
    said = capture.run("--available-now", code=1)
    assert f"topic {topic} was deleted and created again" in said
    capture.run("--drop", "--yes")
    capture.now()
    assert captured_rows(topics, topic) == rows_in(database, "t")


@pytest.mark.long
def test_a_transaction_that_the_cluster_has_ended_is_written_again(
    topics: Topics, topic: str, dsn: str, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with CaptureCommand(tmp_path, topics.bootstrap, dsn, "t", topic) as capture:
        eventually(lambda: len(captured_rows(topics, topic)) == 1, "the first row is captured", WAIT_S)
        other = Producer(
            {
                "bootstrap.servers": topics.bootstrap,
                "transactional.id": f"nilometer-capture-{slots(dsn)[0].name}-capture-0",
            }
        )
        other.init_transactions(30)  # which fences the worker's producer
        database.execute("INSERT INTO t SELECT n FROM generate_series(2, 100) n")
        eventually(lambda: captured_rows(topics, topic) == rows_in(database, "t"), "all are captured", WAIT_S)
        assert "WARNING: the cluster ended the capture's transaction" in capture.said()
    assert len(changes_in(topics, topic)) == 100


@pytest.mark.long
def test_a_worker_that_dies_ends_the_command_and_a_server_that_cuts_it_off_does_not(
    topics: Topics, topic: str, dsn: str, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with CaptureCommand(tmp_path, topics.bootstrap, dsn, "t", topic) as capture:
        capture.wait_running()
        eventually(lambda: slots(dsn)[0].is_active, "the slot is read")
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = 'shop' AND pid <> pg_backend_pid()"
        )
        database.execute("INSERT INTO t VALUES (1)")
        eventually(lambda: captured_rows(topics, topic) == [{"id": 1}], "the row is captured", 120)
        capture.kill_worker()
        code, said = capture.wait_end()
    assert code == 1 and "Kafka Connect ended" in said


@pytest.mark.long
def test_columns_that_are_renamed_or_dropped_and_a_server_that_restarts_end_no_capture(
    topics: Topics, topic: str, dsn: str, database: Database, server: PostgresServer, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, gone int); INSERT INTO t VALUES (1, 1, 1)")
    capture = CaptureCommand(tmp_path, topics.bootstrap, dsn, "t", topic)
    with capture:
        capture.wait_running()
        eventually(lambda: captured_rows(topics, topic) == rows_in(database, "t"), "the first row", WAIT_S)
        database.execute("ALTER TABLE t RENAME n TO m")
        database.execute("INSERT INTO t VALUES (2, 2, 2)")
        database.execute("ALTER TABLE t DROP gone")
        server.restart()
        with psycopg.connect(dsn, autocommit=True) as after:
            after.execute("INSERT INTO t VALUES (3, 3)")
        wanted = [{"gone": 1, "id": 1, "n": 1}, {"gone": 2, "id": 2, "m": 2}, {"id": 3, "m": 3}]
        eventually(lambda: captured_rows(topics, topic) == wanted, "all rows, each as it was written", WAIT_S)


def prepare(dsn: str, table: str, name: str | None = None, *, has_begun: bool = False) -> None:
    source_of(dsn, table, name).prepare(has_begun=has_begun)


@pytest.mark.parametrize("identity", ["NOTHING", "USING INDEX other"])
def test_a_replica_identity_without_the_primary_key_is_refused(
    identity: str, database: Database, dsn: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)")
    database.execute("CREATE UNIQUE INDEX other ON t (n)")
    database.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}".encode())
    with pytest.raises(PipelineError, match="REPLICA IDENTITY DEFAULT"):
        prepare(dsn, "t")


def test_tables_that_cannot_be_captured_are_named(database: Database, dsn: str) -> None:
    database.execute("CREATE TABLE keyless (id int)")
    for table, says in (("nowhere", "no table public.nowhere"), ("keyless", "no primary key")):
        with pytest.raises(PipelineError, match=says):
            prepare(dsn, table)


def test_tables_of_which_the_log_or_the_first_rows_would_lack_something_are_refused(
    database: Database, dsn: str
) -> None:
    database.execute("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN REPLICATION")
    database.execute("GRANT CREATE ON DATABASE shop TO reader")
    as_reader = dsn.replace("//postgres@", "//reader@")
    for name, table, says in (
        ("later", "(id int PRIMARY KEY DEFERRABLE)", "whose primary key is DEFERRABLE"),
        ("parent", "(id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent)", "tables inherit from"),
        ("made", "(id int, k int GENERATED ALWAYS AS (id) STORED PRIMARY KEY)", "has a generated column"),
        (
            "hidden",
            "(id int PRIMARY KEY); ALTER TABLE hidden OWNER TO reader; "
            "ALTER TABLE hidden ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
            r"row security hides rows of public\.hidden from reader",
        ),
    ):
        database.execute(f"CREATE TABLE {name} {table}".encode())
        with pytest.raises(PipelineError, match=says):
            prepare(as_reader if name == "hidden" else dsn, name)
    database.execute("ALTER TABLE later REPLICA IDENTITY FULL")
    prepare(dsn, "later")
    database.execute("UPDATE later SET id = 2")
    database.execute("DROP OWNED BY reader; DROP ROLE reader")


@pytest.mark.long
def test_a_value_that_debezium_cannot_convert_ends_the_capture_and_is_not_null(
    topics: Topics, topic: str, dsn: str, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, odd numeric(9,2)[])")
    database.execute("INSERT INTO t VALUES (1, '{1.5,NaN}')")
    said = CaptureCommand(tmp_path, topics.bootstrap, dsn, "t", topic).run("--available-now", code=1)
    assert "Debezium cannot convert a value of public.t" in said
    assert "odd" in said
    assert changes_in(topics, topic) == []


@pytest.mark.long
def test_columns_that_the_changes_would_lack_are_left_out_of_all_rows_with_a_warning(
    topics: Topics, topic: str, dsn: str, database: Database, tmp_path: Path
) -> None:
    database.execute(
        'CREATE TABLE t (id int PRIMARY KEY, "a,b" int GENERATED ALWAYS AS (id) STORED, m int[][], n int)'
    )
    database.execute("INSERT INTO t (id, m) VALUES (1, '{{1,2},{3,4}}'), (2, NULL)")
    capture = CaptureCommand(tmp_path, topics.bootstrap, dsn, "t", topic)
    assert "rows of public.t are captured without a,b, m" in capture.now()
    database.execute("UPDATE t SET n = 5 WHERE id = 1")
    capture.now()
    assert captured_rows(topics, topic) == [{"id": 1, "n": 5}, {"id": 2, "n": None}]


def test_names_are_different_for_each_table_of_each_database(
    database: Database, dsn: str, server: PostgresServer
) -> None:
    tables = [(dsn, "a_b.c"), (dsn, "a.b_c"), (server.dsn, "a_b.c"), (dsn, "a_b.C"), (dsn, f"a.{'x' * 60}y")]
    tables.append((dsn, f"a.{'x' * 60}z"))
    names = [source_of(*one, None).name for one in tables]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 63
    with pytest.raises(PipelineError, match="a name is at most 63 characters of a-z, 0-9 and _"):
        source_of(dsn, "t", "Not-A-Slot")


def test_what_is_of_another_capture_is_refused(database: Database, dsn: str, server: PostgresServer) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION part FOR TABLE t WITH (publish = 'insert')")
    with pytest.raises(PipelineError, match="is not that of all changes"):
        prepare(dsn, "t", "part")
    prepare(dsn, "other", "of_other")
    with pytest.raises(PipelineError, match=r"it has public\.other\. Choose another name with --slot"):
        prepare(dsn, "t", "of_other")
    database.execute("SELECT pg_create_logical_replication_slot('mine', 'pgoutput')")
    with pytest.raises(PipelineError, match="this cluster has no capture of that name"):
        prepare(dsn, "t", "mine")
    prepare(dsn, "t", "mine", has_begun=True)
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY)")
    for refused in (lambda: prepare(server.dsn, "t", "mine"), source_of(server.dsn, "t", "mine").drop):
        with pytest.raises(PipelineError, match="slot mine is of database shop"):
            refused()


def test_missing_rights_are_named(database: Database, dsn: str) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN")
    as_reader = dsn.replace("//postgres@", "//reader@")
    for grant, says in (
        ("GRANT SELECT ON t TO reader", r"reader may not read public\.t: GRANT SELECT"),
        ("ALTER TABLE t OWNER TO reader", "permission denied for database shop"),
        ("GRANT CREATE ON DATABASE shop TO reader", "permission denied for database shop"),
        ("ALTER ROLE reader REPLICATION", "(?i)replication"),
    ):
        with pytest.raises(PipelineError, match=says):
            prepare(as_reader, "t")
        database.execute(grant.encode())
    prepare(as_reader, "t")
    database.execute("REASSIGN OWNED BY reader TO postgres; DROP OWNED BY reader; DROP ROLE reader")


def test_a_database_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(PipelineError, match=r"cannot connect to PostgreSQL at .*host=127") as refused:
        source_of("postgresql://none:secret@127.0.0.1:1/none", "t", None)
    assert "secret" not in str(refused.value)


def test_a_connection_string_that_cannot_be_parsed_is_not_shown() -> None:
    with pytest.raises(PipelineError, match="cannot be parsed") as refused:
        source_of("postgresql://none:se cret@127.0.0.1:1/none", "t", None)
    assert "cret" not in str(refused.value)
