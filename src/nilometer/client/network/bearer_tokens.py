"""The token of an OAUTHBEARER client: read from its file, or from the token endpoint (RFC 6749, 4.4)."""

from __future__ import annotations

import base64
import json
from typing import cast
from urllib.parse import quote, urlencode

from nilometer.client.settings.oauth_login import OAuthLogin
from nilometer.http.client import HttpFailed, request
from nilometer.http.url import HttpUrl
from nilometer.runtime import Runtime

USED_SHARE = 0.8
"""A token is used again during this share of the time for which it is valid, as in Kafka."""


class NoToken(Exception):
    """There is no token; the message says why, without any secret."""


async def bearer_token(login: OAuthLogin, runtime: Runtime) -> str:
    """Return a token. Raises NoToken."""
    if login.endpoint is None:
        return _from_file(login.token_file, runtime)
    cached = login.cached
    if runtime.clock.monotonic_ms() >= cached.use_until_ms:
        token, valid_ms = await _from_endpoint(login, login.endpoint, runtime)
        cached.token = token
        cached.use_until_ms = runtime.clock.monotonic_ms() + int(valid_ms * USED_SHARE)
    return cached.token


def _from_file(path: str, runtime: Runtime) -> str:
    try:
        return runtime.disk.read_file(path).decode("ascii").strip()
    except OSError as error:
        raise NoToken(f"the token cannot be read from {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise NoToken(f"{path} is no text with a token") from None


async def _from_endpoint(login: OAuthLogin, endpoint: HttpUrl, runtime: Runtime) -> tuple[str, int]:
    """Return a new token, and for how many milliseconds it is valid."""
    credentials = (login.client_id, login.client_secret)
    user = ":".join(quote(text, safe="") if login.url_encodes else text for text in credentials)
    fields = {"grant_type": "client_credentials"}
    if login.scope is not None:
        fields["scope"] = login.scope
    headers = {
        "Authorization": f"Basic {base64.b64encode(user.encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    body = urlencode(fields).encode()
    where = f"{endpoint.authority}{endpoint.target}"
    try:
        answer = await request(runtime.network, endpoint, tls=login.tls, body=body, headers=headers)
        return _parse(answer)
    except (HttpFailed, ValueError) as error:
        raise NoToken(f"the token endpoint {where} gave no token: {error}") from None


def _parse(answer: bytes) -> tuple[str, int]:
    """Raises ValueError."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        raise ValueError("the response is not JSON") from None
    fields = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    token, seconds = fields.get("access_token"), fields.get("expires_in", 0)
    if not isinstance(token, str) or not token:
        raise ValueError("the response has no access_token")
    valid_s = seconds if isinstance(seconds, int) and 0 <= seconds < 1 << 31 else 0
    return token, valid_s * 1000
