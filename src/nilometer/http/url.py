"""URLs of http and https, as settings have them."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

import msgspec

_PORTS = {"http": 80, "https": 443}
_TARGET = re.compile(r"[\x21-\x7e]+")


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
