"""The listeners of ``server.properties``: which of them serves clients, and by which protocol.

Names are free; ``listener.security.protocol.map`` says what protocol each speaks. Only PLAINTEXT is built, so
any other protocol of a listener *in use* is refused; what the map says of others does not matter. A listener
of ``controller.listener.names`` is not opened: brokers agree through the coordination store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nilometer.config import ConfigError

PLAINTEXT = "PLAINTEXT"
PROTOCOL_MAP = "listener.security.protocol.map"
_LISTENER = re.compile(r"^(?P<name>[A-Za-z0-9_]+)://(?P<host>\[[0-9a-fA-F:.%]+\]|[^:/\[\]]*):(?P<port>\d+)$")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listener: its name, host and port (0 lets the system choose)."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def security_protocols(pairs: Sequence[str]) -> dict[str, str]:
    """Parse ``LISTENER:PROTOCOL`` pairs; return the protocol by listener name, both in capitals.

    Raises ConfigError.
    """
    protocols: dict[str, str] = {}
    for pair in pairs:
        name, separator, protocol = pair.partition(":")
        if not (name.strip() and separator and protocol.strip()):
            raise ConfigError(
                PROTOCOL_MAP,
                f"Invalid value {pair} for configuration {PROTOCOL_MAP}: use LISTENER:PROTOCOL,…",
            )
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols


def client_listeners(
    key: str, texts: Sequence[str], protocols: Mapping[str, str], controllers: Sequence[str]
) -> tuple[Endpoint, ...]:
    """Return the listener for clients in ``texts`` (``NAME://host:port``), or nothing if ``texts`` is empty.

    The result has the name of the listener's protocol. ``protocols`` are those of :func:`security_protocols`,
    ``controllers`` the names of listeners that are left out. Raises ConfigError, which names ``key``.
    """
    others = {name.upper() for name in controllers}
    endpoints: list[Endpoint] = []
    for text in texts:
        match = _LISTENER.match(text)
        if match is None:
            raise _invalid(key, text, "use PLAINTEXT://host:port")
        name, port = match["name"].upper(), int(match["port"])
        if name in others:
            continue
        protocol = protocols.get(name)
        if protocol is None:
            raise _invalid(key, text, f"{PROTOCOL_MAP} has no protocol for the listener {name}")
        if protocol != PLAINTEXT:
            raise _invalid(key, text, f"only PLAINTEXT listeners are served, not {protocol}")
        if port > 65535:
            raise _invalid(key, text, "no such port")
        endpoints.append(Endpoint(PLAINTEXT, match["host"].strip("[]"), port))
    if len(endpoints) > 1 or (texts and not endpoints):
        raise ConfigError(key, f"{key} must name exactly one listener for clients")
    return tuple(endpoints)


def _invalid(key: str, text: str, why: str) -> ConfigError:
    return ConfigError(key, f"Invalid value {text} for configuration {key}: {why}")
