"""The page of a topic's messages: a search, a live tail, and a form that writes a record."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from nilometer.console.reading.cluster_reader import ClusterReader
from nilometer.console.reading.record_reader import (
    COUNT_MAX,
    NEWEST,
    OFFSET,
    OLDEST,
    SEARCHED_MAX,
    TIME,
    DecodedValues,
    Found,
    MaybeWritten,
    RecordQuery,
    RecordReader,
    TooManyTails,
)
from nilometer.console.serving import Changes
from nilometer.console.views.records import (
    AUTO,
    FORMATS,
    SHOWN_BYTES,
    WHOLE_BYTES,
    BadFilter,
    BySchema,
    JsonFilter,
    RecordView,
    cut_after,
    json_filter,
    record_views,
)
from nilometer.console.web.guard import (
    INT32_MAX,
    INT64_MAX,
    BadEntry,
    BadForm,
    form_entries,
    number_in,
    time_in,
)
from nilometer.console.web.live_page import (
    EVENTS,
    JSON_TYPE,
    NOT_FOUND,
    UNAVAILABLE,
    Rendering,
    as_json,
    event,
    events_response,
)
from nilometer.wire.errors import ErrorCode, KafkaError

# What a user enters on the page of messages: which records to show, and a record to write. Pure.

STARTS = (NEWEST, OLDEST, OFFSET, TIME)
COUNT = 50


class Entered(msgspec.Struct, frozen=True):
    """The entries of the form, as text, to be shown again."""

    partition: str = ""
    start: str = NEWEST
    at: str = ""
    key: str = ""
    count: str = str(COUNT)
    form: str = AUTO
    committed: bool = False
    value: str = ""
    """A condition on the JSON value."""
    before: str = ""
    """With ``newest``: where a page of older records goes on, as :func:`positions_text`."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Entered:
        return cls(
            given.get("partition", "").strip(),
            given.get("start", NEWEST),
            given.get("at", "").strip(),
            given.get("key", ""),
            given.get("count", "").strip() or str(COUNT),
            given.get("form", AUTO),
            given.get("committed") == "1",
            given.get("value", "").strip(),
            given.get("before", ""),
        )


class NewRecord(msgspec.Struct, frozen=True):
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def record_query(topic: str, entered: Entered) -> RecordQuery:
    """Raises BadEntry."""
    if entered.start not in STARTS:
        raise BadEntry(f"Start must be one of {', '.join(STARTS)}.")
    if entered.form not in FORMATS:
        raise BadEntry(f"Show as must be one of {', '.join(FORMATS)}.")
    partition = partition_of(entered.partition)
    if entered.start == OFFSET and partition is None:
        raise BadEntry("An offset belongs to a partition: choose one.")
    at = 0
    if entered.start == OFFSET:
        at = number_in(entered.at, "The offset", INT64_MAX)
    elif entered.start == TIME:
        at = time_in(entered.at)
    return RecordQuery(
        topic,
        partition,
        entered.start,
        at,
        entered.key.encode() if entered.key else None,
        min(max(1, number_in(entered.count, "The number of records", 10**6)), COUNT_MAX),
        entered.committed,
        _value_filter(entered.value) if entered.value else None,
        positions_of(entered.before) if entered.start == NEWEST else {},
    )


def _value_filter(text: str) -> JsonFilter:
    try:
        return json_filter(text)
    except BadFilter as error:
        raise BadEntry(str(error)) from None


def new_record(given: Mapping[str, str]) -> NewRecord:
    """Return the record of the form. Headers are lines of the form ``name: value``. Raises BadEntry."""
    headers: list[tuple[str, bytes | None]] = []
    for line in given.get("headers", "").splitlines():
        if not line.strip():
            continue
        name, separator, value = line.partition(":")
        if not separator or not name.strip():
            raise BadEntry(f"A header is a line of the form name: value, not {line!r}.")
        headers.append((name.strip(), value.strip().encode()))
    value = None if given.get("tombstone") == "1" else _text(given.get("value", ""))
    key = given.get("key", "")
    if value is None and not key:
        raise BadEntry("A tombstone needs a key.")
    return NewRecord(
        partition_of(given.get("partition", "").strip()), _text(key) if key else None, value, tuple(headers)
    )


def partition_of(text: str) -> int | None:
    """Raises BadEntry."""
    return None if not text else number_in(text, "The partition", INT32_MAX)


