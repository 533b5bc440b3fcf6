"""``metrics.listener``: where a broker serves metrics and health over HTTP."""

from __future__ import annotations

import re

import msgspec

from nilometer.config import ConfigError

METRICS_LISTENER = "metrics.listener"
LOOPBACK = "127.0.0.1"
_LISTENER = re.compile(
    r"(?:(?i:http)://)?(?:(?P<host>\[[0-9a-fA-F:.%]+\]|[^:/\[\]]*):)?(?P<port>[0-9]{1,5})/?"
)


class HttpEndpoint(msgspec.Struct, frozen=True):
    """A host and a port (0 lets the system choose)."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def metrics_endpoint(text: str | None) -> HttpEndpoint | None:
    """Return the endpoint that ``text`` names, as ``host:port`` or only the port; None for None.

    Without a host it is on the loopback address. Raises ConfigError.
    """
    if text is None:
        return None
    match = _LISTENER.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ConfigError(
            METRICS_LISTENER,
            f"Invalid value {text} for configuration {METRICS_LISTENER}: "
            f"use host:port, or a port on {LOOPBACK}",
        )
    return HttpEndpoint((match["host"] or LOOPBACK).strip("[]"), int(match["port"]))
