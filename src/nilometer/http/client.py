"""Sends one HTTP request and returns its response, through the runtime's network.

Each request has a connection of its own. Redirections are not followed: a URL that was allowed must not lead
to one that was not. Bounded are the time and the size of a response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from nilometer.http.response import HEAD_BYTES_MAX, BadResponse, HttpResponse, parse_response
from nilometer.http.url import HttpUrl
from nilometer.runtime import Network
from nilometer.runtime.tls import ClientTls, TlsUnusable

TIMEOUT_S = 10.0
BODY_BYTES_MAX = 1 << 20


class HttpFailed(Exception):
    """There is no response of the status 200; the message says why, without the request."""


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
