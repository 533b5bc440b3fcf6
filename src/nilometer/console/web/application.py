"""The web application: the pages, their files, and the guard before them."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from nilometer.console.reading.cluster_access import ClusterAccess
from nilometer.console.reading.cluster_reader import ClusterReader
from nilometer.console.reading.feeds import Feeds
from nilometer.console.reading.record_reader import RecordReader
from nilometer.console.reading.recordings import Recordings
from nilometer.console.web.cluster_pages import ClusterPages
from nilometer.console.web.guard import Guard, Served
from nilometer.console.web.live_page import LivePages
from nilometer.console.web.message_pages import MessagePages
from nilometer.console.web.rendering import STATIC, Rendering
from nilometer.console.web.replay_pages import ReplayPages


def application(
    reader: ClusterReader,
    records: RecordReader,
    feeds: Feeds,
    hosts: Iterable[str],
    *,
    read_only: bool = False,
    recordings: Recordings | None = None,
) -> ASGIApp:
    """Return a console without a login. ``hosts``: the values of ``Host`` that it answers to;
    ``recordings``: default the shipped scenarios."""
    rendering, recordings = Rendering(read_only=read_only), recordings or Recordings()
    app = pages(reader, records, feeds, rendering, recordings, read_only=read_only)
    return Guard(app, Served("http", tuple(hosts)))


def pages(
    reader: ClusterReader,
    records: RecordReader,
    feeds: Feeds,
    rendering: Rendering,
    recordings: Recordings,
    *,
    read_only: bool,
) -> ASGIApp:
    """Return the pages, without a guard before them."""

    async def not_found(request: Request, _error: Exception) -> Response:
        return HTMLResponse(rendering.render("not_found.html", path=request.url.path), 404)

    return Starlette(
        routes=[
            *MessagePages(reader, records, rendering, read_only=read_only).routes,
            *ClusterPages(reader, LivePages(feeds, rendering)).routes,
            *ReplayPages(recordings, rendering).routes,
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={404: not_found},
    )


class UserPages:
    """The pages as one user of the cluster sees them."""

    def __init__(
        self, access: ClusterAccess, rendering: Rendering, recordings: Recordings, *, read_only: bool
    ) -> None:
        self._access = access
        self.app: ASGIApp = pages(
            access.reader, access.records, access.feeds, rendering, recordings, read_only=read_only
        )

    async def end_events(self) -> None:
        await self._access.end_events()

    async def close(self) -> None:
        await self._access.close()
