"""SASL exchanges as state machines: bytes in, bytes out. One value is one exchange, of one side."""

from __future__ import annotations

from collections.abc import Callable
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
    """The accepting side of an exchange, which the client begins.

    Mechanisms inherit the properties that not all of them have.
    """

    def respond(self, message: bytes) -> bytes:
        """Return the answer to the client's next message. Raises SaslRejected; then the exchange is over."""
        ...

    def work_before(self, message: bytes) -> Callable[[], None] | None:
        """Return what to do off the event loop before ``respond``, which takes milliseconds; None: nothing.

        What is not done before, ``respond`` does.
        """
        return None

    @property
    def user(self) -> str | None:
        """The authenticated user; None before the exchange is complete."""
        ...

    @property
    def expires_ms(self) -> int | None:
        """When the user's credential expires, in milliseconds since the Unix epoch; None: never."""
        return None

    @property
    def token_id(self) -> str | None:
        """The id of the delegation token by which the user has authenticated (KIP-48); None: not by one."""
        return None

    @property
    def failure(self) -> str | None:
        """Why the exchange fails as soon as the client has acknowledged it; None: it has not failed."""
        return None


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


def session_lifetime_ms(expires_ms: int | None, now_ms: int, max_reauth_ms: int) -> int | None:
    """Return how long a connection may be used before its client must authenticate again (KIP-368).

    ``expires_ms``: of the credential; ``max_reauth_ms``: ``connections.max.reauth.ms``, 0 for no limit.
    None: for as long as it is open.
    """
    limits = [] if expires_ms is None else [max(0, expires_ms - now_ms)]
    if max_reauth_ms > 0:
        limits.append(max_reauth_ms)
    return min(limits, default=None)
