"""Changes of a table as records of a topic: what key they have and what their JSON says. Pure.

Invariant: a row's records all have its primary key as their key, so that they are in one partition, in order.
A change of the key itself is a deletion under the old key and a creation under the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nilometer.pipeline.pgoutput import (
    CREATED,
    DELETED,
    TRUNCATED,
    UPDATED,
    Change,
    json_row,
    to_json,
)

SEQ_STEP = 2
"""Two records of one change have numbers of their own, and the next change is behind both."""


def records_of(change: Change, key_columns: Sequence[str]) -> Iterator[tuple[bytes | None, bytes]]:
    """Key and value of each record."""
    before = _known(change) if change.before is not None else None
    after = json_row(change.relation, change.after) if change.after is not None else None
    seq = change.seq * SEQ_STEP
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
        yield to_json(old_key), _event(change, DELETED, old_key, None, seq)
        op, seq = CREATED, seq + 1
    yield to_json(key), _event(change, op, key, after, seq)


def _known(change: Change) -> dict[str, Any]:
    """What the log has of the row before; of a key alone the other columns are null."""
    assert change.before is not None
    return json_row(change.relation, change.before)


def _key(row: Mapping[str, Any], key_columns: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in key_columns}


def _event(
    change: Change, op: str, key: Mapping[str, Any] | None, after: Mapping[str, Any] | None, seq: int
) -> bytes:
    return to_json(
        {
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
