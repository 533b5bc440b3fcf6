"""The web application: the pages, their files, and the guard before them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from nilometer.console.reading.cluster_reader import ClusterReader
from nilometer.console.reading.feeds import Feeds
from nilometer.console.reading.record_reader import RecordReader
from nilometer.console.web.cluster_pages import ClusterPages
from nilometer.console.web.guard import Guard, Served
from nilometer.console.web.live_page import LivePages
from nilometer.console.web.message_pages import MessagePages
from nilometer.console.web.rendering import Rendering

STATIC = Path(__file__).parents[1] / "static"


def application(
    reader: ClusterReader,
    records: RecordReader,
    feeds: Feeds,
    hosts: Iterable[str],
    *,
    read_only: bool = False,
) -> ASGIApp:
    """Return the console as an ASGI application. ``hosts``: the values of ``Host`` that it answers to."""
    rendering = Rendering(read_only=read_only)

    async def not_found(request: Request, _error: Exception) -> Response:
        return HTMLResponse(rendering.render("not_found.html", path=request.url.path), 404)

    app = Starlette(
        routes=[
            *MessagePages(reader, records, rendering, read_only=read_only).routes,
            *ClusterPages(reader, LivePages(feeds, rendering)).routes,
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={404: not_found},
    )
    return Guard(app, Served("http", tuple(hosts)))
