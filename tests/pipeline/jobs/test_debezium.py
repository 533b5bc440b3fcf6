"""PostgreSQL's changes through Debezium into a compacted topic, read by the ``changelog`` job.

A broker is killed in between. The connector runs with exactly once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from nilometer.pipeline.shipped import changelog
from support.applications.application import WAIT_S
from support.applications.committed_reader import CommittedReader
from support.applications.kafka_connect import ConnectWorker
from support.applications.postgres_server import PostgresServer
from support.brokers.nilometer_cluster import NilometerCluster
from support.pipeline.filled_topics import Topics
from support.pipeline.runs import run_pipeline

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.application]

TOPIC = "shop.public.accounts"
COLUMNS = "id int, owner string, balance decimal(14,2), is_open boolean"
TABLE = "CREATE TABLE accounts (id int PRIMARY KEY, owner text, balance numeric(14, 2), is_open boolean)"
SETTINGS = {
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}


def connector(server: PostgresServer) -> dict[str, str]:
    given = conninfo_to_dict(server.dsn)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "exactly.once.support": "required",
        "plugin.name": "pgoutput",
        "database.hostname": str(given["host"]),
        "database.port": str(given["port"]),
        "database.user": str(given["user"]),
        "database.password": "",
        "database.dbname": str(given["dbname"]),
        "topic.prefix": "shop",
        "table.include.list": "public.accounts",
        "publication.autocreate.mode": "filtered",
        "decimal.handling.mode": "string",
        "topic.creation.default.replication.factor": "3",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.cleanup.policy": "compact",
    }


def change(database: psycopg.Connection, first: int) -> None:
    """Some of everything: rows that come, change, get another key, and go."""
    with database.transaction():
        database.execute(
            "INSERT INTO accounts SELECT n, 'owner ' || n, n / 4.0, n %% 2 = 0"
            " FROM generate_series(%s::int, %s::int) n",
            (first, first + 99),
        )
        database.execute("UPDATE accounts SET balance = balance + 1 WHERE id % 3 = 0")
        database.execute("UPDATE accounts SET balance = balance + 1 WHERE id = %s", (first,))
    database.execute("UPDATE accounts SET owner = 'grüße \" \\', is_open = NULL WHERE id % 10 = 1")
    database.execute("DELETE FROM accounts WHERE id % 7 = 0")
    database.execute("UPDATE accounts SET id = id + 100000 WHERE id = %s", (first + 1,))


def table_of(database: psycopg.Connection) -> list[tuple[object, ...]]:
    return sorted(database.execute("SELECT * FROM accounts").fetchall())


def newest(records: list[Message]) -> dict[int, tuple[str, str]]:
    """Owner and balance of each row as the newest record of its key has them; a deleted row is left out."""
    rows: dict[int, tuple[str, str]] = {}
    for record in records:
        number = json.loads(record.key())["id"]
        event = record.value() and json.loads(record.value())
        if event and event["after"] is not None:
            rows[number] = event["after"]["owner"], event["after"]["balance"]
        else:
            rows.pop(number, None)
    return rows


@pytest.mark.long
def test_a_databases_table_through_debezium_and_the_changelog_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    with (
        NilometerCluster(tmp_path / "cluster", overrides=SETTINGS) as cluster,
        PostgresServer() as server,
        psycopg.connect(server.dsn, autocommit=True) as database,
    ):
        database.execute(TABLE)
        change(database, 1)
        worker = ConnectWorker(tmp_path, cluster.bootstrap)
        with worker:
            worker.run_connector("accounts", connector(server))
            worker.application.wait_until(lambda: TOPIC in cluster.topics(), f"{TOPIC} is created")
            with CommittedReader(cluster.bootstrap, TOPIC) as reader:

                def is_captured() -> bool:
                    table = {row[0]: (row[1], str(row[2])) for row in table_of(database)}
                    return newest(reader.look()) == table

                worker.application.wait_until(is_captured, "the table's first rows are in the topic")
                change(database, 101)
                cluster.kill(cluster.wait_leader(TOPIC, timeout_s=WAIT_S))
                change(database, 201)
                worker.application.wait_until(is_captured, "the changes are in the topic")
        assert cluster.topic_setting(TOPIC, "cleanup.policy") == "compact"
        run_pipeline(spark, Topics(cluster.bootstrap), "changelog", TOPIC, tmp_path / "tables")
        rows = changelog.columns(changelog.current(spark, str(tmp_path / "tables")), COLUMNS).collect()
        found = sorted((row.id, row.owner, row.balance, row.is_open) for row in rows)
        assert found == table_of(database)
