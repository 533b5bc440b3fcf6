"""The ledger of one share group: what was put, given to members and acknowledged, as its clients know it.

What it promises is checked without the brokers' own state:

- what a member has accepted or rejected, and the response said so, no later fetch gives to anyone;
- a record is not given to another member while the lock of the one that has it is valid;
- a late acknowledgement, after the lock, is refused, unless the record may have been archived meanwhile (what
  lies below the start offset is ignored);
- no record has more deliveries than the limit and two for each election of a leader, or a delivery count
  above the limit; none of an aborted transaction is given to anyone. An election forgets the delivery whose
  lock has not ended, and the one before it if the end of that lock was acted on, and not yet written;
- the start offset never goes back;
- at rest each acknowledged record has been accepted or rejected, or was delivered as often as the limit says:
  deliveries whose response was lost count, since their member may have got them.

Times are seconds of the simulated world.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

FINDINGS_MAX = 10
CLOCK_TOLERANCE = 1.05
"""Brokers' clocks are so much faster or slower than the world's, at most."""

FORGOTTEN_PER_ELECTION = 2

Place = tuple[str, int]
"""A partition and an offset."""


@dataclass(slots=True, eq=False)
class Session:
    """A member's share session with one broker, as long as both agree on its epoch."""

    member: str
    broker: int
    is_over: bool = False


@dataclass(slots=True, eq=False)
class Fetch:
    """A fetch that was sent; its outcome is unknown until its response arrives."""

    session: Session
    partitions: tuple[str, ...]
    sent_s: float
    leaderships: dict[str, int]
    """Their numbers when it was sent, of partitions whose leader the broker was."""


@dataclass(slots=True)
class _Delivery:
    session: Session
    leadership: int | None
    """None: another one may have begun while it was given."""
    locked_until_s: float
    """At least so long, if nothing else ended the lock."""
    ends_by_s: float
    """The lock ended by then, unless it was renewed."""
    value: str
    count: int
    is_held: bool = True
    """Nothing was said of it."""

    def is_locked_for(self, other: Session, at_s: float) -> bool:
        """Whether ``other`` may not get it yet, unless the session that has it is over."""
        held = self.is_held and not self.session.is_over
        return held and self.session is not other and at_s < self.locked_until_s


