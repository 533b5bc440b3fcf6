"""Decodes PostgreSQL's logical decoding output (plugin pgoutput, protocol version 1) into changes. Pure.

Also converts values to JSON. Never touches a database or a topic.

A change is identified by ``lsn``, the position of its transaction's commit in the database's log, and
``seq``, its number within the transaction: together they order all changes, and a change that is decoded
again has the same numbers.

Invariants: transactions are decoded one after the other, in the order of their commits; the description of a
table precedes its first change; values are text as PostgreSQL prints them until ``json_row`` converts them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from nilometer.pipeline.changes.change_events import UNAVAILABLE

POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
BOOL, JSON, JSONB = 16, 114, 3802
WHOLE_NUMBERS = frozenset({20, 21, 23, 26})
OTHER_NUMBERS = frozenset({700, 701, 1700})
"""float4, float8, numeric."""

CREATED, UPDATED, DELETED, READ, TRUNCATED = "c", "u", "d", "r", "t"

_encoder = msgspec.json.Encoder(decimal_format="number")


class BadMessage(Exception):
    """The bytes are not a valid message of pgoutput, or of an unsupported kind."""


class _Unchanged:
    """The value of a large column that an update did not change: the database's log omits it."""


UNCHANGED = _Unchanged()
Value = str | None | _Unchanged


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type_oid: int


@dataclass(frozen=True, slots=True)
class Relation:
    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    """The columns of the primary key at the time of the change; empty if the log does not say them."""

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Change:
    op: str
    relation: Relation
    before: tuple[Value, ...] | None
    """The old row, or only its key; None if the database's log does not have it."""
    after: tuple[Value, ...] | None
    lsn: int
    seq: int
    at: datetime
    """The time of the transaction's commit."""
    xid: int


@dataclass(slots=True)
class _Transaction:
    lsn: int
    at: datetime
    xid: int
    seq: int = 0


