"""Who may send requests: browsers that show the console's own pages, and programs on this machine.

The console listens on loopback, but every page in the user's browser can send requests there. So the ``Host``
header must be the console's address (else a foreign name that resolves to loopback, DNS rebinding, could read
the pages), a request that has an ``Origin`` must come from the console's own pages, and one that changes
something must have an ``Origin`` (else a foreign page could send a form).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SAFE_METHODS = ("GET", "HEAD")
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


def allowed_hosts(host: str, port: int) -> tuple[str, ...]:
    """Return the values of ``Host`` under which a console that listens on ``host`` may be reached."""
    own = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return tuple(dict.fromkeys((own, f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}")))


def refusal(
    method: str, hosts: Iterable[str], origins: Iterable[str], allowed: Iterable[str]
) -> tuple[int, str] | None:
    """Return the status and the reason with which a request is refused; None if it is served.

    ``hosts`` and ``origins``: the request's headers of these names. ``allowed``: the values of ``Host``.
    """
    named = [host.lower() for host in hosts]
    if len(named) != 1 or named[0] not in allowed:
        return (
            421,
            f"This console is served as {' or '.join(allowed)}, not as {', '.join(named) or 'nothing'}.",
        )
    given = list(origins)
    if any(origin.lower() != f"http://{named[0]}" for origin in given):
        return 403, f"A page of {', '.join(given)} may not send requests to this console."
    if method not in SAFE_METHODS and len(given) != 1:
        return 403, f"A {method} request needs the header Origin: http://{named[0]}."
    return None


class Guard:
    """Refuses what :func:`refusal` names, and adds the headers of security to every response."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        self._app = app
        self._allowed = tuple(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        given = Headers(scope=scope)
        refused = refusal(scope["method"], given.getlist("host"), given.getlist("origin"), self._allowed)
        if refused is None:
            await self._app(scope, receive, guarded)
            return
        status, reason = refused
        await PlainTextResponse(f"{reason}\n", status)(scope, receive, guarded)
