"""A table of MySQL or MariaDB: what a capture checks in the database. It creates nothing there."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from zlib import crc32

from nilometer.pipeline.capture.source import PASSWORD, Position, capture_name, exactly, topic_prefix
from nilometer.pipeline.errors import PipelineError

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
            self._read_position(cursor)
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
        }

    def now(self) -> Position:
        with self._connected() as cursor:
            # The connector stores a position behind changes of other tables only when a file begins.
            cursor.execute("FLUSH LOCAL BINARY LOGS")
            file, _ = self._read_position(cursor)
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

    def _read_position(self, cursor: Any) -> Position:
        for query in ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"):
            try:
                cursor.execute(query)
            except _pymysql().ProgrammingError:
                continue  # MySQL has renamed it in 8.4
            if found := cursor.fetchall():
                return _position(found[0][0], found[0][1])
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
