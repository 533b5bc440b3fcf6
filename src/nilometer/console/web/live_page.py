"""How a page is shown: by its template, as JSON, or live, repeated while a browser shows it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from nilometer.console.reading.cluster_access import Feeds, Read, TooManyWatchers, Update
from nilometer.console.views.hold import duration

# The templates, and how they show numbers, sizes and times. Everything is escaped.

TEMPLATES = Path(__file__).parents[1] / "templates"
STATIC = Path(__file__).parents[1] / "static"
UNKNOWN = "–"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def number(value: float | None) -> str:
    """Return a number with separators of thousands, or a dash if it is not known."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value >= 10 else f"{value:,.1f}"


def size(value: int | None) -> str:
    if value is None:
        return UNKNOWN
    amount, unit = float(value), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{value} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def moment(ms: int) -> str:
    """Return a time in UTC; as a number if no calendar has it."""
    if ms < 0:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03d}"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def iso(ms: int) -> str:
    """Return a time as a program reads it; empty if there is none."""
    shown = moment(ms)
    return f"{shown.replace(' ', 'T')}Z" if shown[-4:-3] == "." else ""


def seconds(us: int) -> str:
    """Return a simulated time, given in microseconds."""
    return f"{us / 1_000_000:,.3f} s"


def listed(values: tuple[object, ...] | None) -> str:
    return ", ".join(map(str, values)) if values else UNKNOWN


def one_line(indented: str) -> str:
    """Return JSON text, indented by two spaces, as one line."""
    return re.sub(r"\n *", " ", indented)


def quoted(text: str) -> str:
    """Return text as a part of a URL."""
    return quote(text, safe="")


def _environment() -> Any:  # jinja2's filters and globals have no types
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


class Rendering:
    def __init__(self, **shared: Any) -> None:
        """``shared``: values that every template has; ``user`` is None unless :meth:`of_user` gives it."""
        environment = _environment()
        environment.filters.update(
            n=number,
            size=size,
            moment=moment,
            iso=iso,
            listed=listed,
            one_line=one_line,
            age=duration,
            seconds=seconds,
            q=quoted,
        )
        environment.globals.update(shared)
        self._environment = environment
        self._user: str | None = None

    def of_user(self, user: str) -> Rendering:
        """Return the same templates for a user who has logged in."""
        found = copy(self)
        found._user = user
        return found

    def render(self, template: str, **values: Any) -> str:
        return self._environment.get_template(template).render(user=self._user, **values)


# HTML, JSON and server-sent events have the same address: the request's ``Accept`` header chooses. A browser
# loads the page, and then asks for its events.

EVENTS, JSON_TYPE = "text/event-stream", "application/json"
NOT_FOUND, UNAVAILABLE = 404, 503
TOO_MANY = "Too many pages of this console are open: close some and load this one again."


@dataclass(frozen=True, slots=True)
class LivePage:
    section: str
    """The entry of the navigation that it belongs to."""
    title: str
    template: str
    read: Read
    """Returns the view that the template shows."""
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    """More values for the template."""


class LivePages:
    def __init__(self, feeds: Feeds, rendering: Rendering) -> None:
        self._feeds = feeds
        self._rendering = rendering

    async def respond(self, request: Request, page: LivePage) -> Response:
        accepted = request.headers.get("accept", "")
        subject = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        try:
            if EVENTS in accepted:
                return await self._events(subject, page)
            update = await self._feeds.first(subject, page.read)
        except TooManyWatchers:
            update = Update(0, None, TOO_MANY)
        status = 200 if update.error is None else NOT_FOUND if update.is_missing else UNAVAILABLE
        if accepted.startswith(JSON_TYPE):
            content = {"error": update.error} if update.error is not None else as_json(update.value)
            return Response(json.dumps(content), status, media_type=JSON_TYPE)
        body = "" if update.error is not None else self._fragment(page, update)
        html = self._rendering.render(
            "page.html", page=page, body=body, error=update.error, is_live=not update.is_missing
        )
        return HTMLResponse(html, status, headers={"Vary": "Accept"})

    async def _events(self, subject: str, page: LivePage) -> Response:
        return events_response(self._stream(subject, page))

    async def _stream(self, subject: str, page: LivePage) -> AsyncGenerator[str]:
        sent: str | None = None
        try:
            async with aclosing(self._feeds.watch(subject, page.read)) as updates:
                async for update in updates:
                    if update.error is not None:
                        yield event("failure", update.error)
                        continue
                    html = self._fragment(page, update)
                    yield event("tick", "") if html == sent else event("update", html)
                    sent = html
        except TooManyWatchers:
            yield event("failure", TOO_MANY)

    def _fragment(self, page: LivePage, update: Update) -> str:
        return self._rendering.render(page.template, view=update.value, page=page, **page.values)


def events_response(events: AsyncGenerator[str]) -> StreamingResponse:
    """Return a response of server-sent events, which no cache or proxy may hold back."""
    headers = {"Cache-Control": "no-store", "Vary": "Accept", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type=EVENTS, headers=headers)


def event(name: str, data: str, mark: str = "") -> str:
    """Return a server-sent event; its data is a JSON string, so that it has no line breaks.

    ``mark``: its id, which a browser sends as ``Last-Event-ID`` when it connects again.
    """
    identified = f"id: {mark}\n" if mark else ""
    return f"event: {name}\n{identified}data: {json.dumps(data)}\n\n"


def as_json(view: object) -> object:
    return msgspec.to_builtins(view, str_keys=True)
