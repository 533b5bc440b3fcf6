"""What is taken from a browser: which requests are served, and the entries of a form, bounded in size and
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qsl

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Which requests are served: those of the console's own pages, and of programs.
#
# Every page in a user's browser can send requests to the console, also to one that listens on loopback. So
# the ``Host`` header must be the console's address (else a foreign name that resolves to loopback, DNS
# rebinding, could read the pages), a request that has an ``Origin`` must come from the console's own pages,
# and one that changes something must have an ``Origin`` (else a foreign page could send a form). By ``Sec-
# Fetch-Site`` a foreign page may link to the pages, but not fetch or embed anything: that would cost the
# brokers work.
#
# A console with a login is served under any name: its certificate is for the right ones only, and the cookie
# of a session is sent to the name that it was made under.

SAFE_METHODS = ("GET", "HEAD")
OWN_SITES = ("same-origin", "none")
"""The values of ``Sec-Fetch-Site`` of the console's own pages, and of what a user enters."""
PORTS = {"http": 80, "https": 443}
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
TLS_HEADERS: Mapping[str, str] = {"Strict-Transport-Security": "max-age=31536000"}
"""Of a console with TLS: a browser that has once verified its certificate takes no connection without TLS to
this host for a year, also if a link says so."""


class Served(msgspec.Struct, frozen=True):
    """Under which addresses the console is served."""

    scheme: str
    hosts: tuple[str, ...] | None
    """The values of ``Host``; None: any."""


def allowed_hosts(host: str, port: int, scheme: str = "http") -> tuple[str, ...]:
    """Return the values of ``Host`` under which a console that listens on ``host`` may be reached.

    Browsers leave out the port if it is the scheme's own.
    """
    names = dict.fromkeys((f"[{host}]" if ":" in host else host, "127.0.0.1", "localhost", "[::1]"))
    bare = names if port == PORTS[scheme] else ()
    return (*bare, *(f"{name}:{port}" for name in names))


def refusal(method: str, headers: Headers, served: Served) -> tuple[int, str] | None:
    """Return the status and the reason with which a request is refused; None if it is served."""
    named = [host.lower() for host in headers.getlist("host")]
    if len(named) != 1 or (served.hosts is not None and named[0] not in served.hosts):
        known = "one name" if served.hosts is None else " or ".join(served.hosts)
        return 421, f"This console is served as {known}, not as {', '.join(named) or 'nothing'}."
    own = f"{served.scheme}://{named[0]}"
    given = headers.getlist("origin")
    if any(origin.lower() != own for origin in given):
        return 403, f"A page of {', '.join(given)} may not send requests to this console."
    if method not in SAFE_METHODS and len(given) != 1:
        return 403, f"A {method} request needs the header Origin: {own}."
    if headers.get("sec-fetch-site", OWN_SITES[0]) not in OWN_SITES and not _follows_link(method, headers):
        return 403, "A page of another site may link to this console, but not load anything from it."
    return None


def _follows_link(method: str, headers: Headers) -> bool:
    """Return whether a browser opens a page because its user followed a link."""
    kind = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return method == "GET" and kind == ("navigate", "document")


class Guard:
    """Refuses what :func:`refusal` names, and adds the headers of security to every response."""

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self._app = app
        self._served = served
        self._headers = {**SECURITY_HEADERS, **(TLS_HEADERS if served.scheme == "https" else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refused = refusal(scope["method"], Headers(scope=scope), self._served)
        if refused is None:
            await self._app(scope, receive, guarded)
            return
        status, reason = refused
        await PlainTextResponse(f"{reason}\n", status)(scope, receive, guarded)


# The entries of a form that a browser posts, bounded in size and in time, and what a user may enter.

TIMEOUT_S = 30.0
ENTRIES_MAX = 1_000
"""A million entries of two bytes would hold the event loop for a second."""


class BadForm(Exception):
    """The form is refused with ``status``; the message says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def form_entries(request: Request, bytes_max: int) -> dict[str, str]:
    """Return the last value of each name. Raises BadForm."""
    body = bytearray()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            async for part in request.stream():
                body += part
                if len(body) > bytes_max:
                    raise BadForm(413, f"A form may have at most {bytes_max:,} bytes here.")
    except TimeoutError:
        raise BadForm(408, f"The form did not arrive within {TIMEOUT_S:.0f} s.") from None
    except ClientDisconnect:
        raise BadForm(400, "The form did not arrive.") from None
    try:
        entries = parse_qsl(
            body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=ENTRIES_MAX
        )
    except ValueError:
        raise BadForm(413, f"A form may have at most {ENTRIES_MAX} entries.") from None
    return dict(entries)


INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


class BadEntry(Exception):
    """An entry of a form cannot be used; the message says which, and what it must be."""


def number_in(text: str, what: str, most: int) -> int:
    """Raises BadEntry, whose message begins with ``what``."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise BadEntry(f"{what} must be a whole number from 0 to {most:,}, not {text!r}.")
    return int(text)


def time_in(text: str) -> int:
    """Return milliseconds since the epoch: those, or an ISO 8601 time; without a zone it is UTC.

    Raises BadEntry.
    """
    if text.isascii() and text.isdigit():
        return number_in(text, "The time in ms", INT64_MAX)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadEntry(f"The time must be as in 2026-01-31 12:00:00 (UTC), or in ms, not {text!r}.") from None
    return max(0, round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000))
