"""Where the console is served, and what it needs to be served there.

On loopback it needs nothing: it acts with the rights that its command was given. Other machines reach it by
TLS only, and their users log in.
"""

from __future__ import annotations

import socket
from enum import StrEnum
from pathlib import Path

import msgspec

from nilometer.runtime.network import is_loopback
from nilometer.runtime.tls import ServerTls
from nilometer.schema_registry.client import SchemaRegistry


class Changes(StrEnum):
    """What users may change, if they have the rights in the cluster."""

    NONE = "none"
    RECORDS = "records"
    """Records are written."""
    ALL = "all"
    """Also topics, their settings, and the committed offsets of groups."""


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    """0 lets the system choose."""
    changes: Changes = Changes.RECORDS
    has_login: bool = False
    """Whether each user logs in, as a user of the brokers."""
    tls: ServerTls | None = None
    recordings: tuple[Path, ...] = ()
    """Files that can be replayed."""
    registry: SchemaRegistry | None = None
    """Has the schemas by which keys and values are shown."""

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    def url(self, port: int) -> str:
        """Return the console's address. ``port``: the one that it listens on."""
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/"


class NotProtected(Exception):
    """The console would be served without the login or the TLS that it needs there."""


def check_protected(serving: Serving) -> None:
    """Raises NotProtected."""
    if serving.has_login and serving.tls is None:
        raise NotProtected(
            "a login sends passwords, so it needs TLS: give --tls-certificate, and --tls-key if the key is "
            "in a file of its own"
        )
    if is_loopback(serving.host) or (serving.has_login and serving.tls is not None):
        return
    missing = "--login" if serving.tls is not None else "--login and --tls-certificate"
    raise NotProtected(
        f"the console listens on {serving.host or 'all addresses'} only with a login and TLS: give {missing}."
        " Without them it serves loopback (127.0.0.1, ::1), whose port can be forwarded: "
        "ssh -L 8080:127.0.0.1:8080 HOST"
    )


def listening_socket(serving: Serving) -> socket.socket:
    """Return a socket that listens. Raises OSError."""
    address = "127.0.0.1" if serving.host == "localhost" else serving.host
    found = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address, serving.port))
        found.listen()
        found.setblocking(False)
    except OSError as error:
        found.close()
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"cannot listen on {address}:{serving.port}: {reason}") from None
    return found
