"""Debezium's connectors for the databases of the tests, as Kafka Connect runs them."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict

from ..ports import HOST
from .mariadb_server import PASSWORD, MariadbServer
from .postgres_server import PostgresServer

ONE_BROKER = {
    f"{name}.storage.{setting}": "1"
    for name in ("config", "offset", "status")
    for setting in ("replication.factor", "partitions")
    if (name, setting) != ("config", "partitions")
}
"""The settings of a worker whose cluster has one broker."""


def _common(name: str, partitions: int, replicas: int, *, envelope: bool) -> dict[str, str]:
    return {
        "topic.prefix": name,
        "skipped.operations": "none",
        "header.converter": "org.apache.kafka.connect.json.JsonConverter",
        "header.converter.schemas.enable": "false",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": str(envelope).lower(),
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": str(envelope).lower(),
        "topic.creation.default.replication.factor": str(replicas),
        "topic.creation.default.partitions": str(partitions),
        "poll.interval.ms": "100",
    }


def postgres_connector(
    name: str,
    server: PostgresServer,
    tables: str,
    *,
    envelope: bool = True,
    partitions: int = 1,
    replicas: int = 1,
) -> dict[str, str]:
    """Return the configuration of a connector that captures ``tables`` with exactly once."""
    given = conninfo_to_dict(server.dsn)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "exactly.once.support": "required",
        "plugin.name": "pgoutput",
        "slot.name": name.replace("-", "_"),
        "publication.name": f"{name.replace('-', '_')}_tables",
        "publication.autocreate.mode": "filtered",
        "database.hostname": str(given["host"]),
        "database.port": str(given["port"]),
        "database.user": str(given["user"]),
        "database.password": "",
        "database.dbname": str(given["dbname"]),
        "table.include.list": tables,
        **_common(name, partitions, replicas, envelope=envelope),
    }


def mariadb_connector(
    name: str, server: MariadbServer, bootstrap: str, *, envelope: bool = True, partitions: int = 1
) -> dict[str, str]:
    """Return the configuration of a connector that captures all tables of the database ``shop``."""
    return {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "database.hostname": HOST,
        "database.port": str(server.port),
        "database.user": "root",
        "database.password": PASSWORD,
        "database.server.id": "100",
        "database.include.list": "shop",
        "schema.history.internal.kafka.bootstrap.servers": bootstrap,
        "schema.history.internal.kafka.topic": f"{name}.history",
        **_common(name, partitions, 1, envelope=envelope),
    }
