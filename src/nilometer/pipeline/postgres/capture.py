"""Captures a PostgreSQL table through logical decoding: its present rows, then all changes.

Manages the publication, the replication slot, the slot's snapshot and the slot's position in the database.
``Capture.events`` yields events; when the caller has stored them it calls ``Capture.confirm``.

At least once: the slot is advanced only to confirmed events, so after a crash the same changes are decoded
again, with the same ``lsn`` and ``seq``.

Invariants: there is no gap and no overlap between the first rows and the changes, since the rows are read in
the snapshot that the slot's creation exports; events end with a complete transaction. If not all first rows
were confirmed, the slot is dropped and created again.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.postgres.pgoutput import (
    READ,
    BadMessage,
    Change,
    Column,
    Decoder,
    Relation,
    records_of,
)

CHANGES_MAX = 10_000
"""The number of changes after which one read of the slot ends, at the end of a transaction."""
ROWS_PER_READ = 5_000

Event = tuple[bytes | None, bytes]


@dataclass(frozen=True, slots=True)
class Table:
    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    is_partitioned: bool

    @property
    def relation(self) -> Relation:
        return Relation(self.schema, self.name, self.columns)

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
            "WHERE pubname = s.slot_name || '_publication' AND s.database = current_database() ORDER BY 1) "
            "FROM pg_replication_slots s WHERE s.slot_type = 'logical' ORDER BY 1"
        ).fetchall()
    return [
        Slot(name, database, tuple(tables), active, held or 0)
        for name, database, active, held, tables in rows
    ]


def slot_name(table: str) -> str:
    """Return the default name of a table's slot: other names may have only a-z, 0-9 and _."""
    return re.sub(r"[^a-z0-9_]", "_", f"nilometer_{table}".lower())[:63]


