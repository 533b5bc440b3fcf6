"""SASL exchanges as state machines: bytes in, bytes out. One value is one exchange, of one side."""

from __future__ import annotations

from typing import Protocol


class SaslRejected(Exception):
    """The exchange failed; the message says why, and never contains a secret.

    ``shown``: the text for the other side, which does not say whether the user or the password is wrong.
    None: a general text.
    """

    def __init__(self, message: str, shown: str | None = None) -> None:
        super().__init__(message)
        self.shown = shown


class SaslServer(Protocol):
    """The accepting side of an exchange, which the client begins."""

    def respond(self, message: bytes) -> bytes:
        """Return the answer to the client's next message. Raises SaslRejected; then the exchange is over."""
        ...

    @property
    def user(self) -> str | None:
        """The authenticated user; None before the exchange is complete."""
        ...


class SaslClient(Protocol):
    """The connecting side of an exchange."""

    def begin(self) -> bytes:
        """Return the first message."""
        ...

    def respond(self, message: bytes) -> bytes | None:
        """Return the answer to the server's next message; None if there is none because the exchange is
        complete. Raises SaslRejected if the server is not who it claims to be, or sent something invalid.

        May compute for some milliseconds: call it off the event loop.
        """
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the exchange is complete, with the server authenticated where the mechanism does that."""
        ...
