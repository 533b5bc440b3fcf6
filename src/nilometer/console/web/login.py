"""The login: each request goes to the pages of the user whose session it belongs to, and others to the login.

Sessions are bounded in number and time, and in memory only. An address may try to log in once at a time, and
a failure delays its response.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from nilometer.console.web.guard import BadForm, form_entries
from nilometer.console.web.live_page import EVENTS, JSON_TYPE, STATIC, UNAVAILABLE, Rendering
from nilometer.runtime import Clock
from nilometer.wire.errors import ErrorCode, KafkaError

# A session has the pages of its user, which hold that user's connections. Its token is in the browser's
# cookie; here is only the token's hash. A session ends when its user logs out, when it was not used for
# :data:`IDLE_MS`, after :data:`LIFETIME_MS`, or when there are too many: then those end that were used
# longest ago. A page that is open and visible uses its session.

SESSIONS_MAX = 32
SESSIONS_OF_USER_MAX = 4
IDLE_MS = 30 * 60_000
LIFETIME_MS = 12 * 3_600_000
CHECK_S = 30.0
"""How often sessions that have ended are closed."""
TOKEN_BYTES = 32


class Pages(Protocol):
    """The pages of one user."""

    @property
    def app(self) -> ASGIApp: ...

    async def end_events(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class Session:
    """Invariant: ``pages`` are closed once, when the session is no longer found."""

    user: str
    pages: Pages
    began_ms: int
    used_ms: int
    """When its last request ended, or began if one is in progress."""
    in_progress: int = 0

    def is_over(self, now_ms: int) -> bool:
        is_idle = self.in_progress == 0 and now_ms - self.used_ms >= IDLE_MS
        return is_idle or now_ms - self.began_ms >= LIFETIME_MS


class Sessions:
    def __init__(
        self, clock: Clock, new_token: Callable[[], str] = lambda: secrets.token_urlsafe(TOKEN_BYTES)
    ) -> None:
        self._clock = clock
        self._new_token = new_token
        self._sessions: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    async def begin(self, user: str, pages: Pages) -> str:
        """Add a session, and return its token. Sessions that are over or too many end."""
        token, now_ms = self._new_token(), self._clock.monotonic_ms()
        self._sessions[_hash(token)] = Session(user, pages, now_ms, now_ms)
        await self.end_over()
        own = [key for key, session in self._sessions.items() if session.user == user]
        if len(own) > SESSIONS_OF_USER_MAX:
            await self._end(self._unused(own))
        if len(self._sessions) > SESSIONS_MAX:
            await self._end(self._unused(list(self._sessions)))
        return token

    def find(self, token: str | None) -> Session | None:
        session = None if token is None else self._sessions.get(_hash(token))
        return None if session is None or session.is_over(self._clock.monotonic_ms()) else session

    @contextmanager
    def used(self, session: Session) -> Generator[None]:
        """Count a request of a session as its use, for as long as the request lasts."""
        session.in_progress += 1
        session.used_ms = self._clock.monotonic_ms()
        try:
            yield
        finally:
            session.in_progress -= 1
            session.used_ms = self._clock.monotonic_ms()

    async def end(self, token: str | None) -> None:
        if token is not None:
            await self._end(_hash(token))

    async def end_over(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for key in [key for key, session in self._sessions.items() if session.is_over(now_ms)]:
            await self._end(key)

    async def keep(self) -> None:
        """End sessions when they are over, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self.end_over()

    async def end_events(self) -> None:
        for session in list(self._sessions.values()):
            await session.pages.end_events()

    async def close(self) -> None:
        for key in list(self._sessions):
            await self._end(key)

    def _unused(self, keys: list[bytes]) -> bytes:
        """Return the session that was used longest ago."""
        return min(keys, key=lambda key: self._sessions[key].used_ms)

    async def _end(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            await session.pages.close()


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


# How often one address may try to log in: one attempt at a time, and a failure delays its answer.
#
# Failures in a row double the delay, up to :data:`DELAY_MAX_S`; they are forgotten after :data:`FORGET_MS`,
# or by a login that succeeds. An address is an IPv4 address or a /64 network of IPv6.

DELAY_S = 1.0
DELAY_MAX_S = 16.0
FORGET_MS = 15 * 60_000
WAITING_MAX = 4
"""How many attempts of one address wait for each other; more are refused."""
VERIFIED_AT_ONCE_MAX = 8
"""How many attempts are checked by the brokers at once."""
ADDRESSES_MAX = 1024
"""How many addresses are remembered; then those of the oldest failures are forgotten."""


class TooManyAttempts(Exception):
    def __init__(self) -> None:
        super().__init__("Too many attempts to log in wait already: try again later.")


@dataclass(slots=True)
class _Address:
    failures: int = 0
    failed_ms: int = 0
    attempts: int = 0
    """Attempts that are made or wait."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class LoginAttempts:
    def __init__(self, clock: Clock, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._addresses: dict[str, _Address] = {}
        self._verifying = asyncio.Semaphore(VERIFIED_AT_ONCE_MAX)

    @asynccontextmanager
    async def attempt(self, address: str) -> AsyncGenerator[Attempt]:
        """Wait for the turn of an attempt, and make it. Raises TooManyAttempts."""
        key = _network(address)
        found = self._addresses.pop(key, None) or _Address()
        self._addresses[key] = found  # the newest is the last one
        self._forget()
        if found.attempts >= WAITING_MAX:
            raise TooManyAttempts
        found.attempts += 1
        try:
            async with found.turn:
                attempt = Attempt()
                async with self._verifying:
                    yield attempt
                await self._conclude(found, attempt)
        finally:
            found.attempts -= 1

    async def _conclude(self, found: _Address, attempt: Attempt) -> None:
        if attempt.has_failed is None:
            return
        now_ms = self._clock.monotonic_ms()
        if not attempt.has_failed or now_ms - found.failed_ms >= FORGET_MS:
            found.failures = 0
        if attempt.has_failed:
            found.failures += 1
            found.failed_ms = now_ms
            await self._sleep(delay_s(found.failures))

    def _forget(self) -> None:
        """Forget the addresses whose last attempts are the oldest, unless they make one now."""
        excess = len(self._addresses) - ADDRESSES_MAX
        for key in [key for key, one in self._addresses.items() if one.attempts == 0][: max(0, excess)]:
            del self._addresses[key]


@dataclass(slots=True)
class Attempt:
    has_failed: bool | None = None
    """Whether the brokers rejected the user; None: they were not asked, or did not respond."""


def delay_s(failures: int) -> float:
    """Return how long the answer to the last of so many failures in a row is delayed."""
    return min(DELAY_S * 2 ** min(failures - 1, 10), DELAY_MAX_S)


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))


# What a browser sends to log in. Pure.

NAME_MAX = 256
PASSWORD_MAX = 1024
"""In characters."""


class BadLogin(Exception):
    """The form cannot be used; the message says why, without the password."""


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    password: str = field(repr=False)


def credentials(given: Mapping[str, str]) -> Credentials:
    """Raises BadLogin."""
    user, password = given.get("user", "").strip(), given.get("password", "")
    if not user or not password:
        raise BadLogin("Enter a user and a password.")
    if len(user) > NAME_MAX or len(password) > PASSWORD_MAX:
        raise BadLogin(f"A user has at most {NAME_MAX} characters, a password {PASSWORD_MAX}.")
    if "\0" in user + password:
        raise BadLogin("A user and a password have no null characters.")
    return Credentials(user, password)


def own_path(text: str) -> str:
    """Return ``text`` if it is the path of a page of this console, else the overview's.

    ``//host`` and, for browsers, ``/\\host`` are addresses of other sites.
    """
    is_own = text.startswith("/") and text[1:2] not in ("/", "\\") and text.isprintable()
    return text if is_own else "/"


# Users are the brokers' users: a login succeeds if a broker accepts the name and the password. The cookie of
# a session is sent over TLS only, not to scripts, and not with requests of other sites; a login needs the
# header Origin of this console (see guard), so no other site can log its user in.

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