def positions_text(positions: Mapping[int, int]) -> str:
    """Return the positions of a tail as one word: ``0:17,1:23``."""
    return ",".join(f"{partition}:{offset}" for partition, offset in positions.items())


def positions_of(text: str) -> dict[int, int]:
    """Return the positions that :func:`positions_text` wrote. Raises BadEntry."""
    found: dict[int, int] = {}
    for part in text.split(",") if text else ():
        partition, _, offset = part.partition(":")
        found[number_in(partition, "A partition", INT32_MAX)] = number_in(offset, "An offset", INT64_MAX)
    return found


def _text(entered: str) -> bytes:
    """Return an entry as a browser sends it, with the line ends that a user sees."""
    return entered.replace("\r\n", "\n").encode()


logger = logging.getLogger("nilometer.console")

T = TypeVar("T")

BODY_BYTES_MAX = 2 * 1024 * 1024
VIEWS_MAX = 2
"""How many pages of records are made at once, each in a thread: two hundred records of an internal topic may
name thousands of partitions each."""
READ_ONLY = "This console is read-only: it was started with --changes none, or --read-only."


class MessagesView(msgspec.Struct, frozen=True):
    topic: str
    records: tuple[RecordView, ...]
    searched: int
    is_cut: bool
    next_offset: int | None
    before: str
    """Where older records are than the newest ones that are shown, as :func:`positions_text`."""
    logs: tuple[tuple[int, int, int], ...]
    """(partition, first offset, end) of each partition that was read."""
    limit: int | None
    """How many bytes of each key and value are shown at most, if the page has room for fewer than were
    requested."""


class _Shown(msgspec.Struct, frozen=True):
    """What the page shows besides the records."""

    entered: Entered
    error: str | None = None
    written: Mapping[str, str] | None = None
    """The entries of the form that writes a record, to be shown again after an error."""


