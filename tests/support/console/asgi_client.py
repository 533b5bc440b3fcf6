"""Sends requests to an ASGI application in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp

HOST = "127.0.0.1:8080"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def document(self) -> Any:
        return json.loads(self.text)


def ask(
    app: ASGIApp,
    target: str,
    *,
    method: str = "GET",
    headers: Iterable[tuple[str, str]] = (),
    host: str | None = HOST,
    body: bytes = b"",
) -> Answer:
    return asyncio.run(_ask(app, target, method, [*([("host", host)] if host else []), *headers], body))


async def _ask(
    app: ASGIApp, target: str, method: str, headers: Sequence[tuple[str, str]], body: bytes
) -> Answer:
    parts = urlsplit(target)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8080),
    }
    sent: list[dict[str, Any]] = []
    requests = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        request = next(requests, None)
        if request is None:
            await asyncio.Event().wait()  # it stays connected
        return request

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    given = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], given, b"".join(one.get("body", b"") for one in sent[1:]).decode())
