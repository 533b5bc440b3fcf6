"""Databases of which a capture takes the changes: what it checks, creates and removes in each, and what a
connector of Debezium is told.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit
from zlib import crc32

from nilometer.pipeline.changes.change_events import UNSIGNED
from nilometer.pipeline.errors import PipelineError

# What a capture needs of a database, and how a connector of Debezium is told what it captures.

PASSWORD = "NILOMETER_CAPTURE_PASSWORD"
"""The variable of the environment from which the connector reads the database's password."""

Position = tuple[int, ...]
"""A position in the database's log: a later one is greater."""


class Source(Protocol):
    """A table in a database. Every method may raise PipelineError."""

    name: str
    """The name of the capture, of a-z, 0-9 and _: another for each table of each database."""
    table: str
    """The table's full name, for messages."""
    coordinate: str
    """The connector's Maven coordinate."""
    password: str

    def prepare(self, *, has_begun: bool) -> str | None:
        """Check all that the connector needs, and create what it does not create itself.

        ``has_begun`` is whether the cluster has a position of this capture. Returns which changes the
        database does not log, or which columns; None if it logs all.
        """
        ...

    def connector(self) -> dict[str, str]:
        """Return the connector's settings that are this database's own."""
        ...

    def if_empty(self) -> Mapping[str, str | int] | None:
        """Return the ``source`` of Debezium's event of a truncate now if the table has no rows; else None."""
        ...

    def now(self) -> Position:
        """Return a position that the connector reaches once it has read all changes that exist now."""
        ...

    def position(self, offset: Mapping[str, Any]) -> Position:
        """Return the position of an offset of the connector."""
        ...

    def explain(self, failure: str) -> str | None:
        """Return what a failure of the connector, a trace of Java, means here; None if that is not known."""
        ...

    def drop(self) -> None:
        """Remove what the database keeps for this capture."""
        ...


def capture_name(*parts: str, length_max: int = 63) -> str:
    """Return a name for a capture: readable, and different for different parts."""
    readable = re.sub(r"[^a-z0-9_]", "_", "_".join(("nilometer", *parts)).lower())
    unique = f"_{crc32('/'.join(parts).encode()):08x}"
    return readable[: length_max - len(unique)] + unique


def exactly(name: str) -> str:
    """Return the pattern of Java, in a list of Debezium's, that matches only ``name``."""
    return re.sub(r"[^\w]", lambda found: f"\\x{{{ord(found[0]):x}}}", name)


