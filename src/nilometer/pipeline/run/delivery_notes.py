"""What a deliverer must not forget: delivered ids, refused messages, and its place in the consumer group.

All of it is in the folder ``deliver`` of a home. Deliverers of one group on one machine share the database
file. Each of them holds a seat: a locked file with a name for ``group.instance.id``. The lock ends with its
process, so the next deliverer takes over the seat of a killed one, and the group's coordinator gives it the
partitions at once instead of waiting for the session of the killed one to expire.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote

from nilometer.client.consumer.fetch_exchange import ConsumerRecord

KEEP_DAYS = 30
"""How long a delivered id is kept: repeats come within minutes."""
SEATS = 1000
"""The deliverers of one group that one home can have at a time."""
_TABLES = """
CREATE TABLE IF NOT EXISTS delivered_ids (topic TEXT, id TEXT, at REAL NOT NULL, PRIMARY KEY (topic, id))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refused (
    at REAL NOT NULL, topic TEXT, partition INTEGER, offset INTEGER, key BLOB, value BLOB, headers TEXT,
    reason TEXT NOT NULL, response TEXT, PRIMARY KEY (topic, partition, offset));
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message that is not sent again, with the reason and the beginning of the webhook's response."""

    topic: str
    partition: int
    offset: int
    reason: str
    response: str | None
    key: bytes | None
    value: bytes | None

    def as_json(self) -> dict[str, object]:
        """Return the fields; bytes as text, with escapes for what is no UTF-8."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: one.decode(errors="backslashreplace") if isinstance(one, bytes) else one
            for name, one in fields.items()
        }


class DeliveryNotes:
    """The database file of delivered ids and refused messages of a group."""

    def __init__(self, path: Path, topic: str) -> None:
        """Open or create the file. Ids that an older version recorded count as ids of ``topic``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.executescript(_TABLES)
        self._take_over_older_tables(topic)
        self._database.execute("DELETE FROM delivered_ids WHERE at < ?", (time.time() - KEEP_DAYS * 86_400,))

    def _take_over_older_tables(self, topic: str) -> None:
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "delivered" in tables:
            older = database.execute("SELECT id, at FROM delivered").fetchall()
            rows = [(topic, as_ascii(one), at) for one, at in older]
            database.executemany("INSERT OR IGNORE INTO delivered_ids VALUES (?, ?, ?)", rows)
            database.execute("DROP TABLE delivered")
        if "set_aside" in tables:  # codespell:ignore
            database.execute(
                "INSERT OR IGNORE INTO refused SELECT at, topic, partition, offset, NULL, value, '[]', "
                "reason, NULL FROM set_aside"  # codespell:ignore
            )
            database.execute("DROP TABLE set_aside")  # codespell:ignore
        database.execute("COMMIT")

    def has(self, topic: str, message_id: str) -> bool:
        found = self._database.execute(
            "SELECT 1 FROM delivered_ids WHERE topic = ? AND id = ?", (topic, as_ascii(message_id))
        )
        return found.fetchone() is not None

    def note(self, topic: str, message_id: str) -> None:
        row = (topic, as_ascii(message_id), time.time())
        self._database.execute("INSERT OR IGNORE INTO delivered_ids VALUES (?, ?, ?)", row)

    def record_refusal(self, record: ConsumerRecord, reason: str, response: str | None) -> None:
        """Keep the record as it is, once: also if it is read and refused again after a crash."""
        place = (record.topic, record.partition, record.offset)
        headers = json.dumps(
            [(name, None if value is None else value.hex()) for name, value in record.headers]
        )
        self._database.execute(
            "INSERT OR REPLACE INTO refused VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (time.time(), *place, record.key, record.value, headers, reason, response),
        )

    def refusals(self) -> list[Refusal]:
        """Return the refused messages, oldest first."""
        rows = self._database.execute(
            "SELECT topic, partition, offset, reason, response, key, value FROM refused ORDER BY at, rowid"
        )
        return [Refusal(*row) for row in rows]

    def close(self) -> None:
        self._database.close()


class Seat:
    """A deliverer's place in its group, which no other process of this home has at the same time."""

    def __init__(self, path: Path) -> None:
        """Take the first free seat beside ``path``. Raises OSError if the folder cannot be used."""
        path.parent.mkdir(parents=True, exist_ok=True)
        for number in range(SEATS):
            file = path.with_name(f"{path.name}.seat-{number}").open("a+")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            self._file: IO[str] = file
            self.instance_id = _name_in(file)
            return
        raise OSError(f"{SEATS} deliverers of this group run already in {path.parent}")

    def close(self) -> None:
        self._file.close()


def _name_in(file: IO[str]) -> str:
    file.seek(0)
    name = file.read().strip()
    if not name:  # a new seat
        name = f"deliver-{uuid.uuid4()}"
        file.write(name)
        file.flush()
    return name


def notes_path(home: str, group: str) -> Path:
    """Return where the notes of a group are; any name of a group makes the name of one file."""
    return Path(home, "deliver", f"{quote(group, safe=' ')}.sqlite")


def as_ascii(message_id: str) -> str:
    """Return an id as in JSON, in ASCII: any id can so be stored and sent as a header."""
    return json.dumps(message_id)[1:-1]
