"""Delivers the messages of a topic to a webhook, as a member of a consumer group, each id once if possible.

Messages are JSON objects with an ``id``; their other fields are for the webhook.

At least once: a message counts as delivered when the webhook has responded with 2xx. Then its id is recorded,
and only after that are the group's offsets committed. A deliverer that crashes in between sends the message
again, with its id as ``Idempotency-Key``, by which the webhook can recognise it. Messages whose id was
delivered before, from the same topic, are not sent: ``delivery_notes`` has the ids.

What a response means is one table, ``verdict``:

- 2xx: delivered.
- Permanent (a setting; by default 4xx, except the following): the message is refused. It is recorded with the
  reason and the response, and delivery continues with the next. So is a record without an id.
- 401, 403, 407, redirects and an invalid certificate: no message can be delivered, so the delivery ends.
- All else, and no response: sent again, after a pause that grows, or after what ``Retry-After`` says.

Only what was committed is sent: messages of an aborted transaction are none.

Invariants: messages of a partition are sent in order, one at a time; partitions in parallel, and none waits
for another, except for a message with the same id. One exchange with the webhook takes no longer than
``TIMEOUT_S``. The consumer is polled while messages are sent and retried, so the member stays in its group
however long the webhook is down. While it is down nothing is skipped, unless the number of attempts is
limited.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import http.client
import io
import json
import re
import sqlite3
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, Any, Literal, Protocol, cast
from urllib.parse import quote, urlsplit

from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.group.committer import CommitFailed
from nilometer.client.group.member import RebalanceListener
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.pipeline.errors import PipelineError

# What a deliverer must not forget: delivered ids, refused messages, and its place in the consumer group.
#
# All of it is in the folder ``deliver`` of a home. Deliverers of one group on one machine share the database
# file. Each of them holds a seat: a locked file with a name for ``group.instance.id``. The lock ends with its
# process, so the next deliverer takes over the seat of a killed one, and the group's coordinator gives it the
# partitions at once instead of waiting for the session of the killed one to expire.

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
        """Open or create the file. Ids that an older version recorded count as ids of ``topic``.

        Raises sqlite3.Error if it is no such file, as its methods do if it cannot be written.
        """
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


POLL_MS = 500
POLL_RECORDS = 200
TIMEOUT_S = 10.0
PAUSE_S, PAUSE_MAX_S = 0.2, 15.0
RETRY_AFTER_MAX_S = 3600.0
HEAD_BYTES_MAX = 64 * 1024
TEXT_BYTES_MAX = 4 * 1024
"""What is read of the text of a response that is no 2xx: it is for people."""
TEXT_WAIT_S = 1.0

REDIRECTS = frozenset({301, 302, 303, 307, 308})
STOPPING = REDIRECTS | {401, 403, 407}

Verdict = Literal["delivered", "refused", "stop", "retry"]

_HEAD = re.compile(rb".*?\r?\n\r?\n", re.DOTALL)
_INTERIM = re.compile(rb"HTTP/1\.\d 1\d\d[^\n]*\n(?:[^\r\n]+\r?\n)*\r?\n")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def read_statuses(text: str) -> frozenset[int]:
    """Return the statuses of a list such as ``404,500-599``. Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([1-5]\d\d)(?:-([1-5]\d\d))?\s*", part)
        if match is None:
            raise ValueError(f"{part!r} is no status and no range of statuses, such as 404 or 500-599")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


USUALLY_PERMANENT = "400,402,404-406,409-424,426-428,430-499"
"""4xx except 401, 403 and 407 (no message is accepted), 408, 425 and 429 (try again)."""
PERMANENT = read_statuses(USUALLY_PERMANENT)


def verdict(status: int, permanent: frozenset[int] = PERMANENT) -> Verdict:
    """Return what a response with ``status`` means; ``permanent`` comes before the built-in meanings."""
    if 200 <= status < 300:
        return "delivered"
    if status in permanent:
        return "refused"
    return "stop" if status in STOPPING else "retry"


class Messages(Protocol):
    """The source of the messages: a consumer that is subscribed to their topic."""

    async def poll(self, max_records: int | None = None, timeout_ms: int = 0) -> list[ConsumerRecord]: ...

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None: ...

    def pause(self, *partitions: TopicPartition) -> None: ...

    def resume(self, *partitions: TopicPartition) -> None: ...


@dataclass(slots=True)
class Totals:
    delivered: int = 0
    repeats: int = 0
    refused: int = 0

    @property
    def refused_share(self) -> float:
        return self.refused / max(1, self.delivered + self.repeats + self.refused)


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    text: str
    """The beginning of its body; empty for 2xx."""
    location: str | None = None
    retry_after_s: float | None = None


