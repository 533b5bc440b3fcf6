"""Sends one HTTP request and returns its response, through the runtime's network.

Each request has a connection of its own. Redirections are not followed: a URL that was allowed must not lead
to one that was not. Bounded are the time and the size of a response.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

import msgspec

from nilometer.http.response import HEAD_BYTES_MAX, BadResponse, HttpResponse, parse_response
from nilometer.runtime import Network
from nilometer.runtime.tls import ClientTls, TlsUnusable

TIMEOUT_S = 10.0
BODY_BYTES_MAX = 1 << 20
_PORTS = {"http": 80, "https": 443}
_TARGET = re.compile(r"[\x21-\x7e]+")


class HttpFailed(Exception):
    """There is no response of the status 200; the message says why, without the request."""


class HttpUrl(msgspec.Struct, frozen=True):
    scheme: str
    """``http`` or ``https``."""
    host: str
    port: int
    target: str
    """Path and query."""

    @property
    def authority(self) -> str:
        """The value of the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(text: str) -> HttpUrl:
    """Parse a URL of http or https. Raises ValueError, which says what is wrong."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is no URL: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("is no URL of the form https://host[:port]/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must have no user and password in the URL")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if _TARGET.fullmatch(target) is None or not _is_host(parts.hostname):
        raise ValueError("has characters that a URL cannot have")
    return HttpUrl(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], target)


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return re.fullmatch(r"[A-Za-z0-9._-]+", text) is not None
    return True


async def request(
    network: Network,
    url: HttpUrl,
    *,
    tls: ClientTls,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """GET ``url``, or POST ``body`` to it; return the body of the response.

    ``tls``: the trusted authorities for https. Raises HttpFailed.
    """
    loop = asyncio.get_running_loop()
    exchange: _Exchange | None = None

    def make() -> _Exchange:
        nonlocal exchange
        exchange = _Exchange(_encode(url, headers or {}, body), loop.create_future())
        return exchange

    try:
        async with asyncio.timeout(TIMEOUT_S):
            await network.connect(make, url.host, url.port, tls if url.scheme == "https" else None)
            assert exchange is not None
            response = await exchange.response
    except TimeoutError:
        raise HttpFailed(f"no response within {TIMEOUT_S:.0f} s") from None
    except (OSError, UnicodeError, TlsUnusable) as error:  # UnicodeError: no name of a host
        raise HttpFailed(str(error) or type(error).__name__) from None
    except BadResponse as error:
        raise HttpFailed(str(error)) from None
    finally:
        if exchange is not None:
            exchange.abort()
    if response.status != 200:
        raise HttpFailed(f"the status of the response is {response.status}")
    return response.body


def _encode(url: HttpUrl, headers: Mapping[str, str], body: bytes | None) -> bytes:
    fields = {
        "Host": url.authority,
        "Accept": "application/json",
        "User-Agent": "nilometer",
        "Connection": "close",
        **headers,
    }
    if body is not None:
        fields["Content-Length"] = str(len(body))
    lines = [f"{'GET' if body is None else 'POST'} {url.target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (body or b"")


class _Exchange(asyncio.Protocol):
    """The connection of one request. Invariant: ``response`` is resolved once."""

    def __init__(self, sent: bytes, response: asyncio.Future[HttpResponse]) -> None:
        self._sent = sent
        self.response = response
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._sent)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._parse(ended=False)
        if len(self._received) > HEAD_BYTES_MAX + 2 * BODY_BYTES_MAX:
            self._fail(BadResponse(f"the response is above {BODY_BYTES_MAX} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, OSError):
            self._fail(exc)
        else:
            self._parse(ended=True)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if not self.response.done():
            self.response.cancel()

    def _parse(self, *, ended: bool) -> None:
        if self.response.done():
            return
        try:
            response = parse_response(bytes(self._received), ended, BODY_BYTES_MAX)
        except BadResponse as error:
            self._fail(error)
            return
        if response is not None:
            self.response.set_result(response)

    def _fail(self, error: Exception) -> None:
        if not self.response.done():
            self.response.set_exception(error)
            if self._transport is not None:
                self._transport.abort()
