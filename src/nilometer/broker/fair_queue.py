"""Fair turns: which of the connections that wait is served next, by its client and by what requests cost.

Deficit round robin on two levels. First clients take turns, each with all that it has: a principal, or the
address of a client that has not logged in. Within one of them its client ids take turns, so that
applications of one host do not wait for each other; a client that makes up many names divides only its own
share. The connections of a client id are served in the order in which they came.

A *flow* is what takes turns at one level. In each round it gets ``QUANTUM_US``, and its turn ends when what
was served has cost that; what it cost above is subtracted in the next rounds.

Invariant: a flow that joins waits at most for ``QUANTUM_US`` and one item of each other flow of its level.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

QUANTUM_US = 2_000
COST_US_MIN = 20
"""An item costs this much at least, also where no time passes, as in simulation."""


class _Flow(Generic[T]):
    __slots__ = ("credit_us", "items", "key")

    def __init__(self, key: str, items: T) -> None:
        self.key = key
        self.items = items
        self.credit_us = QUANTUM_US


class _Round(Generic[T]):
    """The flows of one level, in the order of their turns."""

    __slots__ = ("_by_key", "_order")

    def __init__(self) -> None:
        self._by_key: dict[str, _Flow[T]] = {}
        self._order: deque[_Flow[T]] = deque()

    def __bool__(self) -> bool:
        return bool(self._order)

    def find(self, key: str) -> _Flow[T] | None:
        return self._by_key.get(key)

    def join(self, key: str, items: T) -> _Flow[T]:
        flow = self._by_key[key] = _Flow(key, items)
        self._order.append(flow)
        return flow

    def first(self) -> _Flow[T]:
        """Return the flow whose turn it is."""
        order = self._order
        while order[0].credit_us <= 0:
            order[0].credit_us += QUANTUM_US
            order.rotate(-1)
        return order[0]

    def leave_first(self) -> None:
        """Remove the flow whose turn it is: it has nothing left."""
        del self._by_key[self._order.popleft().key]


class FairQueue(Generic[T]):
    def __init__(self) -> None:
        self._clients: _Round[_Round[deque[T]]] = _Round()
        self._client: _Flow[_Round[deque[T]]] | None = None  # whose item was taken last
        self._client_id: _Flow[deque[T]] | None = None

    def __bool__(self) -> bool:
        return bool(self._clients)

    def add(self, client: str, client_id: str, item: T) -> None:
        flow = self._clients.find(client)
        if flow is None:
            flow = self._clients.join(client, _Round())
        named = flow.items.find(client_id)
        if named is None:
            named = flow.items.join(client_id, deque())
        named.items.append(item)

    def take(self) -> T:
        """Remove the next item and return it; :meth:`charge` notes what it cost."""
        client = self._client = self._clients.first()
        named = self._client_id = client.items.first()
        item = named.items.popleft()
        if not named.items:
            client.items.leave_first()
            if not client.items:
                self._clients.leave_first()
        return item

    def charge(self, cost_us: int) -> None:
        """Note what the item cost that was taken last."""
        cost_us = max(cost_us, COST_US_MIN)
        if self._client is not None and self._client_id is not None:
            self._client.credit_us -= cost_us
            self._client_id.credit_us -= cost_us
