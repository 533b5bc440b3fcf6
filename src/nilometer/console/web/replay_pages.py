"""The pages that replay recordings: the list of them, and one at one of its events.

The page of a recording has the whole moment, so it works without a script; a script that steps asks for the
moment alone.
"""

from __future__ import annotations

import json

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from nilometer.console.reading.recordings import Recordings
from nilometer.console.views.replay import ReplayView, replay_page, replay_view
from nilometer.console.web.live_page import JSON_TYPE, NOT_FOUND, as_json
from nilometer.console.web.rendering import Rendering
from nilometer.simulation.recording.replay import Replay

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
