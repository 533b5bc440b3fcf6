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

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.postgres.change_events import records_of
from nilometer.pipeline.postgres.pgoutput import READ, UNCHANGED, Change, Column, Decoder, Relation

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

    @property
    def relation(self) -> Relation:
        return Relation(self.schema, self.name, self.columns)


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
        """Connect, check the table and the settings, and create the publication.

        Raises PipelineError, with a message for the administrator of the database.
        """
        psycopg = _psycopg()
        try:
            self._connection = psycopg.connect(self._dsn, autocommit=True)
        except psycopg.OperationalError as error:
            raise PipelineError(
                f"cannot connect to PostgreSQL at {_without_password(self._dsn)}: {error}"
            ) from error
        except psycopg.ProgrammingError as error:
            raise PipelineError(  # without the error's text, which may hold a password
                "the connection string of PostgreSQL cannot be parsed: check its spaces, quotes and % escapes"
            ) from error
        try:
            self._table = self._describe()
            (level,) = self._one("SHOW wal_level")
            if level != "logical":
                raise PipelineError(
                    f"wal_level of the database is {level}: logical decoding needs ALTER SYSTEM SET "
                    "wal_level = logical and a restart of PostgreSQL"
                )
            if not self._all("SELECT 1 FROM pg_publication WHERE pubname = %s", self._publication):
                self._db.execute(f"CREATE PUBLICATION {self._publication} FOR TABLE {self._quoted}")
        except BaseException:
            self._db.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def drop(self) -> None:
        """Remove slot and publication: as long as the slot exists, the database keeps its log."""
        self._drop_slot()
        self._db.execute(f"DROP PUBLICATION IF EXISTS {self._publication}")

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
        psycopg = _psycopg()
        self._drop_slot()
        with (
            psycopg.connect(self._dsn, autocommit=True, replication="database") as replication,
            psycopg.connect(self._dsn) as reading,
        ):
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
        self._db.execute(f"COMMENT ON PUBLICATION {self._publication} IS '{self._mark}'")

    def events(self) -> Iterator[Event]:
        """Yield the events of one read of the slot, from the last confirmed position; none if no changes."""
        assert self._table is not None
        (now,) = self._one("SELECT pg_current_wal_lsn()")
        decoder = Decoder()
        rows = self._all(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, %s, 'proto_version', '1', "
            "'publication_names', %s)",
            self._slot, CHANGES_MAX, self._publication,
        )  # fmt: skip
        for (data,) in rows:
            for change in decoder.decode(bytes(data)):
                yield from records_of(self._completed(change), self._table.key)
        # If nothing was decoded, the log up to here is about other tables and need not be kept.
        self._given_until = decoder.committed_until if rows else _lsn(now)

    def confirm(self) -> None:
        """Advance the slot after the events of the last call of ``events``, which are stored now."""
        if self._given_until is not None:
            until = f"{self._given_until >> 32:X}/{self._given_until & 0xFFFFFFFF:X}"
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
    def _quoted(self) -> str:
        assert self._table is not None
        return f'"{self._table.schema}"."{self._table.name}"'

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
            self._db.execute(f"COMMENT ON PUBLICATION {self._publication} IS NULL")

    def _describe(self) -> Table:
        schema, _, name = self._wanted.rpartition(".")
        schema = schema or "public"
        found = self._all(
            "SELECT a.attname, a.atttypid, a.attnum = ANY(i.indkey) FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            "LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary "
            "WHERE n.nspname = %s AND c.relname = %s ORDER BY a.attnum",
            schema, name,
        )  # fmt: skip
        if not found:
            raise PipelineError(f"the database has no table {schema}.{name}")
        key = tuple(column for column, _, is_key in found if is_key)
        if not key:
            raise PipelineError(
                f"table {schema}.{name} has no primary key, which capturing needs to identify rows: add one"
            )
        return Table(schema, name, tuple(Column(column, oid) for column, oid, _ in found), key)

    def _read_rows(self, reading: Any, lsn: int) -> Iterator[Event]:
        assert self._table is not None
        columns = ", ".join(f'"{column.name}"::text' for column in self._table.columns)
        at = datetime.now(UTC)
        with reading.cursor(name="first_rows") as cursor:
            cursor.itersize = ROWS_PER_READ
            cursor.execute(f"SELECT {columns} FROM {self._quoted}")
            for number, row in enumerate(cursor):
                values = tuple(
                    _as_decoded(value, column) for value, column in zip(row, self._table.columns, strict=True)
                )
                change = Change(READ, self._table.relation, None, values, lsn, number, at, 0)
                yield from records_of(change, self._table.key)

    def _completed(self, change: Change) -> Change:
        """Return ``change`` with the large values that the log omits, from the old row or else the table.

        The table may have a newer value; then an event with that change follows. With REPLICA IDENTITY FULL
        the old row is in the log.
        """
        assert self._table is not None
        if change.after is None or UNCHANGED not in change.after:
            return change
        before = change.before or (None,) * len(change.after)
        key = self._table.key
        values = dict(zip((column.name for column in change.relation.columns), change.after, strict=True))
        where = " AND ".join(f'"{name}"::text = %s' for name in key)
        columns = ", ".join(f'"{column.name}"::text' for column in change.relation.columns)
        now = self._all(
            f"SELECT {columns} FROM {self._quoted} WHERE {where}", *(values[name] for name in key)
        )
        present = now[0] if now else (None,) * len(change.after)
        after = tuple(
            (old if old is not None else new) if value is UNCHANGED else value
            for value, old, new in zip(change.after, before, present, strict=True)
        )
        return Change(
            change.op, change.relation, change.before, after, change.lsn, change.seq, change.at, change.xid
        )


def _as_decoded(value: str | None, column: Column) -> str | None:
    """Return a value's text as logical decoding prints it: a cast prints booleans in full."""
    return {"true": "t", "false": "f"}.get(value, value) if value and column.type_oid == 16 else value


def _lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def _without_password(dsn: str) -> str:
    """Return ``dsn`` as ``key=value`` pairs, for messages."""
    conninfo = _psycopg().conninfo
    parts = conninfo.conninfo_to_dict(dsn)
    parts.pop("password", None)
    return conninfo.make_conninfo(**parts)


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise PipelineError(
            "capturing from PostgreSQL needs psycopg: pip install 'nilometer[postgres]'"
        ) from error
    return psycopg
