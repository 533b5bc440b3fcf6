"""Tables of PostgreSQL and MariaDB, captured, and what ``changelog`` and ``table`` make of them: the tables.

Brokers and captures are killed in between.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from nilometer.pipeline.batches import RunFiles
from nilometer.pipeline.shipped import changelog, table
from support.applications.application import WAIT_S
from support.applications.capture import CaptureCommand
from support.applications.committed_reader import CommittedReader
from support.applications.mariadb_server import MariadbServer
from support.applications.postgres_server import PostgresServer
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.pipeline.filled_topics import Topics
from support.pipeline.runs import run_pipeline
from support.pipeline.table_batches import READERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.application]

SETTINGS = {
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
POSTGRES = """CREATE TABLE accounts (
    id int, part text, owner text, balance numeric(20, 2), free numeric, is_open boolean, born date,
    at timestamp, tz timestamptz, ratio double precision, data bytea, large text, tags text[],
    amounts numeric(10, 2)[],
    PRIMARY KEY (part, id)
); ALTER TABLE accounts ALTER large SET STORAGE EXTERNAL"""
MARIADB = """CREATE TABLE accounts (
    id int, part varchar(10), owner text, balance decimal(20, 2), is_open tinyint(1), born date,
    at datetime(6), tz timestamp(6) NULL, ratio double, data blob, large text, PRIMARY KEY (part, id)
)"""
COLUMNS = {
    "id": "int",
    "part": "string",
    "balance": "decimal(20,2)",
    "born": "date",
    "at": "timestamp",
    "tz": "timestamp",
    "ratio": "double",
    "data": "binary",
    "large": "string",
    "extra": "decimal(8,3)",
}
OF_POSTGRES = {
    **COLUMNS,
    "free": "decimal(30,10)",
    "is_open": "boolean",
    "tags": "array<string>",
    "amounts": "array<decimal(10,2)>",
}
OF_MARIADB = {**COLUMNS, "is_open": "int"}


def rows_of_postgres(first: int) -> str:
    return f"""INSERT INTO accounts (
            id, part, owner, balance, free, is_open, born, at, tz, ratio, data, large, tags, amounts
        )
        SELECT n, 'p' || n % 3, 'grüße " \\ ' || n, 12345678901234567.89 + n, n / 8.0, n % 2 = 0,
            date '2024-02-29' + n, timestamp '2024-05-01 12:00:00.123456' + n * interval '1 hour',
            timestamptz '2024-05-01 12:00:00.000001+02' + n * interval '1 day', n / 3.0,
            decode(repeat('00ff', n % 5), 'hex'), repeat(chr(97 + n % 26), 4000), ARRAY['a', NULL, 'x ' || n],
            ARRAY[n / 4.0, 1.10]
        FROM generate_series({first}, {first + 39}) n"""


def rows_of_mariadb(first: int) -> str:
    return f"""INSERT INTO accounts (id, part, owner, balance, is_open, born, at, tz, ratio, data, large)
        SELECT seq, CONCAT('p', seq % 3), CONCAT('grüße " ', seq), 12345678901234567.89 + seq, seq % 2,
            DATE '2024-02-29' + INTERVAL seq DAY, TIMESTAMP '2024-05-01 12:00:00.123456' + INTERVAL seq HOUR,
            TIMESTAMP '2024-05-01 12:00:00.000001' + INTERVAL seq DAY, seq / 3e0,
            UNHEX(REPEAT('00ff', seq % 5)), REPEAT('x', 400)
        FROM seq_{first}_to_{first + 39}"""


def changes(first: int) -> list[str]:
    """Some of everything: rows that change, get another key, go, and come again."""
    return [
        "UPDATE accounts SET balance = balance + 1 WHERE id % 3 = 0",
        f"UPDATE accounts SET balance = balance + 1, owner = NULL WHERE id = {first}",
        f"UPDATE accounts SET id = id + 100000 WHERE id BETWEEN {first + 1} AND {first + 6}",
        f"UPDATE accounts SET part = 'moved' WHERE id = {first + 7}",
        "DELETE FROM accounts WHERE id % 7 = 0",
    ]


def comparable(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC) if value.tzinfo is not None else value.replace(tzinfo=UTC)
        case bytes() | bytearray() | memoryview():
            return bytes(value)
        case list():
            return tuple(map(comparable, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            return value


def zoned(value: datetime | None) -> datetime | None:
    return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


def sorted_rows(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    return sorted((tuple(map(comparable, row)) for row in rows), key=repr)


def of_changelog(spark: SparkSession, output: Path, columns: dict[str, str]) -> list[tuple[Any, ...]]:
    schema = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    rows = changelog.columns(changelog.current(spark, str(output)), schema).select(*columns).collect()
    # Spark gives timestamps as local times without a zone.
    local = [tuple(one.astimezone(UTC) if isinstance(one, datetime) else one for one in row) for row in rows]
    return sorted_rows(local)


JSON_TYPES = {
    "int": {"type": "integer", "format": "int32"},
    "double": {"type": "number"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "binary": {"type": "string", "format": "binary"},
    "string": {"type": "string"},
    "array<string>": {"type": "array", "items": {"type": "string"}},
    "array<decimal(10,2)>": {"type": "array", "items": {"type": "string"}},
}


def json_type(name: str, kind: str) -> dict[str, Any]:
    """Decimals are texts with all digits, and so are times without a zone, for which there are no columns."""
    if name == "tz":
        return {"type": "string", "format": "date-time"}
    return JSON_TYPES.get(kind, JSON_TYPES["string"])


def as_in_a_table(value: Any) -> Any:
    match value:
        case Decimal():
            return f"{value:f}"
        case datetime() if value.tzinfo is None:
            return value.isoformat()
        case list():
            return [as_in_a_table(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def check_table(
    spark: SparkSession,
    topics: Topics,
    topic: str,
    folder: Path,
    columns: dict[str, str],
    rows: Sequence[Any],
) -> None:
    """Read the topic as a table of Delta Lake too, which has the same rows then."""
    folder.mkdir(exist_ok=True)
    # Debezium sends numbers of no fixed scale without their last zeros.
    kept = [number for number, name in enumerate(columns) if name != "free"]
    rows = [tuple(as_in_a_table(row[number]) for number in kept) for row in rows]
    columns = {name: kind for name, kind in columns.items() if name != "free"}
    properties = {name: json_type(name, kind) for name, kind in columns.items()}
    schema = {"type": "object", "properties": properties}
    (folder / "schema.json").write_text(json.dumps(schema))
    settings = table.Settings(schema=str(folder / "schema.json"), input="changes")
    run_pipeline(spark, topics, "table", topic, folder, settings=settings)
    found = [tuple(row[name] for name in columns) for row in READERS["delta"](folder / "table")]
    assert sorted_rows(found) == sorted_rows(rows)


def check(spark: SparkSession, topics: Topics, topic: str, output: Path) -> None:
    run_pipeline(spark, topics, "changelog", topic, output)
    last = RunFiles(spark, str(output)).last()
    assert last is not None
    account = last.totals[""]
    assert (account.of("rejected"), account.open) == (0, 0), account.text()


def wait_captured(reader: CommittedReader, execute: Callable[[str], Any], number: int) -> None:
    """Insert the row of this number, which is the last change, and wait until it is in the topic."""
    execute(f"INSERT INTO accounts (id, part) VALUES ({number}, 'last')")
    wanted = f'"part":"last","id":{number}'.encode()
    eventually(
        lambda: any(wanted in (record.key() or b"") for record in reader.look()),
        f"the change {number} is in the topic",
        WAIT_S,
    )


@pytest.mark.long
def test_a_table_of_postgresql_equals_what_the_changelog_makes_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    topic = "accounts"
    with (
        NilometerCluster(tmp_path / "cluster", overrides=SETTINGS) as cluster,
        PostgresServer() as server,
        psycopg.connect(server.dsn, autocommit=True) as database,
    ):
        topics = Topics(cluster.bootstrap)

        def execute(statement: str) -> None:
            database.execute(statement.encode())

        def assert_equal() -> None:
            check(spark, topics, topic, tmp_path / "tables")
            names = ", ".join(columns)
            rows = database.execute(f"SELECT {names} FROM accounts".encode()).fetchall()
            assert of_changelog(spark, tmp_path / "tables", columns) == sorted_rows(rows)
            utc = [
                tuple(zoned(one) if name == "tz" else one for name, one in zip(columns, row, strict=True))
                for row in rows
            ]
            check_table(spark, topics, topic, tmp_path / "delta", columns, utc)

        columns = {name: kind for name, kind in OF_POSTGRES.items() if name != "extra"}
        execute(POSTGRES)
        execute(rows_of_postgres(1))
        topics.create(1, name=topic, replicas=3)
        with CaptureCommand(tmp_path, cluster.bootstrap, server.dsn, "accounts", topic) as capture:
            capture.wait_running()
            with CommittedReader(cluster.bootstrap, topic) as reader:
                with database.transaction():
                    for one in [rows_of_postgres(101), *changes(1)]:
                        execute(one)
                wait_captured(reader, execute, 1_001)
                assert_equal()
                cluster.kill(cluster.wait_leader(topic, timeout_s=WAIT_S))
                for one in [rows_of_postgres(201), *changes(201)]:
                    execute(one)
                capture.kill()
                execute("ALTER TABLE accounts ADD extra numeric(8, 3) DEFAULT 1.500")
                execute("ALTER TABLE accounts DROP owner")
                execute("UPDATE accounts SET extra = id / 8.0 WHERE id % 2 = 0")
                capture.start()
                # Rows that are not updated again have the column's default in the database only.
                execute("UPDATE accounts SET ratio = ratio + 1")
                columns = OF_POSTGRES
                wait_captured(reader, execute, 1_002)
                assert_equal()
                execute("TRUNCATE accounts")
                execute(rows_of_postgres(301).replace(", owner", "").replace("'grüße \" \\ ' || n, ", ""))
                wait_captured(reader, execute, 1_003)
                assert_equal()


@pytest.mark.long
def test_a_table_of_mariadb_equals_what_the_changelog_makes_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    topic = "accounts"
    with (
        NilometerBroker(tmp_path / "data", SETTINGS) as broker,
        MariadbServer() as server,
        server.connect("shop") as database,
        database.cursor() as cursor,
    ):
        topics = Topics(broker.bootstrap)

        def assert_equal() -> None:
            check(spark, topics, topic, tmp_path / "tables")
            cursor.execute(f"SELECT {', '.join(columns)} FROM accounts")
            rows = cursor.fetchall()
            assert of_changelog(spark, tmp_path / "tables", columns) == sorted_rows(rows)
            utc = [
                tuple(zoned(one) if name == "tz" else one for name, one in zip(columns, row, strict=True))
                for row in rows
            ]
            check_table(spark, topics, topic, tmp_path / "delta", columns, utc)

        columns = {name: kind for name, kind in OF_MARIADB.items() if name != "extra"}
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(MARIADB)
        cursor.execute(rows_of_mariadb(1))
        topics.create(2, name=topic)
        with CaptureCommand(tmp_path, broker.bootstrap, server.url("shop"), "accounts", topic) as capture:
            capture.wait_running()
            with CommittedReader(broker.bootstrap, topic, partitions=2) as reader:
                cursor.execute("START TRANSACTION")
                for one in [rows_of_mariadb(101), *changes(1)]:
                    cursor.execute(one)
                cursor.execute("COMMIT")
                wait_captured(reader, cursor.execute, 1_001)
                assert_equal()
                capture.kill()
                for one in [rows_of_mariadb(201), *changes(201), "FLUSH BINARY LOGS"]:
                    cursor.execute(one)
                capture.start()
                cursor.execute("ALTER TABLE accounts ADD extra decimal(8, 3) DEFAULT 1.500, DROP owner")
                cursor.execute("UPDATE accounts SET extra = id / 8, ratio = ratio + 1")
                columns = OF_MARIADB
                wait_captured(reader, cursor.execute, 1_002)
                assert_equal()
                cursor.execute("TRUNCATE TABLE accounts")
                without_owner = rows_of_mariadb(301).replace(", owner", "")
                cursor.execute(without_owner.replace("CONCAT('grüße \" ', seq), ", ""))
                wait_captured(reader, cursor.execute, 1_003)
                assert_equal()
