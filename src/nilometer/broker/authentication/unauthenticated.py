"""How many connections of each address have not authenticated yet."""

from __future__ import annotations


class UnauthenticatedConnections:
    """Invariant: an address has an entry only while it has such connections."""

    def __init__(self, max_per_address: int) -> None:
        self._max_per_address = max_per_address
        self._open: dict[str, int] = {}

    def take(self, address: str) -> bool:
        """Count one more connection; return false, and count nothing, if the address has too many."""
        count = self._open.get(address, 0)
        if count >= self._max_per_address:
            return False
        self._open[address] = count + 1
        return True

    def release(self, address: str) -> None:
        count = self._open.pop(address, 0)
        if count > 1:
            self._open[address] = count - 1