class MessagePages:
    def __init__(
        self,
        reader: ClusterReader,
        records: RecordReader,
        values: DecodedValues,
        rendering: Rendering,
        changes: Changes,
    ) -> None:
        self._reader = reader
        self._records = records
        self._values = values
        self._rendering = rendering
        self._changes = changes
        self._threads = ThreadPoolExecutor(VIEWS_MAX, "records-of-a-page")

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/topics/{topic}/messages", self._messages, methods=["GET"]),
            Route("/topics/{topic}/messages", self._produce, methods=["POST"]),
            Route("/topics/{topic}/tail", self._tail),
        ]

    async def _messages(self, request: Request) -> Response:
        topic: str = request.path_params["topic"]
        entered = Entered.of(request.query_params)
        if EVENTS in request.headers.get("accept", ""):
            return events_response(self._search(topic, entered))
        limit = WHOLE_BYTES if request.query_params.get("whole") == "1" else SHOWN_BYTES
        try:
            found = await self._records.read(record_query(topic, entered))
        except BadEntry as error:
            return await self._page(request, None, _Shown(entered, str(error)), 400)
        except KafkaError as error:
            return await self._page(request, None, _Shown(entered, _message(error)), _status(error))
        view = await self._view(topic, found, entered, limit)
        return await self._page(request, view, _Shown(entered), 200)

    async def _search(self, topic: str, entered: Entered) -> AsyncGenerator[str]:
        """Yield the results of a search while it goes on, and at last all of them, as ``done``."""
        try:
            async with aclosing(self._records.watch(record_query(topic, entered))) as rounds:
                async for found, is_done in rounds:
                    view = await self._view(topic, found, entered, SHOWN_BYTES)
                    yield event("done" if is_done else "found", self._results(view, entered, not is_done))
        except BadEntry as error:
            yield event("failure", str(error))
        except KafkaError as error:
            yield event("failure", _message(error))

    async def _view(self, topic: str, found: Found, entered: Entered, limit: int) -> MessagesView:
        by_schema = await self._values.of(found.records)
        return await self._in_thread(partial(_view, topic, found, entered, limit, by_schema))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Do it in one of ``VIEWS_MAX`` threads, which have it to the end, even if the browser leaves."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _results(self, view: MessagesView, entered: Entered, is_going: bool) -> str:
        return self._rendering.render(
            "message_results.html",
            topic=view.topic,
            view=view,
            entered=entered,
            is_going=is_going,
            count_max=COUNT_MAX,
            searched_max=SEARCHED_MAX,
        )

    async def _produce(self, request: Request) -> Response:
        topic: str = request.path_params["topic"]
        if self._changes is Changes.NONE:
            return PlainTextResponse(f"{READ_ONLY}\n", 403)
        try:
            given = await form_entries(request, BODY_BYTES_MAX)
        except BadForm as error:
            return PlainTextResponse(f"{error}\n", error.status)
        try:
            record = new_record(given)
            await self._reader.partition_count(topic)  # a producer would wait for a topic that does not exist
            written = await self._records.produce(
                topic, record.partition, record.key, record.value, record.headers
            )
        except BadEntry as error:
            return await self._page(request, None, _Shown(Entered(), str(error), given), 400)
        except MaybeWritten as error:
            text = f"Unknown: the record may have been written. No broker confirmed it: {_message(error)}"
            return await self._page(request, None, _Shown(Entered(), text, given), _status(error))
        except KafkaError as error:
            shown = _Shown(Entered(), f"The record is not written: {_message(error)}", given)
            return await self._page(request, None, shown, _status(error))
        query = {
            "partition": str(written.partition),
            "start": "offset",
            "at": str(max(0, written.offset)),
            "count": "1",
            "written": "1",
        }
        return RedirectResponse(f"{request.url.path}?{urlencode(query)}", 303)

    async def _tail(self, request: Request) -> Response:
        topic: str = request.path_params["topic"]
        if EVENTS not in request.headers.get("accept", ""):  # a link or an image would open a tail, too
            return PlainTextResponse(f"This address has events only: Accept: {EVENTS}\n", 406)
        given = request.query_params
        form = given.get("form", FORMATS[0])
        try:
            partition = partition_of(given.get("partition", ""))
            after = positions_of(request.headers.get("last-event-id") or given.get("after", ""))
            if form not in FORMATS:
                raise BadEntry(f"form must be one of {', '.join(FORMATS)}.")
        except BadEntry as error:
            return PlainTextResponse(f"{error}\n", 400)
        return events_response(self._stream(topic, partition, form, after))

    async def _stream(
        self, topic: str, partition: int | None, form: str, after: Mapping[int, int]
    ) -> AsyncGenerator[str]:
        """Yield events; the last one of each part has the positions from which a browser continues."""
        try:
            async with aclosing(self._records.tail(topic, partition, after)) as parts:
                async for part in parts:
                    if part.skipped:
                        yield event("skipped", str(part.skipped))
                    mark = positions_text(part.positions)
                    if not part.records:
                        yield event("tick", "", mark)
                        continue
                    newest_first = part.records[::-1]
                    by_schema = await self._values.of(newest_first)
                    made = partial(record_views, newest_first, form, by_schema=by_schema)
                    records = await self._in_thread(made)
                    html = self._rendering.render("record_rows.html", records=records, form=form)
                    yield event("records", html, mark)
        except TooManyTails as error:
            yield event("failure", str(error))
        except KafkaError as error:
            yield event("failure", _message(error))

    async def _page(
        self, request: Request, view: MessagesView | None, shown: _Shown, status: int
    ) -> Response:
        topic: str = request.path_params["topic"]
        if request.headers.get("accept", "").startswith(JSON_TYPE):
            content = {"error": shown.error} if view is None else as_json(view)
            return Response(json.dumps(content), status, media_type=JSON_TYPE)
        html = self._rendering.render(
            "messages.html",
            topic=topic,
            view=view,
            shown=shown,
            is_going=False,
            written=shown.written or {},
            is_written=request.query_params.get("written") == "1",
            starts=STARTS,
            forms=FORMATS,
            count_max=COUNT_MAX,
            searched_max=SEARCHED_MAX,
            partitions=await self._partition_count(topic),
        )
        return HTMLResponse(html, status, headers={"Vary": "Accept"})

    async def _partition_count(self, topic: str) -> int | None:
        try:
            return await self._reader.partition_count(topic)
        except KafkaError as error:
            logger.info("The partitions of %s are not known: %s", topic, error)
            return None


def _view(
    topic: str, found: Found, entered: Entered, limit: int, by_schema: Sequence[BySchema]
) -> MessagesView:
    room = cut_after(len(found.records), limit)
    return MessagesView(
        topic,
        record_views(found.records, entered.form, limit, by_schema),
        found.searched,
        found.is_cut,
        found.next_offset,
        positions_text(found.before),
        tuple((one.partition, log.start, log.end) for one, log in found.logs),
        room if room < limit else None,
    )


def _message(error: KafkaError) -> str:
    return error.message or error.name


def _status(error: KafkaError) -> int:
    missing = (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)
    return NOT_FOUND if error.code in missing else UNAVAILABLE
