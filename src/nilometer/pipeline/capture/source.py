"""What a capture needs of a database, and how a connector of Debezium is told what it captures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol
from zlib import crc32

PASSWORD = "NILOMETER_CAPTURE_PASSWORD"
"""The variable of the environment from which the connector reads the database's password."""

Position = tuple[int, ...]
"""A position in the database's log: a later one is greater."""


class Source(Protocol):
    """A table in a database. Every method may raise PipelineError."""

    name: str
    """The name of the capture, of a-z, 0-9 and _: another for each table of each database."""
    table: str
    """The table's full name, for messages."""
    coordinate: str
    """The connector's Maven coordinate."""
    password: str

    def prepare(self, *, has_begun: bool) -> str | None:
        """Check all that the connector needs, and create what it does not create itself.

        ``has_begun`` is whether the cluster has a position of this capture. Returns which changes the
        database does not log; None if it logs all.
        """
        ...

    def connector(self) -> dict[str, str]:
        """Return the connector's settings that are this database's own."""
        ...

    def now(self) -> Position:
        """Return a position that the connector reaches once it has read all changes that exist now."""
        ...

    def position(self, offset: Mapping[str, Any]) -> Position:
        """Return the position of an offset of the connector."""
        ...

    def explain(self, failure: str) -> str | None:
        """Return what a failure of the connector, a trace of Java, means here; None if that is not known."""
        ...

    def drop(self) -> None:
        """Remove what the database keeps for this capture."""
        ...


def capture_name(*parts: str, length_max: int = 63) -> str:
    """Return a name for a capture: readable, and different for different parts."""
    readable = re.sub(r"[^a-z0-9_]", "_", "_".join(("nilometer", *parts)).lower())
    unique = f"_{crc32('/'.join(parts).encode()):08x}"
    return readable[: length_max - len(unique)] + unique


def exactly(name: str) -> str:
    """Return the pattern of Java, in a list of Debezium's, that matches only ``name``."""
    return re.sub(r"[^\w]", lambda found: f"\\x{{{ord(found[0]):x}}}", name)


def topic_prefix(database: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", database)
