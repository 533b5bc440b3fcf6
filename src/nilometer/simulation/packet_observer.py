"""What an observer of the simulated network is notified of. Observing changes nothing in the simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nilometer.simulation.fabric import NetworkUser


class DirectionObserver(Protocol):
    """Observes the bytes of one direction of one connection."""

    def on_sent(self, data: bytes) -> None: ...

    def on_arrived(self, size: int, is_open: bool) -> None:
        """The next ``size`` bytes have arrived. ``is_open``: whether the receiver still has the connection
        open; if not, nothing reads them."""
        ...

    def on_dropped(self) -> None:
        """No byte that is in transit will arrive."""
        ...


class NetworkObserver(Protocol):
    def on_connection(
        self, client: NetworkUser, server: NetworkUser
    ) -> tuple[DirectionObserver, DirectionObserver] | None:
        """Return the observers of the directions to the server and back; None: it is not observed."""
        ...
