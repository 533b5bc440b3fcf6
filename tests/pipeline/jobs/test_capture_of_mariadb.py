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
from support.applications.capture import CaptureCommand
from support.applications.committed_reader import committed_records
from support.applications.mariadb_server import MariadbServer
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
