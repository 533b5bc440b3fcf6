"""Converts the changes of a database table into records: key and JSON value. Pure.

Invariant: all records of a row have its primary key as their key, so they are in one partition, in order. A
change of the primary key becomes a deletion of the old key and a creation of the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nilometer.pipeline.postgres.pgoutput import (
    CREATED,
    DELETED,
    TRUNCATED,
    UPDATED,
    BadMessage,
    Change,
    json_row,
    to_json,
)

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