class Webhook:
    """The HTTP endpoint to which messages are posted. Raises PipelineError for an invalid URL or header."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        try:
            parts = urlsplit(url)
            self._host, port = (parts.hostname or "").encode("idna").decode(), parts.port
        except ValueError as error:
            raise PipelineError(f"{url} is not the address of a webhook: {error}") from None
        if parts.scheme not in ("http", "https") or not self._host:
            raise PipelineError(f"{url} is not the address of a webhook: http(s)://host[:port]/path")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = port or (443 if self._tls else 80)
        name = f"[{self._host}]" if ":" in self._host else self._host
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._target = quote(target, safe="/%:@!$&'()*+,;=~?")
        self._headers = {
            "Host": name if port is None else f"{name}:{port}",
            "Connection": "close",
            "User-Agent": "nilometer",
            "Content-Type": "application/json",
        }
        if parts.username is not None:
            pair = f"{parts.username}:{parts.password or ''}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        for header, value in (headers or {}).items():
            if not _HEADER.fullmatch(header) or not value.isprintable() or not value.isascii():
                raise PipelineError(f"header {header!r} cannot be sent: name and value are printable ASCII")
            usual = next((one for one in self._headers if one.lower() == header.lower()), header)
            self._headers[usual] = value

    async def post(self, body: bytes, message_id: str) -> Response:
        """Post one message. Raises OSError (TimeoutError after ``TIMEOUT_S``) or HTTPException."""
        headers = {
            **self._headers,
            "Idempotency-Key": as_ascii(message_id),
            "Content-Length": str(len(body)),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
            try:
                writer.write(f"POST {self._target} HTTP/1.1\r\n{head}\r\n".encode("ascii") + body)
                return await _read_response(reader)
            finally:
                writer.transport.abort()


async def _read_response(reader: asyncio.StreamReader) -> Response:
    """Read status and headers, and of a response that is no 2xx what arrives of its text within a second."""
    data = b""
    while not _HEAD.match(data := _INTERIM.sub(b"", data)):
        more = await reader.read(HEAD_BYTES_MAX)
        if not more:
            raise http.client.HTTPException("it closed the connection")
        data += more
        if len(data) > 2 * HEAD_BYTES_MAX:
            raise http.client.HTTPException("its headers are too large")
    response = _parsed(data)
    if not 200 <= response.status < 300:
        with contextlib.suppress(TimeoutError, OSError):  # its status is known; the text may be missing
            async with asyncio.timeout(TEXT_WAIT_S):
                while len(data) < HEAD_BYTES_MAX and (more := await reader.read(TEXT_BYTES_MAX)):
                    data += more
        response = _parsed(data)
    return response


class _Received:
    """What ``HTTPResponse`` needs of a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _parsed(data: bytes) -> Response:
    response = http.client.HTTPResponse(cast("Any", _Received(data)), method="POST")
    response.begin()
    try:
        text = response.read(TEXT_BYTES_MAX)
    except http.client.IncompleteRead as error:
        text = error.partial
    return Response(
        response.status,
        text.decode(errors="replace"),
        response.getheader("Location"),
        _seconds(response.getheader("Retry-After")),
    )


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header, which has a number or a date; None for anything else."""
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return min(float(retry_after), RETRY_AFTER_MAX_S)
    try:
        left_s = parsedate_to_datetime(retry_after).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return min(max(left_s, 0.0), RETRY_AFTER_MAX_S)


@dataclass(slots=True)
class _Work:
    """The messages of a partition that are being delivered; ``stopped`` ends it after the current one."""

    stopped: asyncio.Event
    task: asyncio.Task[None]


class Deliverer(RebalanceListener):
    """Delivers what a consumer polls. It is that consumer's rebalance listener."""

    def __init__(
        self,
        webhook: Webhook,
        notes: DeliveryNotes,
        on_error: Callable[[str], None] = lambda _: None,
        *,
        permanent: frozenset[int] = PERMANENT,
        attempts: int | None = None,
    ) -> None:
        """A message is refused after ``attempts`` responses with an error; None: it is sent without end."""
        self.totals = Totals()
        self._webhook = webhook
        self._notes = notes
        self._on_error = on_error
        self._permanent = permanent
        self._attempts = attempts
        self._work: dict[TopicPartition, _Work] = {}
        self._sending: set[tuple[str, str]] = set()
        """The topics and ids of the messages that are being sent."""

    async def run(self, messages: Messages, *, until: Callable[[], Awaitable[bool]] | None = None) -> Totals:
        """Deliver until cancelled, or until all polled messages are done and ``until`` returns True.

        Raises PipelineError if no message can be delivered.
        """
        try:
            while True:
                records = await messages.poll(POLL_RECORDS, POLL_MS)
                for one in [work for work in self._work.values() if work.task.done()]:
                    one.task.result()
                by_partition: dict[TopicPartition, list[ConsumerRecord]] = {}
                for record in records:
                    key = TopicPartition(record.topic, record.partition)
                    by_partition.setdefault(key, []).append(record)
                for partition, mine in by_partition.items():
                    self._begin(messages, partition, mine)
                if not records and not self._work and until is not None and await until():
                    return self.totals
        finally:
            await self.on_partitions_revoked(list(self._work))

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """End the work on ``partitions`` after the current exchanges, and commit what they delivered."""
        ending = [self._work[one] for one in partitions if one in self._work]
        for one in ending:
            one.stopped.set()
        if ending:
            done, _ = await asyncio.wait([one.task for one in ending])
            for task in done:
                task.exception()  # `run` raises the first one; the others say the same

    def _begin(self, messages: Messages, partition: TopicPartition, records: list[ConsumerRecord]) -> None:
        messages.pause(partition)
        stopped = asyncio.Event()
        task = asyncio.create_task(self._deliver_and_commit(messages, partition, records, stopped))
        self._work[partition] = _Work(stopped, task)

    async def _deliver_and_commit(
        self,
        messages: Messages,
        partition: TopicPartition,
        records: Sequence[ConsumerRecord],
        stopped: asyncio.Event,
    ) -> None:
        done = 0
        try:
            for record in records:
                if stopped.is_set() or not await self.deliver(record, stopped):
                    break
                done += 1
        finally:
            if done:
                await self._commit(messages, partition, records[done - 1].offset + 1)
        del self._work[partition]
        if not stopped.is_set():
            messages.resume(partition)

    async def _commit(self, messages: Messages, partition: TopicPartition, offset: int) -> None:
        try:
            await messages.commit({partition: offset})
        except CommitFailed:
            self._on_error(f"{partition} has another owner now, who finds what was delivered by its ids")

    async def deliver(self, record: ConsumerRecord, stopped: asyncio.Event | None = None) -> bool:
        """Send ``record``; return True once it is delivered, was delivered before, or is refused.

        A record is refused if it has no id, or by the webhook; ``on_error`` is called with the reason. After
        any other failure ``on_error`` is called and the record is sent again, until ``stopped``: then returns
        False. Raises PipelineError if the webhook will accept no message.
        """
        stopped = stopped or asyncio.Event()
        message_id = _id_of(record.value)
        if message_id is None:
            self._refuse(record, "the record is not a JSON object with a text as its id")
            return True
        key = (record.topic, message_id)
        while key in self._sending:  # from another partition
            if await _stopped_within(PAUSE_S, stopped):
                return False
        if self._notes.has(record.topic, message_id):
            self.totals.repeats += 1
            return True
        self._sending.add(key)
        try:
            return await self._send(record, message_id, stopped)
        finally:
            self._sending.discard(key)

    async def _send(self, record: ConsumerRecord, message_id: str, stopped: asyncio.Event) -> bool:
        pause_s, attempts = PAUSE_S, 0
        while not stopped.is_set():
            after_s = 0.0
            try:
                response = await self._webhook.post(record.value or b"", message_id)
            except ssl.SSLCertVerificationError as error:
                raise PipelineError(
                    f"the webhook's certificate is not valid: {error.verify_message}"
                ) from None
            except TimeoutError:
                self._on_error(f"no response from the webhook within {TIMEOUT_S:g} s")
            except (OSError, http.client.HTTPException) as error:
                self._on_error(f"no response from the webhook: {error}")
            else:
                attempts += 1
                if self._is_done(record, message_id, response, attempts):
                    return True
                after_s = response.retry_after_s or 0.0
            await _stopped_within(max(pause_s, after_s), stopped)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)
        return False

    def _is_done(self, record: ConsumerRecord, message_id: str, response: Response, attempts: int) -> bool:
        """Act on a response; return whether the message is not sent again. Raises PipelineError."""
        said = f"the webhook responded to message {as_ascii(message_id)} with status {response.status}"
        what = verdict(response.status, self._permanent)
        if what == "delivered":
            self._notes.note(record.topic, message_id)
            self.totals.delivered += 1
            return True
        if what == "stop":
            raise PipelineError(f"{said}{_remedy(response)}")
        if what == "refused" or attempts == self._attempts:
            times = f", {attempts} times" if attempts > 1 else ""
            self._refuse(record, f"{said}{times}", response.text)
            return True
        wait = f", and asks to wait for {response.retry_after_s:g} s" if response.retry_after_s else ""
        self._on_error(f"{said}{wait}: it is sent again")
        return False

    def _refuse(self, record: ConsumerRecord, reason: str, response: str | None = None) -> None:
        place = f"{record.topic}-{record.partition} at offset {record.offset}"
        self._notes.record_refusal(record, reason, response)
        self._on_error(f"not delivered: {place}: {reason}")
        self.totals.refused += 1


async def _stopped_within(pause_s: float, stopped: asyncio.Event) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopped.wait(), pause_s)
    return stopped.is_set()


def _remedy(response: Response) -> str:
    if response.status in REDIRECTS:
        return f": its address is now {response.location or 'another one'}; give that as --webhook"
    return ", so it accepts none from this sender: give what it asks for with --header"


def _id_of(value: bytes | None) -> str | None:
    try:
        # Only its id is read: Python refuses to convert numbers of thousands of digits.
        message: Any = json.loads(value or b"", parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return None
    message_id = cast(dict[str, Any], message).get("id") if isinstance(message, dict) else None
    return message_id if isinstance(message_id, str) and message_id else None