@dataclass(slots=True)
class ShareLedger:
    limit: int
    """``group.share.delivery.count.limit``."""
    lock_s: float
    violations: list[str] = field(default_factory=list[str])
    deliveries: Counter[Place] = field(default_factory=Counter[Place])
    done: dict[Place, str] = field(default_factory=dict[Place, str])
    """What was accepted or rejected, and the response said so."""
    counted: Counter[str] = field(default_factory=Counter[str])
    """How often members did what."""
    _maybe_done: Counter[Place] = field(default_factory=Counter[Place])
    """How often it was accepted or rejected by a request that is not known to have failed."""
    _values: dict[Place, str] = field(default_factory=dict[Place, str])
    _places: dict[tuple[str, str], Place] = field(default_factory=dict[tuple[str, str], Place])
    """By partition and value."""
    _last: dict[Place, _Delivery] = field(default_factory=dict[Place, _Delivery])
    _done_s: dict[Place, float] = field(default_factory=dict[Place, float])
    _suspicions: dict[Session, list[str]] = field(default_factory=dict[Session, list[str]])
    """What is wrong if the session turns out not to have been over."""
    _unknown: dict[Fetch, None] = field(default_factory=dict[Fetch, None])
    _starts: dict[str, int] = field(default_factory=dict[str, int])

    def _find(self, what: str) -> None:
        if len(self.violations) < FINDINGS_MAX:
            self.violations.append(f"share group: {what}")

    # --- fetches

    def fetches(self, fetch: Fetch) -> None:
        self._unknown[fetch] = None

    def answered(self, fetch: Fetch) -> None:
        """The response has arrived; the session was not over, so what depended on that is certain."""
        self._unknown.pop(fetch, None)
        self.goes_on(fetch.session)

    def goes_on(self, session: Session) -> None:
        for suspicion in self._suspicions.pop(session, ()):
            self._find(suspicion)

    def ends(self, session: Session) -> None:
        """The session is over, or may be: what its member holds may be given to others."""
        session.is_over = True
        self._suspicions.pop(session, None)

    def delivered(
        self,
        fetch: Fetch,
        partition: str,
        offset: int,
        value: str,
        count: int,
        at_s: float,
        leadership: int | None,
    ) -> None:
        """A record was given with this delivery count, and the response came in this leadership."""
        place = partition, offset
        member = fetch.session.member
        self.deliveries[place] += 1
        self.counted["share deliveries"] += 1
        if self._values.setdefault(place, value) != value:
            self._find(f"{place} is {self._values[place]}, and {value} for {member}")
        self._places[partition, value] = place
        if not 1 <= count <= self.limit:
            self._find(f"{value} at {place} has the delivery count {count}, above the limit {self.limit}")
        if place in self._done_s and fetch.sent_s > self._done_s[place]:
            self._find(f"{value} at {place} was {self.done[place]}, and given to {member} later")
        throughout = leadership if fetch.leaderships.get(partition) == leadership else None
        before = self._last.get(place)
        same_leader = before is not None and before.leadership is not None and before.leadership == throughout
        if before is not None and same_leader and count < before.count:
            return  # the response came late: its lock was over when the leader gave the record again
        if before is not None and same_leader and before.is_locked_for(fetch.session, at_s):
            self._suspicions.setdefault(before.session, []).append(
                f"{value} at {place} was locked by {before.session.member} until "
                f"{before.locked_until_s:.2f} s, and given to {member} at {at_s:.2f} s"
            )
        self._last[place] = _Delivery(
            fetch.session,
            throughout,
            fetch.sent_s + self.lock_s / CLOCK_TOLERANCE,
            at_s + self.lock_s * CLOCK_TOLERANCE,
            value,
            count,
        )

    # --- acknowledgements

    def acknowledges(self, session: Session, partition: str, offset: int) -> None:
        """It is sent: from now on the lock may be over."""
        held = self._last.get((partition, offset))
        if held is not None and held.session is session:
            held.is_held = False

    def acknowledged(
        self, session: Session, partition: str, offset: int, what: str, sent_s: float, at_s: float
    ) -> None:
        """The response said that it is so. ``what``: accepted, rejected, released or renewed."""
        place = partition, offset
        self.counted[f"share records {what}"] += 1
        held = self._last.get(place)
        mine = held is not None and held.session is session
        may_be_archived = held is not None and held.count + self._without_response(partition) >= self.limit
        if held is not None and mine and sent_s > held.ends_by_s and not may_be_archived:
            self._find(
                f"{held.value} at {place} was {what} by {session.member} at {sent_s:.2f} s, and that was "
                f"taken, though its lock had ended by {held.ends_by_s:.2f} s"
            )
        if what == "renewed":
            if held is not None and mine:
                held.is_held = True
                held.locked_until_s = sent_s + self.lock_s / CLOCK_TOLERANCE
                held.ends_by_s = at_s + self.lock_s * CLOCK_TOLERANCE
        elif what in ("accepted", "rejected"):
            self.done[place] = what
            self._done_s.setdefault(place, at_s)

    def maybe_done(self, partition: str, offset: int) -> None:
        """A request that is sent now accepts or rejects it: its member may die before the response."""
        self._maybe_done[partition, offset] += 1

    def refused(self, partition: str, offset: int) -> None:
        """That request has certainly changed nothing."""
        self._maybe_done[partition, offset] -= 1

    # --- the group

    def started(self, partition: str, offset: int) -> None:
        """The start offset in a response, asked for after the one before had arrived."""
        before = self._starts.get(partition, -1)
        if offset < before:
            self._find(f"the start offset of {partition} was {before}, and is {offset}")
        self._starts[partition] = max(before, offset)

    def _without_response(self, partition: str) -> int:
        """Return how many fetches had no response, or none yet: each may have been a delivery."""
        return sum(partition in fetch.partitions for fetch in self._unknown)

    def judge(self, elections: Callable[[str], int], aborted: Iterable[str]) -> Iterator[str]:
        yield from self.violations
        for place, times in sorted(self.deliveries.items()):
            allowed = self.limit + FORGOTTEN_PER_ELECTION * elections(place[0])
            if times > allowed:
                value = self._values[place]
                yield f"share group: {value} at {place} was delivered {times} times of {allowed}"
        gone = frozenset(aborted)
        for place, value in sorted(self._values.items()):
            if value in gone:
                yield f"share group: {value} at {place} was delivered, though its transaction is aborted"

    def missing(self, acknowledged: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Return what was put, of (partition, value), and is neither done nor delivered often enough.

        No response is to come any more.
        """
        for partition, value in acknowledged:
            place = self._places.get((partition, value))
            if place is not None and (place in self.done or self._maybe_done[place]):
                continue
            seen = 0 if place is None else self.deliveries[place]
            lost = self._without_response(partition)
            if seen + lost < self.limit:
                yield (
                    f"share group: {value}, put in {partition}, is done, and no member accepted or rejected "
                    f"it: it was delivered {seen} times, and {lost} responses were lost"
                )
