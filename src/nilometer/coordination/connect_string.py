"""ZooKeeper's connect string, ``host:port,host:port/chroot``, as in Kafka's ``zookeeper.connect``."""

from __future__ import annotations

import re

import msgspec

DEFAULT_PORT = 2181
_SERVER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]]+)(?::(?P<port>[0-9]+))?")


class ConnectString(msgspec.Struct, frozen=True):
    """``servers`` are host:port; ``chroot`` is empty, or starts with a slash and does not end with one."""

    servers: tuple[str, ...]
    chroot: str = ""

    def __str__(self) -> str:
        return ",".join(self.servers) + self.chroot


def parse_connect_string(text: str) -> ConnectString:
    """Parse a connect string. Raises ValueError with the reason."""
    servers, slash, chroot = text.partition("/")
    if not servers.strip():
        raise ValueError("it contains no server; use host:port,host:port or host:port,host:port/chroot")
    return ConnectString(
        tuple(_server(server.strip()) for server in servers.split(",")),
        _chroot(slash + chroot) if chroot else "",
    )


def _server(text: str) -> str:
    if not text:
        raise ValueError("there is an empty server name next to a comma")
    match = _SERVER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is not a server: use host:port, with a number for the port")
    port = int(match["port"] or DEFAULT_PORT)
    if not 1 <= port <= 65535:
        raise ValueError(f"{text} is not a server: there is no port {port}")
    return f"{match['host']}:{port}"


def _chroot(path: str) -> str:
    for name in path.split("/")[1:]:
        if name in ("", ".", "..") or not name.isprintable() or "," in name or ":" in name:
            raise ValueError(
                f"{path} is not a chroot: use /name or /name/name, once, after the last server, "
                "without a trailing slash"
            )
    return path
