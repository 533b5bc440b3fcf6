"""The web application: its pages of the cluster and of recordings, their files, and the guard before them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from nilometer.console.reading.cluster_access import ClusterAccess, Feeds
from nilometer.console.reading.cluster_reader import ClusterReader
from nilometer.console.reading.connection import ClusterConnection
from nilometer.console.reading.record_reader import DecodedValues, RecordReader
from nilometer.console.reading.recordings import Recordings
from nilometer.console.serving import Changes
from nilometer.console.views.lists import NAME, Asked, TableView
from nilometer.console.views.replay import ReplayView, replay_page, replay_view
from nilometer.console.web.change_pages import ChangePages
from nilometer.console.web.guard import Guard, Served
from nilometer.console.web.live_page import (
    JSON_TYPE,
    NOT_FOUND,
    STATIC,
    LivePage,
    LivePages,
    Rendering,
    as_json,
)
from nilometer.console.web.message_pages import MessagePages
from nilometer.simulation.replay import Replay

# The pages of brokers, topics, partitions, groups and settings.


class ClusterPages:
    def __init__(self, reader: ClusterReader, live: LivePages) -> None:
        self._reader = reader
        self._live = live

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/", self._overview),
            Route("/brokers", self._brokers),
            Route("/brokers/{broker:int}", self._broker),
            Route("/topics", self._topics),
            Route("/topics/{topic}", self._topic),
            Route("/topics/{topic}/settings", self._topic_settings),
            Route("/topics/{topic}/{partition:int}", self._partition),
            Route("/groups", self._groups),
            Route("/group", self._group),
            Route("/transactions", self._transactions),
            Route("/security/acls", self._acls),
            Route("/security/users", self._users),
            Route("/security/quotas", self._quotas),
        ]

    async def _overview(self, request: Request) -> Response:
        page = LivePage("overview", "Overview", "overview.html", self._reader.overview)
        return await self._live.respond(request, page)

    async def _brokers(self, request: Request) -> Response:
        page = LivePage("brokers", "Brokers", "brokers.html", self._reader.overview)
        return await self._live.respond(request, page)

    async def _broker(self, request: Request) -> Response:
        broker: int = request.path_params["broker"]
        page = LivePage("brokers", f"Broker {broker}", "broker.html", lambda: self._reader.broker(broker))
        return await self._live.respond(request, page)

    async def _topics(self, request: Request) -> Response:
        asked = _asked(request)
        internal = request.query_params.get("internal") == "1"

        async def read() -> object:
            return await self._reader.topics(asked, internal=internal)

        return await self._live.respond(request, LivePage("topics", "Topics", "topics.html", read))

    async def _topic(self, request: Request) -> Response:
        topic: str = request.path_params["topic"]
        page = LivePage("topics", topic, "topic.html", lambda: self._reader.topic(topic))
        return await self._live.respond(request, page)

    async def _topic_settings(self, request: Request) -> Response:
        topic: str = request.path_params["topic"]
        page = LivePage(
            "topics", f"Settings of {topic}", "topic_settings.html", lambda: self._reader.topic_configs(topic)
        )
        return await self._live.respond(request, page)

    async def _partition(self, request: Request) -> Response:
        topic: str = request.path_params["topic"]
        partition: int = request.path_params["partition"]
        page = LivePage(
            "topics",
            f"{topic}-{partition}",
            "partition.html",
            lambda: self._reader.partition(topic, partition),
        )
        return await self._live.respond(request, page)

    async def _groups(self, request: Request) -> Response:
        asked = _asked(request)
        page = LivePage("groups", "Groups", "groups.html", lambda: self._reader.groups(asked))
        return await self._live.respond(request, page)

    async def _group(self, request: Request) -> Response:
        group = request.query_params.get("id", "")
        page = LivePage("groups", f"Group {group}", "group.html", lambda: self._reader.group(group))
        return await self._live.respond(request, page)

    async def _transactions(self, request: Request) -> Response:
        asked = _asked(request)
        all_ids = request.query_params.get("all") == "1"

        async def read() -> object:
            return await self._reader.transactions(asked, all_ids=all_ids)

        page = LivePage("transactions", "Transactions", "transactions.html", read)
        return await self._live.respond(request, page)

    async def _acls(self, request: Request) -> Response:
        return await self._table(request, "ACLs", self._reader.acls)

    async def _users(self, request: Request) -> Response:
        return await self._table(request, "Users", self._reader.users)

    async def _quotas(self, request: Request) -> Response:
        return await self._table(request, "Quotas", self._reader.quotas)

    async def _table(
        self, request: Request, title: str, read: Callable[[Asked], Awaitable[TableView]]
    ) -> Response:
        asked = _asked(request)
        page = LivePage("security", title, "security.html", lambda: read(asked))
        return await self._live.respond(request, page)


def _asked(request: Request) -> Asked:
    """Return which page of a list is asked for: ``q`` has words, ``sort`` a column, after ``-`` downwards."""
    given = request.query_params.get("page", "1")
    number = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else 1
    sort = request.query_params.get("sort", "")[:99]
    return Asked(
        request.query_params.get("q", "")[:249], number, sort.removeprefix("-") or NAME, sort.startswith("-")
    )


# The pages that replay recordings: the list of them, and one at one of its events.
#
# The page of a recording has the whole moment, so it works without a script; a script that steps asks for the
# moment alone.

BAD_REQUEST = 400


class BadMoment(Exception):
    """The message says what of the address is wrong."""


class ReplayPages:
    def __init__(self, recordings: Recordings, rendering: Rendering) -> None:
        self._recordings = recordings
        self._rendering = rendering

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/replay", self._list),
            Route("/replay/{name}", self._page),
            Route("/replay/{name}/moment", self._moment),
        ]

    async def _list(self, request: Request) -> Response:
        listed = self._recordings.listed()
        if _wants_json(request):
            return _document(listed)
        return HTMLResponse(self._rendering.render("replays.html", recordings=listed, error=None))

    async def _page(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        replay = self._recordings.replay(name)
        if replay is None:
            return HTMLResponse(self._rendering.render("not_found.html", path=request.url.path), NOT_FOUND)
        try:
            view = replay_page(name, replay, _moment_of(request, replay))
        except BadMoment as error:
            return PlainTextResponse(f"{error}\n", BAD_REQUEST)
        if _wants_json(request):
            return _document(view)
        html = self._rendering.render("replay.html", view=view, moment=view.moment, error=None)
        return HTMLResponse(html, headers={"Vary": "Accept"})

    async def _moment(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        replay = self._recordings.replay(name)
        try:
            moment = None if replay is None else _moment_of(request, replay)
        except BadMoment as error:
            return PlainTextResponse(f"{error}\n", BAD_REQUEST)
        if moment is None:
            return PlainTextResponse("This console has no such recording.\n", NOT_FOUND)
        return HTMLResponse(self._rendering.render("replay_moment.html", name=name, moment=moment))


def _moment_of(request: Request, replay: Replay) -> ReplayView | None:
    """Return the moment that the request asks for; None if nothing was recorded. Raises BadMoment."""
    at = request.query_params.get("at", "0")
    if not (at.isascii() and at.isdigit() and len(at) < 10):
        raise BadMoment("The event must be a whole number: at=0 is the first one.")
    partition = request.query_params.get("partition") or None
    if partition is not None and partition not in replay.partitions:
        raise BadMoment("The recording has no such partition.")
    return replay_view(replay, int(at), partition) if replay.events else None


def _wants_json(request: Request) -> bool:
    return request.headers.get("accept", "").startswith(JSON_TYPE)


def _document(view: object) -> Response:
    return Response(json.dumps(as_json(view)), media_type=JSON_TYPE, headers={"Vary": "Accept"})


# The application.


def application(
    reader: ClusterReader,
    records: RecordReader,
    feeds: Feeds,
    connection: ClusterConnection,
    hosts: Iterable[str],
    *,
    changes: Changes = Changes.RECORDS,
    recordings: Recordings | None = None,
    values: DecodedValues | None = None,
) -> ASGIApp:
    """Return a console without a login. ``hosts``: the values of ``Host`` that it answers to;
    ``recordings``: default the shipped scenarios; ``values``: default by no registry."""
    rendering, recordings = Rendering(changes=changes), recordings or Recordings()
    values = values or DecodedValues(None)
    app = pages(reader, records, values, feeds, connection, rendering, recordings, changes)
    return Guard(app, Served("http", tuple(hosts)))


def pages(
    reader: ClusterReader,
    records: RecordReader,
    values: DecodedValues,
    feeds: Feeds,
    connection: ClusterConnection,
    rendering: Rendering,
    recordings: Recordings,
    changes: Changes,
) -> ASGIApp:
    """Return the pages, without a guard before them."""

    async def not_found(request: Request, _error: Exception) -> Response:
        return HTMLResponse(rendering.render("not_found.html", path=request.url.path), 404)

    return Starlette(
        routes=[
            *MessagePages(reader, records, values, rendering, changes).routes,
            *ChangePages(connection, rendering, changes).routes,
            *ClusterPages(reader, LivePages(feeds, rendering)).routes,
            *ReplayPages(recordings, rendering).routes,
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={404: not_found},
    )


class UserPages:
    """The pages as one user of the cluster sees them."""

    def __init__(
        self,
        access: ClusterAccess,
        values: DecodedValues,
        rendering: Rendering,
        recordings: Recordings,
        changes: Changes,
    ) -> None:
        self._access = access
        reader, records, feeds, connection = access.reader, access.records, access.feeds, access.connection
        self.app: ASGIApp = pages(reader, records, values, feeds, connection, rendering, recordings, changes)

    async def end_events(self) -> None:
        await self._access.end_events()

    async def close(self) -> None:
        await self._access.close()
