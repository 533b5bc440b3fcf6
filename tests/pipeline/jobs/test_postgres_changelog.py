"""A real PostgreSQL's table, captured through logical decoding, beside what the database says of it."""

from __future__ import annotations

import json
from collections import Counter

import psycopg
import pytest
from click.testing import CliRunner

from nilometer.cli.pipelines.pipeline_commands import pipeline
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.postgres.capture import Capture
from nilometer.pipeline.shipped import changelog
from support.applications.postgres_server import PostgresServer
from support.pipeline.filled_topics import Sent
from support.pipeline.runs import read_values, run_pipeline

pytestmark = pytest.mark.spark

COLUMNS = "id int, owner string, balance decimal(14,2), is_open boolean, note string"
TABLE = """
CREATE TABLE accounts (
    id int PRIMARY KEY, owner text, balance numeric(14, 2), is_open boolean DEFAULT true, note text
);
CREATE TABLE versions (id int, balance numeric(14, 2));
CREATE FUNCTION keep_version() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO versions VALUES (OLD.id, OLD.balance); RETURN NULL; END $$;
CREATE TRIGGER kept AFTER UPDATE OR DELETE ON accounts FOR EACH ROW EXECUTE FUNCTION keep_version();
"""


@pytest.fixture(scope="module")
def server():
    with PostgresServer() as one:
        yield one


@pytest.fixture
def database(server):
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        yield connection


def capture(topics, server, topic, *more, code=0):
    given = ["--dsn", server.dsn, "--table", "public.accounts", "--topic", topic, "--available-now"]
    where = ["--bootstrap-server", topics.bootstrap]
    result = CliRunner().invoke(pipeline, ["capture", *given, *where, *more])
    assert result.exit_code == code, result.output
    return result.output


def change(database):
    with database.transaction():
        database.execute("INSERT INTO accounts VALUES (4, 'grüße', 123456789012.34, true, 'quote \" and \\')")
        database.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 1")
        database.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 1")
    database.execute("DELETE FROM accounts WHERE id = 2")
    database.execute("UPDATE accounts SET id = 30 WHERE id = 3")
    with pytest.raises(ZeroDivisionError), database.transaction():
        database.execute("UPDATE accounts SET balance = 0")
        raise ZeroDivisionError  # rolled back: must not be seen


def current(spark, output):
    rows = changelog.columns(changelog.current(spark, output), COLUMNS).collect()
    return sorted((row.id, row.owner, row.balance, row.is_open, row.note) for row in rows)


def table_of(database):
    return sorted(database.execute("SELECT * FROM accounts").fetchall())


def replaced(spark, output):
    rows = changelog.columns(changelog.timeline(spark, output), COLUMNS).where("valid_until is not null")
    return Counter((row.id, row.balance) for row in rows.collect())


@pytest.mark.long
def test_the_changelog_is_the_databases_table_and_every_version_it_had(
    spark, topics, server, database, tmp_path
):
    topic, output = topics.create(2), str(tmp_path)
    database.execute(TABLE)
    large = "x" * 9_000  # kept apart from the row: an update that leaves it alone does not log it
    database.execute("ALTER TABLE accounts ALTER note SET STORAGE EXTERNAL")
    database.execute(
        "INSERT INTO accounts VALUES (1, 'a', 1, true, %s), "
        "(2, NULL, NULL, false, ''), (3, 'c', -3, NULL, 'n')",
        (large,),
    )
    assert "3 rows of public.accounts" in capture(topics, server, topic)
    change(database)
    assert "changes are in" in capture(topics, server, topic)
    run_pipeline(spark, topics, "changelog", topic, tmp_path)
    assert current(spark, output) == table_of(database)
    assert {one[0]: one[4] for one in current(spark, output)}[1] == large
    assert replaced(spark, output) == Counter(database.execute("SELECT * FROM versions").fetchall())

    # The capture dies after sending and before confirming: the same changes come again.
    database.execute("UPDATE accounts SET owner = 'again', balance = balance * 2")
    before = len(read_values(spark, topics, topic))
    with Capture(server.dsn, "public.accounts", "nilometer_public_accounts") as dying:
        dying.prepare()
        sent = list(dying.events())
    assert len(sent) == 3
    capture(topics, server, topic)
    capture(topics, server, topic)
    assert len(read_values(spark, topics, topic)) == before + 3
    topics.send(topic, [Sent(0, key, value) for key, value in sent])
    database.execute("TRUNCATE accounts")
    database.execute("INSERT INTO accounts VALUES (1, 'back', 5, true, NULL)")
    capture(topics, server, topic)
    run_pipeline(spark, topics, "changelog", topic, tmp_path)
    assert current(spark, output) == table_of(database)
    events = [json.loads(value) for value in read_values(spark, topics, topic)]
    assert Counter(one["op"] for one in events)["t"] == 1

    unsaid = capture(topics, server, topic, "--drop", code=2)
    assert "slot nilometer_public_accounts of public.accounts" in unsaid and "--yes" in unsaid
    assert database.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (1,)
    capture(topics, server, topic, "--drop", "--yes")
    assert database.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)


def test_first_rows_that_were_not_all_safe_are_read_again(server, database):
    database.execute("CREATE TABLE IF NOT EXISTS items (id int PRIMARY KEY, name text)")
    database.execute("INSERT INTO items SELECT n, 'item ' || n FROM generate_series(1, 50) n")
    with Capture(server.dsn, "items", "items_slot") as dying:
        dying.prepare()
        assert not dying.has_begun
        assert len(list(dying.first_rows())) == 50
    with Capture(server.dsn, "items", "items_slot") as source:
        source.prepare()
        assert not source.has_begun
        rows = list(source.first_rows())
        database.execute("UPDATE items SET name = 'changed' WHERE id = 7")
        source.confirm_first_rows()
        assert source.has_begun
        changes = [json.loads(value) for _, value in source.events()]
        source.confirm()
        assert list(source.events()) == []
        source.drop()
    assert [json.loads(key)["id"] for key, _ in rows] == list(range(1, 51))
    assert [(one["op"], one["after"]["name"]) for one in changes] == [("u", "changed")]
    assert all(one["lsn"] > json.loads(rows[0][1])["lsn"] for one in changes)


@pytest.mark.parametrize(
    ("table", "says"),
    [("nowhere", "no table public.nowhere"), ("keyless", "no primary key")],
)
def test_a_table_that_cannot_be_captured_is_named(server, database, table, says):
    database.execute("CREATE TABLE IF NOT EXISTS keyless (id int)")
    with pytest.raises(PipelineError, match=says), Capture(server.dsn, table, "no_slot") as source:
        source.prepare()


def test_a_database_that_does_not_answer_is_named_without_its_password():
    unreachable = "postgresql://none:secret@127.0.0.1:1/none"
    with (
        pytest.raises(PipelineError, match=r"cannot connect to PostgreSQL at .*host=127") as refused,
        Capture(unreachable, "t", "slot"),
    ):
        pass
    assert "secret" not in str(refused.value)


def test_a_connection_string_that_cannot_be_parsed_is_not_shown():
    with (
        pytest.raises(PipelineError, match="cannot be parsed") as refused,
        Capture("postgresql://none:se cret@127.0.0.1:1/none", "t", "slot"),
    ):
        pass
    assert "cret" not in str(refused.value)
