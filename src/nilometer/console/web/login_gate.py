"""Sends each request to the pages of the user whose session it belongs to, and others to the login.

Users are the brokers' users: a login succeeds if a broker accepts the name and the password. The cookie of a
session is sent over TLS only, not to scripts, and not with requests of other sites; a login needs the header
Origin of this console (see guard), so no other site can log its user in.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from nilometer.console.web.form_body import BadForm, form_entries
from nilometer.console.web.live_page import EVENTS, JSON_TYPE, UNAVAILABLE
from nilometer.console.web.login_attempts import LoginAttempts, TooManyAttempts
from nilometer.console.web.login_form import BadLogin, Credentials, credentials, own_path
from nilometer.console.web.rendering import STATIC, Rendering
from nilometer.console.web.sessions import Pages, Sessions
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger("nilometer.console")

OpenPages = Callable[[Credentials], Awaitable[Pages]]
"""Returns the pages of a user, if the brokers accept the user. Raises KafkaError."""

LOGIN, LOGOUT, SESSION = "/login", "/logout", "/session"
PUBLIC = (LOGIN, LOGOUT, SESSION)
FORM_BYTES_MAX = 16 * 1024
WRONG = "The user or the password is wrong."
NO_SESSION = f"This console needs a login: {LOGIN}"


class LoginGate:
    """``port``: that of the console; consoles on one host have different cookies."""

    def __init__(
        self,
        sessions: Sessions,
        attempts: LoginAttempts,
        rendering: Rendering,
        open_pages: OpenPages,
        port: int,
    ) -> None:
        self._sessions = sessions
        self._attempts = attempts
        self._rendering = rendering
        self._open_pages = open_pages
        self._cookie = f"__Host-nilometer-{port}"
        self._public = Starlette(
            routes=[
                Route(LOGIN, self._login, methods=["GET"]),
                Route(LOGIN, self._log_in, methods=["POST"]),
                Route(LOGOUT, self._log_out, methods=["POST"]),
                Route(SESSION, self._session),
                Mount("/static", StaticFiles(directory=STATIC)),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if path in PUBLIC or path.startswith("/static/"):
            await self._public(scope, receive, send)
            return
        request = Request(scope)
        session = self._sessions.find(self._token(request))
        if session is None:
            await _without_session(request)(scope, receive, send)
            return
        with self._sessions.used(session):
            await session.pages.app(scope, receive, send)

    def _token(self, request: Request) -> str | None:
        return request.cookies.get(self._cookie)

    # --- the pages of the login

    async def _session(self, request: Request) -> Response:
        session = self._sessions.find(self._token(request))
        return JSONResponse({"user": None if session is None else session.user})

    async def _login(self, request: Request) -> Response:
        target = own_path(request.query_params.get("next", "/"))
        if self._sessions.find(self._token(request)) is not None:
            return RedirectResponse(target, 303)
        return self._form(target)

    async def _log_in(self, request: Request) -> Response:
        try:
            given = await form_entries(request, FORM_BYTES_MAX)
        except BadForm as error:
            return PlainTextResponse(f"{error}\n", error.status)
        target, name = own_path(given.get("next", "/")), given.get("user", "")
        try:
            found = credentials(given)
        except BadLogin as error:
            return self._form(target, str(error), 400, name)
        address = "" if request.client is None else request.client.host
        try:
            pages = await self._opened(found, address)
        except TooManyAttempts as error:
            return self._form(target, str(error), 429, name)
        except KafkaError as error:
            if error.code == ErrorCode.sasl_authentication_failed:
                return self._form(target, WRONG, 403, name)
            return self._form(target, f"No broker verifies the user: {error.message}", UNAVAILABLE, name)
        await self._sessions.end(self._token(request))
        token = await self._sessions.begin(found.user, pages)
        response = RedirectResponse(target, 303)
        response.set_cookie(self._cookie, token, path="/", secure=True, httponly=True, samesite="strict")
        return response

    async def _opened(self, found: Credentials, address: str) -> Pages:
        """Raises KafkaError, TooManyAttempts."""
        async with self._attempts.attempt(address) as attempt:
            try:
                pages = await self._open_pages(found)
            except KafkaError as error:
                attempt.has_failed = error.code == ErrorCode.sasl_authentication_failed or None
                logger.warning("A login from %s failed: %s", address, error.message or error.name)
                failure = error
            else:
                attempt.has_failed = False
                return pages
        raise failure

    async def _log_out(self, request: Request) -> Response:
        await self._sessions.end(self._token(request))
        response = RedirectResponse(LOGIN, 303)
        response.delete_cookie(self._cookie, path="/", secure=True, httponly=True, samesite="strict")
        return response

    def _form(self, target: str, error: str | None = None, status: int = 200, name: str = "") -> Response:
        html = self._rendering.render("login.html", next=target, error=error, name=name[:256])
        return HTMLResponse(html, status)


def _without_session(request: Request) -> Response:
    """Return where a browser logs in, or, to what reads no pages, the status 401."""
    accepted = request.headers.get("accept", "")
    if accepted.startswith(JSON_TYPE):
        return JSONResponse({"error": NO_SESSION}, 401)
    if request.method not in ("GET", "HEAD") or EVENTS in accepted:
        return PlainTextResponse(f"{NO_SESSION}\n", 401)
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{LOGIN}?{urlencode({'next': target})}" if target != "/" else LOGIN, 303)
