"""The authenticated identity of a peer, in Kafka's form ``type:name``."""

from __future__ import annotations

from typing import NamedTuple

USER = "User"
BROKER = "Broker"
"""The type of a broker that has proved that it is one; no client can have it."""


class Principal(NamedTuple):
    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""The principal of connections that do not authenticate: those of PLAINTEXT listeners, and of SSL
listeners that request no certificate."""


def parse_principal(text: str) -> Principal:
    """Parse ``type:name``; the name may contain colons. Raises ValueError."""
    kind, separator, name = text.partition(":")
    if not (separator and kind and name):
        raise ValueError(f"{text!r} is not a principal of the form type:name")
    return Principal(kind, name)