def topic_prefix(database: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", database)


# A table of MySQL or MariaDB: what a capture checks in the database. It creates nothing there.

CONNECTORS: Final = {
    "mysql": ("io.debezium:debezium-connector-mysql:3.6.1.Final", "mysql.MySqlConnector"),
    "mariadb": ("io.debezium:debezium-connector-mariadb:3.5.0.Final", "mariadb.MariaDbConnector"),
}
"""The Maven coordinate and the class, by the scheme of the connection string."""
_FORMAT: Final = {"log_bin": ("1", "ON"), "binlog_format": ("ROW",), "binlog_row_image": ("FULL",)}
_FILE: Final = re.compile(r".*\.(\d+)$")


class MysqlSource:
    """A table of the database that a URL ``mysql://user:password@host:port/database`` names."""

    def __init__(self, dsn: str, table: str, name: str | None) -> None:
        """``table`` is ``table`` or ``database.table``. Raises PipelineError."""
        url = urlsplit(dsn)
        self._scheme = url.scheme
        self.coordinate, self._class = CONNECTORS[url.scheme]
        self._host, self._port = url.hostname or "127.0.0.1", url.port or 3306
        self._user, self.password = unquote(url.username or "root"), unquote(url.password or "")
        database, _, self._name = table.rpartition(".")
        self._database = database or unquote(url.path.strip("/"))
        if not self._database:
            raise PipelineError("--dsn or --table must name the database: mysql://user@host/database")
        self.table = f"{self._database}.{self._name}"
        self.name = name or capture_name(self._database, self._name)

    def prepare(self, *, has_begun: bool) -> str | None:
        with self._connected() as cursor:
            cursor.execute("SELECT VERSION()")
            is_of = "mariadb" if "mariadb" in cursor.fetchall()[0][0].lower() else "mysql"
            if is_of != self._scheme:
                raise PipelineError(
                    f"the database is another: write {is_of}:// in place of {self._scheme}://"
                )
            cursor.execute(
                "SELECT COUNT(s.index_name) FROM information_schema.tables t "
                "LEFT JOIN information_schema.statistics s ON s.table_schema = t.table_schema "
                "AND s.table_name = t.table_name AND s.index_name = 'PRIMARY' "
                "WHERE t.table_schema = %s AND t.table_name = %s AND t.table_type = 'BASE TABLE' "
                "GROUP BY t.table_name",
                (self._database, self._name),
            )
            found = cursor.fetchall()
            if not found:
                raise PipelineError(
                    f"the database has no table {self.table}, or {self._user} may not read it"
                )
            if not found[0][0]:
                raise PipelineError(
                    f"table {self.table} has no primary key, which capturing needs to identify rows: add one"
                )
            for variable, wanted in _FORMAT.items():
                cursor.execute(f"SELECT @@GLOBAL.{variable}")
                ((value,),) = cursor.fetchall()
                if str(value).upper() not in wanted:
                    raise PipelineError(
                        f"{variable} of the database is {value}: capturing needs a binary log with whole "
                        f"rows. Set {variable} = {wanted[-1]} and restart the database"
                    )
            filters = [one or "" for one in self._log_status(cursor)[2:4]]
            only, never = (set(filter(None, one.split(","))) for one in filters)
            if (only and self._database not in only) or self._database in never:
                raise PipelineError(
                    f"the binary log leaves out database {self._database}: change binlog_do_db or "
                    "binlog_ignore_db, and restart the database"
                )
        return None

    def connector(self) -> dict[str, str]:
        return {
            "connector.class": f"io.debezium.connector.{self._class}",
            "database.hostname": self._host,
            "database.port": str(self._port),
            "database.user": self._user,
            "database.password": f"${{env:{PASSWORD}}}",
            # Another one for each reader of the server's log.
            "database.server.id": str(10_000 + crc32(self.name.encode()) % 1_000_000_000),
            "topic.prefix": topic_prefix(self._database),
            "database.include.list": exactly(self._database),
            "table.include.list": f"{exactly(self._database)}\\.{exactly(self._name)}",
            "include.schema.changes": "false",
            # The server reports an idle log in four fifths of this time, and only then the position moves.
            "connect.keep.alive.interval.ms": "5000",
            # As a signed number of 64 bits it would be negative from 2^63 on.
            "bigint.unsigned.handling.mode": "precise",
            "datatype.propagate.source.type": UNSIGNED,
        }

    def if_empty(self) -> Mapping[str, str | int] | None:
        with self._connected() as cursor:
            quoted = [f"`{one.replace('`', '``')}`" for one in (self._database, self._name)]
            cursor.execute(f"SELECT 1 FROM {'.'.join(quoted)} LIMIT 1")
            if cursor.fetchall():
                return None
        file, at = self.now()
        within = {"name": topic_prefix(self._database), "db": self._database, "table": self._name}
        return {"connector": self._scheme, **within, "file": f"log.{file:06d}", "pos": at}

    def now(self) -> Position:
        with self._connected() as cursor:
            # The connector stores a position behind changes of other tables only when a file begins.
            cursor.execute("FLUSH LOCAL BINARY LOGS")
            file, _ = _position(*self._log_status(cursor)[:2])
        return (file, 0)

    def position(self, offset: Mapping[str, Any]) -> Position:
        return _position(offset.get("file") or "", offset.get("pos") or 0)

    def explain(self, failure: str) -> str | None:
        if "no longer available on the server" in failure or "purged" in failure:
            return (
                "the database has removed the part of its binary log that is to be read next: changes "
                "are lost. Remove the rest with --drop and capture again, which begins with all rows"
            )
        return None

    def drop(self) -> None:
        """Remove nothing: the database keeps no position of those who read its log."""

    def _log_status(self, cursor: Any) -> tuple[Any, ...]:
        """Return file and position of the binary log, and the databases that it only has, and has not."""
        for query in ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"):
            try:
                cursor.execute(query)
            except _pymysql().ProgrammingError:
                continue  # MySQL has renamed it in 8.4
            if found := cursor.fetchall():
                return found[0]
        raise PipelineError(
            f"{self._user} cannot see the position of the binary log: GRANT SELECT, RELOAD, SHOW DATABASES, "
            "REPLICATION SLAVE, REPLICATION CLIENT ON *.*"
        )

    @contextmanager
    def _connected(self) -> Generator[Any]:
        pymysql = _pymysql()
        try:
            with (
                pymysql.connect(
                    host=self._host, port=self._port, user=self._user, password=self.password
                ) as connection,
                connection.cursor() as cursor,
            ):
                yield cursor
        except pymysql.Error as error:
            said = error.args[-1] if error.args else error
            raise PipelineError(f"the database at {self._host}:{self._port} says: {said}") from error


def _position(file: str, at: int) -> Position:
    found = _FILE.match(file)
    return (int(found[1]) if found else -1, int(at))


def _pymysql() -> Any:
    try:
        import pymysql
    except ImportError as error:
        raise PipelineError(
            "capturing from MySQL and MariaDB needs PyMySQL: pip install 'nilometer[mysql]'"
        ) from error
    return pymysql


# A table of PostgreSQL: what a capture checks, creates and removes in the database.
#
# The publication is created here, the replication slot, which has its name, by the connector.

CONNECTOR: Final = "io.debezium:debezium-connector-postgres:3.7.0.Final"
MESSAGES: Final = "nilometer"
"""The prefix of the messages that this program writes to the log: they move the slot in a quiet database."""
_OF_PARTITIONS: Final = (
    "{} is partitioned: PostgreSQL publishes no TRUNCATE, DROP or DETACH of a single partition, and its rows "
    "stay in what is made of the topic. Delete them first with DELETE, or truncate the whole table"
)
_LEFT_OUT: Final = (
    "rows of {} are captured without {}: PostgreSQL does not log generated columns, and Debezium sends "
    "arrays of several dimensions as null"
)
_MESSAGE: Final = f"SELECT pg_logical_emit_message(true, '{MESSAGES}', '')"


@dataclass(frozen=True, slots=True)
class Table:
    schema: str
    name: str
    is_partitioned: bool
    left_out: tuple[str, ...]
    """The columns that are not captured."""

    @property
    def quoted(self) -> str:
        return f"{_quoted(self.schema)}.{_quoted(self.name)}"


@dataclass(frozen=True, slots=True)
class Slot:
    """A logical replication slot of the database server, and what it holds."""

    name: str
    database: str
    tables: tuple[str, ...]
    """Those of the publication that belongs to it; empty if that is not of this database."""
    is_active: bool
    wal_bytes: int
    """The log that the server keeps for it, in bytes."""


def slots(dsn: str) -> list[Slot]:
    """Return the server's logical slots, also those of other programs. Raises PipelineError."""
    with _errors(), _connected(dsn) as connection:
        rows = connection.execute(
            "SELECT s.slot_name, s.database, s.active, "
            "pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint, "
            "ARRAY(SELECT schemaname || '.' || tablename FROM pg_publication_tables "
            "WHERE pubname = s.slot_name AND s.database = current_database() ORDER BY 1) "
            "FROM pg_replication_slots s WHERE s.slot_type = 'logical' ORDER BY 1"
        ).fetchall()
    return [
        Slot(name, database, tuple(tables), active, held or 0)
        for name, database, active, held, tables in rows
    ]


class PostgresSource:
    """A table of the database that a connection string of libpq names."""

    coordinate = CONNECTOR

    def __init__(self, dsn: str, table: str, name: str | None) -> None:
        """``table`` is ``schema.table``; ``name`` of the slot and the publication. Raises PipelineError."""
        self._dsn = dsn
        schema, _, self._name = table.rpartition(".")
        self._schema = schema or "public"
        self.table = f"{self._schema}.{self._name}"
        with _errors(), _connected(dsn) as connection:
            info = connection.info
            self._host, self._port = info.host, info.port
            self._user, self._database, self.password = info.user, info.dbname, info.password or ""
            self._tls = {key: value for key, value in info.get_parameters().items() if key.startswith("ssl")}
        if not self._host or self._host.startswith("/"):
            raise PipelineError(
                "Debezium connects by TCP: name the host of the database, postgresql://user@localhost/database"
            )
        self.name = name or capture_name(self._database, self._schema, self._name)
        self._left_out: tuple[str, ...] = ()

    def prepare(self, *, has_begun: bool) -> str | None:
        with _errors(), _connected(self._dsn) as connection:
            table = self._describe(connection, has_begun=has_begun)
            (level,) = _one(connection, "SHOW wal_level")
            if level != "logical":
                raise PipelineError(
                    f"wal_level of the database is {level}: logical decoding needs ALTER SYSTEM SET "
                    "wal_level = logical and a restart of PostgreSQL"
                )
            has_slot = self._check_slot(connection)
            if has_slot and not has_begun:
                raise PipelineError(
                    f"the slot {self.name} exists, and this cluster has no capture of that name: another "
                    "cluster's may use it. Choose another name with --slot, or remove it with --drop"
                )
            if not _all(connection, "SELECT 1 FROM pg_publication WHERE pubname = %s", self.name):
                via_root = " WITH (publish_via_partition_root)" if table.is_partitioned else ""
                connection.execute(
                    f"CREATE PUBLICATION {_quoted(self.name)} FOR TABLE {table.quoted}{via_root}"
                )
            self._check_publication(connection, table)
        with _errors(), _connected(self._dsn, replication="database"):
            pass  # the right to replicate, and pg_hba.conf
        self._left_out = table.left_out
        lacking = [_OF_PARTITIONS.format(self.table)] if table.is_partitioned else []
        if table.left_out:
            lacking.append(_LEFT_OUT.format(self.table, ", ".join(table.left_out)))
        return "; ".join(lacking) or None

    def connector(self) -> dict[str, str]:
        table = f"{exactly(self._schema)}\\.{exactly(self._name)}"
        excluded = ",".join(f"{table}\\.{exactly(one)}" for one in self._left_out)
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "slot.name": self.name,
            "publication.name": self.name,
            "publication.autocreate.mode": "disabled",
            "publish.via.partition.root": "true",
            "database.hostname": self._host,
            "database.port": str(self._port),
            "database.user": self._user,
            "database.password": f"${{env:{PASSWORD}}}",
            "database.dbname": self._database,
            **{f"database.{key}": value for key, value in self._tls.items() if key in _TLS},
            "topic.prefix": topic_prefix(self._database),
            "table.include.list": table,
            **({"column.exclude.list": excluded} if excluded else {}),
            "decimal.handling.mode": "string",  # no decimal of Connect is NaN or infinite
            "interval.handling.mode": "string",
            "include.unknown.datatypes": "true",
            # A slot that was made again has lost changes: that is an error.
            "offset.mismatch.strategy": "trust_offset",
            "heartbeat.action.query": _MESSAGE,
            "message.prefix.exclude.list": MESSAGES,
        }

    def if_empty(self) -> Mapping[str, str | int] | None:
        with _errors(), _connected(self._dsn) as connection:
            if _all(connection, f"SELECT 1 FROM {_quoted(self._schema)}.{_quoted(self._name)} LIMIT 1"):
                return None
        within = {"name": topic_prefix(self._database), "db": self._database, "schema": self._schema}
        return {"connector": "postgresql", **within, "table": self._name, "lsn": self.now()[0]}

    def now(self) -> Position:
        with _errors(), _connected(self._dsn) as connection:
            (now,) = _one(connection, "SELECT pg_current_wal_insert_lsn()")
            connection.execute(_MESSAGE)  # so that there is something to read after it
        return (_lsn(now),)

    def position(self, offset: Mapping[str, Any]) -> Position:
        return (int(offset.get("lsn") or 0),)

    def explain(self, failure: str) -> str | None:
        if "no longer available on the server" in failure or "replication slot" in failure:
            return (
                f"the slot {self.name} was dropped, or made again, in the database: changes since are lost. "
                "Remove the rest with --drop and capture again, which begins with all rows"
            )
        return None

    def drop(self) -> None:
        """Remove slot and publication: as long as the slot exists, the database keeps its log.

        The table may be gone.
        """
        with _errors(), _connected(self._dsn) as connection:
            if self._check_slot(connection):
                _all(connection, "SELECT pg_drop_replication_slot(%s)", self.name)
            connection.execute(f"DROP PUBLICATION IF EXISTS {_quoted(self.name)}")

    def _describe(self, connection: Any, *, has_begun: bool) -> Table:
        found = _all(
            connection,
            "SELECT c.relkind = 'p', i.indexrelid IS NOT NULL, "
            "c.relreplident = 'f' OR (c.relreplident = 'd' AND i.indimmediate) OR i.indisreplident, "
            "has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid), "
            "c.relkind = 'r' AND EXISTS (SELECT 1 FROM pg_inherits h WHERE h.inhparent = c.oid), "
            "ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid "
            "AND NOT a.attisdropped AND (a.attgenerated <> '' OR a.attndims > 1) ORDER BY a.attnum), "
            "EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> '' "
            "AND a.attnum = ANY(i.indkey)) FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary "
            "WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')",
            self._schema, self._name,
        )  # fmt: skip
        if not found:
            raise PipelineError(f"the database has no table {self.table}")
        ((is_partitioned, has_key, logs_key, may_read, is_filtered, has_children, left_out, in_key),) = found
        if not has_key:
            raise PipelineError(
                f"table {self.table} has no primary key, which capturing needs to identify rows: add one"
            )
        if not logs_key:
            raise PipelineError(
                f"the log has no primary key of deleted rows of {self.table}, whose REPLICA IDENTITY is "
                "another, or whose primary key is DEFERRABLE: "
                f"ALTER TABLE {self.table} REPLICA IDENTITY DEFAULT (or FULL)"
            )
        if in_key:
            raise PipelineError(
                f"the primary key of {self.table} has a generated column, which PostgreSQL does not log"
            )
        if not may_read:
            raise PipelineError(f"{self._user} may not read {self.table}: GRANT SELECT ON {self.table}")
        if is_filtered and not has_begun:  # its first rows have been read
            raise PipelineError(
                f"row security hides rows of {self.table} from {self._user}, and the log has all: "
                f"ALTER ROLE {self._user} BYPASSRLS"
            )
        if has_children and not has_begun:
            raise PipelineError(
                f"tables inherit from {self.table}: their rows would be among its first rows, and none of "
                "their changes. Capture a table that none inherits from, or a partitioned one"
            )
        return Table(self._schema, self._name, is_partitioned, tuple(left_out))

    def _check_slot(self, connection: Any) -> bool:
        """Return whether the slot exists. Raises PipelineError if it is another database's or program's."""
        found = _all(
            connection,
            "SELECT plugin, database, database = current_database() FROM pg_replication_slots "
            "WHERE slot_name = %s",
            self.name,
        )
        if found and (found[0][0] != "pgoutput" or not found[0][2]):
            plugin, database, _ = found[0]
            raise PipelineError(
                f"the slot {self.name} is of database {database} and plugin {plugin}, and is not this "
                "table's: choose another name with --slot"
            )
        return bool(found)

    def _check_publication(self, connection: Any, table: Table) -> None:
        """Raise PipelineError unless the publication has all changes of the table, and of no other."""
        (whole,) = _all(
            connection,
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate AND (pubviaroot OR NOT %s), "
            "puballtables FROM pg_publication WHERE pubname = %s",
            table.is_partitioned,
            self.name,
        )
        tables = _all(
            connection,
            # Before PostgreSQL 15 there were no conditions and no lists of columns.
            "SELECT n.nspname, c.relname, "
            "COALESCE(to_jsonb(r) ->> 'prqual', to_jsonb(r) ->> 'prattrs') IS NOT NULL "
            "FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid "
            "JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE p.pubname = %s",
            self.name,
        )
        if not whole[0] or whole[1] or tables != [(table.schema, table.name, False)]:
            others = ", ".join(f"{schema}.{name}" for schema, name, _ in tables) or "no single table"
            raise PipelineError(
                f"the publication {self.name} exists, and is not that of all changes of "
                f"{self.table}: it has {others}. Choose another name with --slot, or drop it "
                "in the database"
            )


