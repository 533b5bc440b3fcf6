"""The common base of group and transaction coordinators: effects, turns, timers, record encoding.

A coordinator keeps its state in an internal topic: groups in ``__consumer_offsets``, transactions in
``__transaction_state``. Each partition of that topic has a *shard*, a pure state machine. Its *shell*, in the
broker, passes requests to it and carries out the effects that it returns. A *turn* is one call of a shard.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, NewType, TypeVar

import msgspec

# A *turn*: one call of a shard, with its time, and the records, results and actions collected so far.
#
# Its effects are records to append, and results and actions that wait for them. A coordinator's log has
# entries besides plain records: a transaction's records, and its end.

Token = NewType("Token", int)
"""Identifies a request that waits for its result. The shell creates it; the shard returns it with the
result."""

RecordT = TypeVar("RecordT")
ResultT = TypeVar("ResultT")
ActionT = TypeVar("ActionT")


class Producer(NamedTuple):
    """The producer in whose transaction records are written."""

    producer_id: int
    producer_epoch: int


class Effects(msgspec.Struct, Generic[RecordT, ResultT, ActionT], frozen=True):
    records: tuple[RecordT, ...] = ()
    results: tuple[tuple[Token, ResultT], ...] = ()
    actions: tuple[ActionT, ...] = ()
    """To be carried out after the results, in order."""
    producer: Producer | None = None
    """The records are part of this producer's transaction, and count once it is committed. None: the records
    are not transactional."""


class TransactionalRecord(msgspec.Struct, Generic[RecordT], frozen=True):
    """A record that counts once the producer's transaction is committed."""

    producer_id: int
    record: RecordT


class TransactionEnd(msgspec.Struct, frozen=True):
    producer_id: int
    committed: bool


class Turn(Generic[RecordT, ResultT, ActionT]):
    """Collects a call's effects. The shard changes its state itself, before or after it writes a record."""

    __slots__ = ("_actions", "_records", "_results", "now_ms", "producer", "wall_ms")

    def __init__(self, now_ms: int, wall_ms: int) -> None:
        self.now_ms = now_ms
        """Monotonic time, for timers."""
        self.wall_ms = wall_ms
        """Time since the epoch, for records."""
        self.producer: Producer | None = None
        """The producer in whose transaction all records of this turn are written; None: in none."""
        self._records: list[RecordT] = []
        self._results: list[tuple[Token, ResultT]] = []
        self._actions: list[ActionT] = []

    @property
    def records_count(self) -> int:
        return len(self._records)

    def write(self, record: RecordT) -> None:
        self._records.append(record)

    def write_all(self, records: Iterable[RecordT]) -> None:
        self._records.extend(records)

    def resolve(self, token: Token, result: ResultT) -> None:
        self._results.append((token, result))

    def act(self, action: ActionT) -> None:
        """Add an action, to be carried out once all records written so far are committed."""
        self._actions.append(action)

    def effects(self, waiting: set[Token]) -> Effects[RecordT, ResultT, ActionT]:
        """Return the collected effects.

        Results to requests that are not in ``waiting`` are left out, since their clients have disconnected.
        The requests that get a result now are removed from ``waiting``.
        """
        results = tuple(each for each in self._results if each[0] in waiting)
        waiting.difference_update(token for token, _ in results)
        return Effects(tuple(self._records), results, tuple(self._actions), self.producer)


# Deadlines by key, at most one for each key, of which the earliest can be taken.
#
# Moving a deadline to a later time, as every heartbeat does, costs one dictionary write: the heap keeps the
# earlier time, and the deadline is checked when that comes. Equal times are due in the order in which they
# were first set.

KeyT = TypeVar("KeyT", bound=Hashable)
KEPT = 1_000
"""So many entries of the heap may be outdated, and as many as there are deadlines: more are removed."""
MOVED_PER_CALL_MAX = 256
"""So many deadlines that were moved are put in their new place at once."""
SORTED_OUT_AT_ONCE = 16
"""In so many entries of the heap a call looks for outdated ones, once there are too many."""


class Timers(Generic[KeyT]):
    def __init__(self) -> None:
        self._deadlines: dict[KeyT, int] = {}
        self._heap: list[tuple[int, int, KeyT]] = []
        self._former: list[tuple[int, int, KeyT]] = []
        """A heap, too, whose entries are sorted out: those that are not outdated go to the other one."""
        self._queued: dict[KeyT, int] = {}
        """The earliest time in the heaps for each key; entries with other times are outdated."""
        self._pushes = 0

    def schedule(self, key: KeyT, at_ms: int) -> None:
        """Set the key's deadline, in place of an earlier one."""
        self._deadlines[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued:
            self._push(key, at_ms)

    def cancel(self, key: KeyT) -> None:
        if self._deadlines.pop(key, None) is None:
            return
        if not self._former and len(self._heap) > 2 * len(self._deadlines) + KEPT:
            self._former, self._heap = self._heap, []
        self._sort_out()

    def _sort_out(self) -> None:
        """Go on with the former heap: its outdated entries have keys that may be long, and times far off."""
        for _ in range(min(SORTED_OUT_AT_ONCE, len(self._former))):
            entry = self._former.pop()  # the last one: the others are still a heap
            at_ms, _, key = entry
            if self._queued.get(key) != at_ms:
                continue
            if key in self._deadlines:
                heapq.heappush(self._heap, entry)
            else:
                del self._queued[key]

    def _first_heap(self) -> list[tuple[int, int, KeyT]]:
        """Return the heap with the earliest entry."""
        is_former = self._former and (not self._heap or self._former[0] < self._heap[0])
        return self._former if is_former else self._heap

    def deadline(self, key: KeyT) -> int | None:
        return self._deadlines.get(key)

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline; an earlier time if very many deadlines were moved behind it: the time
        of the next call, which goes on from there."""
        self._sort_out()
        for _ in range(MOVED_PER_CALL_MAX):
            heap = self._first_heap()
            if not heap:
                return None
            at_ms, _, key = heap[0]
            if self._queued.get(key) != at_ms:
                heapq.heappop(heap)
                continue
            deadline = self._deadlines.get(key)
            if deadline == at_ms:
                return at_ms
            heapq.heappop(heap)
            del self._queued[key]
            if deadline is not None:
                self._push(key, deadline)
        heap = self._first_heap()
        return heap[0][0] if heap else None

    def take_due(self, now_ms: int) -> KeyT | None:
        """Remove the earliest deadline that is due, and return its key; None if none is due, or if one is
        behind so many deadlines that were moved that the next call finds it."""
        at_ms = self.next_deadline_ms()
        heap = self._first_heap()
        if at_ms is None or at_ms > now_ms or self._deadlines.get(heap[0][2]) != at_ms:
            return None
        _, _, key = heapq.heappop(heap)
        del self._queued[key]
        del self._deadlines[key]
        return key

    def _push(self, key: KeyT, at_ms: int) -> None:
        self._queued[key] = at_ms
        self._pushes += 1
        heapq.heappush(self._heap, (at_ms, self._pushes, key))
