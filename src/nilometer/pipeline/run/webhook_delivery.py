"""Delivers the messages of a topic to a webhook, as a member of a consumer group, each id once if possible.

Messages are JSON objects with an ``id``; their other fields are for the webhook.

At least once: a message counts as delivered when the webhook has responded with 2xx. Then its id is recorded,
and only after that are the group's offsets committed. A deliverer that crashes in between sends the message
again, with its id as ``Idempotency-Key``, by which the webhook can recognise it. Messages whose id was
delivered before are not sent: the ids are recorded in a database file that deliverers on one machine share.

Invariants: messages of a partition are sent in order, one at a time; partitions in parallel. A message that
the webhook rejects finally (4xx, except 408, 425 and 429), or that has no id, is recorded as refused in the
same file with the reason, and delivery continues with the next. While the webhook is down nothing is skipped.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from nilometer.client.consumer.fetched_records import ConsumerRecord
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.pipeline.errors import PipelineError

POLL_MS = 500
POLL_RECORDS = 200
TIMEOUT_S = 10.0
PAUSE_S, PAUSE_MAX_S = 0.2, 15.0
RETRIABLE_STATUSES = frozenset({408, 425, 429})
KEEP_DAYS = 30
"""How long a delivered id is kept: repeats come within minutes."""


class Messages(Protocol):
    """The source of the messages: a consumer that is subscribed to their topic."""

    async def poll(self, max_records: int | None = None, timeout_ms: int = 0) -> list[ConsumerRecord]: ...

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None: ...


@dataclass(slots=True)
class Totals:
    delivered: int = 0
    repeats: int = 0
    refused: int = 0


class DeliveryNotes:
    """The database file of delivered ids and refused messages."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS delivered (id TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID"
        )
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS set_aside "  # codespell:ignore
            "(at REAL NOT NULL, topic TEXT NOT NULL, "
            "partition INTEGER NOT NULL, offset INTEGER NOT NULL, value BLOB, reason TEXT NOT NULL)"
        )
        self._database.execute("DELETE FROM delivered WHERE at < ?", (time.time() - KEEP_DAYS * 86_400,))

    def has(self, message_id: str) -> bool:
        found = self._database.execute("SELECT 1 FROM delivered WHERE id = ?", (message_id,))
        return found.fetchone() is not None

    def note(self, message_id: str) -> None:
        self._database.execute("INSERT OR IGNORE INTO delivered VALUES (?, ?)", (message_id, time.time()))

    def record_refusal(self, record: ConsumerRecord, reason: str) -> None:
        place = (record.topic, record.partition, record.offset)
        self._database.execute(
            "INSERT INTO set_aside VALUES (?, ?, ?, ?, ?, ?)",  # codespell:ignore
            (time.time(), *place, record.value, reason),
        )

    def reasons(self) -> list[str]:
        rows = self._database.execute("SELECT reason FROM set_aside ORDER BY at")  # codespell:ignore
        return [reason for (reason,) in rows]

    def close(self) -> None:
        self._database.close()


class Webhook:
    """The HTTP endpoint to which messages are posted. Raises PipelineError for an invalid URL."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PipelineError(f"{url} is not the address of a webhook: http(s)://host[:port]/path")
        self._parts = parts
        self._headers = {"Content-Type": "application/json", **(headers or {})}

    def post(self, body: bytes, message_id: str) -> int:
        """Post one message and return the response's status. Raises OSError or HTTPException."""
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=TIMEOUT_S)
        target = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        try:
            connection.request(
                "POST", target, body, {**self._headers, "Idempotency-Key": json.dumps(message_id)[1:-1]}
            )
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()


class Deliverer:
    def __init__(
        self,
        webhook: Webhook,
        notes: DeliveryNotes,
        on_error: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.totals = Totals()
        self._webhook = webhook
        self._notes = notes
        self._on_error = on_error

    async def run(self, messages: Messages, *, until: Callable[[], Awaitable[bool]] | None = None) -> Totals:
        """Deliver until cancelled, or until a poll returns nothing and ``until`` returns True."""
        while True:
            records = await messages.poll(POLL_RECORDS, POLL_MS)
            if not records:
                if until is not None and await until():
                    return self.totals
                continue
            await self.deliver(records)
            await messages.commit(
                {TopicPartition(one.topic, one.partition): one.offset + 1 for one in records}
            )

    async def deliver(self, records: Sequence[ConsumerRecord]) -> None:
        """Send ``records`` to the webhook, in order within each partition; return when each is delivered, was
        delivered before, or is recorded as refused.

        A record is refused if it has no id, or if the webhook rejects it finally; ``on_error`` is called with
        the reason. After any other failure ``on_error`` is called and the record is sent again, without a
        limit.
        """
        by_partition: dict[tuple[str, int], list[ConsumerRecord]] = {}
        for record in records:
            by_partition.setdefault((record.topic, record.partition), []).append(record)
        await asyncio.gather(*(self._in_order(mine) for mine in by_partition.values()))

    async def _in_order(self, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            message_id = _id_of(record.value)
            if message_id is None:
                self._refuse(record, "the record is not a JSON object with an id")
            elif self._notes.has(message_id):
                self.totals.repeats += 1
            else:
                await self._send(record, message_id)

    async def _send(self, record: ConsumerRecord, message_id: str) -> None:
        pause_s = PAUSE_S
        while True:
            try:
                status = await asyncio.to_thread(self._webhook.post, record.value or b"", message_id)
            except (OSError, http.client.HTTPException) as error:
                self._on_error(f"no response from the webhook: {error}")
            else:
                if 200 <= status < 300:
                    self._notes.note(message_id)
                    self.totals.delivered += 1
                    return
                if 400 <= status < 500 and status not in RETRIABLE_STATUSES:
                    self._refuse(record, f"the webhook rejected message {message_id} with status {status}")
                    return
                self._on_error(f"the webhook responded to message {message_id} with status {status}")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def _refuse(self, record: ConsumerRecord, reason: str) -> None:
        place = f"{record.topic}-{record.partition} at offset {record.offset}"
        self._notes.record_refusal(record, f"{place}: {reason}")
        self._on_error(f"not delivered: {place}: {reason}")
        self.totals.refused += 1


def _id_of(value: bytes | None) -> str | None:
    try:
        message: Any = json.loads(value or b"")
    except ValueError:
        return None
    message_id = cast(dict[str, Any], message).get("id") if isinstance(message, dict) else None
    return message_id if isinstance(message_id, str) and message_id else None