class Capture:
    """Use as ``with Capture(dsn, "public.accounts", slot) as capture``."""

    def __init__(self, dsn: str, table: str, slot: str) -> None:
        self._dsn = dsn
        self._wanted = table
        self._slot = slot
        self._publication = f"{slot}_publication"
        self._connection: Any | None = None
        self._table: Table | None = None
        self._given_until: int | None = None

    def __enter__(self) -> Capture:
        """Connect. Raises PipelineError."""
        self._connection = _connected(self._dsn)
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def prepare(self) -> None:
        """Check the table, the settings and what has the slot's name; create the publication.

        Raises PipelineError, with a message for the administrator of the database.
        """
        with _errors():
            self._table = self._describe()
            (level,) = self._one("SHOW wal_level")
            if level != "logical":
                raise PipelineError(
                    f"wal_level of the database is {level}: logical decoding needs ALTER SYSTEM SET "
                    "wal_level = logical and a restart of PostgreSQL"
                )
            self._check_slot()
            if not self._all("SELECT 1 FROM pg_publication WHERE pubname = %s", self._publication):
                via_root = " WITH (publish_via_partition_root)" if self._table.is_partitioned else ""
                name, table = _quoted(self._publication), self._table.quoted
                self._db.execute(f"CREATE PUBLICATION {name} FOR TABLE {table}{via_root}")
            self._check_publication(self._table)

    def drop(self) -> None:
        """Remove slot and publication: as long as the slot exists, the database keeps its log.

        The table may be gone. Raises PipelineError.
        """
        with _errors():
            self._check_slot()
            self._drop_slot()
            self._db.execute(f"DROP PUBLICATION IF EXISTS {_quoted(self._publication)}")

    def _check_slot(self) -> None:
        """Raise PipelineError if the slot is another database's or program's."""
        found = self._all(
            "SELECT plugin, database, database = current_database() FROM pg_replication_slots "
            "WHERE slot_name = %s",
            self._slot,
        )
        if found and (found[0][0] != "pgoutput" or not found[0][2]):
            plugin, database, _ = found[0]
            raise PipelineError(
                f"the slot {self._slot} is of database {database} and plugin {plugin}, and is not this "
                "table's: choose another name with --slot"
            )

    def _check_publication(self, table: Table) -> None:
        """Raise PipelineError unless the publication has all changes of the table, and of no other."""
        (whole,) = self._all(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate AND (pubviaroot OR NOT %s), "
            "puballtables FROM pg_publication WHERE pubname = %s",
            table.is_partitioned,
            self._publication,
        )
        tables = self._all(
            # Before PostgreSQL 15 there were no conditions and no lists of columns.
            "SELECT n.nspname, c.relname, "
            "COALESCE(to_jsonb(r) ->> 'prqual', to_jsonb(r) ->> 'prattrs') IS NOT NULL "
            "FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid "
            "JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE p.pubname = %s",
            self._publication,
        )
        if not whole[0] or whole[1] or tables != [(table.schema, table.name, False)]:
            others = ", ".join(f"{schema}.{name}" for schema, name, _ in tables) or "no single table"
            raise PipelineError(
                f"the publication {self._publication} exists, and is not that of all changes of "
                f"{table.schema}.{table.name}: it has {others}. Choose another name with --slot, or drop it "
                "in the database"
            )

    @property
    def has_begun(self) -> bool:
        """Whether the first rows were confirmed, so that only :meth:`events` is needed."""
        slot = self._all(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", self._slot
        )
        marked = self._all("SELECT obj_description(oid, 'pg_publication') FROM pg_publication "
                           "WHERE pubname = %s", self._publication)  # fmt: skip
        return bool(slot) and bool(marked) and marked[0][0] == self._mark

    def first_rows(self) -> Iterator[Event]:
        """Create the slot and yield an event for each row that the table has at that moment."""
        with (
            _errors(),
            _connected(self._dsn, replication="database") as replication,
            _connected(self._dsn, autocommit=False) as reading,
        ):
            self._drop_slot()
            # The exported snapshot is valid until the connection that created the slot does something else.
            created = replication.execute(
                f'CREATE_REPLICATION_SLOT "{self._slot}" LOGICAL pgoutput EXPORT_SNAPSHOT'
            ).fetchone()
            assert created is not None
            lsn, snapshot = _lsn(created[1]), created[2]
            reading.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reading.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            yield from self._read_rows(reading, lsn)

    def confirm_first_rows(self) -> None:
        """Record in the database that all events of ``first_rows`` are stored."""
        with _errors():
            self._db.execute(f"COMMENT ON PUBLICATION {_quoted(self._publication)} IS '{self._mark}'")

    def events(self) -> Iterator[Event]:
        """Yield the events of one read of the slot, from the last confirmed position; none if no changes."""
        assert self._table is not None
        with _errors():
            (now,) = self._one("SELECT pg_current_wal_lsn()")
            rows = self._all(
                "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, %s, 'proto_version', '1', "
                "'publication_names', %s)",
                self._slot, CHANGES_MAX, _quoted(self._publication),
            )  # fmt: skip
        decoder = Decoder()
        try:
            for (data,) in rows:
                for change in decoder.decode(bytes(data)):
                    yield from records_of(change, self._table.key)
        except BadMessage as error:
            raise PipelineError(f"{self._table.schema}.{self._table.name}: {error}") from error
        # If nothing was decoded, the log up to here is about other tables and need not be kept.
        self._given_until = decoder.committed_until if rows else _lsn(now)

    def confirm(self) -> None:
        """Advance the slot after the events of the last call of ``events``, which are stored now."""
        if self._given_until is not None:
            until = f"{self._given_until >> 32:X}/{self._given_until & 0xFFFFFFFF:X}"
            with _errors():
                self._db.execute(
                    "SELECT pg_replication_slot_advance(slot_name, %s::pg_lsn) FROM pg_replication_slots "
                    "WHERE slot_name = %s AND confirmed_flush_lsn < %s::pg_lsn",
                    (until, self._slot, until),
                )
            self._given_until = None

    # --- the database

    @property
    def _db(self) -> Any:
        assert self._connection is not None, "the capture is not open"
        return self._connection

    @property
    def _mark(self) -> str:
        return f"nilometer: the first rows of {self._slot} are captured"

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._db.execute(query, values or None).fetchall()

    def _one(self, query: str) -> tuple[Any, ...]:
        return self._all(query)[0]

    def _drop_slot(self) -> None:
        self._all(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
            self._slot,
        )
        if self._all("SELECT 1 FROM pg_publication WHERE pubname = %s", self._publication):
            self._db.execute(f"COMMENT ON PUBLICATION {_quoted(self._publication)} IS NULL")

    def _describe(self) -> Table:
        schema, _, name = self._wanted.rpartition(".")
        schema = schema or "public"
        found = self._all(
            "SELECT a.attname, a.atttypid, a.attnum = ANY(i.indkey), c.relkind = 'p', "
            "c.relreplident IN ('d', 'f') OR i.indisreplident FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            "LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary "
            "WHERE n.nspname = %s AND c.relname = %s ORDER BY a.attnum",
            schema, name,
        )  # fmt: skip
        if not found:
            raise PipelineError(f"the database has no table {schema}.{name}")
        key = tuple(column for column, _, is_key, _, _ in found if is_key)
        if not key:
            raise PipelineError(
                f"table {schema}.{name} has no primary key, which capturing needs to identify rows: add one"
            )
        if not found[0][4]:
            raise PipelineError(
                f"the log has no primary key of deleted rows of {schema}.{name}, whose REPLICA IDENTITY is "
                f"another: ALTER TABLE {schema}.{name} REPLICA IDENTITY DEFAULT (or FULL)"
            )
        columns = tuple(Column(column, oid) for column, oid, *_ in found)
        return Table(schema, name, columns, key, found[0][3])

    def _read_rows(self, reading: Any, lsn: int) -> Iterator[Event]:
        assert self._table is not None
        columns = ", ".join(_text_of(column.name) for column in self._table.columns)
        at = datetime.now(UTC)
        with reading.cursor(name="first_rows") as cursor:
            cursor.itersize = ROWS_PER_READ
            cursor.execute(f"SELECT {columns} FROM {self._table.quoted}")
            for number, row in enumerate(cursor):
                change = Change(READ, self._table.relation, None, tuple(row), lsn, number, at, 0)
                yield from records_of(change, self._table.key)


def _text_of(column: str) -> str:
    """Return the SQL of a value's text as logical decoding prints it: a cast would trim char(n)."""
    return f"CASE WHEN {_quoted(column)} IS NOT NULL THEN concat({_quoted(column)}) END"


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