_TLS: Final = ("sslmode", "sslcert", "sslkey", "sslrootcert", "sslpassword")


def _all(connection: Any, query: str, *values: Any) -> list[tuple[Any, ...]]:
    return connection.execute(query, values or None).fetchall()


def _one(connection: Any, query: str) -> tuple[Any, ...]:
    return _all(connection, query)[0]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def _without_password(dsn: str) -> str:
    """Return ``dsn`` as ``key=value`` pairs, for messages."""
    conninfo = _psycopg().conninfo
    parts = conninfo.conninfo_to_dict(dsn)
    parts.pop("password", None)
    return conninfo.make_conninfo(**parts)


def _connected(dsn: str, *, autocommit: bool = True, **more: Any) -> Any:
    """Return a connection whose texts are UTF-8, whatever the database's are. Raises PipelineError."""
    psycopg = _psycopg()
    try:
        return psycopg.connect(dsn, autocommit=autocommit, client_encoding="utf8", **more)
    except psycopg.OperationalError as error:
        raise PipelineError(f"cannot connect to PostgreSQL at {_without_password(dsn)}: {error}") from error
    except psycopg.ProgrammingError as error:
        raise PipelineError(  # without the error's text, which may hold a password
            "the connection string of PostgreSQL cannot be parsed: check its spaces, quotes and % escapes"
        ) from error


@contextmanager
def _errors() -> Generator[None]:
    """Raise the database's errors as PipelineError: missing rights, a restart, a slot that is in use."""
    try:
        yield
    except _psycopg().Error as error:
        raise PipelineError(f"PostgreSQL says: {str(error).strip()}") from error


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise PipelineError(
            "capturing from PostgreSQL needs psycopg: pip install 'nilometer[postgres]'"
        ) from error
    return psycopg
