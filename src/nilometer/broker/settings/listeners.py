"""The listeners of ``server.properties``: which of them serve clients, and by which security protocol; and
the one of metrics.

``metrics.listener`` serves metrics and health over HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from nilometer.config import ConfigError
from nilometer.runtime.network import is_loopback
from nilometer.security.principal import SecurityProtocol

LISTENERS = "listeners"
ADVERTISED = "advertised.listeners"
PROTOCOL_MAP = "listener.security.protocol.map"
INTER_BROKER = "inter.broker.listener.name"
INTER_BROKER_PROTOCOL = "security.inter.broker.protocol"

_LISTENER = re.compile(
    r"^(?P<name>[A-Za-z0-9_.-]+)://(?P<host>\[[0-9a-fA-F:.%]+\]|[^:/\[\]]*):(?P<port>\d+)$"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listener: its name in capitals, host, port (0 lets the system choose) and protocol."""

    name: str
    host: str
    port: int
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def security_protocols(pairs: Sequence[str]) -> dict[str, SecurityProtocol]:
    """Parse ``LISTENER:PROTOCOL`` pairs; return the protocol by listener name in capitals.

    Raises ConfigError.
    """
    protocols: dict[str, SecurityProtocol] = {}
    for pair in pairs:
        name, separator, protocol = (part.strip() for part in pair.partition(":"))
        if not (name and separator and protocol):
            raise _invalid(PROTOCOL_MAP, pair, "use LISTENER:PROTOCOL,…")
        try:
            protocols[name.upper()] = SecurityProtocol(protocol.upper())
        except ValueError:
            known = ", ".join(known.value for known in SecurityProtocol)
            raise _invalid(PROTOCOL_MAP, pair, f"the security protocols are {known}") from None
    return protocols


def client_listeners(endpoints: Sequence[Endpoint], controllers: Collection[str]) -> tuple[Endpoint, ...]:
    """Return the listeners without those of ``controllers``, names in capitals. Raises ConfigError if none is
    left of some."""
    found = tuple(endpoint for endpoint in endpoints if endpoint.name not in controllers)
    if endpoints and not found:
        raise ConfigError(LISTENERS, f"{LISTENERS} must name at least one listener for clients")
    return found


def parse_listeners(
    key: str, texts: Sequence[str], protocols: Mapping[str, SecurityProtocol]
) -> tuple[Endpoint, ...]:
    """Return the listeners in ``texts`` (``NAME://host:port``), ``protocols`` being those of
    :func:`security_protocols`. Raises ConfigError, which names ``key``."""
    endpoints: dict[str, Endpoint] = {}
    for text in texts:
        match = _LISTENER.match(text)
        if match is None:
            raise _invalid(key, text, "use NAME://host:port, for example PLAINTEXT://localhost:9092")
        name, port = match["name"].upper(), int(match["port"])
        if name in endpoints:
            raise ConfigError(key, f"{key} has two listeners with the name {name}")
        if port > 65535:
            raise _invalid(key, text, "no such port")
        endpoints[name] = Endpoint(
            name, match["host"].strip("[]"), port, _protocol(key, text, name, protocols)
        )
    return tuple(endpoints.values())


def _protocol(key: str, text: str, name: str, protocols: Mapping[str, SecurityProtocol]) -> SecurityProtocol:
    protocol = protocols.get(name)
    if protocol is None:
        raise _invalid(key, text, f"{PROTOCOL_MAP} has no protocol for the listener {name}")
    return protocol


def check_addresses(listeners: Sequence[Endpoint]) -> None:
    """Raise ConfigError if two listeners have the same address."""
    seen: dict[tuple[str, int], str] = {}
    for endpoint in listeners:
        other = seen.setdefault((endpoint.host, endpoint.port), endpoint.name)
        if endpoint.port and other != endpoint.name:
            raise _invalid(LISTENERS, str(endpoint), f"the listener {other} has the same host and port")


def advertised_listeners(
    listeners: Sequence[Endpoint], advertised: Sequence[Endpoint]
) -> tuple[Endpoint, ...]:
    """Return the addresses that clients connect to: ``advertised``, or the listeners if it is empty.

    A listener that is not advertised is opened, and no client finds it in the metadata. Raises ConfigError.
    """
    names = [endpoint.name for endpoint in listeners]
    for endpoint in advertised:
        if endpoint.name not in names:
            raise _invalid(ADVERTISED, str(endpoint), f"{LISTENERS} has no listener {endpoint.name}")
        if endpoint.host in ("0.0.0.0", "::"):
            raise _invalid(
                ADVERTISED,
                str(endpoint),
                "clients cannot connect to this address: use the broker's host name or IP address",
            )
    return tuple(advertised or listeners)


def inter_broker_listener(advertised: Sequence[Endpoint], name: str | None, protocol: str | None) -> Endpoint:
    """Return the advertised listener by which brokers connect to each other.

    ``name`` and ``protocol`` are the values of ``inter.broker.listener.name`` and of
    ``security.inter.broker.protocol``, None if not given. Without both, the listener named PLAINTEXT, or the
    only one. Raises ConfigError.
    """
    if name and protocol:
        raise ConfigError(
            INTER_BROKER, f"{INTER_BROKER} and {INTER_BROKER_PROTOCOL} are both given: give one of them"
        )
    wanted = (name or protocol or SecurityProtocol.PLAINTEXT.value).upper()
    for endpoint in advertised:
        if endpoint.name == wanted:
            return endpoint
    if not name and len(advertised) == 1 and (not protocol or advertised[0].protocol.value == wanted):
        return advertised[0]
    key = INTER_BROKER_PROTOCOL if protocol else INTER_BROKER
    names = ", ".join(endpoint.name for endpoint in advertised)
    how = f"remove {key} and set {INTER_BROKER}" if protocol else f"set {INTER_BROKER}"
    raise ConfigError(
        key,
        f"brokers connect to each other by the listener {wanted}, which is not advertised; "
        f"{how} to one of: {names}",
    )


def _invalid(key: str, text: str, why: str) -> ConfigError:
    return ConfigError(key, f"Invalid value {text} for configuration {key}: {why}")


METRICS_LISTENER = "metrics.listener"
LOOPBACK = "127.0.0.1"
_METRICS_LISTENER = re.compile(
    r"(?:(?i:http)://)?(?:(?P<host>\[[0-9a-fA-F:.%]+\]|[^:/\[\]]*):)?(?P<port>[0-9]{1,5})/?"
)


class HttpEndpoint(msgspec.Struct, frozen=True):
    """A host and a port (0 lets the system choose)."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def metrics_endpoint(text: str | None) -> HttpEndpoint | None:
    """Return the endpoint that ``text`` names, as ``host:port`` or only the port; None for None.

    Without a host it is on the loopback address. Raises ConfigError.
    """
    if text is None:
        return None
    match = _METRICS_LISTENER.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ConfigError(
            METRICS_LISTENER,
            f"Invalid value {text} for configuration {METRICS_LISTENER}: "
            f"use host:port, or a port on {LOOPBACK}",
        )
    return HttpEndpoint((match["host"] or LOOPBACK).strip("[]"), int(match["port"]))
