"""Capture the changes of a PostgreSQL table through logical decoding, from the rows it has now onwards.

Knows the database's side: publication, replication slot, the snapshot that the slot begins with, and how far
the slot may be moved on. What becomes of the events is the caller's: ``Capture.events`` gives them, and
``Capture.confirm`` says that those given so far are safe.

At least once: the slot is moved on only behind what was confirmed, so a crash in between has the same changes
decoded again, with the same ``lsn`` and ``seq``.

Invariants: the rows that were there at first and the changes that follow meet without gap or overlap, since
the rows are read in the snapshot that the slot's creation exports; events come by whole transactions. A slot
whose first rows were not confirmed to the last is not continued: it is dropped and created again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nilometer.pipeline.change_events import records_of
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.pgoutput import READ, UNCHANGED, Change, Column, Decoder, Relation

CHANGES_MAX = 10_000
"""Changes of one reading of the slot; a transaction is never cut, so it may be more."""
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
        """Raises PipelineError, with a message for the administrator of the database."""
        psycopg = _psycopg()
        try:
            self._connection = psycopg.connect(self._dsn, autocommit=True)
        except psycopg.OperationalError as error:
            raise PipelineError(f"PostgreSQL does not answer at {self._dsn}: {error}") from error
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
        """Remove what capturing left in the database: as long as there is a slot, it keeps its log."""
        self._drop_slot()
        self._db.execute(f"DROP PUBLICATION IF EXISTS {self._publication}")

    @property
    def has_begun(self) -> bool:
        """Whether the first rows were confirmed, so that only changes follow."""
        slot = self._all(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", self._slot
        )
        marked = self._all("SELECT obj_description(oid, 'pg_publication') FROM pg_publication "
                           "WHERE pubname = %s", self._publication)  # fmt: skip
        return bool(slot) and bool(marked) and marked[0][0] == self._mark

    def first_rows(self) -> Iterator[Event]:
        """The rows of the table as it is now, and with it the point from which changes are captured."""
        psycopg = _psycopg()
        self._drop_slot()
        with (
            psycopg.connect(self._dsn, autocommit=True, replication="database") as replication,
            psycopg.connect(self._dsn) as reading,
        ):
            # Exported snapshots live as long as the connection that has created the slot does nothing else.
            created = replication.execute(
                f'CREATE_REPLICATION_SLOT "{self._slot}" LOGICAL pgoutput EXPORT_SNAPSHOT'
            ).fetchone()
            assert created is not None
            lsn, snapshot = _lsn(created[1]), created[2]
            reading.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reading.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            yield from self._read_rows(reading, lsn)

    def confirm_first_rows(self) -> None:
        """All of ``first_rows`` are safe."""
        self._db.execute(f"COMMENT ON PUBLICATION {self._publication} IS '{self._mark}'")

    def events(self) -> Iterator[Event]:
        """The changes since what was confirmed, as far as one reading goes; none if nothing has happened."""
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
        # Where nothing was decoded, all up to here concerned other tables, and the log need not be kept.
        self._given_until = decoder.committed_until if rows else _lsn(now)

    def confirm(self) -> None:
        """What ``events`` gave last is safe: the database may forget it."""
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
            raise PipelineError(f"there is no table {schema}.{name} in the database")
        key = tuple(column for column, _, is_key in found if is_key)
        if not key:
            raise PipelineError(
                f"table {schema}.{name} has no primary key, which capturing needs to identify rows"
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
        """Large values that an update did not touch are not in the log: from the old row, else the table.

        The table may have a newer one by now; then an event follows that says so. With REPLICA IDENTITY FULL
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
    """Text as decoding prints it: a cast prints booleans in full."""
    return {"true": "t", "false": "f"}.get(value, value) if value and column.type_oid == 16 else value


def _lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise PipelineError(
            "capturing from PostgreSQL needs psycopg: pip install 'nilometer[postgres]'"
        ) from error
    return psycopg
