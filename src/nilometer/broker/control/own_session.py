"""This broker's session in the coordination store. Only the membership changes it."""

from __future__ import annotations

import asyncio

from nilometer.coordination.store import Session
from nilometer.identifiers import Incarnation


class OwnSession:
    """The newest session of this broker; none before it has joined the cluster."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._registered = asyncio.Event()

    def begin(self, session: Session) -> None:
        """Replace the previous session with ``session``."""
        self._session = session

    def note_registered(self) -> None:
        """Record that the metadata log has this incarnation of the broker."""
        self._registered.set()

    def note_lost(self) -> None:
        """Record that the session has ended: the broker is not registered until its next one is folded."""
        self._registered.clear()

    @property
    def is_registered(self) -> bool:
        """Whether the metadata log has this incarnation of the broker, and its session has not ended."""
        return self._registered.is_set()

    async def wait_registered(self) -> None:
        """Wait until the metadata log has this incarnation of the broker."""
        await self._registered.wait()

    @property
    def current(self) -> Session:
        """The newest session. Only after :meth:`begin`."""
        assert self._session is not None, "the broker has joined the cluster"
        return self._session

    @property
    def incarnation(self) -> Incarnation | None:
        """The incarnation of the current or the next registration; None before the first session."""
        return None if self._session is None else incarnation_of(self._session.name.incarnation)

    def is_live(self) -> bool:
        """Whether this broker may still lead and serve: its session cannot have expired yet."""
        return self._session is not None and self._session.is_live()


def incarnation_of(number: int) -> Incarnation:
    """Return a session's incarnation as the metadata log has it."""
    return Incarnation(str(number))
