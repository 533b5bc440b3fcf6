"""``nilometer pipeline capture`` on a MariaDB: rows and changes once each, and what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nilometer.pipeline.capture.capture import source_of
from nilometer.pipeline.errors import PipelineError
from support.applications.capture import CaptureCommand, captured_changes
from support.applications.committed_reader import committed_records
from support.applications.mariadb_server import MariadbServer
from support.pipeline.debezium_events import rows_of
from support.pipeline.filled_topics import Topics

pytestmark = [pytest.mark.java, pytest.mark.application]


@pytest.fixture(scope="module")
def server() -> Iterator[MariadbServer]:
    with MariadbServer() as one:
        yield one


@pytest.fixture
def cursor(server: MariadbServer) -> Iterator[Any]:
    with server.connect("shop") as database, database.cursor() as one:
        yield one


def operations(topics: Topics, topic: str) -> Counter[str]:
    """Return how many events of each kind the topic has."""
    values = [one.value() for one in committed_records(topics.bootstrap, topic)]
    return Counter(json.loads(value)["payload"]["op"] for value in values if value is not None)


@pytest.mark.long
def test_changes_are_there_once_and_a_purged_log_is_named(
    topics: Topics, server: MariadbServer, cursor: Any, tmp_path: Path
) -> None:
    topic = topics.create(1, prefix="captured")
    cursor.execute("CREATE TABLE accounts (id int PRIMARY KEY, n int)")
    cursor.execute("INSERT INTO accounts SELECT seq, 0 FROM seq_1_to_5000")
    capture = CaptureCommand(tmp_path, topics.bootstrap, server.url("shop"), "accounts", topic)
    assert f"All changes of shop.accounts until now are in {topic}" in capture.now()
    assert operations(topics, topic) == {"r": 5_000}
    cursor.execute("UPDATE accounts SET n = 1 WHERE id <= 10")
    cursor.execute("CREATE TABLE other (id int)")
    capture.now()
    assert operations(topics, topic) == {"r": 5_000, "u": 10}
    cursor.execute("DELETE FROM accounts WHERE id <= 3")
    cursor.execute("FLUSH BINARY LOGS")
    cursor.execute("SHOW MASTER STATUS")
    cursor.execute(f"PURGE BINARY LOGS TO '{cursor.fetchall()[0][0]}'")
    assert "has removed the part of its binary log" in capture.run("--available-now", code=1)
    capture.run("--drop", "--yes")
    assert not [one for one in topics.names() if one.startswith("nilometer-capture-nilometer_shop_accounts")]
    capture.now()
    assert operations(topics, topic) == {"r": 5_000 + 4_997, "u": 10}


@pytest.mark.long
def test_unsigned_integers_are_as_they_are_and_a_table_that_is_captured_again_may_be_empty(
    topics: Topics, server: MariadbServer, cursor: Any, tmp_path: Path
) -> None:
    topic = topics.create(1, prefix="captured")
    cursor.execute("CREATE TABLE large (id bigint unsigned PRIMARY KEY, n bigint unsigned)")
    cursor.execute("INSERT INTO large VALUES (1, 18446744073709551615), (2, 9223372036854775807)")
    capture = CaptureCommand(tmp_path, topics.bootstrap, server.url("shop"), "large", topic)
    capture.now()
    cursor.execute("INSERT INTO large VALUES (18446744073709551615, 1), (3, NULL)")
    cursor.execute("UPDATE large SET n = 9223372036854775808 WHERE id = 2")
    capture.now()

    def rows() -> dict[int, int]:
        found = rows_of(captured_changes(topics.bootstrap, topic)).values()
        return {row["id"]: row["n"] for row in found}

    largest = 2**64 - 1
    assert rows() == {1: largest, 2: 2**63, 3: None, largest: 1}
    capture.run("--drop", "--yes")
    cursor.execute("DELETE FROM large")
    capture.now()
    assert rows() == {}
    cursor.execute("INSERT INTO large VALUES (2, 7)")
    capture.now()
    assert rows() == {2: 7}


@pytest.mark.parametrize("option", ["--binlog-ignore-db=shop", "--binlog-do-db=other"])
def test_a_database_that_is_not_in_the_log_is_refused(option: str) -> None:
    with MariadbServer(option) as server, server.connect("shop") as database, database.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with pytest.raises(PipelineError, match="the binary log leaves out database shop"):
            source_of(server.url("shop"), "t", None).prepare(has_begun=False)


def test_what_cannot_be_captured_is_named(server: MariadbServer, cursor: Any) -> None:
    cursor.execute("CREATE TABLE t (id int PRIMARY KEY)")
    cursor.execute("CREATE TABLE keyless (id int)")
    cursor.execute("CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'x'")
    cursor.execute("GRANT SELECT ON shop.* TO reader@'127.0.0.1'")
    url = server.url("shop")
    for dsn, table, says in (
        (url, "keyless", r"table shop\.keyless has no primary key"),
        (url, "nowhere", r"has no table shop\.nowhere, or root may not read it"),
        (url.replace("mariadb:", "mysql:"), "t", "write mariadb:// in place of mysql://"),
        (url.replace(":secret", ":wrong"), "t", "says: Access denied for user"),
        (url.replace("root:secret", "reader:x"), "t", "privilege"),
        (url.removesuffix("/shop"), "t", "must name the database"),
    ):
        with pytest.raises(PipelineError, match=says) as refused:
            source_of(dsn, table, None).prepare(has_begun=False)
        assert "wrong" not in str(refused.value)
    cursor.execute("SET GLOBAL binlog_format = 'STATEMENT'")
    with pytest.raises(PipelineError, match="Set binlog_format = ROW and restart"):
        source_of(url, "t", None).prepare(has_begun=False)
    cursor.execute("SET GLOBAL binlog_format = 'ROW'")