class Decoder:
    """Decodes the messages of a replication slot, which are passed one after another."""

    def __init__(self) -> None:
        self._relations: dict[int, Relation] = {}
        self._transaction: _Transaction | None = None
        self.committed_until: int | None = None
        """The LSN after the last complete transaction: the slot may be advanced to it."""

    def decode(self, data: bytes) -> Iterator[Change]:
        """Yield the changes of one message: none, one, or one per table of a TRUNCATE. Raises BadMessage."""
        reader = _Reader(data)
        match reader.take(1):
            case b"B":
                lsn, microseconds, xid = reader.unpack(">qqi")
                self._transaction = _Transaction(
                    lsn, POSTGRES_EPOCH + timedelta(microseconds=microseconds), xid
                )
            case b"C":
                _, _, end, _ = reader.unpack(">bqqq")
                self._transaction, self.committed_until = None, end
            case b"R":
                self._describe(reader)
            case b"I":
                relation = self._relation(reader)
                reader.expect(b"N")
                yield self._change(CREATED, relation, None, reader.row())
            case b"U":
                relation, before = self._relation(reader), None
                given = kind = reader.take(1)
                if kind in (b"K", b"O"):
                    before = reader.row()
                    kind = reader.take(1)
                if kind != b"N":
                    raise BadMessage(f"pgoutput sent an update with a row of unknown kind {kind!r}")
                after = reader.row()
                if given == b"O" and before is not None:  # the whole old row, with its large values
                    pairs = zip(before, after, strict=True)
                    after = tuple(old if new is UNCHANGED else new for old, new in pairs)
                yield self._change(UPDATED, relation, before, after)
            case b"D":
                relation = self._relation(reader)
                reader.take(1)
                yield self._change(DELETED, relation, reader.row(), None)
            case b"T":
                count, _ = reader.unpack(">ib")
                for _ in range(count):
                    yield self._change(TRUNCATED, self._relation(reader), None, None)
            case b"Y" | b"O" | b"M":
                pass  # names of types, origins of transactions, and messages of other programs
            case kind:
                raise BadMessage(f"pgoutput sent a message of unknown kind {kind!r}")

    def _describe(self, reader: _Reader) -> None:
        (oid,) = reader.unpack(">i")
        schema, name = reader.text(), reader.text()
        identity = reader.take(1)
        (count,) = reader.unpack(">h")
        columns: list[Column] = []
        key: list[str] = []
        for _ in range(count):
            (flags,) = reader.unpack(">b")
            column = reader.text()
            type_oid, _ = reader.unpack(">Ii")
            columns.append(Column(column, type_oid))
            # With REPLICA IDENTITY FULL all columns have the flag.
            if flags & 1 and identity != b"f":
                key.append(column)
        self._relations[oid] = Relation(schema or "pg_catalog", name, tuple(columns), tuple(key))

    def _relation(self, reader: _Reader) -> Relation:
        (oid,) = reader.unpack(">i")
        if oid not in self._relations:
            raise BadMessage(f"pgoutput sent a change of table {oid}, but no description of the table")
        return self._relations[oid]

    def _change(
        self,
        op: str,
        relation: Relation,
        before: tuple[Value, ...] | None,
        after: tuple[Value, ...] | None,
    ) -> Change:
        transaction = self._transaction
        if transaction is None:
            raise BadMessage("pgoutput sent a change outside a transaction")
        change = Change(
            op, relation, before, after, transaction.lsn, transaction.seq, transaction.at, transaction.xid
        )
        transaction.seq += 1
        return change


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        if len(part) < count:
            raise BadMessage("pgoutput sent an incomplete message")
        self._at += count
        return part

    def unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def expect(self, kind: bytes) -> None:
        found = self.take(1)
        if found != kind:
            raise BadMessage(f"pgoutput sent {found!r} instead of {kind!r}")

    def text(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise BadMessage("pgoutput sent a name without its terminating zero byte")
        text = self._data[self._at : end].decode()
        self._at = end + 1
        return text

    def row(self) -> tuple[Value, ...]:
        (count,) = self.unpack(">h")
        return tuple(self._value() for _ in range(count))

    def _value(self) -> Value:
        match self.take(1):
            case b"n":
                return None
            case b"u":
                return UNCHANGED
            case b"t":
                (size,) = self.unpack(">i")
                return self.take(size).decode()
            case kind:
                raise BadMessage(f"pgoutput sent a value of unknown kind {kind!r}")


# --- JSON


def json_value(text: str | None, type_oid: int) -> Any:
    """Return a value for JSON: exact numbers, booleans, JSON unchanged, other types as PostgreSQL's text."""
    if text is None:
        return None
    if type_oid == BOOL:
        return text == "t"
    if type_oid in WHOLE_NUMBERS:
        return int(text)
    if type_oid in OTHER_NUMBERS:
        try:
            number = Decimal(text)
        except InvalidOperation:
            return text
        return number if number.is_finite() else text
    if type_oid in (JSON, JSONB):
        return msgspec.Raw(text.encode())
    return text


def json_row(relation: Relation, row: tuple[Value, ...]) -> dict[str, Any]:
    """Return a row's values by column name; of a large value that the log omits, Debezium's placeholder."""
    pairs = zip(relation.columns, row, strict=True)
    return {
        column.name: UNAVAILABLE if isinstance(value, _Unchanged) else json_value(value, column.type_oid)
        for column, value in pairs
    }


def to_json(value: Mapping[str, Any]) -> bytes:
    return _encoder.encode(value)


# Converts the changes of a database table into records: key and JSON value. Pure.
#
# Invariant: all records of a row have its primary key as their key, so they are in one partition, in order. A
# change of the primary key becomes a deletion of the old key and a creation of the new one.

SEQ_STEP = 2
"""The distance between the ``seq`` of two changes, as earlier versions counted them."""


def records_of(change: Change, key_columns: Sequence[str]) -> Iterator[tuple[bytes | None, bytes]]:
    """Yield key and value of the records for one change; the key is None for a TRUNCATE."""
    before = _known(change) if change.before is not None else None
    after = json_row(change.relation, change.after) if change.after is not None else None
    seq = change.seq * SEQ_STEP
    key_columns = change.relation.key or key_columns
    if change.op == TRUNCATED:
        yield None, _event(change, TRUNCATED, None, None, seq)
        return
    old_key = _key(before, key_columns) if before is not None else None
    if after is None:
        assert old_key is not None
        yield to_json(old_key), _event(change, DELETED, old_key, None, seq)
        return
    key, op = _key(after, key_columns), change.op
    if op == UPDATED and old_key is not None and old_key != key:
        # Both at one position: a reader finds the row that was deleted under its new key.
        yield to_json(old_key), _event(change, DELETED, old_key, None, seq)
        yield to_json(key), _event(change, CREATED, key, after, seq, old_key)
        return
    yield to_json(key), _event(change, op, key, after, seq)


def _known(change: Change) -> dict[str, Any]:
    """Return the old row as the database's log has it: if that is only the key, other columns are null."""
    assert change.before is not None
    return json_row(change.relation, change.before)


def _key(row: Mapping[str, Any], key_columns: Sequence[str]) -> dict[str, Any]:
    missing = [name for name in key_columns if name not in row]
    if missing:
        raise BadMessage(
            f"a change has no column {missing[0]}, which is of the primary key: it was made when the column "
            "had another name. Give it that name until the change is captured, or begin again with --drop"
        )
    return {name: row[name] for name in key_columns}


def _event(
    change: Change,
    op: str,
    key: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    seq: int,
    old_key: Mapping[str, Any] | None = None,
) -> bytes:
    return to_json(
        {
            **({"old_key": old_key} if old_key is not None else {}),
            "op": op,
            "table": change.relation.full_name,
            "key": key,
            "after": after,
            "lsn": change.lsn,
            "seq": seq,
            "at": f"{change.at:%Y-%m-%dT%H:%M:%S}.{change.at.microsecond:06d}Z",
            "xid": change.xid,
        }
    )
