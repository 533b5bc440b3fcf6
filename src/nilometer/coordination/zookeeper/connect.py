"""Where an ensemble of ZooKeeper is, as Kafka's ``zookeeper.connect`` names it, how a client authenticates
there, and what it protects its nodes with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from nilometer.runtime.tls import ClientTls

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSecurity:
    """``user`` and ``password`` are those of ZooKeeper's authentication scheme ``digest``; empty: none."""

    user: str = ""
    password: str = field(default="", repr=False)
    set_acl: bool = False
    """Whether nodes get an ACL that permits everything to the own user, and nothing to others."""
    tls: ClientTls | None = None

    @property
    def credentials(self) -> str | None:
        """The content of the request that authenticates a connection; None without a user."""
        return f"{self.user}:{self.password}" if self.user else None


OPEN = ZooKeeperSecurity()
